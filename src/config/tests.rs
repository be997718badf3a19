use secrecy::ExposeSecret;
use tollgate_layers::{
    call::Format,
    model::{Dialect, OnDisconnect, OutputField, Protocol, Thinking},
};

use super::*;
use crate::node::files::Shares;

const EXAMPLE: &str = include_str!("../../deploy/tollgate.toml");

const SMALL: &str = r#"
        [admin]
        key = "${ADMIN_KEY}"
        [[rate.source]]
        fixed = "90.50"
        [[vendor]]
        name = "v"
        format = "chat"
        url = "http://127.0.0.1:9/v1/"
        key = "${VENDOR_KEY}"
        [[model]]
        id = "m"
        family = "M"
        usdt_mtok = { input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }
        output_tokens_max = 128000
        routes = [ { vendor = "v", model = "m-1" } ]
    "#;

fn env(name: &str) -> Option<String> {
    let value = match name {
        "ADMIN_KEY" | "TOLLGATE_ADMIN_KEY" => "admin-secret-0123456789",
        "VENDOR_KEY" | "OPENAI_API_KEY" | "ANTHROPIC_API_KEY" => "sk-vendor-secret",
        "SHORT_KEY" => "0123456789abcde",
        "LEDGER_URL" => "redis://:hunter2@db:6379/0",
        "PROXY_URL" => "http://user:hunter2@proxy:3128",
        _ => return None,
    };
    Some(value.to_owned())
}

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, &env)
}

/// `SMALL` with one line changed.
fn changed(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

#[test]
fn the_example_is_accepted() {
    let config = parse(EXAMPLE).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.service, "tollgate");
    assert_eq!(config.limits.catalog_requests_per_second, 10);
    assert!(config.admin.expect("admin").listen.ip().is_loopback());
}

#[test]
fn absent_fields_have_their_defaults() {
    let config = parse(SMALL).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.base_url, "http://127.0.0.1:8080/v1");
    assert_eq!(config.ledger.url, LedgerUrl::Sqlite("tollgate.db".into()));
    assert_eq!(
        (config.ledger.image_tokens, config.ledger.document_tokens),
        (5_000, 50_000)
    );
    assert_eq!(config.ledger.hold_grace, Duration::from_secs(60));
    assert_eq!(
        config.ledger.outbox,
        OutboxConfig {
            path: "tollgate-outbox.db".into(),
            calls_max: 100_000,
            age_max: Duration::from_secs(3600),
        }
    );
    assert_eq!(
        config.limits,
        Limits {
            catalog_requests_per_second: 10,
            requests_per_second: None,
            unknown_keys_per_second: 10,
            unknown_keys_burst: 300,
            uri_bytes_max: 2048,
            in_flight_max: 10_000,
            body_bytes_max: 33_554_432,
            body_bytes_in_flight_max: 536_870_912,
            body_timeout: Duration::from_secs(60),
            body_rate_min: 1024,
            answer_bytes_max: 67_108_864,
            messages_max: 10_000,
            connections: ConnectionLimits {
                max: Shares::of_process(1024).callers,
                ..ConnectionLimits::default()
            },
            call_time_max: Duration::from_secs(900),
            drain_timeout: Duration::from_secs(30),
        }
    );
    let rate = &config.live.rate;
    assert_eq!((rate.age_max.as_secs(), rate.refresh.as_secs()), (600, 60));
    assert_eq!(config.live.tariff.sell_rate_multiplier, Decimal::ONE);
    let admin = config.admin.unwrap();
    assert_eq!(admin.listen.to_string(), "127.0.0.1:8081");
    assert_eq!(admin.key.expose_secret(), "admin-secret-0123456789");
    assert_eq!(admin.connections_max, Shares::of_process(0).operators);
}

#[test]
fn connections_are_what_vendors_leave_or_what_the_file_says() {
    let callers = |text: &str| parse(text).unwrap().limits.connections.max;
    let of_vendor = "name = \"v\"\nconnections_max = 7";
    let few = changed("name = \"v\"", of_vendor);
    assert_eq!(callers(&few), Shares::of_process(7).callers);
    assert!(callers(&few) > callers(SMALL));
    let given = few.replace("[admin]", "[limits]\nconnections_max = 5\n[admin]");
    assert_eq!(callers(&given), 5);
    let text = changed("[admin]", "[admin]\nconnections_max = 3");
    assert_eq!(parse(&text).unwrap().admin.unwrap().connections_max, 3);
}

#[test]
fn a_plain_answer_may_take_as_long_as_a_call_may() {
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
fn a_route_leads_to_the_vendors_endpoint_with_its_key() {
    for (format, url, endpoint, credential) in [
        (
            "chat",
            "http://127.0.0.1:9/v1/",
            "http://127.0.0.1:9/v1/chat/completions",
            "Bearer sk-vendor-secret",
        ),
        (
            "messages",
            "https://api.example",
            "https://api.example/v1/messages",
            "sk-vendor-secret",
        ),
    ] {
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
fn routes_stand_by_priority_and_a_route_differs_from_its_model_where_it_says_so() {
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
fn a_vendor_may_have_several_keys() {
    let keys = "keys = [\"${VENDOR_KEY}\", \"${ADMIN_KEY}\"]";
    let config = parse(&changed("key = \"${VENDOR_KEY}\"", keys)).unwrap();
    let vendor = &config.live.models[0].routes[0].vendor;
    assert_eq!(
        vendor.credentials,
        ["Bearer sk-vendor-secret", "Bearer admin-secret-0123456789"]
    );
    assert!(
        vendor
            .credentials
            .iter()
            .all(http::HeaderValue::is_sensitive)
    );
}

#[test]
fn how_connections_are_made_is_the_vendors() {
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

#[test]
fn every_mistake_is_named_with_its_field() {
    for (from, to, path, word) in [
        ("[admin]", "listen = \"8080\"\n[admin]", "listen", "address"),
        ("[admin]", "listen = 8080\n[admin]", "listen", "text"),
        (
            "[admin]",
            "lisen = \"127.0.0.1:80\"\n[admin]",
            "lisen",
            "unknown field",
        ),
        ("[admin]", "service = \"Chat\"\n[admin]", "service", "a-z"),
        (
            "[admin]",
            "service = \"messages\"\n[admin]",
            "service",
            "taken",
        ),
        (
            "[admin]",
            "base_url = \"http://h/api\"\n[admin]",
            "base_url",
            "/v1",
        ),
        (
            "[admin]",
            "language = \"de\"\n[admin]",
            "language",
            "\"ru\"",
        ),
        (
            "[admin]",
            "trusted_proxies = [\"10.0.0.0/8\", \"ten\"]\n[admin]",
            "trusted_proxies[1]",
            "CIDR",
        ),
        (
            "[admin]",
            "trusted_proxies = [1]\n[admin]",
            "trusted_proxies",
            "text",
        ),
        (
            "key = \"${ADMIN_KEY}\"",
            "key = \"0123456789abcdef0123456789abcdef\"",
            "admin.key",
            "${NAME}",
        ),
        (
            "key = \"${ADMIN_KEY}\"",
            "key = \"${NO_SUCH}\"",
            "admin.key",
            "NO_SUCH",
        ),
        (
            "key = \"${ADMIN_KEY}\"",
            "key = \"${SHORT_KEY}\"",
            "admin.key",
            "at least 16",
        ),
        ("key = \"${ADMIN_KEY}\"", "", "admin.key", "missing"),
        (
            "key = \"${ADMIN_KEY}\"",
            "key = \"${ADMIN_KEY}\"\nlisten = \"127.0.0.1:8080\"",
            "admin.listen",
            "same",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"redis-cluster://a:1,,b:2\"\n[admin]",
            "ledger.url",
            "a:7000,b:7001",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"redis-cluster://a:1/2\"\n[admin]",
            "ledger.url",
            "database 0 only",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"redis-cluster://:hunter2@a:1\"\n[admin]",
            "ledger.url",
            "password",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"rediss-sentinel://a,b\"\n[admin]",
            "ledger.url",
            "/mymaster",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"redis-ring://a\"\n[admin]",
            "ledger.url",
            "redis-cluster://",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"redis://\"\n[admin]",
            "ledger.url",
            "redis://user:password@host:port",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"postgres://a\"\n[admin]",
            "ledger.url",
            "sqlite:PATH",
        ),
        (
            "[admin]",
            "[ledger]\nurl = \"redis://:hunter2@h\"\n[admin]",
            "ledger.url",
            "password",
        ),
        (
            "[admin]",
            "[ledger]\nhold = \"loose\"\n[admin]",
            "ledger.hold",
            "\"strict\"",
        ),
        (
            "[admin]",
            "[limits]\nin_flight_max = 0\n[admin]",
            "limits.in_flight_max",
            "1 to",
        ),
        (
            "[admin]",
            "[limits]\nin_flight_max = \"9\"\n[admin]",
            "limits.in_flight_max",
            "whole number",
        ),
        (
            "[admin]",
            "[limits]\nin_flight_max = 1.5\n[admin]",
            "limits.in_flight_max",
            "whole number, 0 or more, found 1.5",
        ),
        (
            "[admin]",
            "[tariff]\nsell_rate_multiplier = 1.15\n[admin]",
            "tariff.sell_rate_multiplier",
            "quotes",
        ),
        (
            "[admin]",
            "[tariff]\nsell_rate_multiplier = \"0\"\n[admin]",
            "tariff.sell_rate_multiplier",
            "above 0",
        ),
        (
            "[admin]",
            "[rate]\nstep_max_percent = \"-1\"\n[admin]",
            "rate.step_max_percent",
            "above 0",
        ),
        (
            "[admin]",
            "[rate]\nrefresh_seconds = 700\n[admin]",
            "rate.refresh_seconds",
            "max_age_seconds",
        ),
        (
            "fixed = \"90.50\"",
            "fixed = \"ninety\"",
            "rate.source[0].fixed",
            "decimal",
        ),
        (
            "fixed = \"90.50\"",
            "fixed = \"90\"\nurl = \"http://h\"",
            "rate.source[0]",
            "one of them",
        ),
        ("fixed = \"90.50\"", "", "rate.source[0]", "fixed"),
        (
            "fixed = \"90.50\"",
            "url = \"http://h\"",
            "rate.source[0].select",
            "missing",
        ),
        (
            "fixed = \"90.50\"",
            "url = \"http://h\"\nselect = \"a\"",
            "rate.source[0].select",
            "begin",
        ),
        (
            "fixed = \"90.50\"",
            "url = \"ftp://h\"\nselect = \"/a\"",
            "rate.source[0].url",
            "http",
        ),
        (
            "fixed = \"90.50\"",
            "url = \"http://h\"\nselect = \"/a\"\nmin = \"9\"\nmax = \"1\"",
            "rate.source[0].min",
            "max",
        ),
        ("name = \"v\"", "", "vendor[0].name", "missing"),
        (
            "format = \"chat\"",
            "format = \"grpc\"",
            "vendor[0].format",
            "\"messages\"",
        ),
        (
            "http://127.0.0.1:9/v1/",
            "http://user:hunter2@h/v1",
            "vendor[0].url",
            "key",
        ),
        (
            "http://127.0.0.1:9/v1/",
            "http://h/v1?a=b",
            "vendor[0].url",
            "?",
        ),
        (
            "key = \"${VENDOR_KEY}\"",
            "key = 5",
            "vendor[0].key",
            "text",
        ),
        (
            "name = \"v\"",
            "name = \"v\"\nproxy = \"http://user:hunter2@p:1\"",
            "vendor[0].proxy",
            "${NAME}",
        ),
        (
            "name = \"v\"",
            "name = \"v\"\nproxy = \"p:1\"",
            "vendor[0].proxy",
            "socks5://",
        ),
        (
            "name = \"v\"",
            "name = \"v\"\nca_file = \"ca.pem\"",
            "vendor[0].ca_file",
            "https",
        ),
        (
            "name = \"v\"\n        format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
            "name = \"v\"\nformat = \"chat\"\nurl = \"https://h\"\nca_file = \"/no/such/ca.pem\"",
            "vendor[0].ca_file",
            "cannot read /no/such/ca.pem",
        ),
        (
            "name = \"v\"\n        format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
            "name = \"v\"\nformat = \"chat\"\nurl = \"https://h\"\nca_file = \"Cargo.toml\"",
            "vendor[0].ca_file",
            "no certificate",
        ),
        (
            "name = \"v\"",
            "name = \"v\"\nhttp2 = \"yes\"",
            "vendor[0].http2",
            "true or false",
        ),
        (
            "name = \"v\"",
            "name = \"v\"\nidle_connection_seconds = 0",
            "vendor[0].idle_connection_seconds",
            "1 to 3600",
        ),
        (
            "key = \"${VENDOR_KEY}\"",
            "key = \"${VENDOR_KEY}\"\nkeys = [\"${VENDOR_KEY}\"]",
            "vendor[0].keys",
            "keep one of them",
        ),
        (
            "key = \"${VENDOR_KEY}\"",
            "keys = []",
            "vendor[0].keys",
            "1 to",
        ),
        (
            "key = \"${VENDOR_KEY}\"",
            "keys = [\"${VENDOR_KEY}\", \"0123456789abcdef\"]",
            "vendor[0].keys[1]",
            "${NAME}",
        ),
        (
            "key = \"${VENDOR_KEY}\"",
            "keys = [\"${VENDOR_KEY}\", \"${ADMIN_KEY}\", \"${VENDOR_KEY}\"]",
            "vendor[0].keys[2]",
            "keys[0]",
        ),
        (
            "name = \"v\"",
            "name = \"v\"\non_disconnect = \"hold\"",
            "vendor[0].on_disconnect",
            "\"drain\"",
        ),
        (
            "name = \"v\"",
            "name = \"v\"\nconnect_seconds = -3",
            "vendor[0].connect_seconds",
            "must be a whole number, 0 or more, found -3",
        ),
        ("id = \"m\"", "id = \"\"", "model[0].id", "missing"),
        ("family = \"M\"", "", "model[0].family", "missing"),
        (
            "family = \"M\"",
            "family = \"M\"\ndisplay_name = \" \"",
            "model[0].display_name",
            "1 to 60 characters in one line",
        ),
        (
            "family = \"M\"",
            "family = \"M\"\ndescription = \"two\\nlines\"",
            "model[0].description",
            "1 to 40 characters in one line",
        ),
        (
            "family = \"M\"",
            "family = \"M\"\ndescription = \"ровно сорок один знак, а можно лишь сорок\"",
            "model[0].description",
            "1 to 40 characters in one line",
        ),
        (
            ", cache_write = \"0.25\"",
            "",
            "model[0].usdt_mtok.cache_write",
            "without a full price",
        ),
        (
            "cache_write = \"0.25\"",
            "cache_write = \"0\"",
            "model[0].usdt_mtok.cache_write",
            "above 0",
        ),
        (
            "input = \"0.25\"",
            "input = 0.25",
            "model[0].usdt_mtok.input",
            "quotes",
        ),
        (
            "input = \"0.25\"",
            "inputs = \"0.25\"",
            "model[0].usdt_mtok.inputs",
            "unknown field",
        ),
        (
            "output_tokens_max = 128000",
            "",
            "model[0].output_tokens_max",
            "missing",
        ),
        (
            "family = \"M\"",
            "family = \"M\"\noutput_tokens_min = 200000",
            "model[0].output_tokens_min",
            "128000",
        ),
        (
            "family = \"M\"",
            "family = \"M\"\noutput_tokens_default = 128001",
            "model[0].output_tokens_default",
            "256 to 128000",
        ),
        (
            "family = \"M\"",
            "family = \"M\"\noutput_tokens_min = 500\noutput_tokens_default = 499",
            "model[0].output_tokens_default",
            "500 to 128000",
        ),
        (
            "family = \"M\"",
            "family = \"M\"\ninput_tokens_max = 1000\ninput_tokens_priced_max = 1001",
            "model[0].input_tokens_priced_max",
            "1 to 1000",
        ),
        (
            "cache_write = \"0.25\"",
            "cache_write = \"0.25\", cache_write_1h = \"0\"",
            "model[0].usdt_mtok.cache_write_1h",
            "above 0",
        ),
        (
            "vendor = \"v\"",
            "vendor = \"w\"",
            "model[0].routes[0].vendor",
            "\"w\": add it or mend the name",
        ),
        (
            "vendor = \"v\"",
            "vendor = \"anthropic\"",
            "model[0].routes[0].vendor",
            "add it",
        ),
        (
            "model = \"m-1\" }",
            "model = \"m-1\" }, { vendor = \"v\", model = \"m-1\", weight = 2 }",
            "model[0].routes[1]",
            "routes[0]",
        ),
        (
            "model = \"m-1\" }",
            "model = \"m-1\", thinking = \"hard\" }",
            "model[0].routes[0].thinking",
            "\"budget\"",
        ),
        (
            "model = \"m-1\"",
            "model = \"m-1\", weight = 0",
            "model[0].routes[0].weight",
            "1 to",
        ),
        (
            "[ { vendor = \"v\", model = \"m-1\" } ]",
            "[]",
            "model[0].routes",
            "missing",
        ),
        (
            "[admin]",
            "[limits]\nbody_bytes_in_flight_max = 1000\n[admin]",
            "limits.body_bytes_in_flight_max",
            "body_bytes_max",
        ),
        (
            "[admin]",
            "[limits]\nh2_stream_window_bytes = 1000\n[admin]",
            "limits.h2_stream_window_bytes",
            "65535",
        ),
        (
            "[admin]",
            "[limits]\nhead_bytes_max = 100\n[admin]",
            "limits.head_bytes_max",
            "4096",
        ),
        (
            "[admin]",
            "[limits]\nin_fligt_max = 1\n[admin]",
            "limits.in_fligt_max",
            "did you mean in_flight_max?",
        ),
        (
            "http://127.0.0.1:9/v1/",
            "http://127.0.0.1:9/v1/chat/completions/",
            "vendor[0].url",
            "it is put behind it",
        ),
        (
            "format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
            "format = \"messages\"\nurl = \"https://h/v1/messages\"",
            "vendor[0].url",
            "ends in /v1/messages",
        ),
        (
            "[admin]",
            "[ledger]\nopen_wait_seconds = 100000\n[admin]",
            "ledger.open_wait_seconds",
            "0 to",
        ),
        (
            "[admin]",
            "[tls]\n[admin]",
            "tls.certificate_file",
            "missing",
        ),
        (
            "[admin]",
            "[tls]\ncertificate_file = \"/no/such/c.pem\"\nkey_file = \"Cargo.toml\"\n[admin]",
            "tls.certificate_file",
            "cannot read /no/such/c.pem",
        ),
        (
            "[admin]",
            "[tls]\ncertificate_file = \"Cargo.toml\"\nkey_file = \"Cargo.toml\"\n[admin]",
            "tls.certificate_file",
            "Cargo.toml has no certificate in PEM",
        ),
    ] {
        let errors = parse(&changed(from, to)).expect_err(to);
        let found = errors.iter().find(|error| error.path == path);
        let found = found.unwrap_or_else(|| panic!("{to}: no {path} in\n{errors}"));
        assert!(found.problem.contains(word), "{to}: {found}");
        assert!(found.line.is_some(), "{to}: {found}");
        let shown = format!("{errors} {errors:?}");
        for secret in ["hunter2", "0123456789abcdef", "sk-vendor-secret"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

#[test]
fn all_mistakes_are_told_at_once_each_with_its_line() {
    let text = concat!(
        "listen = 8080\n",
        "languge = \"ru\"\n",
        "[limits]\n",
        "in_flight_max = \"many\"\n",
        "body_bytes_max = 0\n",
        "[[vendor]]\n",
        "name = \"v\"\n",
        "format = \"chat\"\n",
        "url = \"nowhere\"\n",
        "key = \"sk-literal\"\n",
        "[[vendor]]\n",
        "name = \"v\"\n",
        "[[model]]\n",
        "id = \"m\"\n",
        "usdt_mtok = { input = 1.0, output = \"0\" }\n",
    );
    let errors = parse(text).unwrap_err();
    let shown = errors.to_string();
    for start in [
        "line 1: listen: ",
        "line 2: languge: ",
        "line 4: limits.in_flight_max: ",
        "line 5: limits.body_bytes_max: ",
        "line 9: vendor[0].url: ",
        "line 10: vendor[0].key: ",
        "line 12: vendor[1].name: ",
        "line 11: vendor[1].format: ",
        "line 13: model[0].family: ",
        "line 15: model[0].usdt_mtok.input: ",
        "line 15: model[0].usdt_mtok.output: ",
        "line 15: model[0].usdt_mtok.cache_write: ",
    ] {
        assert!(
            shown.lines().any(|line| line.starts_with(start)),
            "{start} is not in\n{shown}"
        );
    }
    assert!(
        shown
            .lines()
            .any(|line| line.contains("rate.source: missing")),
        "{shown}"
    );
    assert!(!shown.contains("sk-literal"), "{shown}");
    assert_eq!(shown.lines().count(), errors.iter().count());
    assert_eq!(shown.matches("usdt_mtok.input:").count(), 1, "{shown}");
}

#[test]
fn a_text_that_is_not_toml_is_refused_with_the_line_but_not_its_text() {
    let errors = parse("listen = \"127.0.0.1:80\"\nkey = sk-literal oops\n").unwrap_err();
    let shown = errors.to_string();
    assert!(shown.starts_with("line 2: not TOML: "), "{shown}");
    assert!(!shown.contains("sk-literal"), "{shown}");
}

#[test]
fn duplicate_models_and_vendors_are_refused() {
    let twice = format!("{SMALL}\n{}", &SMALL[SMALL.find("[[vendor]]").unwrap()..]);
    let errors = parse(&twice).unwrap_err();
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["vendor[1].name", "model[1].id"], "{errors}");
    // Other mistakes in both do not hide it.
    let errors = parse(&twice.replace("family = \"M\"", "")).unwrap_err();
    for path in ["model[0].family", "model[1].family", "model[1].id"] {
        assert!(errors.iter().any(|error| error.path == path), "{errors}");
    }
}

#[test]
fn a_field_of_the_wrong_shape_is_told_once() {
    for (from, to, path) in [
        ("fixed = \"90.50\"", "fixed = 90.50", "rate.source[0].fixed"),
        ("fixed = \"90.50\"", "url = 5", "rate.source[0].url"),
        ("key = \"${VENDOR_KEY}\"", "keys = [1]", "vendor[0].keys"),
    ] {
        let errors = parse(&changed(from, to)).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, [path], "{errors}");
    }
}

#[test]
fn a_file_that_is_not_there_cannot_be_read() {
    let errors = Config::load(Path::new("/no/such/tollgate.toml")).unwrap_err();
    assert!(
        errors.to_string().starts_with("cannot be read: "),
        "{errors}"
    );
}

#[test]
fn ledger_urls() {
    for (text, url) in [
        ("memory:", LedgerUrl::Memory),
        ("sqlite:a/b.db", LedgerUrl::Sqlite("a/b.db".into())),
        (
            "redis://host:6379/0",
            LedgerUrl::Redis("redis://host:6379/0".into()),
        ),
        ("rediss://host", LedgerUrl::Redis("rediss://host".into())),
        (
            "redis-sentinel://a,b:26380/mymaster",
            LedgerUrl::Redis("redis-sentinel://a,b:26380/mymaster".into()),
        ),
        (
            "rediss-cluster://a:7000,b:7001",
            LedgerUrl::Redis("rediss-cluster://a:7000,b:7001".into()),
        ),
        (
            "${LEDGER_URL}",
            LedgerUrl::Redis("redis://:hunter2@db:6379/0".into()),
        ),
    ] {
        let config = parse(&changed(
            "[admin]",
            &format!("[ledger]\nurl = \"{text}\"\n[admin]"),
        ))
        .expect(text);
        assert_eq!(config.ledger.url, url);
    }
}

#[test]
fn debug_shows_no_secret() {
    let text = changed("[admin]", "[ledger]\nurl = \"${LEDGER_URL}\"\n[admin]");
    let text = text.replacen("name = \"v\"", "name = \"v\"\nproxy = \"${PROXY_URL}\"", 1);
    let text = text.replace(
        "fixed = \"90.50\"",
        "url = \"https://rates.example/?key=query-secret\"\nselect = \"/rate\"",
    );
    let shown = format!("{:?}", parse(&text).unwrap());
    for secret in ["hunter2", "admin-secret", "sk-vendor", "query-secret"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(
        shown.contains("rates.example") && shown.contains("db") && shown.contains("proxy:3128"),
        "{shown}"
    );
}

#[test]
fn the_fingerprint_follows_prices_and_nothing_else() {
    let fingerprint = |text: &str| parse(text).unwrap().live.fingerprint();
    let first = fingerprint(SMALL);
    // Of a version that knew four rates: an upgrade is no new tariff.
    let four = "21ed2289c364728c369072a5b703e08d6251a10c985c67e65a34b7f85e98c3fe";
    assert_eq!(first, four);
    for (from, to) in [
        ("output = \"2.00\"", "output = \"2\""),
        ("fixed = \"90.50\"", "fixed = \"91\""),
        ("family = \"M\"", "family = \"N\""),
        ("model = \"m-1\"", "model = \"m-2\""),
        (
            "family = \"M\"",
            "family = \"M\"\noutput_tokens_default = 512\ninput_tokens_priced_max = 7",
        ),
    ] {
        assert_eq!(fingerprint(&changed(from, to)), first, "{to}");
    }
    for (from, to) in [
        ("output = \"2.00\"", "output = \"2.01\""),
        (
            "cache_write = \"0.25\"",
            "cache_write = \"0.25\", cache_write_1h = \"0.4\"",
        ),
        ("id = \"m\"", "id = \"m2\""),
        (
            "[admin]",
            "[tariff]\nsell_rate_multiplier = \"1.15\"\n[admin]",
        ),
    ] {
        assert_ne!(fingerprint(&changed(from, to)), first, "{to}");
    }
}

#[test]
fn what_is_allowed_and_probably_not_meant_is_warned_of() {
    let paths = |text: &str| -> Vec<String> {
        let config = parse(text).unwrap_or_else(|errors| panic!("{text}: {errors}"));
        config
            .warnings
            .into_iter()
            .map(|warning| warning.path)
            .collect()
    };
    let priced = changed("[admin]", "[tariff]\nsell_rate_multiplier = \"1\"\n[admin]");
    assert!(paths(&priced).is_empty());
    assert_eq!(paths(SMALL), ["tariff.sell_rate_multiplier"]);
    assert_eq!(
        paths(&format!("listen = \"0.0.0.0:80\"\n{priced}")),
        ["base_url"]
    );
    let cheap = "cache_write = \"0.25\", cache_write_1h = \"0.24\"";
    assert_eq!(
        paths(&priced.replace("cache_write = \"0.25\"", cheap)),
        ["model[0].usdt_mtok.cache_write_1h"]
    );
    let idle = "[[vendor]]\nname = \"idle\"\nformat = \"messages\"\n\
                url = \"https://h/v1\"\nkey = \"${VENDOR_KEY}\"\n";
    assert_eq!(
        paths(&format!("{priced}{idle}")),
        ["vendor[1].name", "vendor[1].url"]
    );
}

#[test]
fn a_reload_names_what_it_does_not_take() {
    let text = |text: &str| format!("listen = \"127.0.0.1:1\"\n{text}");
    let started = parse(&text(SMALL)).unwrap();
    let needs = |next: &str| need_restart(&started, &parse(next).unwrap());
    assert!(needs(&text(SMALL)).is_empty());
    for (from, to) in [
        ("output = \"2.00\"", "output = \"3.00\""),
        ("fixed = \"90.50\"", "fixed = \"91\""),
        ("127.0.0.1:9", "127.0.0.1:10"),
        (
            "[admin]",
            "[limits]\nin_flight_max = 1\nconnections_max = 1\ndrain_seconds = 1\n[admin]",
        ),
        ("[admin]", "[ledger]\nhold_grace_seconds = 90\n[admin]"),
    ] {
        assert!(needs(&text(&changed(from, to))).is_empty(), "{to}");
    }
    let next = changed("${ADMIN_KEY}", "${VENDOR_KEY}");
    let next = next.replacen("[admin]", "[ledger]\nurl = \"memory:\"\n[admin]", 1);
    let next = format!("listen = \"127.0.0.1:2\"\nreuse_port = true\nlanguage = \"en\"\n{next}");
    assert_eq!(
        needs(&next),
        [
            "listen",
            "reuse_port",
            "language",
            "admin.key",
            "ledger.url"
        ]
    );
}

#[test]
fn the_files_that_a_config_names_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (admin, vendor) = (
        write("admin", "admin-secret-0123456789"),
        dir.path().join("vendor"),
    );
    let refer = |path: &Path| format!("file:{}", path.display());
    let text = changed("${ADMIN_KEY}", &refer(&admin)).replace("${VENDOR_KEY}", &refer(&vendor));
    let config = write("tollgate.toml", &text);
    let Loaded {
        config: refused,
        files,
    } = Config::read(&config);
    assert!(refused.is_err(), "one of its files is missing");
    assert_eq!(files.look(), files);
    write("vendor", "sk-vendor-secret");
    assert_ne!(files.look(), files);
    let Loaded { config, files } = Config::read(&config);
    assert!(config.is_ok());
    for name in ["tollgate.toml", "admin", "vendor"] {
        let path = dir.path().join(name);
        let held = std::fs::read(&path).unwrap();
        std::fs::write(&path, "another").unwrap();
        assert_ne!(files.look(), files, "{name}");
        std::fs::write(&path, held).unwrap();
        assert_eq!(files.look(), files, "{name}");
    }
    assert!(!format!("{files:?}").contains("secret"));
}

/// `SMALL` with `[traces]`.
fn with_traces(lines: &str) -> Result<Config, ConfigErrors> {
    parse(&format!("[traces]\n{lines}\n{SMALL}"))
}

#[test]
#[cfg(feature = "otel")]
fn traces_are_sent_where_the_file_says() {
    let config = with_traces(
        "url = \"http://127.0.0.1:4318/v1/traces\"\nsample = \"0.05\"\n\
         headers = { Authorization = \"${VENDOR_KEY}\" }",
    );
    let traces = config.unwrap().traces.unwrap();
    assert_eq!(traces.url, "http://127.0.0.1:4318/v1/traces");
    assert_eq!(traces.calls_per_million, 50_000);
    assert_eq!(traces.headers["authorization"], "sk-vendor-secret");
    let shown = format!("{traces:?}");
    assert!(!shown.contains("sk-vendor-secret"), "{shown}");

    assert!(parse(SMALL).unwrap().traces.is_none());
    let errors = with_traces("sample = \"2\"\nheaders = { \"a b\" = \"sk-literal\" }");
    let errors = errors.unwrap_err().to_string();
    for field in ["traces.url", "traces.sample", "traces.headers.a b"] {
        assert!(errors.contains(field), "{field}: {errors}");
    }
    assert!(!errors.contains("sk-literal"), "{errors}");
}

#[test]
#[cfg(not(feature = "otel"))]
fn a_build_without_traces_says_so() {
    let errors = with_traces("url = \"http://127.0.0.1:4318/v1/traces\"").unwrap_err();
    assert!(errors.to_string().contains("--features otel"), "{errors}");
}
