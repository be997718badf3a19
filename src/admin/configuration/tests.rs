use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use http::Method;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::{
    admin::tests::{Api, Log, admin_of_file, asked_by, request},
    operators::{Operator, Role},
};

const FILE: &str = "# ours\n[admin]\nkey = \"file:DIR/admin.key\"   # kept\n[[rate.source]]\nfixed = \"90\"\n\
    [tariff]\nsell_rate_multiplier = \"1.15\"\n\n[[vendor]]\nname = \"v\"\nformat = \"chat\"\n\
    url = \"http://127.0.0.1:9/v1\"\nkey = \"file:DIR/v.key\"\n\n[[model]]\nid = \"m\"\nfamily = \"F\"\n\
    usdt_mtok = { input = \"1\", cached_input = \"1\", output = \"1\", cache_write = \"1\" }   # sold\n\
    output_tokens_max = 1000\nroutes = [ { vendor = \"v\" } ]\n";
const SECRET: &str = "sk-typed-Zq7Kx2vW9mT4rB3L";

fn folder() -> (TempDir, PathBuf, Api) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("tollgate.toml");
    for name in ["admin.key", "v.key"] {
        fs::write(dir.path().join(name), "x".repeat(24)).unwrap();
    }
    fs::write(
        &file,
        FILE.replace("DIR", &dir.path().display().to_string()),
    )
    .unwrap();
    let api = admin_of_file(&file);
    (dir, file, api)
}

async fn change(api: &Api, fields: &str) -> (u16, Value) {
    let (_, shown) = request(api, Method::GET, "configuration", "").await;
    let body = format!("{{\"hash\": {}, {fields}}}", shown["hash"]);
    request(api, Method::POST, "configuration/changes", &body).await
}

#[tokio::test]
async fn previewed_change_is_written_once_and_the_previous_file_is_kept() {
    let log = Log::listen();
    let (_dir, file, api) = folder();
    let before = fs::read_to_string(&file).unwrap();
    let (_, shown) = request(&api, Method::GET, "configuration", "").await;
    assert_eq!(shown["vendors"][0]["name"], "v");
    assert_eq!(shown["writable"], true);
    let price = r#""change": "change_price", "model": "m", "prices": {"output": "2.5"}"#;
    let (status, preview) = change(&api, &format!("{price}, \"preview\": true")).await;
    assert_eq!(
        (status, &preview["written"]),
        (200, &json!(false)),
        "{preview}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let body = format!("{{\"hash\": {}, {price}}}", preview["hash"]);
    log.take();
    let post = async || request(&api, Method::POST, "configuration/changes", &body).await;
    tokio::time::pause();
    let (status, done) = post().await;
    assert_eq!((status, &done["written"]), (200, &json!(true)), "{done}");
    assert_eq!(done["difference"], preview["difference"]);
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("output = \"2.5\", cache_write = \"1\" }   # sold"),
        "{text}"
    );
    let previous = file.with_file_name("tollgate.toml.previous");
    assert_eq!(fs::read_to_string(previous).unwrap(), before);
    let lines = log.take().join("\n");
    assert!(
        lines.contains("configuration.change")
            && lines.contains("change_price")
            && lines.contains("output = \\\"2.5\\\""),
        "{lines}"
    );
    // The repeated request has the hash of the file before the change, so it is refused.
    assert_eq!(post().await.0, 409);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test(start_paused = true)]
async fn vendor_key_entered_by_an_operator_is_readable_only_by_the_gateway_and_never_shown() {
    let log = Log::listen();
    let (dir, file, api) = folder();
    let add = r#""change": "add_vendor", "preset": "deepseek", "name": "../../e vil", "key_in_file": true"#;
    let (status, preview) = change(&api, &format!("{add}, \"preview\": true")).await;
    assert_eq!(status, 200, "{preview}");
    let key = dir.path().join("______e_vil.key");
    assert_eq!(
        preview["key_file"],
        json!(key.canonicalize().unwrap_or(key.clone()))
    );
    assert!(!key.exists());
    let (status, done) = change(&api, &format!("{add}, \"key_value\": \"{SECRET}\"")).await;
    assert_eq!((status, &done["written"]), (200, &json!(true)), "{done}");
    assert_eq!(fs::read_to_string(&key).unwrap(), SECRET);
    assert_eq!(
        fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let (_, shown) = request(&api, Method::GET, "configuration", "").await;
    assert_eq!(
        shown["vendors"][1]["key"],
        json!(format!("file:{}", key.display()))
    );
    for text in [
        done.to_string(),
        shown.to_string(),
        log.take().join("\n"),
        fs::read_to_string(file).unwrap(),
    ] {
        assert!(!text.contains(SECRET), "{text}");
    }
    // A second key does not overwrite the first key's file.
    let again = add
        .replace("add_vendor", "change_vendor")
        .replace("\"name\"", "\"vendor\"");
    let again = again.replace("\"preset\": \"deepseek\", ", "");
    let (status, done) = change(&api, &format!("{again}, \"key_value\": \"another\"")).await;
    assert_eq!(status, 200, "{done}");
    assert!(
        done["key_file"]
            .as_str()
            .unwrap()
            .ends_with("______e_vil-2.key"),
        "{done}"
    );
    assert_eq!(fs::read_to_string(&key).unwrap(), SECRET);
}

#[tokio::test]
async fn unwritable_configuration_file_is_kept_and_the_answer_lists_the_changed_lines() {
    let (dir, file, api) = folder();
    let before = fs::read_to_string(&file).unwrap();
    // With a folder at the path of the temporary file, the file cannot be replaced, even by root.
    fs::create_dir(dir.path().join("tollgate.toml.new")).unwrap();
    let add = r#""change": "add_vendor", "preset": "deepseek", "key_in_file": true"#;
    let (status, done) = change(&api, &format!("{add}, \"key_value\": \"{SECRET}\"")).await;
    assert_eq!((status, &done["written"]), (200, &json!(false)), "{done}");
    assert!(
        done["problem"].as_str().unwrap().contains("tollgate.toml"),
        "{done}"
    );
    let added = done["difference"][0]["added"].to_string();
    assert!(added.contains("preset = \\\"deepseek\\\""), "{added}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert!(
        !dir.path().join("deepseek.key").exists(),
        "no key is left without its vendor"
    );
}

#[tokio::test]
async fn key_reference_cannot_name_another_secret_of_the_machine() {
    let (dir, file, api) = folder();
    let before = fs::read_to_string(&file).unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    symlink("/etc/passwd", at("link")).unwrap();
    symlink(at("admin.key"), at("other")).unwrap();
    for key in [
        "file:/etc/passwd".to_owned(),
        format!("file:{}", at("../passwd")),
        format!("file:{}", at("link")),
        format!("file:{}", at("other")),
        format!("file:{}", at("admin.key")),
        "file:v.key".into(),
        "${TOLLGATE_TYPED_KEY}".into(),
        "${}".into(),
        SECRET.into(),
    ] {
        let fields = format!(r#""change": "change_vendor", "vendor": "v", "key": "{key}""#);
        let (status, refused) = change(&api, &fields).await;
        assert_eq!(status, 400, "{key}: {refused}");
        assert!(!refused.to_string().contains(SECRET), "{refused}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

#[tokio::test]
async fn invalid_configuration_change_is_refused_with_the_errors_of_tollgate_check() {
    let (dir, file, api) = folder();
    let before = fs::read_to_string(&file).unwrap();
    for (fields, says) in [
        (r#""change": "drop""#, "change: must be one of"),
        (
            r#""change": "remove_model", "model": "m""#,
            "model: missing",
        ),
        (
            r#""change": "remove_vendor", "vendor": "x""#,
            "the file has no vendor",
        ),
        (
            r#""change": "change_price", "model": "m", "prices": {"inptu": "1"}"#,
            "inptu",
        ),
        (
            r#""change": "change_price", "model": "m", "prices": {"input": "1\"\nx = 1"}"#,
            "prices: input: must be one line",
        ),
        (
            r#""change": "change_price", "model": "m", "prices": {"input": "-1"}"#,
            "usdt_mtok.input",
        ),
        (
            r#""change": "change_vendor", "vendor": "v", "url": "ftp://x""#,
            "vendor[0].url",
        ),
        (
            r#""change": "add_vendor", "preset": "opnai""#,
            "did you mean openai?",
        ),
        (
            r#""change": "add_vendor", "preset": "openai", "key_in_file": true"#,
            "key_value",
        ),
        (
            r#""change": "add_vendor", "preset": "openai", "key": "${TOLLGATE_NO_SUCH}""#,
            "TOLLGATE_NO_SUCH",
        ),
    ] {
        let (status, refused) = change(&api, fields).await;
        assert_eq!(status, 400, "{fields}: {refused}");
        assert!(refused.to_string().contains(says), "{says}: {refused}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let files = fs::read_dir(dir.path()).unwrap();
    assert_eq!(files.count(), 3, "no other file is left");
}

#[tokio::test]
async fn only_admins_may_change_the_configuration_and_send_test_calls_to_vendors() {
    let (_dir, _file, api) = folder();
    for role in [Role::Read, Role::Finance, Role::Support] {
        let who = Operator::new("anna", role);
        for path in ["configuration/changes", "configuration/vendors/v/test"] {
            let (status, _) = asked_by(&who, &api, Method::POST, path, "{}").await;
            assert_eq!(status, 403, "{role} {path}");
        }
        let (status, _) = asked_by(&who, &api, Method::GET, "configuration", "").await;
        assert_eq!(status, 200);
    }
}

/// Returns a service account's JSON in several lines.
fn service_account() -> String {
    let account = json!({
        "private_key_id": "1", "private_key": include_str!("../../logins/test_key.pem"),
        "client_email": "gate@p.iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token",
    });
    format!("{account:#}")
}

#[tokio::test(start_paused = true)]
async fn vendors_are_added_from_presets_with_values_and_non_default_logins() {
    let account = service_account();
    for (fields, key, key_field, written) in [
        (
            r#""preset": "azure", "values": {"resource": "acme"}"#,
            SECRET,
            "key",
            "values = { resource = \"acme\" }\nkey = \"file:",
        ),
        (
            r#""preset": "azure", "login": "entra", "values": {"resource": "acme", "tenant": "t-1", "client": "c-1"}"#,
            SECRET,
            "client_secret",
            "login = { preset = \"entra\", client_secret = \"file:",
        ),
        (
            r#""preset": "vertex", "values": {"project": "acme-prod-421"}"#,
            &account,
            "key_file",
            "login = { key_file = \"file:",
        ),
        (
            r#""preset": "bedrock", "login": "access_key", "values": {"region": "us-east-1", "access_key_id": "AKIA1"}"#,
            SECRET,
            "secret_access_key",
            "login = { preset = \"access_key\", secret_access_key = \"file:",
        ),
        (
            r#""preset": "bedrock", "login": "role", "values": {"region": "us-east-1"}"#,
            "",
            "",
            "login = { preset = \"role\" }",
        ),
        (
            r#""preset": "yandexgpt", "values": {"folder": "b1g"}"#,
            SECRET,
            "key",
            "values = { folder = \"b1g\" }\nkey = \"file:",
        ),
    ] {
        let (_dir, file, api) = folder();
        let key_in_file = if key.is_empty() {
            ""
        } else {
            r#", "key_in_file": true"#
        };
        let add = format!("\"change\": \"add_vendor\", {fields}{key_in_file}");
        let (status, preview) = change(&api, &format!("{add}, \"preview\": true")).await;
        assert_eq!(status, 200, "{fields}: {preview}");
        let key_field = Some(key_field).filter(|it| !it.is_empty());
        assert_eq!(preview["key_field"], json!(key_field), "{preview}");
        let typed = match key_field {
            Some(_) => format!(", \"key_value\": {}", json!(key)),
            None => String::new(),
        };
        let (status, done) = change(&api, &format!("{add}{typed}")).await;
        assert_eq!((status, &done["written"]), (200, &json!(true)), "{done}");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(written), "{text}");
    }
}

#[tokio::test]
async fn error_names_a_missing_or_malformed_preset_value() {
    let (dir, file, api) = folder();
    let before = fs::read_to_string(&file).unwrap();
    let typed = format!(r#", "key_in_file": true, "key_value": "{SECRET}""#);
    for (fields, says) in [
        (
            r#""preset": "azure""#.to_owned(),
            "values.resource: missing: the Azure resource name, like acme-eastus2. In the Azure portal",
        ),
        (
            r#""preset": "azure", "login": "entra", "values": {"resource": "a", "tenant": "t"}"#
                .to_owned(),
            "values.client: missing: the Entra application ID",
        ),
        (
            r#""preset": "azure", "login": "entr", "values": {"resource": "a"}"#.to_owned(),
            "did you mean entra?",
        ),
        (
            format!(r#""preset": "azure", "values": {{"resource": "a/b"}}{typed}"#),
            "vendor[1].values.resource: must contain only letters",
        ),
        (
            format!(r#""preset": "bedrock", "values": {{"region": "r", "regoin": "r"}}{typed}"#),
            "vendor[1].values.regoin: the preset ",
        ),
        (
            r#""preset": "bedrock", "login": "role""#.to_owned(),
            "values.region: missing: the AWS region",
        ),
        (
            format!(r#""preset": "bedrock", "login": "role", "values": {{"region": "r"}}{typed}"#),
            "uses no key",
        ),
        (
            format!(r#""preset": "vertex", "values": {{"project": "p"}}{typed}"#),
            "vendor[1].login.key_file: ",
        ),
        (
            r#""preset": "yandexgpt", "values": {"folder": 7}"#.to_owned(),
            "values: folder: must be a string",
        ),
        (
            r#""preset": "yandexgpt", "values": ["b1g"]"#.to_owned(),
            "values: must be an object",
        ),
    ] {
        let (status, refused) =
            change(&api, &format!("\"change\": \"add_vendor\", {fields}")).await;
        assert_eq!(status, 400, "{fields}: {refused}");
        let text = refused.to_string();
        assert!(
            text.contains(says) && !text.contains(SECRET),
            "{says}: {refused}"
        );
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let files = fs::read_dir(dir.path()).unwrap();
    assert_eq!(files.count(), 3, "no key file is left");
}

#[tokio::test]
async fn presets_are_shown_with_the_values_that_each_login_needs() {
    let (_dir, _file, api) = folder();
    let (_, shown) = request(&api, Method::GET, "configuration", "").await;
    let presets = shown["presets"].as_array().unwrap();
    let azure = presets.iter().find(|it| it["name"] == "azure").unwrap();
    let needs = |login: &Value| -> Vec<Value> {
        let values = login["values"].as_array().unwrap().iter();
        values.map(|it| it["name"].clone()).collect()
    };
    let [usual, entra] = &azure["logins"].as_array().unwrap()[..] else {
        panic!("{azure}");
    };
    assert_eq!(usual["name"], Value::Null);
    assert_eq!(usual["key_setting"], "key");
    assert_eq!(needs(usual), ["resource"]);
    assert_eq!(usual["values"][0]["example"], "acme-eastus2");
    assert_eq!(entra["name"], "entra");
    assert_eq!(entra["key_variable"], "AZURE_CLIENT_SECRET");
    assert_eq!(needs(entra), ["client", "resource", "tenant"]);
}

#[tokio::test(start_paused = true)]
async fn restoring_the_previous_configuration_keeps_the_current_one_as_previous() {
    let _log = Log::listen();
    let (_dir, file, api) = folder();
    let (status, refused) = change(&api, "\"change\": \"restore\"").await;
    assert_eq!(status, 409, "{refused}");
    let (_, shown) = request(&api, Method::GET, "configuration", "").await;
    assert_eq!(shown["previous"], false);
    let first = fs::read_to_string(&file).unwrap();
    let price = r#""change": "change_price", "model": "m", "prices": {"output": "2.5"}"#;
    assert_eq!(change(&api, price).await.0, 200);
    let second = fs::read_to_string(&file).unwrap();
    let (_, shown) = request(&api, Method::GET, "configuration", "").await;
    assert_eq!(shown["previous"], true);
    let preview = "\"change\": \"restore\", \"preview\": true";
    let (status, preview) = change(&api, preview).await;
    assert_eq!((status, &preview["written"]), (200, &json!(false)));
    assert_eq!(fs::read_to_string(&file).unwrap(), second);
    for expected in [&first, &second] {
        let (status, done) = change(&api, "\"change\": \"restore\"").await;
        assert_eq!((status, &done["written"]), (200, &json!(true)), "{done}");
        assert_eq!(fs::read_to_string(&file).unwrap(), *expected);
    }
    let (_, shown) = request(&api, Method::GET, "changes", "").await;
    let changes = shown["changes"].as_array().unwrap().iter();
    let changes: Vec<_> = changes.map(|it| &it["details"]["change"]).collect();
    assert_eq!(changes, ["restore", "restore", "change_price"]);
    let difference = shown["changes"][2]["details"]["difference"]
        .as_str()
        .unwrap();
    assert!(
        difference.contains("+ ") && difference.contains("output = \"2.5\""),
        "{difference}"
    );
}

#[tokio::test]
async fn previous_configuration_is_checked_before_it_is_restored() {
    let (_dir, file, api) = folder();
    let before = fs::read_to_string(&file).unwrap();
    fs::write(
        file.with_file_name("tollgate.toml.previous"),
        "listen = 5\n",
    )
    .unwrap();
    let (status, refused) = change(&api, "\"change\": \"restore\"").await;
    assert_eq!(status, 400, "{refused}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}
