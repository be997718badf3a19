//! Tests of price rules for some customers (docs/prices.md, "Prices of some customers"): the hold chooses one price
//! rule, the receipt names this rule, and the customers to whom it applies see their own prices.

use tollgate::config::Config;

use crate::{prelude::*, price_rules::computed, support::config::edited};

const LAST: &str = "model = \"vendor-messages-1\" } ]";

/// Returns price rules for the account `acme` and for the group `partners`. Other customers pay 100 ₽ for each USDT of
/// the base price.
fn rules(acme_times: &str) -> (String, String) {
    let rules = format!(
        r#"{LAST}
        [[account_group]]
        name = "partners"
        accounts = ["beta", "acme"]
        [[price_rule]]
        name = "acme 2026"
        accounts = ["acme"]
        models = ["chat"]
        sell_rate_multiplier = "{acme_times}"
        [[price_rule]]
        name = "acme, by hand"
        accounts = ["acme"]
        models = ["mess*"]
        usdt_mtok = {{ input = "7", cached_input = "0.7", output = "14", cache_write = "3.5" }}
        [[price_rule]]
        name = "partners"
        groups = ["partners"]
        models = ["*"]
        sell_rate_multiplier = "1.2"
"#
    );
    (LAST.to_owned(), rules)
}

fn with_lists() -> Setup {
    let (from, to) = rules("1.5");
    Setup::default().edit(&from, &to)
}

/// For an account and a model: the price of a million input tokens, and the price rule from which it comes.
const PAID: [(&str, Op, &str, Option<&str>); 6] = [
    ("acme", Op::Chat, "150.00", Some("acme 2026")),
    ("acme", Op::Messages, "700.00", Some("acme, by hand")),
    ("beta", Op::Chat, "120.00", Some("partners")),
    ("beta", Op::Messages, "1200.00", Some("partners")),
    ("gamma", Op::Chat, "100.00", None),
    ("gamma", Op::Messages, "1000.00", None),
];

async fn keys(world: &World) -> [Key; 3] {
    let key = async |account| world.key_with(account, "1000", json!({})).await;
    [key("acme").await, key("beta").await, key("gamma").await]
}

fn of<'a>(keys: &'a [Key; 3], account: &str) -> &'a Key {
    keys.iter().find(|key| key.account == account).unwrap()
}

async fn own(world: &World, key: &Key, path: &str) -> Answer {
    world
        .get(path, &[("x-api-key", key.secret.as_str())])
        .await
        .expect(200)
}

/// Returns the receipt of a call. Checks the receipt's sum, hold and price rule.
async fn receipt(world: &World, number: &str, rule: Option<&str>) -> Value {
    let receipt = world.receipt(number).await;
    assert_eq!(
        micro(&receipt["charged_rub"]),
        computed(&receipt),
        "{receipt}"
    );
    hold_covers_charge(&receipt);
    assert_eq!(receipt.get("price_rule"), rule.map(Value::from).as_ref());
    assert_eq!(receipt["price"].get("rule"), rule.map(Value::from).as_ref());
    receipt
}

async fn everyone_pays_its_own_price(ledger: &str) {
    let world = with_lists().ledger(ledger).start().await;
    let keys = keys(&world).await;
    for (account, op, input, rule) in PAID {
        let key = of(&keys, account);
        let answer = op.call(&world, key, &op.body("Привет")).await.expect(200);
        let seen = receipt(&world, &answer.number(), rule).await;
        assert_eq!(seen["price"]["input"], input, "{account} {seen}");
        assert_eq!(seen["price"]["version"], 1);
        let path = format!("/v1/tollgate/receipts/{}", answer.number());
        let own = own(&world, key, &path).await.json();
        assert_eq!(own["price"], seen["price"]);
        assert_eq!(own.get("price_rule"), seen.get("price_rule"));
    }
    let lines = world.admin_get("/admin/v1/export").await;
    let rules: Vec<_> = lines
        .text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["kind"] == "call")
        .map(|line| line["price"]["rule"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(rules, PAID.map(|(.., rule)| rule.map(str::to_owned)));
}

#[tokio::test]
async fn each_account_pays_its_own_price_with_a_memory_ledger() {
    everyone_pays_its_own_price("memory:").await;
}

#[tokio::test]
async fn each_account_pays_its_own_price_with_a_sqlite_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("books.db");
    everyone_pays_its_own_price(&format!("sqlite:{}", path.display())).await;
}

#[tokio::test]
async fn each_account_pays_its_own_price_with_a_redis_ledger() {
    let server = RedisServer::start().await;
    everyone_pays_its_own_price(&server.url()).await;
}

#[tokio::test]
async fn key_sees_its_own_prices_while_the_public_list_shows_general_prices() {
    let cost = r#"model = "vendor-chat-1", cost_usdt_mtok = { input = "0.123", cached_input = "0.123", output = "0.123", cache_write = "0.123" } }"#;
    let world = with_lists()
        .edit("model = \"vendor-chat-1\" }", cost)
        .start()
        .await;
    let keys = keys(&world).await;
    for (account, op, input, rule) in PAID {
        let key = of(&keys, account);
        let path = format!("/v1/models/{}", op.model());
        let model = own(&world, key, &path).await;
        let (shown, model) = (model.text(), model.json());
        let rubles = input.strip_suffix(".00").unwrap();
        let reported = model["description"].as_str().unwrap();
        let reported = reported.replace(['\u{a0}', '\u{202f}', ' '], "");
        assert!(
            reported.contains(&format!("Вход{rubles}")),
            "{account} {reported}"
        );
        assert_eq!(
            model["prices"][0].get("rule"),
            rule.map(Value::from).as_ref()
        );
        assert_eq!(model.get("prices").is_some(), rule.is_some(), "{model}");
        assert!(!shown.contains("cost"), "{shown}");
        assert!(!shown.contains("12.3"), "{shown}");
        let list = own(&world, key, "/v1/models").await.json();
        let listed = list["data"].as_array().unwrap();
        assert!(listed.contains(&model), "{list}");

        let (path, body) = ("/v1/tollgate/estimate", op.body("Привет"));
        let answer = op.call_at(path, &world, key, &body).await;
        let estimate = answer.json();
        assert_eq!(estimate["price"]["input"], input, "{answer:?}");
        assert_eq!(
            estimate["price"].get("rule"),
            rule.map(Value::from).as_ref()
        );
        let call = op.call(&world, key, &op.body("Привет")).await;
        let receipt = world.receipt(&call.number()).await;
        assert_eq!(receipt["held_rub"], estimate["hold_rub"], "{account}");
    }
    let bearer = format!("Bearer {}", of(&keys, "acme").secret);
    for headers in [&[][..], &[("authorization", bearer.as_str())]] {
        let catalog = world.get("/v1/tollgate/models", headers).await;
        let models = &catalog.json()["models"];
        assert_eq!(models[0]["input_rub_mtok"], "100.00");
        assert_eq!(models[1]["input_rub_mtok"], "1000.00");
        let page = world.get("/", &[("accept", "text/html")]).await;
        for shown in [catalog.text(), page.text()] {
            for own in ["acme", "partners", "12.3", "12,3"] {
                assert!(!shown.contains(own), "{own}");
            }
        }
    }
}

#[tokio::test]
async fn price_rules_for_other_accounts_do_not_change_a_keys_prices() {
    let (usual, ruled) = (World::start().await, with_lists().start().await);
    let mut shown = Vec::new();
    for world in [&usual, &ruled] {
        let key = world.key_with("gamma", "1000", json!({})).await;
        let models = own(world, &key, "/v1/models").await.json();
        let ids = models["data"].as_array().unwrap().iter();
        let bare: Vec<_> = ids
            .map(|it| {
                (
                    it["id"].clone(),
                    it["description"].clone(),
                    it.as_object().unwrap().len(),
                )
            })
            .collect();
        let catalog = world.get("/v1/tollgate/models", &[]).await.json();
        let answer = Op::Chat.call(world, &key, &Op::Chat.body("Привет")).await;
        let mut price = world.receipt(&answer.number()).await["price"].clone();
        price["version"] = Value::Null;
        shown.push((bare, catalog["models"].clone(), price.to_string()));
    }
    assert_eq!(shown[0], shown[1]);
}

#[tokio::test]
async fn call_is_charged_by_the_price_rule_that_its_hold_used() {
    let mut world = with_lists().start().await;
    let keys = keys(&world).await;
    let acme = of(&keys, "acme");
    for (op, next) in std::iter::zip(BOTH, ["1.7", "1.9"]) {
        let before = PAID
            .into_iter()
            .find(|(account, of, ..)| (*account, *of) == ("acme", op));
        let (_, _, input, rule) = before.unwrap();
        let running = Running::start(&world, op, acme, &op.body("Привет")).await;
        let text = config_text(
            world.vendor.address(),
            "memory:",
            world.dir.path().join("outbox.db"),
        );
        let mut edit = rules(next);
        if op == Op::Messages {
            // After the reload, no price rule applies to the account, so it pays the general price of the model.
            edit.1 = LAST.to_owned();
        }
        let config = Config::parse(&edited(text, &[edit]), &secret).unwrap();
        world.gateway.reload(&config).await.unwrap();
        let number = running.number.clone();
        running.finish().await;
        let seen = receipt(&world, &number, rule).await;
        assert_eq!(seen["price"]["input"], input, "{seen}");

        let after = Running::start(&world, op, acme, &op.body("Привет")).await;
        let number = after.number.clone();
        after.finish().await;
        let (input, rule) = match op {
            Op::Chat => ("170.00", rule),
            Op::Messages => ("1000.00", None),
        };
        let seen = receipt(&world, &number, rule).await;
        assert_eq!(seen["price"]["input"], input, "{seen}");
    }
}

#[tokio::test]
async fn every_key_of_an_account_pays_the_price_of_the_account() {
    let world = with_lists().start().await;
    let first = world.key_with("acme", "1000", json!({})).await;
    let other = world.another_key("acme", json!({})).await;
    for key in [&first, &other] {
        let answer = Op::Chat.call(&world, key, &Op::Chat.body("x")).await;
        receipt(&world, &answer.number(), Some("acme 2026")).await;
    }
}
