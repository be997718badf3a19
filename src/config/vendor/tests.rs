use tollgate_layers::model::{Dialect, OutputField, Route, Thinking};

use super::*;
use crate::config::testing::{assert_mistake, assert_mistakes, changed, parse, rows};

#[test]
fn error_about_an_invalid_vendor_or_route_names_the_setting() {
    assert_mistakes(
        r#"
        name = "v" |  | vendor[0].name | missing
        format = "chat" | format = "grpc" | vendor[0].format | "messages"
        format = "chat" |  | vendor[0].format | missing
        format = "chat" | formats = [] | vendor[0].formats | at least one
        format = "chat" | formats = "chat" | vendor[0].formats | must be a list
        format = "chat" | formats = ["chat", "grpc"] | vendor[0].formats[1] | "responses"
        format = "chat" | formats = ["chat", "messages", "chat"] | vendor[0].formats[2] | "chat" is listed twice
        format = "chat" | format = "chat"\nformats = ["chat"] | vendor[0].formats | remove format
        format = "chat"\nurl = "http://127.0.0.1:9/v1/" | formats = ["chat", "responses"]\nurl = "https://h/v1/responses" | vendor[0].url | ends in /responses
        http://127.0.0.1:9/v1/ | http://user:hunter2@h/v1 | vendor[0].url | key
        http://127.0.0.1:9/v1/ | http://h/v1?a=b | vendor[0].url | ?
        name = "v" | name = "v"\nproxy = "http://user:hunter2@p:1" | vendor[0].proxy | ${NAME}
        name = "v" | name = "v"\nproxy = "p:1" | vendor[0].proxy | socks5://
        name = "v" | name = "v"\nca_file = "ca.pem" | vendor[0].ca_file | https
        name = "v"\nformat = "chat"\nurl = "http://127.0.0.1:9/v1/" | name = "v"\nformat = "chat"\nurl = "https://h"\nca_file = "/no/such/ca.pem" | vendor[0].ca_file | cannot read /no/such/ca.pem
        name = "v"\nformat = "chat"\nurl = "http://127.0.0.1:9/v1/" | name = "v"\nformat = "chat"\nurl = "https://h"\nca_file = "Cargo.toml" | vendor[0].ca_file | no certificate
        name = "v" | name = "v"\nidle_connection_seconds = 0 | vendor[0].idle_connection_seconds | 1 to 3600
        key = "${VENDOR_KEY}" | key = "${VENDOR_KEY}"\nkeys = ["${VENDOR_KEY}"] | vendor[0].keys | remove key
        key = "${VENDOR_KEY}" | keys = [] | vendor[0].keys | 1 to
        key = "${VENDOR_KEY}" | keys = ["${VENDOR_KEY}", "0123456789abcdef"] | vendor[0].keys[1] | ${NAME}
        key = "${VENDOR_KEY}" | keys = ["${VENDOR_KEY}", "${ADMIN_KEY}", "${VENDOR_KEY}"] | vendor[0].keys[2] | keys[0]
        name = "v" | name = "v"\non_disconnect = "hold" | vendor[0].on_disconnect | "drain"
        vendor = "v" | vendor = "w" | model[0].routes[0].vendor | "w": add this vendor, or correct the name
        vendor = "v" | vendor = "anthropic" | model[0].routes[0].vendor | add this vendor
        model = "m-1" } | model = "m-1" }, { vendor = "v", model = "m-1", weight = 2 } | model[0].routes[1] | routes[0]
        model = "m-1" } | model = "m-1", thinking = "hard" } | model[0].routes[0].thinking | "budget"
        model = "m-1" | model = "m-1", weight = 0 | model[0].routes[0].weight | 1 to
        [ { vendor = "v", model = "m-1" } ] | [] | model[0].routes | missing
        http://127.0.0.1:9/v1/ | http://127.0.0.1:9/v1/chat/completions/ | vendor[0].url | because the gateway appends it
        format = "chat"\nurl = "http://127.0.0.1:9/v1/" | format = "messages"\nurl = "https://h/v1/messages" | vendor[0].url | ends in /v1/messages
    "#,
    );
}

#[test]
fn timeout_of_a_whole_response_defaults_to_the_time_limit_of_a_call() {
    let patience = |text: &str| {
        let config = parse(text).unwrap();
        config.live.models[0].routes[0]
            .vendor
            .plain_timeout
            .as_secs()
    };
    let long = changed("[admin]", "[limits]\ncall_seconds = 3600\n[admin]");
    assert_eq!(patience(&long), 3600);
    let given = long.replace("name = \"v\"", "name = \"v\"\nplain_seconds = 60");
    assert_eq!(patience(&given), 60);
}

#[test]
fn route_has_the_endpoint_url_and_the_key_of_its_vendor() {
    for [format, url, endpoint, credential] in rows(
        r#"
        chat | http://127.0.0.1:9/v1/ | http://127.0.0.1:9/v1/chat/completions | Bearer sk-vendor-secret
        messages | https://api.example | https://api.example/v1/messages | sk-vendor-secret
    "#,
    ) {
        let text = changed("format = \"chat\"", &format!("format = \"{format}\""));
        let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1)).unwrap();
        let model = &config.live.models[0];
        assert_eq!(
            (model.output_tokens_max, model.output_tokens_min),
            (128_000, 256)
        );
        let route = &model.routes[0];
        assert_eq!(
            (route.model.as_str(), route.weight, route.priority),
            ("m-1", 1, 0)
        );
        let vendor = &route.vendor;
        assert_eq!(vendor.format == Format::Chat, format == "chat");
        assert_eq!(vendor.endpoint.to_string(), endpoint);
        assert_eq!(vendor.credentials, [credential]);
        assert!(vendor.credentials[0].is_sensitive());
        assert_eq!(vendor.on_disconnect, OnDisconnect::Cancel);
        let seconds = [
            vendor.egress.connect_timeout,
            vendor.first_byte_timeout,
            vendor.plain_timeout,
            vendor.head_timeout,
            vendor.idle_timeout,
            vendor.egress.idle_connection_timeout,
        ]
        .map(|time| time.as_secs());
        assert_eq!(seconds, [3, 120, 900, 30, 120, 50]);
        assert_eq!(vendor.egress.protocol, Protocol::Http1);
        assert!(vendor.egress.proxy.is_none() && vendor.egress.authorities.is_none());
        assert!(!model.sticky);
    }
}

#[test]
fn formats_of_a_vendor_share_its_base_url_and_keys() {
    let text = changed("format = \"chat\"", "formats = [\"messages\", \"chat\"]");
    let text = text.replacen("http://127.0.0.1:9/v1/", "http://h/api/", 1);
    let text = text.replacen("name = \"v\"", "name = \"v\"\nconnections_max = 7", 1);
    let config = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let route = &config.live.models[0].routes[0];
    let (chat, messages) = (Format::Chat, Format::Messages);
    for (caller, spoken, endpoint, credential) in [
        (
            chat,
            chat,
            "http://h/api/chat/completions",
            "Bearer sk-vendor-secret",
        ),
        (
            messages,
            messages,
            "http://h/api/v1/messages",
            "sk-vendor-secret",
        ),
        (
            Format::Responses,
            messages,
            "http://h/api/v1/messages",
            "sk-vendor-secret",
        ),
    ] {
        let vendor = &route.speaking(caller).vendor;
        assert_eq!((vendor.format, vendor.connections_max), (spoken, 7));
        assert_eq!(vendor.endpoint.to_string(), endpoint);
        assert_eq!(vendor.credentials, [credential]);
        assert!(vendor.credentials[0].is_sensitive());
    }
    // If the vendor has several formats, the base URL already ends in /v1, and /v1 is not repeated.
    for [formats, url, endpoint] in rows(
        r#"
        ["messages", "chat"] | http://h/v1/ | http://h/v1/messages
        ["messages", "chat"] | http://h/v1/x | http://h/v1/x/v1/messages
        ["messages"] | http://h/v1 | http://h/v1/v1/messages
    "#,
    ) {
        let text = changed("format = \"chat\"", &format!("formats = {formats}"));
        let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let route = &config.live.models[0].routes[0];
        let vendor = &route.speaking(messages).vendor;
        assert_eq!(vendor.endpoint.to_string(), endpoint, "{formats} {url}");
    }
    // A mistake in the list of formats is reported once.
    let bad = changed("format = \"chat\"", "formats = 1");
    assert_eq!(parse(&bad).unwrap_err().iter().count(), 1);
}

#[test]
fn routes_are_ordered_by_priority_and_may_override_settings_of_their_model() {
    let text = changed(
        "routes = [ { vendor = \"v\", model = \"m-1\" } ]",
        r#"sticky = true
        output_field = "max_tokens"
        sampling = false
        routes = [
            { vendor = "v", model = "last", priority = 2, output_field = "max_completion_tokens", thinking = "budget" },
            { vendor = "w", model = "m-1", weight = 7 },
            { vendor = "v", model = "m-1" },
        ]"#,
    );
    let text = format!(
        "{text}\n[[vendor]]\nname = \"w\"\nformat = \"messages\"\nurl = \"http://h\"\nkey = \"${{VENDOR_KEY}}\"\n"
    );
    let config = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let model = &config.live.models[0];
    assert!(model.sticky);
    let places: Vec<_> = model
        .routes
        .iter()
        .map(|route| (&*route.vendor.name, route.model.as_str(), route.weight))
        .collect();
    assert_eq!(places, [("w", "m-1", 7), ("v", "m-1", 1), ("v", "last", 1)]);
    let usual = Dialect::default()
        .output_field(OutputField::MaxTokens)
        .sampling(false);
    let other = usual
        .output_field(OutputField::MaxCompletionTokens)
        .thinking(Thinking::Budget);
    let dialects: Vec<_> = model.routes.iter().map(|route| route.dialect).collect();
    assert_eq!(dialects, [usual, usual, other]);
}

#[test]
fn vendor_with_several_keys_has_a_credential_for_each() {
    let keys = "keys = [\"${VENDOR_KEY}\", \"${ADMIN_KEY}\"]";
    let config = parse(&changed("key = \"${VENDOR_KEY}\"", keys)).unwrap();
    let vendor = &config.live.models[0].routes[0].vendor;
    assert_eq!(
        vendor.credentials,
        ["Bearer sk-vendor-secret", "Bearer admin-7Kq2vW9xT4mZ8rB3"]
    );
    assert!(
        vendor
            .credentials
            .iter()
            .all(http::HeaderValue::is_sensitive)
    );
}

#[test]
fn each_vendor_has_its_own_connection_settings() {
    let of = |lines: &str, url: &str| {
        let text = changed("name = \"v\"", &format!("name = \"v\"\n{lines}"));
        let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        Arc::clone(&config.live.models[0].routes[0].vendor.egress)
    };
    let (http, https) = ("http://h/v1", "https://h/v1");
    let proxy = of("proxy = \"${PROXY_URL}\"", https).proxy.clone();
    assert_eq!(proxy.unwrap().expose(), "http://user:hunter2@proxy:3128");
    assert_eq!(of("http2 = true", https).protocol, Protocol::Http2Offered);
    assert_eq!(of("http2 = true", http).protocol, Protocol::Http2);
    assert_eq!(of("proxy = \"\"\nca_file = \"\"", http), of("", http));
    assert_ne!(of("connect_seconds = 4", http), of("", http));
}

/// Returns the only route of `SMALL`, after these lines were added to its vendor.
fn route(lines: &str) -> Arc<Route> {
    let text = changed(
        "key = \"${VENDOR_KEY}\"",
        &format!("key = \"${{VENDOR_KEY}}\"\n{lines}"),
    );
    let config = parse(&text).unwrap_or_else(|errors| panic!("{lines}: {errors}"));
    Arc::clone(&config.live.models[0].routes[0])
}

#[test]
fn path_and_query_of_a_vendor_are_appended_to_its_url() {
    for [lines, address] in rows(
        r#"
         | http://127.0.0.1:9/v1/chat/completions
        path = "/chat" | http://127.0.0.1:9/v1/chat
        path = "/deployments/{model}/chat/completions"\nquery = { api-version = "2024-10-21" } | http://127.0.0.1:9/v1/deployments/m-1/chat/completions?api-version=2024-10-21
        query = { "a b" = "c&d", z = "" } | http://127.0.0.1:9/v1/chat/completions?a%20b=c%26d&z=
    "#,
    ) {
        assert_eq!(route(lines).vendor.endpoint.to_string(), address, "{lines}");
    }
}

#[test]
fn model_name_in_a_vendors_path_is_encoded_for_each_route() {
    let text = changed(
        "key = \"${VENDOR_KEY}\"",
        "key = \"${VENDOR_KEY}\"\npath = \"/model/{model}/chat\"",
    );
    let text = text.replace(
        "{ vendor = \"v\", model = \"m-1\" }",
        "{ vendor = \"v\", model = \"a/b:0\" }, { vendor = \"v\", model = \"c\" }",
    );
    let config = parse(&text).unwrap();
    let routes = &config.live.models[0].routes;
    let paths: Vec<_> = routes.iter().map(|it| it.vendor.endpoint.path()).collect();
    assert_eq!(paths, ["/v1/model/a%2Fb%3A0/chat", "/v1/model/c/chat"]);
}

#[test]
fn embeddings_url_keeps_the_query_and_the_model_in_the_path() {
    let text = changed(
        "key = \"${VENDOR_KEY}\"",
        "key = \"${VENDOR_KEY}\"\npath = \"/deployments/{model}/chat/completions\"\nquery = { v = \"1\" }",
    );
    let text = text
        .replace("output_tokens_max = 128000", "kind = \"embedding\"")
        .replace(
            "{ input = \"0.25\", cached_input = \"0.025\", output = \"2.00\", cache_write = \"0.25\" }",
            "{ input = \"0.25\" }",
        );
    let config = parse(&text).unwrap();
    assert_eq!(
        config.live.models[0].routes[0].vendor.endpoint.to_string(),
        "http://127.0.0.1:9/v1/deployments/m-1/embeddings?v=1"
    );
    let errors = parse(&text.replace("/chat/completions", "/chat")).unwrap_err();
    assert!(
        errors.to_string().contains("a path that ends in"),
        "{errors}"
    );
}

#[test]
fn header_value_from_a_secret_is_marked_as_sensitive() {
    let route = route("headers = { OpenAI-Project = \"proj_1\", x-tenant = \"${ADMIN_KEY}\" }");
    let headers = &route.vendor.headers;
    assert_eq!(headers["openai-project"], "proj_1");
    assert!(headers["x-tenant"].is_sensitive() && !headers["openai-project"].is_sensitive());
    assert!(!format!("{route:?}").contains("admin-7Kq2vW9xT4mZ8rB3"));
}

#[test]
fn error_about_an_invalid_path_or_query_or_header_of_a_vendor_names_the_setting() {
    const KEY: &str = "key = \"${VENDOR_KEY}\"";
    let many: Vec<_> = (0..17)
        .map(|number| format!("x-{number} = \"1\""))
        .collect();
    let many = format!("headers = {{ {} }}", many.join(", "));
    for (lines, path, word) in [
        ("path = \"chat\"", "path", "{model}"),
        ("path = \"/a?b\"", "path", "without a query"),
        ("path = \"/{deployment}\"", "path", "without other braces"),
        (
            "query = { key = \"${VENDOR_KEY}\" }",
            "query.key",
            "must not be a secret",
        ),
        (
            "headers = { \"a b\" = \"1\" }",
            "headers.a b",
            "header name",
        ),
        (
            "headers = { Authorization = \"x\" }",
            "headers.Authorization",
            "login",
        ),
        ("headers = { Host = \"x\" }", "headers.Host", "remove it"),
        (
            "headers = { x-a = \"${NONE}\" }",
            "headers.x-a",
            "export it",
        ),
        ("headers = { x-a = \"a\\nb\" }", "headers.x-a", "ASCII"),
        (many.as_str(), "headers", "at most 16"),
    ] {
        let path = format!("vendor[0].{path}");
        assert_mistake(KEY, &format!("{KEY}\n{lines}"), &path, word);
    }
    assert_mistake(
        "format = \"chat\"",
        "formats = [\"chat\", \"responses\"]\npath = \"/x\"",
        "vendor[0].path",
        "is valid for one format only",
    );
}
