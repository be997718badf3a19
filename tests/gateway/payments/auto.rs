//! Tests of automatic top-up: a provider saves a card, and charges it once each time the balance falls below a level.
//! This must hold whichever gateway checks the balance, and whichever gateway is killed. The handle of the saved card
//! is sent only to the provider.

use futures_util::future::join_all;
use tollgate::payments::{CardUse, IntentId, NewAutoTopup, PaymentError, Payments, State};
use tollgate_layers::{
    money::MicroRub,
    reserve::ledger::{Entry, LedgerAdmin},
    respond::Language,
};
use tollgate_ledger::{
    contract::{BookError, Documents, EventStore, Update},
    happening::Happening,
};

use super::{
    balance, is_sound,
    killed::{Books, configured, until_killed},
    start, tell,
};
use crate::{
    console::Browser,
    prelude::*,
    support::shop::{Shop, card_of, paid},
    usage_report::{reported, tollgate, typed},
};

const RULE: &str = "/admin/v1/accounts/acme/auto_topup";
const ROUND: &str = "auto_check_seconds = 1";

/// Returns a top-up rule: if the balance is below 500 ₽, charge 2000 ₽, but at most `month_max` rubles per month.
pub(super) fn wanted(month_max: i64) -> NewAutoTopup {
    NewAutoTopup {
        id: IntentId::new(),
        account: "acme".parse().unwrap(),
        below: MicroRub::rubles(500),
        amount: MicroRub::rubles(2000),
        month_max: MicroRub::rubles(month_max),
        provider: None,
        email: None,
        by: "admin".into(),
    }
}

/// Returns the account's top-up rule as the API shows it.
pub(super) async fn rule(books: &Books) -> Value {
    let shown = books.process().auto_of(&"acme".parse().unwrap()).await;
    serde_json::to_value(shown.unwrap()).unwrap()
}

/// Deducts this number of rubles from the account's balance.
pub(super) async fn spend(books: &Books, rubles: i64) {
    let off = Entry {
        id: format!("spent {}", IntentId::new()),
        amount: MicroRub::rubles(-rubles),
        reason: Some("spent".into()),
    };
    let account = "acme".parse().unwrap();
    books.store.enter(&account, &off).await.unwrap();
}

pub(super) async fn round(books: &Books) {
    books.process().charge_due().await.unwrap();
}

/// Returns the emitted events of failed top-ups: the reason, whether the rule was turned off, and the link for paying
/// by hand.
pub(super) async fn failures(books: &Books) -> Vec<(String, bool, Option<String>)> {
    books.store.gather().await.unwrap();
    let events = books.store.events(0, 1000).await.unwrap().into_iter();
    events
        .filter_map(|event| match event.what {
            Happening::AutoTopupFailed {
                reason, off, url, ..
            } => Some((reason, off, url)),
            _ => None,
        })
        .collect()
}

/// Returns the amounts that were credited for payments at the provider.
pub(super) async fn paid_in(books: &Books) -> Vec<i64> {
    let entries = books.entries().await.into_iter();
    entries
        .filter(|(id, _)| !id.starts_with("spent"))
        .map(|(_, amount)| amount.micro() / 1_000_000)
        .collect()
}

/// Creates books with an active top-up rule: the payer has made the first payment of 2000 ₽, with which the card was
/// saved.
async fn begun(payments: &str, month_max: i64) -> (Books, Shop) {
    let shop = Shop::start().await;
    let books = Books::over(&shop.config(payments)).await;
    let made = books.process().set_auto(wanted(month_max)).await.unwrap();
    let made = serde_json::to_value(made).unwrap();
    assert_eq!(made["status"], "waiting", "{made}");
    let order = shop.received()[0].json();
    assert_eq!(order["save_payment_method"], true, "{order}");
    let payment = shop.payments().pop().unwrap();
    assert!(made["url"].as_str().unwrap().contains(&payment), "{made}");
    round(&books).await;
    assert!(shop.charges().is_empty(), "nobody has agreed yet");
    shop.pay(&payment);
    books.process().poll().await.unwrap();
    let on = rule(&books).await;
    assert_eq!(on["status"], "on");
    assert_eq!(on["card"], "····4444");
    assert_eq!(paid_in(&books).await, [2000]);
    (books, shop)
}

#[tokio::test]
async fn parallel_checks_of_a_low_balance_make_one_card_charge() {
    let (books, shop) = begun("", 20_000).await;
    round(&books).await;
    assert!(shop.charges().is_empty(), "there is enough");
    for crossing in 1..=3 {
        spend(&books, 1900).await;
        let processes: Vec<_> = (0..10).map(|_| books.process()).collect();
        let looks = join_all(processes.iter().map(|process| process.charge_due())).await;
        assert!(looks.iter().all(Result::is_ok), "{looks:?}");
        round(&books).await;
        assert_eq!(shop.charges().len(), crossing);
        assert_eq!(paid_in(&books).await, vec![2000; crossing + 1]);
    }
    let charge = shop.charges().pop().unwrap();
    let mut received = shop.received().into_iter();
    let order = received.rfind(|requested| !requested.body.is_empty());
    let order = order.unwrap();
    let key = order.headers["idempotence-key"].to_str().unwrap();
    assert_eq!(order.json()["metadata"]["tollgate_intent"], key);
    let intent = books.process().find(key.parse().unwrap()).await.unwrap();
    assert_eq!(intent.entry, Some(format!("yookassa:{charge}")));
    assert_eq!((intent.card, &*intent.by), (Some(CardUse::Saved), "auto"));
    assert_eq!(rule(&books).await["month_rub"], "6000.00");
}

#[tokio::test]
async fn gateway_killed_at_any_step_of_a_card_charge_charges_once() {
    let mut steps = 0;
    for polls in 0.. {
        let (books, shop) = begun("", 20_000).await;
        spend(&books, 1900).await;
        let ended = until_killed(books.process().charge_due(), polls).await;
        round(&books).await;
        round(&books).await;
        assert_eq!(shop.charges().len(), 1, "{polls}");
        assert_eq!(paid_in(&books).await, [2000, 2000], "{polls}");
        assert_eq!(rule(&books).await["month_rub"], "2000.00", "{polls}");
        books.process().poll().await.unwrap();
        let open = books.process().list(None).await.unwrap();
        assert!(open.iter().all(|intent| intent.state == State::Paid));
        if ended {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 8, "{steps}");
}

#[tokio::test]
async fn card_charge_with_a_lost_answer_is_repeated_with_the_same_idempotency_key() {
    let (books, shop) = begun("", 20_000).await;
    spend(&books, 1900).await;
    shop.lose(2);
    for _ in 0..2 {
        round(&books).await;
        assert_eq!(paid_in(&books).await, [2000]);
        // The poll for open payments must not close a card charge that the rule will repeat.
        books.process().poll().await.unwrap();
    }
    round(&books).await;
    assert_eq!(shop.charges().len(), 1);
    assert_eq!(paid_in(&books).await, [2000, 2000]);
    assert!(failures(&books).await.is_empty());
}

#[tokio::test]
async fn declined_card_is_retried_then_abandoned_with_an_event_each_time() {
    let (books, shop) = begun("auto_declines_max = 2\nauto_retry_seconds = 1", 20_000).await;
    shop.decline(Some("insufficient_funds"));
    spend(&books, 1900).await;
    round(&books).await;
    round(&books).await;
    assert_eq!(shop.charges().len(), 1, "it is left alone for a while");
    let shown = rule(&books).await;
    assert_eq!(shown["status"], "on");
    assert!(shown["next_try_at"].is_string(), "{shown}");
    assert_eq!(
        shown["month_rub"], "0.00",
        "what was not charged does not count"
    );
    eventually("it is tried again", async || {
        round(&books).await;
        (rule(&books).await["status"] == "off").then_some(())
    })
    .await;
    let why = "payment_network: insufficient_funds";
    assert_eq!(
        failures(&books).await,
        [(why.to_owned(), false, None), (why.to_owned(), true, None)]
    );
    assert_eq!(rule(&books).await["reason"], why);
    round(&books).await;
    assert_eq!(shop.charges().len(), 2);
    assert_eq!(paid_in(&books).await, [2000]);

    shop.decline(None);
    let account = "acme".parse().unwrap();
    books.process().resume_auto(&account).await.unwrap();
    round(&books).await;
    assert_eq!(paid_in(&books).await, [2000, 2000]);

    // After the card was declined permanently, the rule does not charge it again.
    shop.decline(Some("permission_revoked"));
    spend(&books, 1900).await;
    round(&books).await;
    assert_eq!(rule(&books).await["status"], "off");
}

#[tokio::test]
async fn card_decline_emits_one_event_even_if_the_process_is_killed() {
    for polls in 0.. {
        let (books, shop) = begun("auto_declines_max = 1", 20_000).await;
        shop.decline(Some("insufficient_funds"));
        spend(&books, 1900).await;
        let ended = until_killed(books.process().charge_due(), polls).await;
        round(&books).await;
        round(&books).await;
        assert_eq!(shop.charges().len(), 1, "{polls}");
        assert_eq!(failures(&books).await.len(), 1, "{polls}");
        assert_eq!(rule(&books).await["status"], "off", "{polls}");
        if ended {
            break;
        }
    }
}

#[tokio::test]
async fn card_charge_beyond_the_monthly_maximum_is_not_made_and_emits_one_event() {
    let (books, shop) = begun("", 3000).await;
    spend(&books, 1900).await;
    round(&books).await;
    assert_eq!(paid_in(&books).await, [2000, 2000]);
    spend(&books, 1900).await;
    for _ in 0..3 {
        round(&books).await;
    }
    assert_eq!(shop.charges().len(), 1);
    let returned = failures(&books).await;
    assert_eq!(returned.len(), 1, "{returned:?}");
    let why = "2000.00 ₽ of the monthly maximum of 3000.00 ₽";
    assert!(returned[0].0.contains(why), "{returned:?}");
    assert_eq!(rule(&books).await["status"], "on", "the next month goes on");
}

#[tokio::test]
async fn card_charge_that_needs_confirmation_emits_an_event_with_the_link() {
    let (books, shop) = begun("", 20_000).await;
    shop.confirm();
    spend(&books, 1900).await;
    round(&books).await;
    let returned = failures(&books).await;
    let charge = shop.charges().pop().unwrap();
    assert_eq!(returned.len(), 1, "{returned:?}");
    let link = returned[0].2.as_ref().unwrap();
    assert!(link.contains(&charge), "{returned:?}");
    round(&books).await;
    assert_eq!(shop.charges().len(), 1);
    assert_eq!(paid_in(&books).await, [2000]);
    // The payer confirms the card charge some time after it was requested.
    shop.pay(&charge);
    books.process().poll().await.unwrap();
    assert_eq!(paid_in(&books).await, [2000, 2000]);
}

#[tokio::test]
async fn deleted_saved_card_is_not_charged() {
    let (books, shop) = begun("", 20_000).await;
    let account = "acme".parse().unwrap();
    // The rule is removed before the result of its card charge is known.
    spend(&books, 1900).await;
    shop.break_with(Some(500));
    round(&books).await;
    books.process().remove_auto(&account).await.unwrap();
    shop.break_with(None);
    round(&books).await;
    books.process().poll().await.unwrap();
    assert!(shop.charges().is_empty());
    let missing = books.process().auto_of(&account).await;
    assert!(matches!(missing, Err(PaymentError::NoRule)), "{missing:?}");
    let left = books.process().list(None).await.unwrap();
    assert_eq!(left[0].state, State::Canceled, "{left:?}");
    let notes = books.store.documents("payment").await.unwrap();
    let handle = card_of(&shop.payments()[0]);
    assert!(notes.iter().all(|note| !note.text.contains(&handle)));
}

#[tokio::test]
async fn automatic_top_up_is_on_only_after_a_payment_that_saves_the_card() {
    let shop = Shop::start().await;
    let books = Books::over(&shop.config("")).await;
    let first = wanted(20_000);
    books.process().set_auto(first.clone()).await.unwrap();
    // A request with the same rule and the same id is a repetition. A request with another rule and the same id is a
    // conflict.
    books.process().set_auto(first.clone()).await.unwrap();
    assert_eq!(shop.payments().len(), 1);
    let other = NewAutoTopup {
        below: MicroRub::rubles(400),
        ..first
    };
    let refused = books.process().set_auto(other).await;
    assert!(matches!(refused, Err(PaymentError::Exists)), "{refused:?}");
    shop.pay_once(&shop.payments()[0]);
    books.process().poll().await.unwrap();
    let shown = rule(&books).await;
    assert_eq!(shown["status"], "off", "{shown}");
    assert_eq!(
        paid_in(&books).await,
        [2000],
        "the money is there all the same"
    );

    let resumed = books.process().resume_auto(&"acme".parse().unwrap()).await;
    assert!(matches!(resumed, Err(PaymentError::NoCard)), "{resumed:?}");
    books.process().set_auto(wanted(20_000)).await.unwrap();
    shop.cancel(&shop.payments()[1]);
    books.process().poll().await.unwrap();
    round(&books).await;
    let shown = rule(&books).await;
    assert_eq!(shown["status"], "off", "{shown}");
    assert_eq!(shown["reason"], "yoo_money: expired_on_confirmation");
    for (below, amount, month_max) in [(0, 2000, 2000), (500, 499, 2000), (500, 2000, 1999)] {
        let bad = NewAutoTopup {
            below: MicroRub::rubles(below),
            amount: MicroRub::rubles(amount),
            ..wanted(month_max)
        };
        let refused = books.process().set_auto(bad).await;
        assert!(
            matches!(refused, Err(PaymentError::Rule(..))),
            "{refused:?}"
        );
    }
}

async fn shown(world: &World) -> Value {
    world.admin_get(RULE).await.json()
}

/// Creates a rule with the API, and makes the first payment of the rule.
async fn agreed(world: &World, shop: &Shop) {
    agreed_to(world, shop, "500", "2000").await;
}

/// Creates a rule with this level and this amount with the API, and makes the first payment of the rule.
async fn agreed_to(world: &World, shop: &Shop, below: &str, amount: &str) {
    let wanted = json!({ "below_rub": below, "amount_rub": amount, "month_max_rub": "20000" });
    world
        .admin(Method::PUT, RULE, Some(wanted))
        .await
        .expect(200);
    let payment = shop.payments().pop().unwrap();
    shop.pay(&payment);
    assert_eq!(tell(world, &paid(&payment)).await, 200);
    assert_eq!(shown(world).await["status"], "on");
}

async fn adjust(world: &World, id: &str, rubles: &str) {
    let off = json!({ "id": id, "amount_rub": rubles, "reason": "spent" });
    let path = "/admin/v1/accounts/acme/adjustments";
    world.admin_post(path, off).await.expect(200);
}

#[tokio::test]
async fn parallel_calls_at_two_gateways_cause_one_card_charge() {
    let redis = RedisServer::start().await;
    let shop = Shop::start().await;
    let one = start(&shop, ROUND, &redis.url()).await;
    let other = start(&shop, ROUND, &redis.url()).await;
    let key = one.key_with("acme", "0", json!({})).await;
    agreed(&one, &shop).await;
    adjust(&one, "most", "-1499.999999").await;
    let calls = (0..20).map(|n| {
        let world = if n % 2 == 0 { &one } else { &other };
        async { world.chat(&key, &chat_body("hello")).await.status }
    });
    for status in join_all(calls).await {
        assert_eq!(status, 200);
    }
    one.settled(&key).await;
    for (crossing, spent) in [(1, "-2000"), (2, "-2000")] {
        eventually("it is charged", async || {
            (micro(&balance(&one).await) >= 2_000_000_000).then_some(())
        })
        .await;
        assert_eq!(shop.charges().len(), crossing, "one for each crossing");
        if crossing < 2 {
            adjust(&other, "more", spent).await;
        }
    }
    is_sound(&one).await;
}

/// Returns a chat body without an output maximum. Such a call holds all free money.
fn unbounded() -> Value {
    let mut body = chat_body("x");
    body.as_object_mut().unwrap().remove("max_tokens");
    body
}

#[tokio::test]
async fn held_money_does_not_trigger_a_card_charge() {
    let shop = Shop::start().await;
    let sections = shop.config("");
    let world = start(&shop, "", "memory:").await;
    let key = world.key_with("acme", "0", json!({})).await;
    agreed_to(&world, &shop, "0.20", "0.50").await;
    let (store, config) = (world.gateway.store().clone(), configured(&sections));
    let payments = Payments::new(store, Some(config), Language::En);
    for round in 1..=3 {
        let running = Running::start(&world, Op::Chat, &key, &unbounded()).await;
        assert_eq!(world.account(&key).await["free_rub"], "0.00", "{round}");
        payments.charge_due().await.unwrap();
        assert_eq!(shop.charges().len(), 0, "{round}: next to nothing was used");
        running.finish().await;
        world.settled(&key).await;
    }
    // The correction lowers the balance below the level, and the card is charged once.
    adjust(&world, "most", "-0.40").await;
    for _ in 0..3 {
        payments.charge_due().await.unwrap();
        assert_eq!(shop.charges().len(), 1);
    }
    is_sound(&world).await;
}

#[tokio::test]
async fn cost_so_far_of_a_running_call_triggers_an_automatic_top_up() {
    let shop = Shop::start().await;
    let world = start(&shop, ROUND, "memory:").await;
    let key = world.key_with("acme", "0", json!({})).await;
    agreed_to(&world, &shop, "0.50", "0.50").await;
    // The call costs less than 0.01 ₽, but holds the complete balance.
    let running = Running::start(&world, Op::Chat, &key, &unbounded()).await;
    eventually("the card is charged while the call runs", async || {
        (shop.charges().len() == 1).then_some(())
    })
    .await;
    let next = Running::start(&world, Op::Chat, &key, &unbounded()).await;
    running.finish().await;
    next.finish().await;
    world.settled(&key).await;
    assert_eq!(shop.charges().len(), 1, "0.99 ₽ are left");
    is_sound(&world).await;
}

/// The rule records its last card charge. If the books show that nothing was spent since then, the card is not charged
/// again, even though the balance is below the level.
#[tokio::test]
async fn card_is_charged_again_only_after_money_was_spent() {
    let (books, shop) = begun("", 20_000).await;
    spend(&books, 1900).await;
    round(&books).await;
    assert_eq!(shop.charges().len(), 1);
    // This raises the level of the rule, as if the balance had stayed below it since the last charge.
    let raise = |rule: Option<Value>| {
        let mut rule = rule.unwrap();
        rule["below_rub"] = json!("3000");
        Ok::<_, BookError>(Update::Write(rule, ()))
    };
    let raised = books.store.update("payment-auto/acme", raise).await;
    raised.unwrap();
    for _ in 0..3 {
        round(&books).await;
        assert_eq!(shop.charges().len(), 1, "nothing was spent");
    }
    spend(&books, 1).await;
    round(&books).await;
    assert_eq!(shop.charges().len(), 2);
}

#[tokio::test]
async fn operators_and_owners_can_see_and_remove_a_top_up_rule_but_never_see_the_card() {
    let shop = Shop::start().await;
    let world = start(&shop, &format!("{ROUND}\non_page = true"), "memory:").await;
    let key = world.key_with("acme", "0", json!({})).await;
    let words = "payment auto acme --below 500 --amount 2000 --month-max 20000";
    let made = typed(&world, words, 0).await;
    let payment = shop.payments().pop().unwrap();
    has(&made, "waiting");
    has(&made, &payment);
    shop.pay(&payment);
    assert_eq!(tell(&world, &paid(&payment)).await, 200);
    let listed = typed(&world, "payment auto", 0).await;
    assert!(listed.contains("····4444"), "{listed}");

    let url = world.url("/v1/tollgate/payments/auto");
    let ask = async |method: Method, secret: &str, body: Value| {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        world.ask(json_request(method, &url, secret, body)).await
    };
    let owner = world.another_key("acme", json!({ "kind": "owner" })).await;
    let seen = ask(Method::GET, &key.secret, Value::Null).await.json();
    assert_eq!(seen["auto_topup"]["card"], "····4444", "{seen}");
    for method in [Method::PUT, Method::DELETE] {
        let refused = ask(method, &key.secret, Value::Null).await.expect(403);
        assert!(refused.text().contains("Для этого нужен ключ владельца"));
    }
    let export = typed(&world, "export", 0).await;
    let events = world.admin_get("/admin/v1/events?after=0").await.text();
    let payments = world.admin_get("/admin/v1/payments").await;
    let shown_rule = world.admin_get(RULE).await.text();
    let handle = card_of(&payment);
    let payments = payments.text();
    for text in [seen.to_string(), export, events, payments, shown_rule] {
        assert!(!text.contains(&handle), "{text}");
    }

    // The owner key removes the rule and creates another one, which the operator then removes.
    let gone = ask(Method::DELETE, &owner.secret, Value::Null).await;
    assert_eq!(gone.expect(200).json(), json!({ "auto_topup": null }));
    let no_amount = "нужна сумма в рублях, больше 0 и с целыми копейками";
    for (below, amount, month_max, field, why) in [
        (
            "500",
            "400",
            "20000",
            "amount_rub",
            "меньше, чем в поле «below_rub»",
        ),
        (
            "500",
            "1000",
            "999",
            "month_max_rub",
            "меньше, чем в поле «amount_rub»",
        ),
        ("0", "1000", "20000", "below_rub", no_amount),
    ] {
        let says = format!("«{field}»: {why}");
        let bad = json!({ "below_rub": below, "amount_rub": amount, "month_max_rub": month_max });
        let refused = ask(Method::PUT, &owner.secret, bad).await.expect(400);
        assert!(refused.text().contains(&says), "{says}: {refused:?}");
    }
    let good = json!({ "below_rub": "500", "amount_rub": "1000", "month_max_rub": "20000" });
    let requested = ask(Method::PUT, &owner.secret, good).await.expect(200);
    let requested = requested.json();
    let link = requested["auto_topup"]["url"].as_str().unwrap();
    assert!(link.starts_with("https://yoomoney.example/"), "{link}");
    let removed = tollgate(&world, &["payment", "auto", "acme", "--remove"], "").await;
    assert!(reported(&removed, 0).contains("no longer topped up"));
    assert_eq!(world.admin_get(RULE).await.status, 404);
    assert_eq!(world.admin(Method::DELETE, RULE, None).await.status, 404);
}

#[tokio::test]
async fn console_creates_shows_and_removes_a_top_up_rule() {
    let (world, shop) = super::begun("").await;
    let browser = Browser::admin(&world).await;
    let page = "/console/accounts/acme";
    let removal = "Remove the top-up rule and delete the saved card";
    assert!(!browser.page(&world, page).await.contains(removal));
    let terms = [
        ("do", "auto-topup"),
        ("below_rub", "500"),
        ("charge_rub", "2000"),
        ("month_max_rub", "20000"),
    ];
    let requested = browser.done(&world, page, &terms).await;
    let payment = shop.payments().pop().unwrap();
    assert!(requested.contains("Send the payer the link"), "{requested}");
    has(&requested, &format!("orderId={payment}"));
    shop.pay(&payment);
    assert_eq!(tell(&world, &paid(&payment)).await, 200);
    let shown = browser.page(&world, page).await;
    assert!(shown.contains("····4444"), "{shown}");
    assert!(!shown.contains(&card_of(&payment)), "{shown}");
    let hasty = [("do", "auto-topup-remove")];
    let stored = browser.post(&world, page, &hasty).await;
    assert_eq!(stored.status, 422, "not confirmed: {stored:?}");
    assert!(stored.text().contains("····4444"), "{stored:?}");
    let remove = [("do", "auto-topup-remove"), ("sure", "1")];
    let gone = browser.done(&world, page, &remove).await;
    assert!(gone.contains("The card was deleted."), "{gone}");
    assert!(!gone.contains("····4444"), "{gone}");
}
