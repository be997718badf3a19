use std::collections::BTreeMap;

use serde_json::Value;
use tollgate_ledger::statement::Spent;

use super::*;

fn seller() -> SellerConfig {
    SellerConfig {
        name: "ООО «Ромашка» & <Ко>".into(),
        inn: Some("7701234567".into()),
        vat_percent: Some(Decimal::from(20)),
        utc_offset_minutes: 180,
        ..SellerConfig::default()
    }
}

fn moved(id: &str, at_ms: u64, rubles: i64, reason: Option<&str>) -> Moved {
    Moved {
        id: id.into(),
        at_ms,
        amount_rub: MicroRub::rubles(rubles),
        reason: reason.map(str::to_owned),
    }
}

fn spent(calls: u64, charged_micro: i128) -> Spent {
    Spent {
        calls,
        usage: Usage {
            input: 1000,
            output: 20,
            ..Usage::default()
        },
        charged_micro,
    }
}

fn november() -> Statement {
    // The last second of October in UTC is in November in Moscow.
    let last_of_october = Month { index: 681 }.time(0).end - 1000;
    Statement {
        opening_micro: 100_004_999,
        payments: vec![moved("p-1", last_of_october, 5000, None)],
        corrections: vec![moved(
            "c-1",
            last_of_october + 1,
            -7,
            Some("вернули, \"сбой\""),
        )],
        models: BTreeMap::from([
            ("gpt-5-mini".to_owned(), spent(1200, 1_234_567_891)),
            ("модель <b>".to_owned(), spent(1, 2_109)),
        ]),
        closing_micro: 5_093_004_999 - 1_234_570_000,
    }
}

fn document(statement: Statement, seller: Option<&SellerConfig>, now_ms: u64) -> Document {
    let about = About {
        account: &"acme".parse().unwrap(),
        name: "Acme",
        month: "2026-11".parse().unwrap(),
        seller,
        now_ms,
    };
    Document::new(&about, statement)
}

pub(super) fn closed() -> Document {
    document(november(), Some(&seller()), u64::MAX)
}

#[test]
fn month_of_a_statement_is_parsed_as_year_and_month() {
    for text in ["2026-11", "1970-01", "9999-12"] {
        assert_eq!(text.parse::<Month>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "2026",
        "2026-13",
        "2026-00",
        "26-11",
        "2026-1",
        "1969-12",
        "2026-11-01",
        "+026-11",
    ] {
        assert_eq!(text.parse::<Month>(), Err(NotAMonth), "{text}");
    }
    let month: Month = "2026-11".parse().unwrap();
    assert_eq!(rfc3339(month.time(0).start), "2026-11-01T00:00:00Z");
    assert_eq!(rfc3339(month.time(180).start), "2026-10-31T21:00:00Z");
    assert_eq!(rfc3339(month.time(180).end), "2026-11-30T21:00:00Z");
    assert_eq!(rfc3339(month.time(-570).end), "2026-12-01T09:30:00Z");
}

#[test]
fn json_statement_has_all_fields_and_their_hash() {
    let document = closed();
    let json = String::from_utf8(document.json()).unwrap();
    let value: Value = serde_json::from_str(&json).unwrap();
    for (pointer, reported) in [
        ("/number", "acme-2026-11"),
        ("/since", "2026-10-31T21:00:00Z"),
        ("/until", "2026-11-30T21:00:00Z"),
        ("/utc_offset", "+03:00"),
        ("/seller/inn", "7701234567"),
        ("/opening/rub", "100.00"),
        ("/opening/exact_rub", "100.004999"),
        ("/payments/rub", "5000.00"),
        ("/payments/entries/0/id", "p-1"),
        ("/payments/entries/0/at", "2026-10-31T23:59:59Z"),
        ("/payments/entries/0/amount_rub", "5000.00"),
        ("/corrections/rub", "-7.00"),
        ("/corrections/entries/0/reason", "вернули, \"сбой\""),
        ("/spending/models/0/model", "gpt-5-mini"),
        ("/spending/models/0/rub", "1234.57"),
        ("/spending/models/0/exact_rub", "1234.567891"),
        ("/spending/models/1/rub", "0.00"),
        ("/spending/exact_rub", "1234.570000"),
        // The spending follows from the other amounts: 100.00 + 5000.00 − 7.00 − 3858.43 = 1234.57.
        ("/closing/rub", "3858.43"),
        ("/spending/rub", "1234.57"),
        ("/spending/models_rounding_rub", "0.00"),
        ("/vat/percent", "20"),
        // The expected VAT is 1234.57 × 20 ÷ 120 = 205.761…
        ("/vat/rub", "205.76"),
    ] {
        let found = value.pointer(pointer).and_then(Value::as_str);
        assert_eq!(found, Some(reported), "{pointer}: {json}");
    }
    assert_eq!(value["closed"], true);
    assert_eq!(value.get("as_of"), None);
    // Anybody can verify the hash: it covers the JSON without the last field, which is the hash itself.
    let sha256 = value["sha256"].as_str().unwrap();
    let unsealed = json.replace(&format!(",\"sha256\":\"{sha256}\""), "");
    let digest = Sha256::digest(unsealed);
    let returned: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(returned, sha256);
}

#[test]
fn equal_journals_give_identical_statements_and_different_ones_give_different_hashes() {
    let one = closed();
    let forms = |of: &Document| {
        [
            of.json(),
            of.csv().into_bytes(),
            of.html(Language::Ru).into_bytes(),
        ]
    };
    assert_eq!(forms(&one), forms(&closed()));
    // The statement of a closed month does not depend on when it is requested.
    let earlier = document(
        november(),
        Some(&seller()),
        one.month_of.time(180).end + CLOSED_AFTER_MS,
    );
    assert_eq!(forms(&one), forms(&earlier));
    let mut renamed = seller();
    renamed.name = "Other".into();
    let mut moved = november();
    moved.closing_micro -= 1;
    for other in [
        document(november(), Some(&renamed), u64::MAX),
        document(november(), None, u64::MAX),
        document(moved, Some(&seller()), u64::MAX),
    ] {
        assert_ne!(other.sha256(), one.sha256());
        for (this, that) in forms(&one).iter().zip(forms(&other)) {
            assert_ne!(*this, that);
        }
    }
}

#[test]
fn month_is_closed_two_hours_after_its_end() {
    let end = "2026-11".parse::<Month>().unwrap().time(180).end;
    let open = document(november(), Some(&seller()), end + CLOSED_AFTER_MS - 1);
    assert!(!open.closed);
    let reported = "2026-11-30T22:59:59.999Z";
    assert_eq!(open.as_of.as_deref(), Some(reported));
    assert!(
        open.csv()
            .contains(&format!("about,as_of,,,,,,,{reported}\n"))
    );
    let html = open.html(Language::Ru);
    let words = "Предварительно: месяц не закрыт. По состоянию на 01.12.2026 01:59 UTC+03:00.";
    assert!(html.contains(words), "{html}");
    let closed = document(november(), Some(&seller()), end + CLOSED_AFTER_MS);
    assert!(closed.closed && !closed.html(Language::Ru).contains("Предварительно"));
}

#[test]
fn csv_statement_has_a_line_for_each_sum_and_entry() {
    let csv = closed().csv();
    let sums: Vec<&str> = csv
        .lines()
        .filter(|line| !line.starts_with("about,"))
        .collect();
    assert_eq!(
        sums,
        [
            "section,item,at,calls,input_tokens,output_tokens,exact_rub,rub,text",
            "opening,,,,,,100.004999,100.00,",
            "payment,p-1,2026-10-31T23:59:59Z,,,,5000.00,,",
            "payments,,,,,,5000.000000,5000.00,",
            "correction,c-1,2026-10-31T23:59:59.001Z,,,,-7.00,,\"вернули, \"\"сбой\"\"\"",
            "corrections,,,,,,-7.000000,-7.00,",
            "model,gpt-5-mini,,1200,1000,20,1234.567891,1234.57,",
            "model,модель <b>,,1,1000,20,0.002109,0.00,",
            "models_rounding,,,,,,,0.00,",
            "spending,,,,,,1234.570000,1234.57,",
            "vat,20,,,,,,205.76,",
            "closing,,,,,,3858.434999,3858.43,",
        ]
    );
    assert!(
        csv.contains("about,seller.name,,,,,,,ООО «Ромашка» & <Ко>\n"),
        "{csv}"
    );
    assert!(csv.ends_with(&format!("about,sha256,,,,,,,{}\n", closed().sha256())));
}

#[test]
fn statement_page_shows_every_sum_and_escapes_markup() {
    let html = closed().html(Language::Ru);
    for text in [
        "<html lang=\"ru\">",
        "<h1>Выписка №\u{a0}acme-2026-11 за ноябрь 2026 года</h1>",
        "01.11.2026 – 30.11.2026 (UTC+03:00)",
        "<td>Остаток на начало</td><td class=\"number\">100,004999</td><td class=\"number\">100,00</td>",
        "в том числе НДС 20\u{a0}%",
        "<td class=\"number\">205,76</td>",
        "<td>01.11.2026</td><td>p-1</td>",
        "\u{2212}7,00",
        "1\u{a0}234,567891",
        "3\u{a0}858,43",
        "<td>Округление</td>",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(!html.contains("<b>") && !html.contains("<Ко>"), "{html}");
    assert!(html.contains(&closed().sha256()));
    let html = closed().html(Language::En);
    for text in [
        "<h1>Statement acme-2026-11 for November 2026</h1>",
        "3,858.43",
        "including VAT at 20 %",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
}

#[test]
fn statement_without_vat_has_the_sellers_explanation() {
    let mut seller = seller();
    seller.vat_percent = None;
    let html = document(november(), Some(&seller), u64::MAX).html(Language::Ru);
    assert!(html.contains("Без НДС"));
    seller.vat_note = Some("НДС не облагается: п. 2 ст. 346.11 НК РФ".into());
    let html = document(november(), Some(&seller), u64::MAX).html(Language::Ru);
    assert!(html.contains("НДС не облагается: п. 2 ст. 346.11 НК РФ"));
    assert_eq!(Vat::new(None, 100).rub, Kopecks::new(0));
    for (percent, spent, kopecks) in [
        (20, 120, 20),
        (20, 3, 1),
        (20, 2, 0),
        (10, 110, 10),
        (5, 105, 5),
    ] {
        seller.vat_percent = Some(Decimal::from(percent));
        assert_eq!(
            Vat::new(Some(&seller), spent).rub,
            Kopecks::new(kopecks),
            "{percent} {spent}"
        );
    }
}
