//! The texts of a statement in its language, arranged in tables. Each output format renders this same arrangement.
//! Invoices are arranged by this module, too.

use tollgate_layers::{
    calendar::{DAY_MS, date_of_day},
    respond::Language,
};

use super::{
    Amount, Document, Entries, EntryLine, Spending, Vat,
    money::{Micro, count},
    payment_code::Code,
};
use crate::{
    config::SellerConfig,
    text::language::say,
    text::time::{for_people, parse_rfc3339_ms},
};

/// The texts of a statement or an invoice and their arrangement.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) language: Language,
    pub(super) title: String,
    /// A warning that is shown above all other texts.
    pub(super) warning: Option<String>,
    /// The seller, the account and the dates, each as a label and a text.
    pub(super) facts: Vec<(&'static str, String)>,
    pub(super) tables: Vec<Table>,
    /// The payment code of an invoice.
    pub(super) code: Option<Code>,
    pub(super) notes: Vec<String>,
}

/// A table. Its last column contains amounts.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) heading: &'static str,
    /// Whether the column is aligned to the right, as numbers are.
    pub(super) right: bool,
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    /// Whether the row is a sum of other rows.
    pub(super) strong: bool,
}

pub(super) const fn text(heading: &'static str) -> Column {
    let right = false;
    Column { heading, right }
}

pub(super) const fn number(heading: &'static str) -> Column {
    let right = true;
    Column { heading, right }
}

impl Sheet {
    /// Returns the code of the language: `en` or `ru`.
    pub(super) const fn lang(&self) -> &'static str {
        say(self.language, "ru", "en")
    }

    pub(super) fn new(document: &Document, language: Language) -> Self {
        let words = Words { language };
        let offset = document.utc_offset_minutes;
        Self {
            language,
            title: words.title(document),
            warning: (document.as_of.as_deref()).map(|at| words.open(at, offset)),
            facts: words.facts(document),
            tables: vec![
                words.summary(document),
                words.payments(&document.payments, offset),
                words.corrections(&document.corrections, offset),
                words.spending(document),
            ],
            code: None,
            notes: words.notes(document),
        }
    }
}

/// Selects and formats the texts of one language.
pub(super) struct Words {
    pub(super) language: Language,
}

const MONTHS_RU: &str =
    "январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь";
const MONTHS_EN: &str =
    "January February March April May June July August September October November December";

impl Words {
    const fn say(&self, ru: &'static str, en: &'static str) -> &'static str {
        say(self.language, ru, en)
    }

    fn title(&self, document: &Document) -> String {
        let (number, year) = (&document.number, document.month_of.year());
        let mut months = self.say(MONTHS_RU, MONTHS_EN).split(' ');
        let month = usize::try_from(document.month_of.of_year()).ok();
        let month = month
            .and_then(|month| months.nth(month))
            .unwrap_or_default();
        match self.language {
            Language::En => format!("Statement {number} for {month} {year}"),
            _ => format!("Выписка №\u{a0}{number} за {month} {year} года"),
        }
    }

    fn open(&self, at: &str, utc_offset_minutes: i32) -> String {
        let shown = parse_rfc3339_ms(at).map(|ms| for_people(ms, utc_offset_minutes));
        let at = shown.unwrap_or_else(|| at.to_owned());
        match self.language {
            Language::En => format!("Preliminary: the month is not closed. As of {at}."),
            _ => format!("Предварительно: месяц не закрыт. По состоянию на {at}."),
        }
    }

    fn facts(&self, document: &Document) -> Vec<(&'static str, String)> {
        let mut facts = Vec::new();
        if let Some(seller) = &document.seller {
            self.seller(seller, &mut facts);
        }
        let customer = format!("{} ({})", document.name, document.account);
        facts.push((self.say("Заказчик", "Customer"), customer));
        let offset = document.utc_offset_minutes;
        let time = document.month_of.time(offset);
        let (first, last) = (day(time.start, offset), day(time.end - 1, offset));
        let period = format!("{first} – {last} (UTC{})", document.utc_offset);
        facts.push((self.say("Период", "Period"), period));
        facts
    }

    /// Appends those of the seller's details that are set.
    pub(super) fn seller(&self, seller: &SellerConfig, facts: &mut Vec<(&'static str, String)>) {
        facts.push((self.say("Исполнитель", "Seller"), seller.name.clone()));
        let mut add = |label, text: &Option<String>| {
            facts.extend(text.clone().map(|text| (label, text)));
        };
        add(self.say("ИНН", "Taxpayer number"), &seller.inn);
        add(self.say("КПП", "Registration code"), &seller.kpp);
        add(self.say("ОГРН", "State register number"), &seller.ogrn);
        add(self.say("Адрес", "Address"), &seller.address);
        add(self.say("Банк", "Bank"), &seller.bank);
        add(self.say("БИК", "Bank number"), &seller.bik);
        add(self.say("Расчётный счёт", "Account"), &seller.bank_account);
        let correspondent = self.say("Корреспондентский счёт", "Correspondent account");
        add(correspondent, &seller.correspondent_account);
        add(self.say("Контакты", "Contact"), &seller.contact);
    }

    fn summary(&self, document: &Document) -> Table {
        let row = |name: String, amount: &Amount, strong| Row {
            cells: vec![
                name,
                amount.exact_rub.for_people(self.language),
                amount.rub.for_people(self.language),
            ],
            strong,
        };
        let (name, rub) = self.vat(&document.vat);
        let vat = Row {
            cells: vec![name, String::new(), rub],
            strong: false,
        };
        let named = |ru, en, amount, strong| row(self.say(ru, en).to_owned(), amount, strong);
        let (opening, closing) = (&document.opening, &document.closing);
        let (payments, spending) = (&document.payments.amount, &document.spending.amount);
        let corrections = &document.corrections.amount;
        Table {
            title: self.say("Итоги", "Summary"),
            columns: vec![
                text(""),
                number(self.say("Точно,\u{a0}₽", "Exact,\u{a0}₽")),
                number(self.say("Сумма,\u{a0}₽", "Amount,\u{a0}₽")),
            ],
            rows: vec![
                named("Остаток на начало", "Opening balance", opening, true),
                named("Оплаты", "Payments", payments, false),
                named("Корректировки", "Corrections", corrections, false),
                named("Списано за услуги", "Spending", spending, false),
                vat,
                named("Остаток на конец", "Closing balance", closing, true),
            ],
        }
    }

    /// Returns the label and the amount of the VAT. If there is no VAT, the label states the reason, and the amount is
    /// empty.
    pub(super) fn vat(&self, vat: &Vat) -> (String, String) {
        match &vat.percent {
            Some(percent) => (
                match self.language {
                    Language::En => format!("including VAT at {percent} %"),
                    _ => format!("в том числе НДС {percent}\u{a0}%").replace('.', ","),
                },
                vat.rub.for_people(self.language),
            ),
            None => {
                let none = self.say("Без НДС", "Without VAT");
                let note = vat.note.clone().unwrap_or_else(|| none.to_owned());
                (note, String::new())
            }
        }
    }

    fn payments(&self, entries: &Entries, offset: i32) -> Table {
        let title = self.say("Оплаты", "Payments");
        self.entries(title, entries, offset, false)
    }

    fn corrections(&self, entries: &Entries, offset: i32) -> Table {
        let title = self.say("Корректировки", "Corrections");
        self.entries(title, entries, offset, true)
    }

    fn entries(
        &self,
        title: &'static str,
        entries: &Entries,
        offset: i32,
        with_reason: bool,
    ) -> Table {
        let mut columns = vec![
            text(self.say("Дата", "Date")),
            text(self.say("Номер", "Number")),
        ];
        if with_reason {
            columns.push(text(self.say("Основание", "Reason")));
        }
        let row = |line: &EntryLine| {
            let mut cells = vec![day(line.at_ms, offset), line.id.clone()];
            if with_reason {
                cells.push(line.reason.clone().unwrap_or_default());
            }
            cells.push(Micro::new(line.amount_rub.micro().into()).for_people(self.language));
            let strong = false;
            Row { cells, strong }
        };
        let mut rows: Vec<Row> = entries.entries.iter().map(row).collect();
        rows.push(self.total(columns.len(), &entries.amount));
        columns.push(number(self.say("Сумма,\u{a0}₽", "Amount,\u{a0}₽")));
        Table {
            title,
            columns,
            rows,
        }
    }

    /// Returns a table's last row, with the sum in its last column, after `before` other columns.
    fn total(&self, before: usize, amount: &Amount) -> Row {
        let mut cells = vec![String::new(); before];
        cells[0] = self.say("Итого", "Total").to_owned();
        cells.push(amount.rub.for_people(self.language));
        let strong = true;
        Row { cells, strong }
    }

    fn spending(&self, document: &Document) -> Table {
        Table {
            title: self.say("Списания по моделям", "Spending by model"),
            columns: vec![
                text(self.say("Модель", "Model")),
                number(self.say("Запросы", "Requests")),
                number(self.say("Токены, вход", "Tokens in")),
                number(self.say("Токены, выход", "Tokens out")),
                number(self.say("Точно,\u{a0}₽", "Exact,\u{a0}₽")),
                number(self.say("Сумма,\u{a0}₽", "Amount,\u{a0}₽")),
            ],
            rows: self.models(&document.spending),
        }
    }

    /// Returns one row per model, one row for the rounding difference, and one row for their sum.
    fn models(&self, spending: &Spending) -> Vec<Row> {
        let language = self.language;
        let lines = spending.models.iter();
        let mut rows: Vec<Row> = lines
            .map(|line| Row {
                cells: vec![
                    line.model.clone(),
                    count(line.calls, language),
                    count(line.usage.input_total(), language),
                    count(line.usage.output_total(), language),
                    line.amount.exact_rub.for_people(language),
                    line.amount.rub.for_people(language),
                ],
                strong: false,
            })
            .collect();
        let mut rounding = vec![String::new(); 6];
        rounding[0] = self.say("Округление", "Rounding").to_owned();
        rounding[5] = spending.models_rounding_rub.for_people(language);
        rows.push(Row {
            cells: rounding,
            strong: false,
        });
        let calls = spending.models.iter().map(|line| line.calls).sum();
        let mut total = self.total(5, &spending.amount);
        total.cells[1] = count(calls, language);
        total.cells[4] = spending.amount.exact_rub.for_people(language);
        rows.push(total);
        rows
    }

    fn notes(&self, document: &Document) -> Vec<String> {
        vec![
            self.say(
                "Остатки, оплаты и корректировки округлены до копейки, списанное — разница между ними: остаток на начало + \
                 оплаты + корректировки − списано = остаток на конец. «Точно» — суммы учёта без округления.",
                "Balances, payments and corrections are rounded to the kopeck, and spending is the difference between \
                 them: opening balance + payments + corrections − spending = closing balance. \"Exact\" columns have the \
                 ledger's sums without rounding.",
            )
            .to_owned(),
            format!("SHA-256: {}", document.sha256()),
        ]
    }
}

/// Writes a date in the format of Russian documents, in a time zone that is `utc_offset_minutes` ahead of UTC.
pub(super) fn day(ms: u64, utc_offset_minutes: i32) -> String {
    let ms = ms.saturating_add_signed(i64::from(utc_offset_minutes) * 60_000);
    let (year, month, day) = date_of_day(i64::try_from(ms / DAY_MS).unwrap_or_default());
    format!("{day:02}.{month:02}.{year:04}")
}
