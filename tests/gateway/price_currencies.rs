//! Tests of prices in rubles (docs/prices.md): such a price does not depend on the exchange rate, and prices and costs
//! may be in different currencies.

use crate::{
    prelude::*,
    price_rules::{ask, receipt, says, usage},
};

/// Returns a setup in which the chat model has a price in rubles and a cost in USDT. The messages model has a price in
/// USDT and a cost in rubles.
fn setup(exchange_rate: &str) -> Setup {
    let cost = |rates: &str| {
        format!(
            "{rates} = {{ input = \"0.1\", cached_input = \"0.1\", output = \"0.1\", cache_write = \"0.1\" }}"
        )
    };
    let edits = [
        (
            "usdt_mtok = { input = \"1\", cached_input = \"0.1\", output = \"2\", cache_write = \"0.5\" }".to_owned(),
            "rub_mtok = { input = \"100\", cached_input = \"10\", output = \"200\", cache_write = \"50\" }".to_owned(),
        ),
        (
            "model = \"vendor-chat-1\" }".to_owned(),
            format!("model = \"vendor-chat-1\", {} }}", cost("cost_usdt_mtok")),
        ),
        (
            "model = \"vendor-messages-1\" }".to_owned(),
            format!("model = \"vendor-messages-1\", {} }}", cost("cost_rub_mtok")),
        ),
        (
            "fixed = \"100\"\n[tariff]\nsell_rate_multiplier = \"1\"".to_owned(),
            format!("fixed = \"{exchange_rate}\"\n[tariff]\nsell_rate_multiplier = \"1\"\nsell_rub_multiplier = \"1.5\""),
        ),
    ];
    edits
        .iter()
        .fold(Setup::default(), |setup, (from, to)| setup.edit(from, to))
}

#[tokio::test]
async fn ruble_price_ignores_the_exchange_rate_and_margins_may_mix_currencies() {
    for (exchange_rate, rate) in [("100", 100), ("50", 50)] {
        let (world, key) = setup(exchange_rate).start_with_key().await;
        for op in BOTH {
            says(&world, op, usage(op, 1000, json!({})), json!({}));
            let answer = ask(&world, &key, op, 1000, json!({})).await;
            let receipt = receipt(&world, &answer).await;
            // The charge of 1000 input tokens and 10 output tokens, in micro-rubles.
            let (charged, cost) = match op {
                Op::Chat => (1_000 * 150 + 10 * 300, 1_010 * rate / 10),
                _ => (1_000 * 10 * rate + 10 * 20 * rate, 101),
            };
            assert_eq!(micro(&receipt["charged_rub"]), charged, "{receipt}");
            assert_eq!(micro(&receipt["vendor_cost_rub"]), cost, "{receipt}");
            assert_eq!(micro(&receipt["margin_rub"]), charged - cost, "{receipt}");
            let price = &receipt["price"];
            assert_eq!(price["exchange_rate"], exchange_rate);
            let currency = (op == Op::Chat).then_some("rub");
            assert_eq!(price.get("currency"), currency.map(Into::into).as_ref());
        }
        let catalog = world.get("/v1/tollgate/models", &[]).await.json();
        assert_eq!(catalog["sell_rub_multiplier"], "1.5");
        let [chat, messages] = [0, 1].map(|index| &catalog["models"][index]);
        assert_eq!(chat["price_currency"], "rub");
        assert_eq!(chat["input_rub_mtok"], "150.00");
        assert_eq!(messages.get("price_currency"), None);
        assert_eq!(messages["input_rub_mtok"], format!("{}.00", 10 * rate));
        let page = world.get("/", &[("accept", "text/html")]).await.text();
        has(&page, "часть цен пересчитывается по курсу USDT.");
    }
}
