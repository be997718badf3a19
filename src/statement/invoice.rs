//! Invoices for companies (счёт на оплату): the amount, the bank account to pay to, and a payment code according to
//! ГОСТ Р 56042-2014.
//!
//! An invoice moves no money and is not stored. Its number consists of the account, the date and the amount. So no
//! counter is needed, and the same request returns the same invoice. Invoices are in Russian, because Russian banks and
//! accountants read them.

use serde::Serialize;
use tollgate_layers::{key::AccountId, money::MicroRub, respond::Language};

use super::{
    Kopecks, Vat, html,
    in_words::in_words,
    json, payment_code,
    payment_code::Code,
    pdf,
    sheet::{self, Row, Sheet, Table, Words, number, text},
};
use crate::{config::SellerConfig, text::time::day};

const MICRO_PER_KOPECK: i64 = 10_000;
const ITEM: &str = "Пополнение баланса";
const CAPTION: &str = "Код для оплаты. Наведите на него камеру в приложении банка: реквизиты, сумма и назначение \
    платежа заполнятся сами (ГОСТ Р 56042-2014).";
const NOTE: &str =
    "Укажите номер счёта в назначении платежа: по нему платёж зачисляется на баланс.";

/// The account, seller and amount of an invoice.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) account: &'a AccountId,
    /// The account's name.
    pub(crate) name: &'a str,
    pub(crate) seller: Option<&'a SellerConfig>,
    pub(crate) amount: MicroRub,
    /// A time on the invoice's date, in milliseconds, in the seller's time zone.
    pub(crate) date_ms: u64,
}

/// The reason why an invoice cannot be made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InvoiceError {
    /// The amount is not a positive number of whole kopecks.
    NotKopecks,
    /// The seller's settings with these names are missing.
    Unset(Vec<&'static str>),
}

/// An invoice with all the data that any of its formats contains.
#[derive(Debug, Serialize)]
pub(crate) struct Invoice {
    number: String,
    account: AccountId,
    name: String,
    date: String,
    amount_rub: Kopecks,
    amount_in_words: String,
    vat: Vat,
    purpose: String,
    /// The text of the payment code.
    payment_code: String,
    seller: SellerConfig,
    /// The date in the form of Russian documents.
    #[serde(skip)]
    of: String,
}

/// The seller's details that a bank transfer needs.
struct Payee<'a> {
    inn: &'a str,
    bank: &'a str,
    bik: &'a str,
    bank_account: &'a str,
    correspondent_account: &'a str,
}

impl<'a> Payee<'a> {
    fn new(seller: &'a SellerConfig) -> Result<Self, InvoiceError> {
        let mut unset = Vec::new();
        let mut set = |text: &'a Option<String>, setting| {
            let text = text.as_deref().filter(|text| !text.trim().is_empty());
            text.unwrap_or_else(|| {
                unset.push(setting);
                ""
            })
        };
        let correspondent = &seller.correspondent_account;
        let payee = Self {
            inn: set(&seller.inn, "seller.inn"),
            bank: set(&seller.bank, "seller.bank"),
            bik: set(&seller.bik, "seller.bik"),
            bank_account: set(&seller.bank_account, "seller.bank_account"),
            correspondent_account: set(correspondent, "seller.correspondent_account"),
        };
        match unset.is_empty() {
            true => Ok(payee),
            false => Err(InvoiceError::Unset(unset)),
        }
    }
}

impl Invoice {
    /// Returns whether the settings have all that invoices need.
    pub(crate) fn is_possible(seller: Option<&SellerConfig>) -> bool {
        seller.is_some_and(|seller| Payee::new(seller).is_ok())
    }

    /// Converts a time to the seller's time zone.
    pub(crate) fn now(seller: Option<&SellerConfig>, now_ms: u64) -> u64 {
        let offset = seller.map_or(0, |seller| seller.utc_offset_minutes);
        now_ms.saturating_add_signed(i64::from(offset) * 60_000)
    }

    /// Makes the invoice for an order.
    ///
    /// # Errors
    /// An error if the amount is not a positive number of whole kopecks, or if the seller's settings are incomplete.
    pub(crate) fn new(order: &Order<'_>) -> Result<Self, InvoiceError> {
        let unset = || InvoiceError::Unset(vec!["seller.name"]);
        let seller = order.seller.ok_or_else(unset)?;
        let payee = Payee::new(seller)?;
        let micro = order.amount.micro();
        if micro <= 0 || micro % MICRO_PER_KOPECK != 0 {
            return Err(InvoiceError::NotKopecks);
        }
        let kopecks = (micro / MICRO_PER_KOPECK).unsigned_abs();
        let date = day(order.date_ms);
        let number = format!("{}-{}-{kopecks}", order.account, date.replace('-', ""));
        let of = sheet::day(order.date_ms, 0);
        let vat = Vat::new(Some(seller), kopecks.into());
        let purpose = purpose(&number, &of, &vat);
        let sum = kopecks.to_string();
        let kpp = seller.kpp.as_deref().map(|kpp| ("KPP", kpp, 9));
        let fields = [
            ("Name", seller.name.as_str(), 160),
            ("PersonalAcc", payee.bank_account, 20),
            ("BankName", payee.bank, 45),
            ("BIC", payee.bik, 9),
            ("CorrespAcc", payee.correspondent_account, 20),
            ("PayeeINN", payee.inn, 12),
        ];
        let last = [("Purpose", &*purpose, 210), ("Sum", &*sum, 18)];
        let payment_code = payment_code::text(fields.into_iter().chain(kpp).chain(last));
        Ok(Self {
            number,
            account: order.account.clone(),
            name: order.name.to_owned(),
            date,
            amount_rub: Kopecks::new(kopecks.into()),
            amount_in_words: in_words(kopecks),
            vat,
            payment_code,
            purpose,
            seller: seller.clone(),
            of,
        })
    }

    /// Returns the invoice's number, which is also the name of its files without the extension.
    pub(crate) fn number(&self) -> &str {
        &self.number
    }

    /// Returns the invoice as JSON, the API's format.
    pub(crate) fn json(&self) -> Vec<u8> {
        json(self)
    }

    /// Returns the invoice as an HTML page.
    pub(crate) fn html(&self) -> String {
        html::written(&self.sheet())
    }

    /// Returns the invoice as PDF.
    pub(crate) fn pdf(&self) -> Vec<u8> {
        pdf::written(&self.sheet(), &self.number, &self.number)
    }

    fn sheet(&self) -> Sheet {
        let language = Language::Ru;
        let words = Words { language };
        let amount = self.amount_rub.for_people(language);
        let mut facts = Vec::new();
        words.seller(&self.seller, &mut facts);
        let customer = match self.name.trim() {
            "" => self.account.to_string(),
            name => format!("{name} ({})", self.account),
        };
        facts.push(("Заказчик", customer));
        facts.push(("Назначение платежа", self.purpose.clone()));
        let total = format!("{amount}\u{a0}₽ ({})", self.amount_in_words);
        facts.push(("К оплате", total));
        let row = |name: &str, amount: String, strong| Row {
            cells: vec![name.to_owned(), amount],
            strong,
        };
        let (vat, of_it) = words.vat(&self.vat);
        let table = Table {
            title: "Состав счёта",
            columns: vec![text("Наименование"), number("Сумма,\u{a0}₽")],
            rows: vec![
                row(ITEM, amount.clone(), false),
                row("Всего к оплате", amount, true),
                row(&vat, of_it, false),
            ],
        };
        Sheet {
            language,
            title: format!("Счёт на оплату №\u{a0}{} от {}", self.number, self.of),
            warning: None,
            facts,
            tables: vec![table],
            code: Code::new(&self.payment_code, CAPTION),
            notes: vec![NOTE.to_owned()],
        }
    }
}

/// Returns the purpose of payment for the bank transfer. Banks refuse unusual characters in it, so it has no currency
/// sign.
fn purpose(number: &str, of: &str, vat: &Vat) -> String {
    let tax = match (&vat.percent, &vat.note) {
        (Some(percent), _) => format!("В том числе НДС {percent}% {} руб.", vat.rub),
        (None, Some(note)) => note.clone(),
        (None, None) => "Без НДС".to_owned(),
    };
    format!("Оплата по счёту № {number} от {of}, пополнение баланса. {tax}")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rust_decimal::Decimal;
    use tollgate_layers::calendar::DAY_MS;

    use super::*;
    use crate::statement::payment_code::tests::decoded;

    /// 29 November 2026, the date of the tested invoices.
    const DATE_MS: u64 = 20_786 * DAY_MS;

    fn seller() -> SellerConfig {
        SellerConfig {
            name: "ООО «Ромашка»".into(),
            inn: Some("7701234567".into()),
            kpp: Some("770101001".into()),
            bank: Some("ПАО «Банк»".into()),
            bik: Some("044500001".into()),
            bank_account: Some("40702810900000000001".into()),
            correspondent_account: Some("30101810000000000001".into()),
            vat_percent: Some(Decimal::from(22)),
            utc_offset_minutes: 180,
            ..SellerConfig::default()
        }
    }

    fn invoice(seller: &SellerConfig, name: &str, amount: &str) -> Result<Invoice, InvoiceError> {
        Invoice::new(&Order {
            account: &"acme".parse().unwrap(),
            name,
            seller: Some(seller),
            amount: amount.parse().unwrap(),
            date_ms: DATE_MS,
        })
    }

    #[test]
    fn invoice_has_everything_that_a_company_needs_to_pay() {
        let made = invoice(&seller(), "ООО «Акме»", "1000.50").unwrap();
        assert_eq!(made.number, "acme-20261129-100050");
        assert_eq!(
            made.payment_code,
            "ST00012|Name=ООО «Ромашка»|PersonalAcc=40702810900000000001|BankName=ПАО «Банк»|BIC=044500001|\
             CorrespAcc=30101810000000000001|PayeeINN=7701234567|KPP=770101001|Purpose=Оплата по счёту № \
             acme-20261129-100050 от 29.11.2026, пополнение баланса. В том числе НДС 22% 180.42 руб.|Sum=100050"
        );
        let html = made.html();
        for text in [
            "<h1>Счёт на оплату №\u{a0}acme-20261129-100050 от 29.11.2026</h1>",
            "<th>Исполнитель</th><td>ООО «Ромашка»</td>",
            "<th>ИНН</th><td>7701234567</td>",
            "<th>КПП</th><td>770101001</td>",
            "<th>Банк</th><td>ПАО «Банк»</td>",
            "<th>БИК</th><td>044500001</td>",
            "<th>Расчётный счёт</th><td>40702810900000000001</td>",
            "<th>Корреспондентский счёт</th><td>30101810000000000001</td>",
            "<th>Заказчик</th><td>ООО «Акме» (acme)</td>",
            "<th>К оплате</th><td>1\u{a0}000,50\u{a0}₽ (Одна тысяча рублей 50 копеек)</td>",
            "<td>Пополнение баланса</td><td class=\"number\">1\u{a0}000,50</td>",
            "<td>в том числе НДС 22\u{a0}%</td><td class=\"number\">180,42</td>",
        ] {
            assert!(html.contains(text), "{text}: {html}");
        }
        let json: serde_json::Value = serde_json::from_slice(&made.json()).unwrap();
        for (pointer, text) in [
            ("/number", "acme-20261129-100050"),
            ("/date", "2026-11-29"),
            ("/amount_rub", "1000.50"),
            ("/amount_in_words", "Одна тысяча рублей 50 копеек"),
            ("/vat/rub", "180.42"),
            ("/seller/bik", "044500001"),
            ("/payment_code", &made.payment_code),
        ] {
            assert_eq!(json.pointer(pointer).unwrap(), text, "{pointer}");
        }
    }

    #[test]
    fn same_amount_gives_the_same_invoice_and_another_amount_gives_another_number() {
        let one = invoice(&seller(), "", "5").unwrap();
        assert_eq!(one.pdf(), invoice(&seller(), "", "5.00").unwrap().pdf());
        assert_ne!(one.number, invoice(&seller(), "", "5.01").unwrap().number);
        assert!(one.html().contains("<td>acme</td>"));
        let midnight = 20_786 * DAY_MS - 180 * 60_000;
        let of = |ms| day(Invoice::now(Some(&seller()), ms));
        assert_eq!(
            (of(midnight - 1), of(midnight)),
            ("2026-11-28".into(), "2026-11-29".into())
        );
    }

    #[test]
    fn invoice_without_vat_states_the_sellers_reason() {
        let mut seller = seller();
        seller.vat_percent = None;
        let none = invoice(&seller, "", "1").unwrap();
        assert!(none.purpose.ends_with("баланса. Без НДС"), "{none:?}");
        seller.vat_note = Some("НДС не облагается".into());
        let noted = invoice(&seller, "", "1").unwrap();
        assert!(noted.purpose.ends_with("баланса. НДС не облагается"));
        assert!(noted.html().contains("<td>НДС не облагается</td>"));
    }

    #[test]
    fn error_names_the_seller_settings_that_an_invoice_lacks() {
        let mut bare = seller();
        bare.bik = None;
        bare.correspondent_account = Some(" ".into());
        let unset = vec!["seller.bik", "seller.correspondent_account"];
        assert!(!Invoice::is_possible(Some(&bare)) && Invoice::is_possible(Some(&seller())));
        assert_eq!(
            invoice(&bare, "", "1").unwrap_err(),
            InvoiceError::Unset(unset)
        );
        for amount in ["0", "-1", "0.001", "0.000001"] {
            let refused = invoice(&seller(), "", amount).unwrap_err();
            assert_eq!(refused, InvoiceError::NotKopecks, "{amount}");
        }
    }

    #[test]
    fn markup_in_invoice_names_is_escaped_and_long_names_fit_into_the_payment_code() {
        let mut seller = seller();
        seller.name = "<script>alert(1)</script>".repeat(20);
        seller.bank = Some("\u{1f3e6}".repeat(125));
        seller.vat_percent = None;
        seller.vat_note = Some("\u{1f3e6}".repeat(125));
        let made = invoice(&seller, "<b>", "9007199254.74").unwrap();
        let html = made.html();
        assert!(!html.contains("<script") && !html.contains("<b>"), "{html}");
        assert_eq!(from_svg(&html), made.payment_code);
    }

    #[test]
    fn payment_code_on_the_page_and_in_the_pdf_of_an_invoice_is_read_by_another_qr_library() {
        let made = invoice(&seller(), "ООО «Акме»", "1000.50").unwrap();
        assert_eq!(from_svg(&made.html()), made.payment_code);
        assert_eq!(from_pdf(&made.pdf()), made.payment_code);
    }

    /// Draws boxes at `scale` pixels per unit, and decodes the picture as a QR code.
    fn read(boxes: &[[f32; 4]], scale: f32) -> String {
        let end = |at: usize| {
            boxes
                .iter()
                .map(|it| it[at] + it[at + 2])
                .fold(0.0, f32::max)
        };
        let side = ((end(0).max(end(1)) + 8.0) * scale) as usize;
        let mut dark = vec![false; side * side];
        for it in boxes {
            let [x, y, width, height] = *it;
            let [x, y, right, bottom] =
                [x, y, x + width, y + height].map(|at| (at * scale).round() as usize);
            for row in y..bottom {
                dark[row * side + x..row * side + right].fill(true);
            }
        }
        decoded(side, |x, y| dark[y * side + x])
    }

    fn from_svg(html: &str) -> String {
        let (_, path) = html.split_once("<path d=\"").unwrap();
        let (path, _) = path.split_once('"').unwrap();
        let boxes: Vec<[f32; 4]> = path
            .split_terminator('z')
            .map(|bar| {
                let numbers: Vec<f32> = bar
                    .split(['M', ' ', 'h', 'v'])
                    .filter(|text| !text.is_empty())
                    .map(|text| text.parse().unwrap())
                    .collect();
                [numbers[0], numbers[1], numbers[2], numbers[3]]
            })
            .collect();
        read(&boxes, 3.0)
    }

    /// Reads the boxes of the first page: lines like `x y width height re`.
    fn from_pdf(pdf: &[u8]) -> String {
        let streams = memchr::memmem::find_iter(pdf, b"stream\n").filter_map(|at| {
            let mut text = Vec::new();
            flate2::read::ZlibDecoder::new(&pdf[at + 7..])
                .read_to_end(&mut text)
                .ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            text.contains(" re\n").then_some(text)
        });
        let page: String = streams.collect();
        let boxes: Vec<[f32; 4]> = page
            .lines()
            .filter_map(|line| line.strip_suffix(" re"))
            .map(|line| {
                let numbers: Vec<f32> = line.split(' ').map(|text| text.parse().unwrap()).collect();
                [
                    numbers[0],
                    842.0 - numbers[1] - numbers[3],
                    numbers[2],
                    numbers[3],
                ]
            })
            // The ruled lines of the table are half a point high. They are skipped.
            .filter(|it| it[3] > 0.6)
            .collect();
        read(&boxes, 4.0)
    }
}
