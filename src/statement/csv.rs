//! Writes a statement as CSV. Each line has one fact, and all lines have the same columns.

use super::{Amount, Document, Entries, Vat};
use crate::text::csv::shown;

const HEAD: &str = "section,item,at,calls,input_tokens,output_tokens,exact_rub,rub,text\n";

pub(super) fn written(document: &Document) -> String {
    let mut csv = HEAD.to_owned();
    about(&mut csv, document);
    sum(&mut csv, "opening", &document.opening);
    entries(&mut csv, "payment", &document.payments);
    sum(&mut csv, "payments", &document.payments.amount);
    entries(&mut csv, "correction", &document.corrections);
    sum(&mut csv, "corrections", &document.corrections.amount);
    models(&mut csv, document);
    sum(&mut csv, "spending", &document.spending.amount);
    vat(&mut csv, &document.vat);
    sum(&mut csv, "closing", &document.closing);
    fact(&mut csv, "sha256", &document.sha256());
    csv
}

fn about(csv: &mut String, document: &Document) {
    let closed = if document.closed { "true" } else { "false" };
    let mut facts = vec![
        ("number", document.number.as_str()),
        ("account", &document.account),
        ("name", &document.name),
        ("month", &document.month),
        ("since", &document.since),
        ("until", &document.until),
        ("utc_offset", &document.utc_offset),
        ("closed", closed),
    ];
    facts.extend(document.as_of.as_deref().map(|at| ("as_of", at)));
    if let Some(seller) = &document.seller {
        let correspondent = &seller.correspondent_account;
        facts.push(("seller.name", &seller.name));
        let others = [
            ("seller.inn", &seller.inn),
            ("seller.kpp", &seller.kpp),
            ("seller.ogrn", &seller.ogrn),
            ("seller.address", &seller.address),
            ("seller.bank", &seller.bank),
            ("seller.bik", &seller.bik),
            ("seller.bank_account", &seller.bank_account),
            ("seller.correspondent_account", correspondent),
            ("seller.contact", &seller.contact),
        ];
        let given = others.map(|(name, text)| text.as_deref().map(|text| (name, text)));
        facts.extend(given.into_iter().flatten());
    }
    for (name, text) in facts {
        fact(csv, name, text);
    }
}

fn fact(csv: &mut String, name: &str, text: &str) {
    row(csv, ["about", name, "", "", "", "", "", "", text]);
}

fn models(csv: &mut String, document: &Document) {
    for line in &document.spending.models {
        let (model, usage, amount) = (&line.model, &line.usage, &line.amount);
        let counts = [line.calls, usage.input_total(), usage.output_total()];
        let [calls, input, output] = &counts.map(|count| count.to_string());
        let (exact, rub) = (&amount.exact_rub.to_string(), &amount.rub.to_string());
        let cells = ["model", model, "", calls, input, output, exact, rub, ""];
        row(csv, cells);
    }
    let rounding = &document.spending.models_rounding_rub.to_string();
    let cells = ["models_rounding", "", "", "", "", "", "", rounding, ""];
    row(csv, cells);
}

fn vat(csv: &mut String, vat: &Vat) {
    let percent = vat.percent.as_deref().unwrap_or_default();
    let note = vat.note.as_deref().unwrap_or_default();
    let rub = vat.rub.to_string();
    row(csv, ["vat", percent, "", "", "", "", "", &rub, note]);
}

fn entries(csv: &mut String, section: &str, entries: &Entries) {
    for line in &entries.entries {
        let (id, at, amount) = (&line.id, &line.at, &line.amount_rub.to_string());
        let reason = line.reason.as_deref().unwrap_or_default();
        row(csv, [section, id, at, "", "", "", amount, "", reason]);
    }
}

fn sum(csv: &mut String, section: &str, amount: &Amount) {
    let (exact, rub) = (amount.exact_rub.to_string(), amount.rub.to_string());
    row(csv, [section, "", "", "", "", "", &exact, &rub, ""]);
}

fn row(csv: &mut String, cells: [&str; 9]) {
    csv.push_str(&cells.map(shown).join(","));
    csv.push('\n');
}
