//! Tests of invoices for companies: in the admin API, the console and the command, up to the payment that is booked
//! under the invoice's number.

use crate::{
    console::Browser,
    ledger::folder,
    prelude::*,
    usage_report::{complained, reported, tollgate},
};

const SELLER: &str = "[seller]\nname = \"ООО «Ромашка»\"\ninn = \"7701234567\"\nkpp = \"770101001\"\nbank = \"ПАО «Банк»\"\n\
    bik = \"044500001\"\nbank_account = \"40702810900000000001\"\n\
    correspondent_account = \"30101810000000000001\"\nvat_percent = \"22\"\nutc_offset = \"+03:00\"\n[tariff]";

pub(crate) fn with_seller(setup: Setup) -> Setup {
    setup.edit("[tariff]", SELLER)
}

async fn acme(world: &World) {
    let key = world.key().await;
    assert_eq!(key.account, "acme");
    let body = json!({ "name": "ООО <b>Акме" });
    let renamed = world.admin_patch("/admin/v1/accounts/acme", body);
    assert_eq!(renamed.await.status, 200);
}

#[tokio::test]
async fn admin_api_returns_an_invoice_in_each_format() {
    let world = with_seller(Setup::default()).start().await;
    acme(&world).await;
    let path = "/admin/v1/accounts/acme/invoice?amount_rub=1000.5&date=2026-11-29";
    let ask = async |path: &str| world.admin_get(path).await;
    let invoice = ask(path).await.json();
    assert_eq!(invoice["number"], "acme-20261129-100050");
    assert_eq!(invoice["amount_in_words"], "Одна тысяча рублей 50 копеек");
    assert_eq!(invoice["vat"]["rub"], "180.42");
    let code = invoice["payment_code"].as_str().unwrap();
    assert!(
        code.starts_with("ST00012|Name=ООО «Ромашка»|PersonalAcc=40702810900000000001|"),
        "{code}"
    );
    assert!(code.ends_with("|Sum=100050"), "{code}");
    for (format, kind, begins) in [
        ("html", "text/html; charset=utf-8", "<!doctype html>"),
        ("pdf", "application/pdf", "%PDF-1."),
    ] {
        let answer = ask(&format!("{path}&format={format}")).await;
        assert_eq!(answer.headers["content-type"], kind);
        assert_eq!(
            answer.headers["content-disposition"],
            &*format!("attachment; filename=\"acme-20261129-100050.{format}\"")
        );
        assert!(answer.body.starts_with(begins.as_bytes()), "{format}");
        let again = ask(&format!("{path}&format={format}")).await;
        assert_eq!(again.body, answer.body, "{format}");
    }
    let html = ask(&format!("{path}&format=html")).await.text();
    assert!(!html.contains("<b>"), "{html}");
    for (path, status, says) in [
        ("acme/invoice", 400, "amount_rub: required"),
        ("acme/invoice?amount_rub=0", 400, "whole kopecks, above 0"),
        ("acme/invoice?amount_rub=-5", 400, "whole kopecks, above 0"),
        (
            "acme/invoice?amount_rub=0.001",
            400,
            "whole kopecks, above 0",
        ),
        ("acme/invoice?amount_rub=1,5", 400, "not a decimal number"),
        (
            "acme/invoice?amount_rub=1&date=2026-02-30",
            400,
            "a date, for example 2026-01-31",
        ),
        (
            "acme/invoice?amount_rub=1&date=2026-01-01T00:00:00Z",
            400,
            "a date, for example",
        ),
        (
            "acme/invoice?amount_rub=1&format=csv",
            400,
            "json, html or pdf",
        ),
        ("nobody/invoice?amount_rub=1", 404, "no account nobody"),
    ] {
        let refused = ask(&format!("/admin/v1/accounts/{path}")).await;
        assert_eq!(refused.status, status, "{path}: {refused:?}");
        assert!(refused.text().contains(says), "{path}: {refused:?}");
    }
}

#[tokio::test]
async fn invoice_is_refused_if_seller_settings_are_missing_and_the_refusal_names_them() {
    let seller = "[seller]\nname = \"n\"\nbank = \"b\"\n[tariff]";
    for (setup, says) in [
        (Setup::default(), "seller.name"),
        (
            Setup::default().edit("[tariff]", seller),
            "seller.inn, seller.bik, seller.bank_account, seller.correspondent_account",
        ),
    ] {
        let world = setup.start().await;
        acme(&world).await;
        let path = "/admin/v1/accounts/acme/invoice?amount_rub=1";
        let refused = world.admin_get(path).await.expect(409);
        assert!(refused.text().contains(says), "{refused:?}");
    }
}

/// An operator creates an invoice, books its payment under its number, and later finds the payment by this number.
#[tokio::test]
async fn payment_of_an_invoice_is_found_by_the_invoices_number() {
    let world = with_seller(Setup::default()).start().await;
    acme(&world).await;
    let me = Browser::admin(&world).await;
    let account = "/console/accounts/acme";
    let form = me.page(&world, account).await;
    has(&form, "action=\"/console/accounts/acme/invoice\"");
    let path = format!("{account}/invoice?amount_rub=1%C2%A0000,50&format=pdf");
    let made = me.get(&world, &path).await;
    assert!(made.body.starts_with(b"%PDF-1."), "{made:?}");
    let name = made.headers["content-disposition"].to_str().unwrap();
    let number = name.split('"').nth(1).unwrap().trim_end_matches(".pdf");
    assert!(number.starts_with("acme-20"), "{number}");
    assert!(number.ends_with("-100050"), "{number}");
    let path = format!("{account}/invoice?amount_rub=1000.5&format=html");
    let page = me.get(&world, &path).await;
    has(&page.text(), "Одна тысяча рублей 50 копеек");

    let found = format!("/console/payments?id={number}");
    let before = me.page(&world, &found).await;
    has(
        &before,
        "No account has a payment or correction with this ID",
    );
    let topup = [("do", "topup"), ("id", number), ("amount_rub", "1000,50")];
    me.done(&world, account, &topup).await;
    let after = me.page(&world, &found).await;
    for says in [number, ">1,000.50</td>", "href=\"/console/accounts/acme\""] {
        assert!(after.contains(says), "{says}: {after}");
    }
    for (path, status) in [
        ("invoice?amount_rub=1,000", 400),
        ("invoice?amount_rub=%3Cb%3E", 400),
        ("invoice", 400),
    ] {
        let refused = me.get(&world, &format!("{account}/{path}")).await;
        assert_eq!(refused.status, status, "{path}: {refused:?}");
        assert!(!refused.text().contains("<b>"), "{refused:?}");
    }
    let stranger = Browser::default();
    let refused = stranger
        .get(&world, &format!("{account}/invoice?amount_rub=1"))
        .await;
    assert_eq!((refused.status.as_u16(), refused.body.len()), (303, 0));
}

#[tokio::test]
async fn command_writes_an_invoice_to_a_file() {
    let world = with_seller(Setup::default()).start().await;
    acme(&world).await;
    let folder = folder();
    let file = folder.path().join("invoice.pdf").display().to_string();
    let invoice = ["invoice", "acme", "1000.50", "--date", "2026-11-29"];
    let run = async |more: &[&str]| {
        let args = [&invoice[..], more].concat();
        tollgate(&world, &args, "").await
    };
    let summary = reported(&run(&[]).await, 0);
    for says in ["acme-20261129-100050", "180.42 ₽", "|Sum=100050"] {
        assert!(summary.contains(says), "{says}: {summary}");
    }
    reported(&run(&["--output", &file]).await, 0);
    assert!(std::fs::read(&file).unwrap().starts_with(b"%PDF-1."));
    let html = reported(&run(&["--format", "html", "--output", "-"]).await, 0);
    assert!(html.starts_with("<!doctype html>"), "{html}");
    let refused = complained(&run(&["--format", "csv"]).await, 1);
    assert!(refused.contains("json, html or pdf"), "{refused}");
}
