//! Tests of holds (docs/decisions.md, "Money"): the amount that a call in flight holds, and the refusal of a hold that
//! the account's money does not cover.
//!
//! In these tests, a million input tokens of the model `chat` cost 100 ₽ and a million output tokens 200 ₽. So a token
//! costs 100 or 200 µ₽.

use crate::{ledger::folder, prelude::*};

/// Makes a call. Returns the amount that it held while it was in flight, in micro-rubles.
async fn held(world: &World, op: Op, key: &Key, body: &Value) -> i64 {
    let answer = op.call(world, key, body).await.expect(200);
    micro(&world.receipt(&answer.number()).await["held_rub"])
}

/// Returns a chat body without an output maximum.
fn open(text: &str) -> Value {
    let mut body = chat_body(text);
    body.as_object_mut().unwrap().remove("max_tokens");
    body
}

/// Returns the output maximum in this field of the vendor's latest request.
fn written(world: &World, field: &str) -> i64 {
    let sent = world.vendor.received().pop().unwrap().json();
    sent[field]
        .as_i64()
        .unwrap_or_else(|| panic!("no {field} in {sent}"))
}

#[tokio::test]
async fn running_call_holds_money_and_finished_call_holds_none() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let before = world.settled(&key).await;
        let running = Running::start(&world, op, &key, &op.body("x")).await;
        let number = running.number.clone();
        let during = world.account(&key).await;
        let path = format!("/admin/v1/keys/{}", key.id);
        let of_key = world.admin_get(&path).await.json();
        running.finish().await;
        let after = world.settled(&key).await;
        let receipt = world.receipt(&number).await;

        assert!(micro(&during["held_rub"]) > 0, "{during}");
        assert_eq!(during["held_rub"], receipt["held_rub"]);
        assert_eq!(of_key["held_rub"], receipt["held_rub"]);
        assert_eq!(
            during["balance_rub"], before["balance_rub"],
            "held, not spent"
        );
        let free = decimal(&during["balance_rub"]) - decimal(&during["held_rub"]);
        assert_eq!(decimal(&during["free_rub"]), free);
        let left = decimal(&before["balance_rub"]) - decimal(&receipt["charged_rub"]);
        assert_eq!(decimal(&after["balance_rub"]), left);
        assert_eq!(after["free_rub"], after["balance_rub"]);
    }
}

#[tokio::test]
async fn hold_covers_the_requested_maximum_of_output_at_the_output_price() {
    let (world, key) = World::start_with_key().await;
    for (op, price) in [(Op::Chat, 200), (Op::Messages, 2000)] {
        let of = |tokens: u32| with(op.body("x"), json!({ "max_tokens": tokens }));
        let one = held(&world, op, &key, &of(1)).await;
        for tokens in [2, 100, 4000] {
            let more = held(&world, op, &key, &of(tokens)).await;
            assert_eq!(
                more - one,
                i64::from(tokens - 1) * price,
                "{op:?}: {tokens}"
            );
        }
    }
}

#[tokio::test]
async fn max_completion_tokens_limits_output_like_max_tokens() {
    let (world, key) = World::start_with_key().await;
    let old = held(&world, Op::Chat, &key, &chat_body("x")).await;
    let new = with(open("x"), json!({ "max_completion_tokens": 100 }));
    assert_eq!(held(&world, Op::Chat, &key, &new).await, old);
}

#[tokio::test]
async fn hold_covers_the_output_of_all_n_requested_answers() {
    let (world, key) = World::start_with_key().await;
    let one = held(&world, Op::Chat, &key, &chat_body("x")).await;
    let three = with(chat_body("x"), json!({ "n": 3 }));
    let three = held(&world, Op::Chat, &key, &three).await;
    assert_eq!(three - one, 2 * 100 * 200);
}

#[tokio::test]
async fn usual_hold_counts_two_tokens_per_three_bytes_and_strict_hold_one_per_byte() {
    for (mode, bytes_in_two_tokens) in [("usual", 3), ("strict", 2)] {
        let line = format!("[ledger]\nhold = \"{mode}\"");
        let (world, key) = Setup::default()
            .edit("[ledger]", &line)
            .start_with_key()
            .await;
        for (op, price) in [(Op::Chat, 100), (Op::Messages, 1000)] {
            // The hold counts the bytes of the decoded character, not of its escape in JSON.
            let little = held(&world, op, &key, &op.body(&"\n".repeat(300))).await;
            let much = held(&world, op, &key, &op.body(&"ж".repeat(3000))).await;
            let tokens = (6000 - 300) * 2 / bytes_in_two_tokens;
            assert_eq!(much - little, tokens * price, "{mode}, {op:?}");
        }
    }
}

#[tokio::test]
async fn input_is_held_at_the_rate_of_its_most_expensive_class() {
    for (edit, dearest) in [
        (
            "input = \"3\", cached_input = \"1\", output = \"2\", cache_write = \"2\"",
            300,
        ),
        (
            "input = \"1\", cached_input = \"3\", output = \"2\", cache_write = \"2\"",
            300,
        ),
        (
            "input = \"1\", cached_input = \"1\", output = \"2\", cache_write = \"7\"",
            700,
        ),
    ] {
        let usual = "input = \"1\", cached_input = \"0.1\", output = \"2\", cache_write = \"0.5\"";
        let (world, key) = Setup::default().edit(usual, edit).start_with_key().await;
        let little = held(&world, Op::Chat, &key, &chat_body(&"x".repeat(300))).await;
        let much = held(&world, Op::Chat, &key, &chat_body(&"x".repeat(3300))).await;
        assert_eq!(much - little, 2000 * dearest, "{edit}");
    }
}

#[tokio::test]
async fn hold_of_an_image_does_not_depend_on_its_bytes() {
    let (world, key) = World::start_with_key().await;
    let with_images = |op: Op, bytes: &[usize]| {
        let mut parts = vec![json!({ "type": "text", "text": "x" })];
        parts.extend(bytes.iter().map(|bytes| {
            let data = "A".repeat(*bytes);
            match op {
                Op::Chat => json!({ "type": "image_url",
                    "image_url": { "url": format!("data:image/png;base64,{data}") } }),
                Op::Messages => json!({ "type": "image",
                    "source": { "type": "base64", "media_type": "image/png", "data": data } }),
            }
        }));
        let mut body = op.body("x");
        body["messages"][0]["content"] = parts.into();
        body
    };
    for op in BOTH {
        let small = held(&world, op, &key, &with_images(op, &[100])).await;
        let large = held(&world, op, &key, &with_images(op, &[100_000])).await;
        assert_eq!(small, large, "{op:?}");
        let two = held(&world, op, &key, &with_images(op, &[100, 100])).await;
        let three = held(&world, op, &key, &with_images(op, &[100, 100, 100])).await;
        assert_eq!(two - small, three - two, "{op:?}");
        assert!(two > small, "{op:?}");
    }
}

#[tokio::test]
async fn call_without_an_output_maximum_is_held_and_sent_with_the_models_maximum() {
    for field in ["max_completion_tokens", "max_tokens"] {
        let (world, key) = Setup::default()
            .edit(
                "output_tokens_max = 4000",
                &format!("output_tokens_max = 4000\noutput_field = \"{field}\""),
            )
            .start_with_key()
            .await;
        let named = with(chat_body("x"), json!({ "max_tokens": 4000 }));
        let named = held(&world, Op::Chat, &key, &named).await;
        assert_eq!(held(&world, Op::Chat, &key, &open("x")).await, named);
        assert_eq!(written(&world, field), 4000);
    }
}

#[tokio::test]
async fn output_maximum_of_null_is_replaced_by_the_models_maximum() {
    for field in ["max_completion_tokens", "max_tokens"] {
        let line = format!("output_tokens_max = 4000\noutput_field = \"{field}\"");
        let (world, key) = Setup::default()
            .edit("output_tokens_max = 4000", &line)
            .start_with_key()
            .await;
        let named = with(chat_body("x"), json!({ "max_tokens": 4000 }));
        let named = held(&world, Op::Chat, &key, &named).await;
        for given in ["max_completion_tokens", "max_tokens"] {
            let null = with(open("x"), json!({ given: null }));
            assert_eq!(held(&world, Op::Chat, &key, &null).await, named);
            assert_eq!(written(&world, field), 4000, "{given} is null");
            let sent = world.vendor.received().pop().unwrap().body;
            let sent = String::from_utf8(sent.to_vec()).unwrap();
            assert_eq!(sent.matches(&format!("\"{field}\"")).count(), 1, "{sent}");
        }
    }
}

#[tokio::test]
async fn requested_output_maximum_is_sent_unchanged() {
    let (world, key) = World::start_with_key().await;
    for field in ["max_completion_tokens", "max_tokens"] {
        let body = with(open("x"), json!({ field: 7 }));
        held(&world, Op::Chat, &key, &body).await;
        let sent = world.vendor.received().pop().unwrap().json();
        assert_eq!(sent, with(body, json!({ "model": "vendor-chat-1" })));
    }
}

#[tokio::test]
async fn default_output_maximum_is_exactly_what_the_balance_can_pay_for() {
    let world = World::start().await;
    let rich = world.key().await;
    let input = held(&world, Op::Chat, &rich, &chat_body("x")).await - 100 * 200;
    for (account, tokens) in [("a", 1234), ("b", 256), ("c", 3999)] {
        // The money covers a whole number of tokens, and half the price of a token remains.
        let funds = input + tokens * 200 + 100;
        let key = world.key_with(account, &rubles(funds), json!({})).await;
        let held = held(&world, Op::Chat, &key, &open("x")).await;
        assert_eq!(written(&world, "max_completion_tokens"), tokens);
        assert!((input + tokens * 200..=funds).contains(&held), "{held}");
    }
    // The rest of a key's ceiling limits the output in the same way as the rest of the balance.
    let ceiling = rubles(input + 500 * 200);
    let key = world
        .another_key("acme", json!({ "ceiling_rub": ceiling }))
        .await;
    held(&world, Op::Chat, &key, &open("x")).await;
    assert_eq!(written(&world, "max_completion_tokens"), 500);
}

#[tokio::test]
async fn default_output_maximum_is_what_the_balance_covers_for_all_n_answers() {
    let world = World::start().await;
    let rich = world.key().await;
    let input = held(&world, Op::Chat, &rich, &chat_body("x")).await - 100 * 200;
    let funds = rubles(input + 2 * 600 * 200);
    let key = world.key_with("a", &funds, json!({})).await;
    held(&world, Op::Chat, &key, &with(open("x"), json!({ "n": 2 }))).await;
    assert_eq!(written(&world, "max_completion_tokens"), 600);
}

#[tokio::test]
async fn call_without_an_output_maximum_gets_403_if_the_balance_covers_too_little_output() {
    let min = "output_tokens_max = 4000\noutput_tokens_min = 50";
    for (setup, min) in [
        (Setup::default(), 256),
        (Setup::default().edit("output_tokens_max = 4000", min), 50),
    ] {
        let world = setup.start().await;
        let rich = world.key().await;
        let input = held(&world, Op::Chat, &rich, &chat_body("x")).await - 100 * 200;
        let enough = world
            .key_with("enough", &rubles(input + min * 200), json!({}))
            .await;
        held(&world, Op::Chat, &enough, &open("x")).await;
        assert_eq!(written(&world, "max_completion_tokens"), min);

        let short = world
            .key_with("short", &rubles(input + min * 200 - 1), json!({}))
            .await;
        let answer = world.chat(&short, &open("x")).await;
        refused("short", &answer, 403, PERMISSION, "insufficient_balance");
        // The output maximum that the client has set is lower than the default.
        let less = with(open("x"), json!({ "max_tokens": 10 }));
        held(&world, Op::Chat, &short, &less).await;
    }
}

#[tokio::test]
async fn call_without_an_output_maximum_is_held_and_sent_with_the_configured_default() {
    let setup = Setup::default().edit(
        "output_tokens_max = 4000",
        "output_tokens_max = 4000\noutput_tokens_default = 300",
    );
    let world = setup.start().await;
    let rich = world.key().await;
    let named = held(&world, Op::Chat, &rich, &chat_body("x")).await;
    let need = named + 200 * 200;
    assert_eq!(held(&world, Op::Chat, &rich, &open("x")).await, need);
    assert_eq!(written(&world, "max_completion_tokens"), 300);
    // The output maximum that the client has set is higher than the default and lower than the model's maximum.
    let more = with(open("x"), json!({ "max_tokens": 4000 }));
    assert_eq!(
        held(&world, Op::Chat, &rich, &more).await,
        named + 3900 * 200
    );
    // A vendor of the other format gets the default output maximum, too.
    let other = with(open("x"), json!({ "model": "messages" }));
    held(&world, Op::Chat, &rich, &other).await;
    assert_eq!(written(&world, "max_tokens"), 300);
    // If the money does not cover the default output maximum, the gateway lowers the maximum to what the money covers.
    let short = world
        .key_with("short", &rubles(need - 10 * 200), json!({}))
        .await;
    held(&world, Op::Chat, &short, &open("x")).await;
    assert_eq!(written(&world, "max_completion_tokens"), 290);
}

#[tokio::test]
async fn balance_for_ten_calls_without_an_output_maximum_serves_ten_at_once() {
    for (limits, at_a_time) in [
        ("output_tokens_max = 40000\noutput_tokens_default = 300", 10),
        // Without a configured default output maximum, the first call holds all money.
        ("output_tokens_max = 40000", 1),
    ] {
        let setup = Setup::default().edit("output_tokens_max = 4000", limits);
        let world = setup.start().await;
        let rich = world.key().await;
        let need = held(&world, Op::Chat, &rich, &chat_body("x")).await + 200 * 200;
        let key = world.key_with("ten", &rubles(10 * need), json!({})).await;
        let mut running = Vec::new();
        for _ in 0..at_a_time {
            running.push(Running::start(&world, Op::Chat, &key, &open("x")).await);
        }
        let account = world.account(&key).await;
        assert_eq!(account["free_rub"], "0.00", "{account}");
        let answer = world.chat(&key, &open("x")).await;
        refused("one more", &answer, 403, PERMISSION, "insufficient_balance");
        for call in running {
            call.finish().await;
        }
        // The calls cost less than they held, so the remaining money covers the next call.
        world.settled(&key).await;
        let next = Running::start(&world, Op::Chat, &key, &open("x")).await;
        next.finish().await;
    }
}

#[tokio::test]
async fn requested_output_maximum_is_held_in_full_or_the_call_is_refused() {
    let world = World::start().await;
    let rich = world.key().await;
    for op in BOTH {
        let need = held(&world, op, &rich, &op.body("x")).await;
        let fits = world
            .key_with(&format!("fits-{}", op.model()), &rubles(need), json!({}))
            .await;
        assert_eq!(held(&world, op, &fits, &op.body("x")).await, need);
        let short = world
            .key_with(
                &format!("short-{}", op.model()),
                &rubles(need - 1),
                json!({}),
            )
            .await;
        let answer = op.call(&world, &short, &op.body("x")).await;
        refused(op.path(), &answer, 403, PERMISSION, "insufficient_balance");
    }
}

#[tokio::test]
async fn refusal_with_403_states_the_needed_amount_and_the_free_and_held_amounts() {
    for op in BOTH {
        let world = World::start().await;
        let rich = world.key_with("rich", "1000", json!({})).await;
        let large = with(op.body("x"), json!({ "max_tokens": 1000 }));
        let answer = op.call(&world, &rich, &large).await;
        let needs = world.receipt(&answer.number()).await["held_rub"].clone();
        // The money covers the large call, unless another call holds a part of it.
        let funds = needs.as_str().unwrap();
        let key = world.key_with(op.model(), funds, json!({})).await;
        let running = Running::start(&world, op, &key, &op.body("x")).await;
        let account = world.account(&key).await;
        let answer = op.call(&world, &key, &large).await;
        let text = refused(op.path(), &answer, 403, PERMISSION, "insufficient_balance");
        let (free, held) = (&account["free_rub"], &account["held_rub"]);
        for (word, amount) in [("нужно", &needs), ("свободно", free), ("занято", held)]
        {
            let amount = amount.as_str().unwrap().replace('.', ",") + "\u{a0}₽";
            let (_, behind) = text
                .split_once(word)
                .unwrap_or_else(|| panic!("{word}: {text}"));
            let found = behind.find(&amount);
            assert!(found.is_some_and(|at| at < 60), "{word} {amount}: {text}");
        }
        running.finish().await;
    }
}

#[tokio::test]
async fn call_gets_403_while_the_money_is_held_and_401_once_it_is_spent() {
    let world = World::start().await;
    let rich = world.key_with("rich", "1000", json!({})).await;
    let need = held(&world, Op::Chat, &rich, &chat_body("x")).await;
    // The call in flight holds all money.
    let key = world.key_with("all", &rubles(need), json!({})).await;
    let running = Running::start(&world, Op::Chat, &key, &chat_body("x")).await;
    assert_eq!(world.account(&key).await["free_rub"], "0.00");
    let answer = world.chat(&key, &chat_body("x")).await;
    refused("held", &answer, 403, PERMISSION, "insufficient_balance");
    running.finish().await;

    let left = world.settled(&key).await["balance_rub"].clone();
    let less = format!("-{}", left.as_str().unwrap());
    let entry = json!({ "id": "rest", "amount_rub": less, "reason": "test" });
    let path = "/admin/v1/accounts/all/adjustments";
    assert_eq!(world.admin_post(path, entry).await.status, 200);
    world.chat(&key, &chat_body("x")).await.expect(401);
}

#[tokio::test]
async fn keys_of_one_account_share_its_money() {
    let world = World::start().await;
    let rich = world.key_with("rich", "1000", json!({})).await;
    let need = held(&world, Op::Chat, &rich, &chat_body("x")).await;
    let one = world
        .key_with("acme", &rubles(2 * need - 1), json!({}))
        .await;
    let two = world.another_key("acme", json!({})).await;
    let running = Running::start(&world, Op::Chat, &one, &chat_body("x")).await;
    let answer = world.chat(&two, &chat_body("x")).await;
    let text = refused("second", &answer, 403, PERMISSION, "insufficient_balance");
    assert!(text.contains("занято"), "{text}");
    running.finish().await;
    world.settled(&one).await;
}

/// On one connection, a client sends each call as soon as it has the response to the previous call. A call without an
/// output maximum holds all free money, so the previous call must be settled before it. At most `refused_max` of the
/// `CALLS` calls may be refused.
async fn one_call_after_the_other(setup: Setup, refused_max: usize) {
    let world = setup.start().await;
    let key = world.key_with("short", "0.5", json!({})).await;
    let mut refused = 0;
    for _ in 0..CALLS {
        let answer = world.chat(&key, &open("x")).await;
        assert!(matches!(answer.status.as_u16(), 200 | 403), "{answer:?}");
        refused += usize::from(answer.status == 403);
    }
    assert!(refused <= refused_max, "{refused} of {CALLS} refused");
}

/// The number of calls that the client makes, one after another.
const CALLS: usize = 40;

/// The test runs on one thread, so that the gateway settles a call before it reads the next request. With several
/// threads, a busy machine often delivers the response before the settlement.
#[tokio::test]
async fn consecutive_calls_with_little_money_are_served() {
    one_call_after_the_other(Setup::default(), 0).await;
    let folder = folder();
    let file = format!("sqlite:{}", folder.path().join("ledger.db").display());
    one_call_after_the_other(Setup::default().ledger(&file), 0).await;
    let server = RedisServer::start().await;
    // Redis is another process, reached over two connections. It may receive the hold of the next call before the
    // settlement of the previous call.
    one_call_after_the_other(Setup::default().ledger(&server.url()), CALLS / 5).await;
}
