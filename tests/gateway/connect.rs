//! Tests of the generated configuration for clients: `GET /v1/<service>/connect` lists the clients, and serves a
//! configuration file for each of them. `tests/sdk/connect.test.mjs` and `connect_test.py` check that the clients
//! accept the files.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use http::StatusCode;
use rust_decimal::Decimal;
use serde_json::Map;
use tollgate::config::Config;

use crate::{
    page::{BROWSER, tags},
    prelude::*,
};

const CONNECT: &str = "/v1/tollgate/connect";
const CLIENTS: [&str; 10] = [
    "claude-code",
    "codex",
    "opencode",
    "vscode",
    "zed",
    "continue",
    "open-webui",
    "langchain",
    "n8n",
    "curl",
];
const BASE: &str = "http://gateway.example/v1";
const ROOT: &str = "http://gateway.example";
/// A model name that would break out of quotes, comments and variables if it were not escaped.
const HOSTILE: &str = "it's \"a\" $(b) `c` \\ #d: */ё";

async fn served(world: &World, client: &str) -> Answer {
    let answer = world.get(&format!("{CONNECT}/{client}"), &[]).await;
    assert_eq!(answer.status, 200, "{client}: {answer:?}");
    answer
}

/// Returns a setup with a rate limit that the requests of these tests cannot reach.
fn setup() -> Setup {
    limits("catalog_requests_per_second = 1000")
}

/// Returns a setup in which the gateway never gets an exchange rate.
fn without_a_rate() -> Setup {
    setup().edit(
        "fixed = \"100\"",
        "url = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"",
    )
}

/// Returns a setup with a model whose name must be quoted in every file format.
fn with_a_hostile_name() -> Setup {
    let quoted = format!("id = {}", json!(HOSTILE));
    setup().edit("id = \"chat\"", &quoted)
}

/// Checks that the program can parse the text. The text is not executed.
fn is_read_by(program: &str, args: &[&str], text: &[u8]) {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(text));
}

/// Parses YAML as the gateway writes it: blocks of mappings and sequences, whose scalars are written as JSON.
fn yaml(text: &str) -> Value {
    let lines: Vec<(usize, &str)> = text
        .lines()
        .map(|line| (line.len() - line.trim_start().len(), line.trim_start()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect();
    block(&lines)
}

fn block(lines: &[(usize, &str)]) -> Value {
    let indent = lines[0].0;
    let starts: Vec<usize> = (0..lines.len())
        .filter(|at| lines[*at].0 == indent)
        .collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    let parts = starts
        .iter()
        .zip(ends)
        .map(|(start, end)| &lines[*start..end]);
    if lines[0].1.starts_with("- ") {
        return parts
            .map(|part| {
                let first = (indent + 2, part[0].1.strip_prefix("- ").unwrap());
                let mut item = vec![first];
                item.extend(&part[1..]);
                block(&item)
            })
            .collect();
    }
    let mut map = Map::new();
    for part in parts {
        let (key, leaf) = part[0].1.split_once(':').expect("a key");
        let value = if leaf.is_empty() {
            block(&part[1..])
        } else {
            assert_eq!(part.len(), 1, "{part:?}");
            serde_json::from_str(leaf).unwrap_or_else(|error| panic!("{error}: {leaf}"))
        };
        assert!(map.insert(key.to_owned(), value).is_none(), "{key} twice");
    }
    Value::Object(map)
}

/// Returns all strings in a document, including the names of fields.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| [vec![name.clone()], texts(value)].concat())
            .collect(),
        _ => Vec::new(),
    }
}

/// Parses the content of a configuration file according to its content type. Returns `None` for scripts, which are
/// plain text.
fn parsed(answer: &Answer) -> Option<Value> {
    match answer.headers["content-type"].to_str().unwrap() {
        "application/json" => Some(answer.json()),
        "application/yaml" => Some(yaml(&answer.text())),
        "application/toml" => Some(toml::from_str(&answer.text()).unwrap()),
        "text/plain; charset=utf-8" => None,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn every_client_file_parses_and_contains_the_address_and_every_model() {
    let world = with_a_hostile_name().start().await;
    for client in CLIENTS {
        let answer = served(&world, client).await;
        let text = answer.text();
        match client {
            "curl" => is_read_by("bash", &["-n"], text.as_bytes()),
            "langchain" => {
                let script = "import ast, sys; ast.parse(sys.stdin.buffer.read())";
                is_read_by("python3", &["-c", script], text.as_bytes());
            }
            _ => {}
        }
        let reported = match parsed(&answer) {
            Some(value) => texts(&value),
            None => Vec::new(),
        };
        let address = match client {
            "claude-code" => ROOT,
            "vscode" => "http://gateway.example/v1/chat/completions",
            _ => BASE,
        };
        assert!(
            reported.iter().any(|reported| reported == address)
                || (reported.is_empty() && text.contains(address)),
            "{client}: {text}"
        );
        if client == "n8n" {
            continue; // its credentials have no place for models: its nodes ask for them
        }
        for id in [HOSTILE, "messages"] {
            let quoted = text.contains(&json!(id).to_string());
            assert!(
                quoted || reported.iter().any(|reported| reported == id),
                "{client}: {text}"
            );
        }
    }
}

#[tokio::test]
async fn generated_script_calls_the_first_model_of_the_needed_kind() {
    // The model with the hostile name comes first in the catalog, so it is the first of the chat models.
    let vectors = "[[model]]\nid = \"vectors\"\nfamily = \"Test\"\nkind = \"embedding\"\n\
        usdt_mtok = { input = \"0.2\" }\nroutes = [ { vendor = \"chat-vendor\", model = \"vectors-1\" } ]\n[[model]]\nid = ";
    let quoted = json!(HOSTILE);
    let world = setup()
        .edit("[[model]]\nid = \"chat\"", &format!("{vectors}{quoted}"))
        .start()
        .await;
    // A shell function with the name `curl` replaces the program, and prints the arguments that curl would get, one per
    // line.
    let returned = "curl() { printf '%s\\n' \"$@\"; }\n";
    let script = format!("{returned}{}", served(&world, "curl").await.text());
    let done = Command::new("bash")
        .args(["-c", &script])
        .env("TOLLGATE_KEY", "key-of-the-environment")
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let lines = String::from_utf8(done.stdout).unwrap();
    let bodies: Vec<Value> = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let models: Vec<&Value> = bodies.iter().map(|body| &body["model"]).collect();
    assert_eq!(models, [HOSTILE, HOSTILE, HOSTILE, "vectors"], "{lines}");
    for (body, asks) in bodies
        .iter()
        .zip(["messages", "messages", "input", "input"])
    {
        assert!(body.get(asks).is_some(), "{body}");
    }
    for url in [
        "/chat/completions",
        "/messages",
        "/responses",
        "/embeddings",
    ] {
        let url = format!("{BASE}{url}");
        assert!(lines.lines().any(|line| line == url), "{lines}");
    }
    assert!(lines.contains("authorization: Bearer key-of-the-environment"));
}

#[tokio::test]
async fn client_files_contain_a_placeholder_and_never_a_key() {
    let world = setup().start().await;
    world.key().await;
    for client in CLIENTS {
        let text = served(&world, client).await.text();
        let placed = text.matches("tg-YOUR-KEY").count();
        assert_eq!(text.matches("tg-").count(), placed, "{client}: {text}");
        let variable = text.contains("TOLLGATE_KEY");
        // Zed reads its key from the keychain, or from an environment variable whose name Zed itself derives.
        assert_eq!(placed > 0 || variable, client != "zed", "{client}: {text}");
        assert!(!text.contains("?key"), "{text}");
        assert!(!text.contains("@gateway"), "{text}");
    }
    let index = world.get(CONNECT, &[]).await.json();
    assert!(
        texts(&index)
            .iter()
            .any(|text| text.contains("TOLLGATE_API_KEY"))
    );
}

#[tokio::test]
async fn limits_and_prices_in_client_files_equal_those_in_the_catalog() {
    let world = setup()
        .edit("fixed = \"100\"", "fixed = \"81.432109\"")
        .edit("sell_rate_multiplier = \"1\"", "sell_rate_multiplier = \"1.15\"")
        .edit(
            "output_tokens_max = 4000\nroutes = [ { vendor = \"messages",
            "output_tokens_max = 64000\ninput_tokens_max = 200000\nroutes = [ { vendor = \"messages",
        )
        .start()
        .await;
    let opencode = served(&world, "opencode").await.json();
    let models = &opencode["provider"]["tollgate"]["models"];
    assert_eq!(
        models["chat"]["limit"],
        json!({ "context": 0, "output": 4000 })
    );
    let known = json!({ "context": 200_000, "output": 64_000 });
    assert_eq!(models["messages"]["limit"], known);
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let rate: Decimal = "81.432109".parse().unwrap();
    for model in catalog["models"].as_array().unwrap() {
        let cost = &models[model["id"].as_str().unwrap()]["cost"];
        for (ours, theirs) in [
            ("input_rub_mtok", "input"),
            ("output_rub_mtok", "output"),
            ("cached_input_rub_mtok", "cache_read"),
            ("cache_write_rub_mtok", "cache_write"),
        ] {
            // The client shows costs in dollars. These are the prices in rubles divided by the exchange rate, rounded
            // down.
            let dollars: Decimal = cost[theirs].to_string().parse().unwrap();
            let rubles = decimal(&model[ours]);
            let gap = rubles - dollars * rate;
            let step = Decimal::new(1, 6);
            assert!(gap >= Decimal::ZERO, "{theirs}: {cost} {rubles}");
            assert!(gap < step, "{theirs}: {cost} {rubles}");
        }
    }

    let vscode = served(&world, "vscode").await.json();
    let limits: Vec<_> = vscode[0]["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (&model["maxInputTokens"], &model["maxOutputTokens"]))
        .collect();
    let parts = [
        (json!(124_000), json!(4000)),
        (json!(136_000), json!(64_000)),
    ];
    assert_eq!(
        limits,
        parts.each_ref().map(|(input, output)| (input, output))
    );

    let zed = served(&world, "zed").await.json();
    let zed = &zed["language_models"]["openai_compatible"]["tollgate"]["available_models"][1];
    assert_eq!(zed["max_tokens"], 200_000);
    assert_eq!(zed["max_output_tokens"], 64_000);

    let claude = served(&world, "claude-code").await.json();
    assert_eq!(claude["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], "200000");

    let options = parsed(&served(&world, "continue").await).unwrap();
    let options = &options["models"][1]["defaultCompletionOptions"];
    assert_eq!(
        options,
        &json!({ "contextLength": 200_000, "maxTokens": 64_000 })
    );
}

#[tokio::test]
async fn client_files_omit_costs_while_there_are_no_prices() {
    let world = without_a_rate().start().await;
    for client in CLIENTS {
        let answer = served(&world, client).await;
        assert_eq!(answer.headers["cache-control"], "public, max-age=5");
        if let Some(value) = parsed(&answer) {
            assert!(!texts(&value).contains(&"cost".to_owned()), "{client}");
        }
        let models = client == "n8n" || answer.text().contains("\"messages\"");
        assert!(models, "{client}: {}", answer.text());
    }
}

#[tokio::test]
async fn claude_code_model_aliases_select_the_catalog_models_with_those_names() {
    let world = setup()
        .edit("id = \"messages\"", "id = \"acme/Claude-Haiku-9\"")
        .start()
        .await;
    let env = served(&world, "claude-code").await.json()["env"].clone();
    assert_eq!(env["ANTHROPIC_DEFAULT_HAIKU_MODEL"], "acme/Claude-Haiku-9");
    assert_eq!(env["ANTHROPIC_DEFAULT_SONNET_MODEL"], "chat");
    assert_eq!(env["ANTHROPIC_DEFAULT_OPUS_MODEL"], "chat");
}

#[tokio::test]
async fn connect_page_is_json_for_programs_and_html_for_browsers() {
    let world = setup().start().await;
    let answer = world.get(CONNECT, &[]).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["access-control-allow-origin"], "*");
    let index = answer.json();
    let entries = index["clients"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| &entry["client"]).collect();
    assert_eq!(names, CLIENTS);

    let shown = world.get(CONNECT, &[BROWSER]).await;
    assert_eq!(shown.headers["content-type"], "text/html; charset=utf-8");
    let (html, prices) = (shown.text(), world.get("/", &[BROWSER]).await);
    for header in [
        "content-security-policy",
        "x-content-type-options",
        "referrer-policy",
    ] {
        assert_eq!(shown.headers[header], prices.headers[header], "{header}");
    }
    assert_eq!((&shown.headers["vary"], &answer.headers["vary"]), {
        let accept = &prices.headers["vary"];
        (accept, accept)
    });
    assert!(prices.text().contains("<a href=\"/v1/tollgate/connect\">"));

    for entry in entries {
        let client = entry["client"].as_str().unwrap();
        let url = format!("{BASE}/tollgate/connect/{client}");
        assert_eq!(entry["url"], url.as_str());
        assert_eq!(entry["where"], entry["where_ru"], "{entry}");
        for (field, russian) in [("where_ru", true), ("where_en", false)] {
            assert_eq!(
                is_russian(entry[field].as_str().unwrap()),
                russian,
                "{entry}"
            );
        }
        let file = served(&world, client).await;
        let disposition = file.headers["content-disposition"].to_str().unwrap();
        let named = format!("filename=\"{}\"", entry["filename"].as_str().unwrap());
        assert!(disposition.ends_with(&named), "{disposition}");
        let snippet = disposition.starts_with("inline");
        let format = entry["format"].as_str().unwrap();
        assert_eq!(snippet, ["python", "shell"].contains(&format), "{entry}");
        assert_eq!(file.headers["x-content-type-options"], "nosniff");
        assert_eq!(file.headers["access-control-allow-origin"], "*");
        has(&html, &format!("<a href=\"connect/{client}\">"));
    }
    for tag in tags(&html) {
        let name = tag.split_whitespace().next().unwrap();
        for forbidden in ["script", "iframe", "img", "form", "object", "base"] {
            assert_ne!(name, forbidden, "{tag}");
        }
        assert!(!tag.contains(" on") && !tag.contains("src="), "{tag}");
    }
    assert!(html.contains("width=device-width") && html.contains("prefers-color-scheme: dark"));
}

#[tokio::test]
async fn names_on_the_connect_page_are_escaped() {
    let world = setup()
        .edit("id = \"chat\"", "id = \"<img src=x onerror=alert(1)>\"")
        .start()
        .await;
    let html = world.get(CONNECT, &[BROWSER]).await.text();
    assert!(!html.contains("<img"), "{html}");
    has(&html, "img src=x");
    tags(&html);
}

#[tokio::test]
async fn connect_page_uses_the_configured_language() {
    let world = setup()
        .edit("base_url =", "language = \"en\"\nbase_url =")
        .start()
        .await;
    let mut all = world.get(CONNECT, &[BROWSER]).await.text();
    for client in CLIENTS {
        all += &served(&world, client).await.text();
    }
    assert!(!is_russian(&all), "{all}");
    let index = world.get(CONNECT, &[]).await.json();
    for entry in index["clients"].as_array().unwrap() {
        assert_eq!(entry["where"], entry["where_en"], "{entry}");
    }
}

#[tokio::test]
async fn generated_client_files_contain_the_configured_paths_and_addresses() {
    let world = setup()
        .edit("base_url =", "service = \"acme-ai\"\nbase_url =")
        .edit(BASE, "https://ai.example/llm/v1")
        .start()
        .await;
    let index = world.get("/v1/acme-ai/connect", &[]).await.json();
    let first = &index["clients"][0]["url"];
    assert_eq!(
        first,
        "https://ai.example/llm/v1/acme-ai/connect/claude-code"
    );
    for client in CLIENTS {
        let path = format!("/v1/acme-ai/connect/{client}");
        let text = world.get(&path, &[]).await.text();
        assert!(text.contains("https://ai.example/llm"), "{client}: {text}");
        assert!(!text.contains("gateway.example"), "{client}: {text}");
    }
    let zed = &texts(&index).join(" ");
    assert!(zed.contains("ACME_AI_API_KEY"), "{zed}");
    let old = world.get(CONNECT, &[]).await;
    refused("the usual path", &old, 404, NOT_FOUND, "path_not_found");
}

#[tokio::test]
async fn file_for_an_unknown_client_gets_404_and_the_error_names_the_known_clients() {
    let world = setup().start().await;
    for client in ["emacs", "codex.toml", "ZED", "zed%20"] {
        let answer = world.get(&format!("{CONNECT}/{client}"), &[]).await;
        let text = refused(client, &answer, 404, NOT_FOUND, "client_not_found");
        assert!(text.contains(&format!("«{client}»")), "{text}");
        for known in CLIENTS {
            assert!(text.contains(known), "{text}");
        }
    }
}

#[tokio::test]
async fn unchanged_client_file_is_304_until_the_catalog_changes() {
    let world = setup().start().await;
    let catalog = world.get("/v1/tollgate/models", &[]).await;
    let paths = ["", "/opencode", "/curl"].map(|client| format!("{CONNECT}{client}"));
    let mut tagged = Vec::new();
    for path in &paths {
        let first = world.get(path, &[]).await;
        let stored = &first.headers["cache-control"];
        assert_eq!(stored, &catalog.headers["cache-control"], "{path}");
        let tag = first.headers["etag"].to_str().unwrap().to_owned();
        let again = world.get(path, &[("if-none-match", &tag)]).await;
        assert_eq!(again.status, StatusCode::NOT_MODIFIED, "{path}");
        assert!(again.body.is_empty());

        let head = world
            .ask(request(Method::HEAD, &world.url(path), &[], "".into()))
            .await;
        assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
        let length = first.body.len().to_string();
        assert_eq!(head.headers["content-length"], length.as_str());
        assert_eq!(head.headers["etag"], tag.as_str());
        tagged.push((path, tag));
    }
    let page = world.get(CONNECT, &[BROWSER]).await;
    assert_ne!(page.headers["etag"], tagged[0].1.as_str(), "other bytes");

    let text = config_text(world.vendor.address(), "memory:", "outbox.db")
        .replace("id = \"chat\"", "id = \"newer\"");
    let secret = |_: &str| Some("a-secret-of-sixteen-characters".to_owned());
    let config = Config::parse(&text, &secret).unwrap();
    let live = world.gateway.live();
    live.replace(&config, live.snapshot().version());
    for (path, tag) in &tagged[1..] {
        let changed = world.get(path, &[("if-none-match", tag)]).await;
        assert_eq!(changed.status, 200, "{path}");
        assert!(changed.text().contains("newer"), "{path}");
    }
}

#[tokio::test]
async fn client_files_allow_only_get_and_head() {
    let world = setup().start().await;
    for path in [CONNECT.to_owned(), format!("{CONNECT}/zed")] {
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            let req = request(method.clone(), &world.url(&path), &[], "".into());
            let answer = world.ask(req).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.headers["allow"], "GET, HEAD", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn connect_pages_need_no_key_and_share_the_catalogs_rate_limit() {
    let world = limits("catalog_requests_per_second = 1").start().await;
    let path = format!("{CONNECT}/zed");
    let nonsense = [("authorization", "Bearer nonsense")];
    assert_eq!(world.get(&path, &nonsense).await.status, 200);
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(world.get(&path, &[]).await.status.as_u16());
        statuses.push(world.get("/v1/tollgate/models", &[]).await.status.as_u16());
    }
    assert!(statuses.contains(&429), "{statuses:?}");
}
