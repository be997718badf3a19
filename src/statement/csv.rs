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
    row(
        &mut csv,
        [
            "about",
            "sha256",
            "",
            "",
            "",
            "",
            "",
            "",
            &document.sha256(),
        ],
    );
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
        facts.push(("seller.name", &seller.name));
        let others = [
            ("seller.inn", &seller.inn),
            ("seller.kpp", &seller.kpp),
            ("seller.ogrn", &seller.ogrn),
            ("seller.address", &seller.address),
            ("seller.bank", &seller.bank),
            ("seller.bik", &seller.bik),
            ("seller.bank_account", &seller.bank_account),
            (
                "seller.correspondent_account",
                &seller.correspondent_account,
            ),
            ("seller.contact", &seller.contact),
        ];
        let given = others.map(|(name, text)| text.as_deref().map(|text| (name, text)));
        facts.extend(given.into_iter().flatten());
    }
    for (name, text) in facts {
        row(csv, ["about", name, "", "", "", "", "", "", text]);
    }
}

fn models(csv: &mut String, document: &Document) {
    for line in &document.spending.models {
        let [calls, input, output] = [
            line.calls,
            line.usage.input_total(),
            line.usage.output_total(),
        ]
        .map(|count| count.to_string());
        let (exact, rub) = (
            line.amount.exact_rub.to_string(),
            line.amount.rub.to_string(),
        );
        row(
            csv,
            [
                "model",
                &line.model,
                "",
                &calls,
                &input,
                &output,
                &exact,
                &rub,
                "",
            ],
        );
    }
    let rounding = document.spending.models_rounding_rub.to_string();
    row(
        csv,
        ["models_rounding", "", "", "", "", "", "", &rounding, ""],
    );
}

fn vat(csv: &mut String, vat: &Vat) {
    let (percent, rub) = (
        vat.percent.as_deref().unwrap_or_default(),
        vat.rub.to_string(),
    );
    let note = vat.note.as_deref().unwrap_or_default();
    row(csv, ["vat", percent, "", "", "", "", "", &rub, note]);
}

fn entries(csv: &mut String, section: &str, entries: &Entries) {
    for line in &entries.entries {
        let amount = line.amount_rub.to_string();
        let reason = line.reason.as_deref().unwrap_or_default();
        row(
            csv,
            [section, &line.id, &line.at, "", "", "", &amount, "", reason],
        );
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
