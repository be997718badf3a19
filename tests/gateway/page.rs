//! Tests of the price list for people, which `GET /` returns to a browser.

use http::StatusCode;
use rust_decimal::Decimal;
use tollgate::catalog::snapshot::RateReading;

use crate::prelude::*;

pub const BROWSER: (&str, &str) = (
    "accept",
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8",
);

async fn page(world: &World) -> String {
    let answer = world.get("/", &[BROWSER]).await.expect(200);
    answer.text()
}

/// Returns all tags of a document, in their order. Checks that they are nested correctly.
pub fn tags(html: &str) -> Vec<String> {
    const VOID: [&str; 3] = ["!doctype", "meta", "link"];
    let (mut tags, mut open) = (Vec::new(), Vec::new());
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        let name = tag.split_whitespace().next().unwrap().to_owned();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "at {tag}");
        } else if !VOID.contains(&name.as_str()) {
            open.push(name);
        }
        tags.push(tag.to_owned());
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "left open: {open:?}");
    tags
}

#[tokio::test]
async fn root_path_shows_prices_to_browsers_and_is_empty_for_tools() {
    let world = World::start().await;
    let shown = world.get("/", &[BROWSER]).await;
    assert_eq!(shown.headers["content-type"], "text/html; charset=utf-8");
    assert!(shown.text().starts_with("<!doctype html>"));
    for accept in ["*/*", "application/json", "text/html;q=0, */*"] {
        let answer = world.get("/", &[("accept", accept)]).await;
        assert_eq!(answer.status, 200, "{accept}");
        assert!(answer.body.is_empty(), "{accept}");
        assert_eq!(answer.headers["vary"], "accept", "{accept}");
    }
    assert_eq!(shown.headers["vary"], "accept");
    assert!(shown.headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn price_page_has_the_exact_prices_of_every_model_and_examples_of_calls() {
    let world = Setup::default()
        .edit("fixed = \"100\"", "fixed = \"81.432109\"")
        .start()
        .await;
    let html = page(&world).await;
    let tags = tags(&html);
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let models = catalog["models"].as_array().unwrap();
    for model in models {
        let id = model["id"].as_str().unwrap();
        assert!(html.contains(&format!("<code>{id}</code>")), "{id}");
        for rate in [
            "input_rub_mtok",
            "cached_input_rub_mtok",
            "output_rub_mtok",
            "cache_write_rub_mtok",
        ] {
            let exact = format!("data value=\"{}\"", model[rate].as_str().unwrap());
            assert!(tags.contains(&exact), "{id}: {exact}");
        }
    }
    let prices = tags.iter().filter(|tag| tag.starts_with("data value"));
    assert_eq!(prices.count(), 4 * models.len());
    for text in [
        "http://gateway.example/v1/chat/completions",
        "POST http://gateway.example/v1/responses<",
        "base_url=\"http://gateway.example/v1\"",
        "ANTHROPIC_BASE_URL=http://gateway.example\n",
        "claude --model chat",
        "/v1/tollgate/receipts/",
        "Тариф №",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
}

#[tokio::test]
async fn price_page_is_self_contained_and_runs_no_script() {
    let world = World::start().await;
    let answer = world.get("/", &[BROWSER]).await;
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    let rules: Vec<_> = policy.split("; ").collect();
    for rule in [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "frame-ancestors 'none'",
    ] {
        assert!(rules.contains(&rule), "{policy}");
    }
    assert!(!policy.contains("http"), "{policy}");
    assert!(!policy.contains('*'), "{policy}");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers["referrer-policy"], "no-referrer");
    let html = answer.text();
    assert!(!html.contains("@import"), "{html}");
    assert!(!html.contains("url("), "{html}");
    for tag in tags(&html) {
        let name = tag.split_whitespace().next().unwrap();
        for forbidden in ["script", "iframe", "img", "form", "object", "base"] {
            assert_ne!(name, forbidden, "{tag}");
        }
        assert!(!tag.contains(" on") && !tag.contains("src="), "{tag}");
        if let Some((_, href)) = tag.split_once("href=\"") {
            assert!(href.starts_with('/') || href.starts_with("data:"), "{tag}");
        }
    }
}

#[tokio::test]
async fn names_on_the_price_page_are_escaped() {
    let world = Setup::default()
        .edit(
            "id = \"chat\"\nfamily = \"Test\"",
            "id = \"chat\"\nfamily = \"<img src=x> & \\\"Co\\\"\"",
        )
        .start()
        .await;
    let html = page(&world).await;
    assert!(!html.contains("<img"), "{html}");
    assert!(html.contains("img src=x"), "{html}");
    assert!(!html.contains("\"Co\""), "{html}");
    tags(&html);
}

#[tokio::test]
async fn price_page_has_the_same_cache_lifetime_as_the_catalog() {
    let world = World::start().await;
    let first = world.get("/", &[BROWSER]).await;
    let catalog = world.get("/v1/tollgate/models", &[]).await;
    let stored = |answer: &Answer| answer.headers["cache-control"].clone();
    assert_eq!(stored(&first), stored(&catalog));
    let tag = first.headers["etag"].to_str().unwrap();
    assert_ne!(tag, catalog.headers["etag"], "other bytes");
    let again = world.get("/", &[BROWSER, ("if-none-match", tag)]).await;
    assert_eq!(again.status, StatusCode::NOT_MODIFIED);
    assert!(again.body.is_empty());

    let url = world.url("/");
    let head = world
        .ask(request(Method::HEAD, &url, &[BROWSER], "".into()))
        .await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!(head.headers["etag"], tag);
    assert_eq!(
        head.headers["content-length"],
        first.body.len().to_string().as_str()
    );

    let rate = RateReading::fixed(Decimal::from(101));
    world.gateway.live().set_rate(rate);
    let changed = world
        .get("/", &[BROWSER, ("if-none-match", tag)])
        .await
        .expect(200);
    assert_ne!(changed.body, first.body);
}

#[tokio::test]
async fn price_page_reports_that_prices_are_missing() {
    let world = Setup::default()
        .edit(
            "fixed = \"100\"",
            "url = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"",
        )
        .start()
        .await;
    let html = page(&world).await;
    tags(&html);
    assert!(html.contains("Цены временно недоступны"), "{html}");
    assert!(html.contains("<code>chat</code>"), "{html}");
    assert!(!html.contains("<data"), "{html}");
}

#[tokio::test]
async fn price_page_uses_the_configured_language() {
    let russian = page(&World::start().await).await;
    assert!(russian.contains("<html lang=\"ru\">") && russian.contains("Модели и цены"));
    let world = top("language = \"en\"").start().await;
    let english = page(&world).await;
    assert!(english.contains("<html lang=\"en\">") && english.contains("Models and prices"));
    assert!(!is_russian(&english), "{english}");
}

#[tokio::test]
async fn price_page_shares_the_catalogs_rate_limit() {
    let world = limits("catalog_requests_per_second = 1").start().await;
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(world.get("/", &[BROWSER]).await.status.as_u16());
    }
    assert_eq!(statuses[0], 200);
    assert!(statuses.contains(&429), "{statuses:?}");
    let answer = world.get("/", &[]).await;
    assert_eq!(answer.status, 200, "whoever looks for life is not limited");
}
