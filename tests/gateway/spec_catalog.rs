//! Tests of specification sections 2.6, 4.3 and 9: the public catalog of models and prices.

use http::StatusCode;
use rust_decimal::{Decimal, RoundingStrategy};
use tollgate::catalog::snapshot::RateReading;

use crate::prelude::*;

const CATALOG: &str = "/v1/tollgate/models";

const RATES: [(&str, &str); 4] = [
    ("input_rub_mtok", "input"),
    ("cached_input_rub_mtok", "cached_input"),
    ("output_rub_mtok", "output"),
    ("cache_write_rub_mtok", "cache_write"),
];

async fn catalog(world: &World) -> Value {
    let answer = world.get(CATALOG, &[]).await.expect(200);
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.json()
}

/// Returns a setup without an exchange rate, because no server listens at the address of the rate source.
fn without_a_rate() -> Setup {
    Setup::default().edit(
        "fixed = \"100\"",
        "url = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"",
    )
}

#[tokio::test]
async fn the_catalog_has_every_field_that_the_specification_requires() {
    let world = World::start().await;
    let catalog = catalog(&world).await;
    assert_eq!(catalog["base_url"], "http://gateway.example/v1");
    assert_eq!(catalog["priced"], true);
    assert!(catalog["price_version"]["id"].is_u64(), "{catalog}");
    assert_eq!(decimal(&catalog["sell_rate_multiplier"]), Decimal::ONE);
    let models = catalog["models"].as_array().unwrap();
    let ids: Vec<_> = models.iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["chat", "messages"]);
    for model in models {
        assert_eq!(model["family"], "Test");
        for (rate, _) in RATES {
            assert!(decimal(&model[rate]) > Decimal::ZERO, "{rate}: {model}");
        }
    }
}

#[tokio::test]
async fn tariff_version_has_its_start_in_utc() {
    let world = World::start().await;
    let catalog = catalog(&world).await;
    let moment = catalog["price_version"]["effective_from"].as_str().unwrap();
    let pattern: String = moment
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    assert!(pattern.starts_with("0000-00-00T00:00:00"), "{moment}");
    assert!(moment.ends_with('Z'), "{moment}");
}

#[tokio::test]
async fn catalog_rate_is_usdt_times_exchange_rate_times_multiplier_rounded_up() {
    let world = Setup::default()
        .edit("fixed = \"100\"", "fixed = \"81.432109\"")
        .edit(
            "sell_rate_multiplier = \"1\"",
            "sell_rate_multiplier = \"1.153\"",
        )
        .edit("cached_input = \"0.1\"", "cached_input = \"0.000000001\"")
        .start()
        .await;
    let catalog = catalog(&world).await;
    assert_eq!(catalog["sell_rate_multiplier"], "1.153");
    let (rate, multiplier) = (Decimal::new(81_432_109, 6), Decimal::new(1153, 3));
    for (model, usdt) in [
        (0, ["1", "0.000000001", "2", "0.5"]),
        (1, ["10", "1", "20", "5"]),
    ] {
        for ((field, _), usdt) in RATES.into_iter().zip(usdt) {
            let exact = usdt.parse::<Decimal>().unwrap() * rate * multiplier;
            let rounded = exact.round_dp_with_strategy(6, RoundingStrategy::ToPositiveInfinity);
            let shown = &catalog["models"][model][field];
            assert_eq!(decimal(shown), rounded, "{field} of {usdt} USDT");
            assert!(decimal(shown).scale() <= 6, "{shown}");
        }
    }
    // The smallest price is rounded up to an amount above zero.
    let smallest = decimal(&catalog["models"][0]["cached_input_rub_mtok"]);
    assert_eq!(smallest, Decimal::new(1, 6));
}

#[tokio::test]
async fn calls_are_charged_at_the_rates_in_the_catalog() {
    let (world, key) = World::start_with_key().await;
    let catalog = catalog(&world).await;
    for (model, op) in catalog["models"].as_array().unwrap().iter().zip(BOTH) {
        let answer = op.call(&world, &key, &op.body("x")).await;
        let receipt = world.receipt(&answer.number()).await;
        for (shown, charged) in RATES {
            assert_eq!(model[shown], receipt["price"][charged], "{shown}");
        }
        assert_eq!(receipt["price"]["version"], catalog["price_version"]["id"]);
        assert_eq!(receipt["price"]["exchange_rate"], "100");
    }
}

#[tokio::test]
async fn catalog_does_not_depend_on_the_key() {
    let world = World::start().await;
    for headers in [
        &[("authorization", "Bearer nonsense")][..],
        &[],
        &[
            ("authorization", "Basic eDp5"),
            ("x-api-key", "tg-nonsense"),
        ],
    ] {
        let answer = world.get(CATALOG, headers).await;
        assert_eq!(answer.status, 200, "{headers:?}");
    }
}

#[tokio::test]
async fn service_name_in_the_catalog_path_is_configurable() {
    let world = top("service = \"acme-ai\"").start().await;
    assert_eq!(world.get("/v1/acme-ai/models", &[]).await.status, 200);
    let answer = world.get(CATALOG, &[]).await;
    refused(CATALOG, &answer, 404, NOT_FOUND, "path_not_found");
}

#[tokio::test]
async fn catalog_may_be_cached_for_five_minutes_and_read_across_origins() {
    for setup in [Setup::default(), without_a_rate()] {
        let world = setup.start().await;
        let answer = world.get(CATALOG, &[]).await;
        let control = answer.headers["cache-control"].to_str().unwrap();
        let seconds: u32 = control
            .split(',')
            .find_map(|part| part.trim().strip_prefix("max-age="))
            .expect(control)
            .parse()
            .unwrap();
        assert!(seconds <= 300, "{control}");
        assert_eq!(answer.headers["access-control-allow-origin"], "*");
    }
}

#[tokio::test]
async fn refusal_of_the_catalog_is_readable_across_origins() {
    let world = World::start().await;
    let mut answer = world.get(CATALOG, &[]).await;
    for _ in 0..100 {
        if answer.status == 429 {
            break;
        }
        answer = world.get(CATALOG, &[]).await;
    }
    refused(CATALOG, &answer, 429, LIMIT, "rate_limit_exceeded");
    assert_eq!(answer.headers["access-control-allow-origin"], "*");

    let req = request(Method::POST, &world.url(CATALOG), &[], "".into());
    let answer = world.ask(req).await;
    refused(CATALOG, &answer, 405, INVALID, "method_not_allowed");
    assert_eq!(answer.headers["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn catalog_with_the_clients_etag_is_not_sent_again_until_it_changes() {
    let world = World::start().await;
    let first = world.get(CATALOG, &[]).await;
    let tag = first.headers["etag"].to_str().unwrap();
    let again = world.get(CATALOG, &[("if-none-match", tag)]).await;
    assert_eq!(again.status, StatusCode::NOT_MODIFIED);
    assert!(again.body.is_empty());
    assert_eq!(again.headers["etag"], tag);

    let rate = RateReading::fixed(Decimal::from(101));
    world.gateway.live().set_rate(rate);
    let changed = world
        .get(CATALOG, &[("if-none-match", tag)])
        .await
        .expect(200);
    assert_ne!(changed.headers["etag"], tag);
    assert_ne!(changed.body, first.body);
}

#[tokio::test]
async fn without_an_exchange_rate_the_catalog_has_no_prices() {
    let world = without_a_rate().start().await;
    let catalog = catalog(&world).await;
    assert_eq!(catalog["priced"], false);
    assert_eq!(catalog["base_url"], "http://gateway.example/v1");
    let models = catalog["models"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    for model in models {
        assert!(model["id"].is_string(), "{model}");
        assert!(model["family"].is_string(), "{model}");
        for (rate, _) in RATES {
            assert_eq!(model[rate], Value::Null, "{rate}");
        }
    }
}

#[tokio::test]
async fn catalog_allows_only_get_and_head() {
    let world = World::start().await;
    let url = world.url(CATALOG);
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        let answer = world
            .ask(request(method.clone(), &url, &[], "".into()))
            .await;
        assert_eq!(answer.status, 405, "{method}");
        assert_eq!(answer.headers["allow"], "GET, HEAD", "{method}");
    }
    let answer = world
        .ask(request(Method::HEAD, &url, &[], "".into()))
        .await
        .expect(200);
    assert!(answer.body.is_empty() && answer.headers.contains_key("etag"));
}

#[tokio::test]
async fn tariff_version_survives_restarts_and_grows_by_one_with_each_change() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = format!("sqlite:{}", dir.path().join("ledger.db").display());
    let setup = || Setup::default().ledger(&ledger);
    let multiplier = "sell_rate_multiplier = \"1\"";
    let runs = [
        ("first", setup(), 0),
        ("the same", setup(), 0),
        (
            "another exchange rate",
            setup().edit("fixed = \"100\"", "fixed = \"120\""),
            0,
        ),
        (
            "another multiplier",
            setup().edit(multiplier, "sell_rate_multiplier = \"2\""),
            1,
        ),
        (
            "another base price",
            setup()
                .edit(multiplier, "sell_rate_multiplier = \"2\"")
                .edit("input = \"10\"", "input = \"11\""),
            2,
        ),
    ];
    let mut first = None;
    let mut before = Value::Null;
    for (what, setup, grown) in runs {
        let world = setup.start().await;
        let version = catalog(&world).await["price_version"].clone();
        let id = version["id"].as_u64().unwrap();
        assert_eq!(id, *first.get_or_insert(id) + grown, "{what}");
        let same = before["id"] == version["id"];
        assert!(!same || before == version, "{what}: {before} {version}");
        before = version;
        world.gateway.drain().await.unwrap();
    }
}

#[tokio::test]
async fn new_exchange_rate_keeps_the_tariff_version() {
    let world = World::start().await;
    let before = catalog(&world).await;
    let rate = RateReading::fixed(Decimal::from(200));
    world.gateway.live().set_rate(rate);
    let after = catalog(&world).await;
    assert_eq!(before["price_version"], after["price_version"]);
    for (field, _) in RATES {
        let (old, new) = (&before["models"][0][field], &after["models"][0][field]);
        assert_eq!(decimal(new), decimal(old) * Decimal::TWO, "{field}");
    }
}

#[tokio::test]
async fn catalog_refusal_has_the_common_error_format() {
    let world = World::start().await;
    let answer = world
        .ask(request(
            Method::POST,
            &world.url(CATALOG),
            &[],
            json!({}).to_string().into(),
        ))
        .await;
    let text = refused("POST", &answer, 405, INVALID, "method_not_allowed");
    assert!(text.contains("GET"), "{text}");
}
