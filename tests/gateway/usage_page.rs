//! Tests of the page at `GET /usage`, on which the holder of a key sees the key's spending.

use crate::{page::tags, prelude::*};

const PARTS: [(&str, &str); 2] = [
    ("/usage/page.js", "text/javascript; charset=utf-8"),
    ("/usage/page.css", "text/css; charset=utf-8"),
];

async fn page(world: &World, accept_language: &str) -> Answer {
    let headers = [("accept-language", accept_language)];
    let headers = if accept_language.is_empty() {
        &[][..]
    } else {
        &headers[..]
    };
    let answer = world.get("/usage", headers).await.expect(200);
    assert_eq!(answer.headers["content-type"], "text/html; charset=utf-8");
    answer
}

#[tokio::test]
async fn usage_page_uses_the_language_of_the_browser_or_else_the_configured_one() {
    let world = World::start().await;
    let english_world = top("language = \"en\"").start().await;
    for (world, accept, english) in [
        (&world, "", false),
        (&world, "de", false),
        (&world, "ru-RU,ru;q=0.9,en;q=0.8", false),
        (&world, "en-US,en;q=0.9", true),
        (&english_world, "", true),
        (&english_world, "ru", false),
    ] {
        let answer = page(world, accept).await;
        let html = answer.text();
        let lang = if english {
            "<html lang=\"en\""
        } else {
            "<html lang=\"ru\""
        };
        assert!(html.contains(lang), "{accept}: {html}");
        assert_eq!(is_russian(&html), !english, "{accept}");
        assert_eq!(answer.headers["vary"], "accept-language");
        tags_of(&html);
    }
}

/// Returns all tags of a page. Checks that they are nested correctly. `input` has no end tag, so it is treated like
/// `meta`.
fn tags_of(html: &str) -> Vec<String> {
    let plain = html.replace("<input ", "<meta ");
    tags(&plain)
}

#[tokio::test]
async fn usage_page_runs_only_its_own_script_and_cannot_be_framed() {
    let world = World::start().await;
    let answer = page(&world, "").await;
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    let rules: Vec<_> = policy.split("; ").collect();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(rules.contains(&rule), "{rule}: {policy}");
    }
    for loose in ["unsafe", "http", "*", "blob:"] {
        assert!(!policy.contains(loose), "{loose}: {policy}");
    }
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers["referrer-policy"], "no-referrer");

    let html = answer.text();
    let mut scripts = Vec::new();
    for tag in tags_of(&html) {
        let name = tag.split_whitespace().next().unwrap();
        for forbidden in ["iframe", "img", "object", "base", "style"] {
            assert_ne!(name, forbidden, "{tag}");
        }
        assert!(!tag.contains(" on") && !tag.contains("style="), "{tag}");
        for attribute in ["href=\"", "src=\""] {
            if let Some((_, to)) = tag.split_once(attribute) {
                let own = (to.starts_with('/') && !to.starts_with("//"))
                    || to.starts_with('#')
                    || to.starts_with("data:,");
                assert!(own, "{tag}");
            }
        }
        if name == "script" {
            scripts.push(tag);
        }
    }
    assert_eq!(scripts, ["script src=\"/usage/page.js\" defer"]);
    assert!(html.contains("</script>\n") && html.contains("defer></script>"));
}

#[tokio::test]
async fn usage_page_never_submits_or_remembers_the_key() {
    let html = page(&World::start().await, "").await.text();
    let field = tags_of(&html)
        .into_iter()
        .find(|tag| tag.contains("id=\"key\""))
        .unwrap();
    assert!(field.contains("type=\"password\"") && field.contains("autocomplete=\"off\""));
    assert!(!field.contains(" name="), "{field}");
    let script = World::start().await.get("/usage/page.js", &[]).await.text();
    for stored in [
        "localStorage",
        "sessionStorage",
        "document.cookie",
        "indexedDB",
        "history.",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "eval(",
    ] {
        assert!(!script.contains(stored), "{stored}");
    }
}

#[tokio::test]
async fn catalog_rate_limit_counts_the_usage_page_but_not_its_assets() {
    let world = limits("catalog_requests_per_second = 1").start().await;
    for _ in 0..10 {
        for (path, _) in PARTS {
            assert_eq!(world.get(path, &[]).await.status, 200, "{path}");
        }
    }
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(world.get("/usage", &[]).await.status.as_u16());
    }
    assert_eq!(statuses[0], 200);
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn assets_of_the_usage_page_are_served_and_other_names_are_404() {
    let world = World::start().await;
    for (path, kind) in PARTS {
        let answer = world.get(path, &[]).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.headers["content-type"], kind, "{path}");
        assert_eq!(
            answer.headers["x-content-type-options"], "nosniff",
            "{path}"
        );
        let tag = answer.headers["etag"].to_str().unwrap();
        let again = world.get(path, &[("if-none-match", tag)]).await;
        assert_eq!(again.status, 304, "{path}");
        for outside in ["http://", "https://", "//cdn"] {
            let text = answer.text().replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(outside), "{path}: {outside}");
        }
    }
    for path in ["/usage/other.js", "/usage/..%2Fpage.js", "/usage/"] {
        let answer = world.get(path, &[]).await;
        refused(path, &answer, 404, NOT_FOUND, "path_not_found");
    }
    let head = request(Method::HEAD, &world.url("/usage"), &[], "".into());
    let head = world.ask(head).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
}

#[tokio::test]
async fn usage_page_without_scripts_lists_the_urls_of_its_data() {
    let world = top("service = \"acme-ai\"").start().await;
    let html = page(&world, "en").await.text();
    let (_, without) = html.split_once("<noscript>").unwrap();
    let (without, _) = without.split_once("</noscript>").unwrap();
    for path in ["key", "usage", "receipts"] {
        let reported = format!("http://gateway.example/v1/acme-ai/{path}");
        assert!(without.contains(&reported), "{reported}: {without}");
    }
}
