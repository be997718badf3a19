//! Tests of exchange rates (docs/decisions.md, "Money"): which sources are read, and which rates are accepted.

use rust_decimal::Decimal;
use tollgate::demo::vendor::ScriptedVendor;

use crate::prelude::*;

const CLOSED: &str = "[[rate.source]]\nurl = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"\n";

/// Starts a scripted source of exchange rates. It quotes several currency pairs, one of them at this price.
async fn market(price: Value) -> ScriptedVendor {
    let market = ScriptedVendor::start().await.unwrap();
    market.script(move |_| {
        let pairs = json!({ "data": [
            { "symbol": "BTC/RUB", "askPrice": "9000000" },
            { "symbol": "USDT/RUB", "bidPrice": "80", "askPrice": price },
        ] });
        Reply::json(200, &pairs)
    });
    market
}

fn source(market: &ScriptedVendor, more: &str) -> String {
    format!(
        "[[rate.source]]\nurl = \"http://{}/market?pairs=all\"\n\
         select = \"/data[symbol=USDT/RUB]/askPrice\"\n{more}\n",
        market.address()
    )
}

async fn with_sources(sources: &str) -> World {
    Setup::default()
        .edit("[[rate.source]]\nfixed = \"100\"\n", sources)
        .start()
        .await
}

/// Returns the exchange rate in the catalog: the price of one USDT in rubles.
async fn rate(world: &World) -> Option<Decimal> {
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let input = &catalog["models"][0]["input_rub_mtok"];
    assert_eq!(catalog["priced"] == true, !input.is_null(), "{catalog}");
    (!input.is_null()).then(|| decimal(input))
}

#[tokio::test]
async fn exchange_rate_is_selected_from_the_answer_of_a_rate_source() {
    for price in [json!("81.43"), json!(81.43)] {
        let market = market(price).await;
        let world = with_sources(&source(&market, "")).await;
        assert_eq!(rate(&world).await, Some(Decimal::new(8143, 2)));
        assert_eq!(market.received()[0].path, "/market?pairs=all");

        let key = world.key().await;
        let answer = world.chat(&key, &chat_body("x")).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["price"]["exchange_rate"], "81.43");
    }
}

#[tokio::test]
async fn rate_source_may_use_post_with_a_body() {
    let market = market(json!("81.43")).await;
    let more = "method = \"POST\"\nbody = '{\"coin\":\"usdt\"}'";
    let world = with_sources(&source(&market, more)).await;
    assert_eq!(rate(&world).await, Some(Decimal::new(8143, 2)));
    assert_eq!(market.received()[0].body, "{\"coin\":\"usdt\"}");
}

#[tokio::test]
async fn rate_sources_are_tried_in_order_until_one_is_plausible() {
    let (cheap, good, other) = (
        market(json!("10")).await,
        market(json!("81.43")).await,
        market(json!("99")).await,
    );
    let bounds = "min = \"50\"\nmax = \"200\"";
    let sources = [
        CLOSED.to_owned(),
        source(&cheap, bounds),
        source(&good, bounds),
        source(&other, bounds),
    ];
    let world = with_sources(&sources.concat()).await;
    assert_eq!(rate(&world).await, Some(Decimal::new(8143, 2)));
    assert_eq!(cheap.received().len(), 1);
    assert!(other.received().is_empty(), "the first good one is enough");
}

#[tokio::test]
async fn exchange_rate_can_be_fixed_in_the_configuration() {
    let sources = [CLOSED, "[[rate.source]]\nfixed = \"77.5\"\n"].concat();
    let world = with_sources(&sources).await;
    assert_eq!(rate(&world).await, Some(Decimal::new(775, 1)));
}

#[tokio::test]
async fn calls_are_refused_if_the_only_exchange_rate_is_implausible() {
    for price in [
        json!("49.99"),
        json!("200.01"),
        json!("0"),
        json!("-80"),
        Value::Null,
    ] {
        let market = market(price.clone()).await;
        let world = with_sources(&source(&market, "min = \"50\"\nmax = \"200\"")).await;
        assert_eq!(rate(&world).await, None, "{price}");
        let key = world.key().await;
        for op in BOTH {
            let answer = op.call(&world, &key, &op.body("x")).await;
            refused(op.path(), &answer, 503, API, "price_unavailable");
        }
        assert!(world.vendor.received().is_empty());
    }
}
