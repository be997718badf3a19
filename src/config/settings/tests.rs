use serde_json::{Value, json};

use super::{page::*, *};
use crate::{
    config::testing::{SMALL, changed, check, parse, rows},
    state::limits::LiveLimits,
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md");

/// For each setting that is neither a number nor a switch, a value that differs from the value in `base()`. If the
/// setting cannot change alone, the value is an object, which is merged into the setting's table. `null` means that the
/// change would need a certificate, and that a gateway test covers it.
const OTHERS: &str = r#"{
    "listen": "127.0.0.1:7070",
    "service": "other",
    "base_url": "https://other.example/v1",
    "language": "en",
    "trusted_proxies": ["10.0.0.0/8"],
    "cors_origins": ["https://app.example"],
    "tls.certificate_file": null,
    "tls.key_file": null,
    "admin.listen": "127.0.0.1:7071",
    "admin.key": "${VENDOR_KEY}",
    "admin.operators_file": "operators.toml",
    "admin.hosts": ["console.example"],
    "admin.oidc.issuer": "https://other.example",
    "admin.oidc.client_id": "other",
    "admin.oidc.client_secret": "${VENDOR_KEY}",
    "admin.oidc.redirect_url": "https://other.example/console/oidc/back",
    "admin.oidc.scopes": ["email"],
    "admin.oidc.name_claim": "sub",
    "admin.oidc.role_claim": "roles",
    "admin.oidc.roles.admin": ["other"],
    "admin.oidc.roles.finance": ["other"],
    "admin.oidc.roles.support": ["other"],
    "admin.oidc.roles.read": ["other"],
    "traces.url": "http://127.0.0.1:4319/v1/traces",
    "traces.sample": "0.5",
    "traces.headers": { "headers": { "x-tenant": "${VENDOR_KEY}" } },
    "seller.name": "Other",
    "seller.inn": "7701234567",
    "seller.kpp": "770101001",
    "seller.ogrn": "1027700000001",
    "seller.address": "Other",
    "seller.bank": "Other",
    "seller.bik": "044500001",
    "seller.bank_account": "40702810900000000001",
    "seller.correspondent_account": "30101810000000000001",
    "seller.contact": "Other",
    "seller.vat_percent": "20",
    "seller.vat_note": "Other",
    "seller.utc_offset": "+03:00",
    "webhook.name": "other",
    "webhook.url": "https://other.example/",
    "webhook.secrets": ["${WEBHOOK_SECRET_2}"],
    "webhook.kinds": ["top_up"],
    "webhook.accounts": ["a-3"],
    "payments.min_rub": "1",
    "payments.max_rub": "1000000",
    "payments.yookassa.shop_id": "2",
    "payments.yookassa.secret_key": "${ADMIN_KEY}",
    "payments.yookassa.url": "https://other.example/v3",
    "payments.yookassa.return_url": "https://other.example/usage",
    "payments.yookassa.receipt_email": "other@example.com",
    "cabinet.server": "smtp://127.0.0.1:26",
    "cabinet.from": "other@example.com",
    "cabinet.terms_url": "https://other.example/terms",
    "mail.name": "other",
    "mail.server": "smtp://127.0.0.1:26",
    "mail.from": "other@example.com",
    "mail.to": ["other@example.com"],
    "mail.kinds": ["top_up"],
    "mail.accounts": ["a-3"],
    "telegram.name": "other",
    "telegram.token": "${BOT_TOKEN_2}",
    "telegram.chat": "@other",
    "telegram.url": "https://telegram.example",
    "telegram.kinds": ["top_up"],
    "telegram.accounts": ["a-3"],
    "payments.cloudpayments.public_id": "2",
    "payments.cloudpayments.api_secret": "${ADMIN_KEY}",
    "payments.cloudpayments.url": "https://other.example",
    "payments.cloudpayments.return_url": "https://other.example/usage",
    "payments.stripe.secret_key": "${ADMIN_KEY}",
    "payments.stripe.webhook_secret": "${ADMIN_KEY}",
    "payments.stripe.url": "https://other.example",
    "payments.stripe.return_url": "https://other.example/usage",
    "ledger.url": "memory:",
    "ledger.ca_file": null,
    "ledger.hold": "strict",
    "ledger.outbox": "other.db",
    "rate.step_max_percent": "30",
    "rate.source.fixed": { "fixed": "91", "url": null, "select": null },
    "rate.source.url": "https://rates.example/then",
    "rate.source.select": "/other",
    "rate.source.method": "POST",
    "rate.source.body": { "method": "POST", "body": "{}" },
    "rate.source.min": "1",
    "rate.source.max": "1000",
    "tariff.sell_rate_multiplier": "1.5",
    "tariff.sell_rub_multiplier": "1.5",
    "vendor.preset": null,
    "vendor.values": null,
    "vendor.login.preset": null,
    "vendor.anthropic_version": "vertex-2023-10-16",
    "model.preset": null,
    "model.routes.preset": null,
    "vendor.name": null,
    "vendor.format": "messages",
    "vendor.formats": { "format": null, "formats": ["responses", "chat"] },
    "vendor.url": "http://127.0.0.1:10/v1",
    "vendor.key": "${ADMIN_KEY}",
    "vendor.keys": { "key": null, "keys": ["${VENDOR_KEY}", "${ADMIN_KEY}"] },
    "vendor.path": "/other",
    "vendor.query": { "query": { "api-version": "1" } },
    "vendor.headers": { "headers": { "x-tenant": "1" } },
    "vendor.login.kind": "none",
    "vendor.login.header": "api-key",
    "vendor.login.prefix": "Api-Key ",
    "vendor.login.command": { "kind": "command", "command": ["/bin/token"] },
    "vendor.login.refresh_seconds": { "kind": "command", "command": ["/bin/token"], "refresh_seconds": 60 },
    "vendor.login.url": { "kind": "oauth", "url": "https://login.example/token", "basic": "${VENDOR_KEY}" },
    "vendor.login.basic": { "kind": "oauth", "url": "https://login.example/token", "basic": "${ADMIN_KEY}" },
    "vendor.login.client_id": {
        "kind": "oauth", "url": "https://login.example/token", "client_id": "a", "client_secret": "${VENDOR_KEY}"
    },
    "vendor.login.client_secret": {
        "kind": "oauth", "url": "https://login.example/token", "client_id": "a", "client_secret": "${ADMIN_KEY}"
    },
    "vendor.login.scope": {
        "kind": "oauth", "url": "https://login.example/token", "basic": "${VENDOR_KEY}", "scope": "s"
    },
    "vendor.login.grant_type": {
        "kind": "oauth", "url": "https://login.example/token", "basic": "${VENDOR_KEY}", "grant_type": ""
    },
    "vendor.login.request_id_header": {
        "kind": "oauth", "url": "https://login.example/token", "basic": "${VENDOR_KEY}", "request_id_header": "RqUID"
    },
    "vendor.login.key_file": null,
    "vendor.login.region": { "kind": "aws", "region": "eu-west-1" },
    "vendor.login.service": { "kind": "aws", "region": "eu-west-1", "service": "bedrock-mantle" },
    "vendor.login.access_key_id": {
        "kind": "aws", "region": "eu-west-1", "access_key_id": "AKIA1", "secret_access_key": "${VENDOR_KEY}"
    },
    "vendor.login.secret_access_key": {
        "kind": "aws", "region": "eu-west-1", "access_key_id": "AKIA1", "secret_access_key": "${ADMIN_KEY}"
    },
    "vendor.login.session_token": {
        "kind": "aws", "region": "eu-west-1", "access_key_id": "AKIA1", "secret_access_key": "${VENDOR_KEY}",
        "session_token": "${ADMIN_KEY}"
    },
    "vendor.on_disconnect": "drain",
    "vendor.betas_removed": ["other"],
    "vendor.proxy": "${PROXY_URL}",
    "vendor.ca_file": null,
    "webhook.ca_file": null,
    "mail.ca_file": null,
    "cabinet.ca_file": null,
    "telegram.ca_file": null,
    "account_group.name": null,
    "account_group.accounts": ["a-3"],
    "price_rule.name": "other",
    "price_rule.accounts": ["a-3"],
    "price_rule.groups": { "groups": [], "accounts": ["a-3"] },
    "price_rule.models": ["other-*"],
    "price_rule.sell_rate_multiplier": "1.2",
    "price_rule.sell_rub_multiplier": "1.2",
    "model.id": "other",
    "model.kind": null,
    "model.routes.cost_rules.service_tier": "flex",
    "model.routes.cost_rules.speed": "fast",
    "model.routes.cost_rules.inference_geo": "us",
    "model.routes.cost_rules.hours_utc": ["01:00-04:00"],
    "model.routes.cost_rules.weekdays": ["mon"],
    "model.routes.cost_rules.valid_from": "2027-01-01T00:00:00Z",
    "model.routes.cost_rules.hours_at": { "hours_utc": ["01:00-04:00"], "hours_at": "end" },
    "model.hold": { "hold": "growing", "output_tokens_per_second_max": 100 },
    "model.family": "Other",
    "model.display_name": "Other",
    "model.description": "Other",
    "model.output_field": "max_tokens",
    "model.system_role": "developer",
    "model.thinking": "budget",
    "model.cache_marks": "never",
    "model.price_rules.service_tier": "flex",
    "model.price_rules.speed": "fast",
    "model.price_rules.inference_geo": "us",
    "model.price_rules.hours_utc": ["01:00-04:00"],
    "model.price_rules.weekdays": ["mon"],
    "model.price_rules.valid_from": "2027-01-01T00:00:00Z",
    "model.price_rules.hours_at": { "hours_utc": ["01:00-04:00"], "hours_at": "end" },
    "model.routes.vendor": null,
    "model.routes.model": "other",
    "model.routes.output_field": "max_tokens",
    "model.routes.system_role": "developer",
    "model.routes.thinking": "budget",
    "model.routes.cache_marks": "never"
}"#;

/// Returns files that differ from `base()` in one setting. Returns no files if the change would need a certificate.
fn others(path: &str, others: &Value) -> Vec<Value> {
    // Some settings of prices are not changed here. The same code checks the prices of customer price rules and the
    // models' own prices, and a rule that lacks a class or condition of the model's prices is refused. A price has only
    // one currency, so `base()` has no prices in rubles.
    if path.contains("rub_mtok.")
        || ["usdt_mtok", "price_rules"]
            .iter()
            .any(|table| path.starts_with(&format!("price_rule.{table}.")))
    {
        return Vec::new();
    }
    match &others[path] {
        Value::Null if others.get(path).is_some() => Vec::new(),
        Value::Object(fields) => {
            let mut file = base();
            let table = place(&mut file, path).0;
            for (name, value) in fields {
                table[name] = value.clone();
            }
            vec![file]
        }
        Value::Null if path.contains("usdt_mtok.") => vec![given(path, json!("7"))],
        Value::Null => {
            let numbers = bounds(path).map(|(least, most)| [least, least + 1, most]);
            let numbers = numbers.unwrap_or([1, 2, 3]).map(|number| json!(number));
            let values = [json!(true), json!(false)].into_iter().chain(numbers);
            values.map(|value| given(path, value)).collect()
        }
        value => vec![given(path, value.clone())],
    }
}

/// Returns whether two configurations differ in a value that [`Gateway::reload`](crate::node::Gateway::reload) or its
/// caller applies.
fn is_taken(one: &Config, other: &Config) -> bool {
    let shown = |config: &Config| {
        let limits = LiveLimits::new(config);
        format!(
            "{:?}",
            (&config.live, limits, &config.base_url, config.reload_poll)
        )
    };
    // Secrets are compared separately, because the `Debug` output does not contain them.
    let keys = |config: &Config| -> Vec<_> {
        let routes = config.live.models.iter().flat_map(|model| &model.routes);
        routes
            .map(|route| route.vendor.credentials.clone())
            .collect()
    };
    shown(one) != shown(other)
        || keys(one) != keys(other)
        || one.live.rate != other.live.rate
        || one.receivers != other.receivers
}

#[test]
fn reload_applies_each_setting_as_its_row_in_the_docs_states() {
    let started = check(base()).unwrap_or_else(|errors| panic!("{errors}"));
    let known: Value = serde_json::from_str(OTHERS).unwrap();
    let mut seen = 0;
    for setting in settings() {
        let path = setting.path.as_str();
        let files = others(path, &known);
        if files.is_empty() {
            continue;
        }
        seen += 1;
        let nexts: Vec<_> = files
            .into_iter()
            .filter_map(|file| check(file).ok())
            .collect();
        let (row, on_reload) = on_reload(path);
        let holds = |next: &Config| match on_reload {
            Restart(_) => need_restart(&started, next) == [*row],
            Taken => need_restart(&started, next).is_empty() && is_taken(&started, next),
            Start => {
                need_restart(&started, next).is_empty()
                    && format!("{started:?}") != format!("{next:?}")
            }
        };
        assert!(
            nexts.iter().any(holds),
            "{path}: no other value of it was accepted and did what its row {row:?} in SETTINGS says; if it is a text \
             or a list, give another value of it in OTHERS of src/config/settings/tests.rs, and if a restart is \
             needed, a row in SETTINGS"
        );
    }
    assert!(seen > 100, "{seen}");
}

#[test]
fn absent_setting_has_its_documented_default() {
    let mut seen = 0;
    for setting in settings() {
        let Some(default) = setting.default else {
            continue;
        };
        seen += 1;
        let path = &setting.path;
        let file = |file: Value| check(file).unwrap_or_else(|errors| panic!("{path}: {errors}"));
        let (absent, reported) = (file(without(path)), file(given(path, default.clone())));
        assert_eq!(
            format!("{absent:?}"),
            format!("{reported:?}"),
            "{path} is not {default} by default, as src/config/raw says behind the semicolon"
        );
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn each_row_of_the_settings_page_belongs_to_an_existing_setting() {
    let settings = settings();
    for (row, _) in SETTINGS {
        let of_row = |path: &str| path == *row || path.starts_with(&format!("{row}."));
        assert!(
            settings.iter().any(|setting| of_row(&setting.path)),
            "{row} stands in SETTINGS, and not in src/config/raw: take it out"
        );
    }
}

#[test]
fn settings_page_marks_only_required_settings_as_required() {
    for [path, reported] in rows(
        r#"
        tls.certificate_file | must be given
        tls.key_file | must be given
        webhook.secrets | must be given
        mail.to | must be given
        vendor.url | must be given
        model.usdt_mtok.input | must be given
        rate.source.select | must be given, with `url`
        vendor.format | must be given, or `formats`
        vendor.key | must be given, or `keys`
        rate.source.url | must be given, or `fixed`
        price_rule.accounts | must be given, or `groups`
        model.output_tokens_per_second_max | must be given, with `hold = "growing"`
        vendor.login.region | must be given, with `kind = "aws"`
        model.output_tokens_max | must be given, except for embeddings
        model.usdt_mtok.cached_input | must be given, except for embeddings
        model.routes.cost_usdt_mtok.output | must be given, except for embeddings
        model.description | –
        traces.sample | –
        ledger.ca_file | –
    "#,
    ) {
        assert_eq!(need(path), reported, "{path}");
    }
    let mut embedding = base();
    let prices = json!({ "input": "1" });
    let routes = json!([{ "vendor": "v", "model": "e", "cost_usdt_mtok": prices }]);
    embedding["model"] = json!([
        { "id": "m", "family": "M", "kind": "embedding", "usdt_mtok": prices, "routes": routes },
    ]);
    for instead in ["vendor.formats", "vendor.keys", "rate.source.fixed"] {
        let known: Value = serde_json::from_str(OTHERS).unwrap();
        let [file] = &others(instead, &known)[..] else {
            panic!("{instead}")
        };
        check(file.clone()).unwrap_or_else(|errors| panic!("{instead}: {errors}"));
    }
    check(embedding).unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn settings_page_lists_every_setting() {
    let page = page();
    if std::env::var_os("SETTINGS_WRITE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(PAGE).unwrap_or_default() == page,
        "docs/settings.md is old: SETTINGS_WRITE=1 cargo test --lib --all-features config::settings"
    );
}

#[test]
fn reload_names_the_settings_that_it_does_not_apply() {
    let text = |text: &str| format!("listen = \"127.0.0.1:1\"\n{text}");
    let started = parse(&text(SMALL)).unwrap();
    let needs = |next: &str| need_restart(&started, &parse(next).unwrap());
    assert!(needs(&text(SMALL)).is_empty());
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
