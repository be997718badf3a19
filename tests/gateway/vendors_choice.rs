//! Tests of which vendor a call is sent to if its model has several vendors (docs/decisions.md, "Vendors").

use futures_util::future::join_all;
use tollgate::demo::script;

use crate::{fleet::Fleet, prelude::*};

/// Makes this number of calls, `at_a_time` of them concurrently.
async fn calls(fleet: &Fleet, key: &Key, count: usize, at_a_time: usize) {
    let body = chat_body("x");
    for _ in 0..count / at_a_time {
        let answers = join_all((0..at_a_time).map(|_| fleet.world.chat(key, &body))).await;
        for answer in answers {
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn vendors_share_calls_by_weight() {
    const CALLS: usize = 1000;
    const WEIGHTS: [usize; 3] = [1, 3, 6];
    let fleet = Fleet::start(
        Setup::default(),
        WEIGHTS.len(),
        |n| format!("weight = {}", WEIGHTS[n]),
        |_| String::new(),
    )
    .await;
    let key = fleet.world.key().await;
    calls(&fleet, &key, CALLS, 50).await;
    let total: usize = WEIGHTS.iter().sum();
    let mut chi_squared = 0.0;
    for (n, weight) in WEIGHTS.into_iter().enumerate() {
        let expected = (CALLS * weight / total) as f64;
        chi_squared += (fleet.requested(n) as f64 - expected).powi(2) / expected;
    }
    let requested: Vec<usize> = (0..WEIGHTS.len()).map(|n| fleet.requested(n)).collect();
    assert_eq!(requested.iter().sum::<usize>(), CALLS, "{requested:?}");
    // If calls follow the weights, this value is exceeded once in a million runs (two degrees of freedom).
    assert!(
        chi_squared < 27.6,
        "{requested:?} for {WEIGHTS:?}: χ² = {chi_squared}"
    );
}

#[tokio::test]
async fn slower_of_equal_vendors_gets_fewer_calls() {
    let fleet = Fleet::start(Setup::default(), 2, |_| String::new(), |_| String::new()).await;
    let key = fleet.world.key().await;
    fleet.vendor(1).script(|received| {
        let reply: Reply = script::polite(received);
        reply.with_step(0, Step::Wait(Duration::from_millis(200)))
    });
    calls(&fleet, &key, 200, 10).await;
    let (fast, slow) = (fleet.requested(0), fleet.requested(1));
    assert!(slow >= 1 && slow * 3 < fast, "fast {fast}, slow {slow}");
}

#[tokio::test]
async fn vendor_with_the_lowest_priority_number_is_called_first_whatever_the_weights() {
    let fleet = Fleet::start(
        Setup::default(),
        3,
        |n| {
            [
                "priority = 2, weight = 1000",
                "priority = 1, weight = 9",
                "priority = 0",
            ][n]
                .to_owned()
        },
        |_| String::new(),
    )
    .await;
    let key = fleet.world.key().await;
    calls(&fleet, &key, 20, 10).await;
    assert_eq!([0, 1, 2].map(|n| fleet.requested(n)), [0, 0, 20]);
    fleet.vendor(2).script(|_| refusal(500, "x"));
    calls(&fleet, &key, 20, 10).await;
    assert_eq!([0, 1].map(|n| fleet.requested(n)), [0, 20]);
}

/// Returns the body of turn number `turn` of this conversation.
fn turn(conversation: usize, turn: usize) -> Value {
    let mut messages =
        vec![json!({ "role": "user", "content": format!("conversation {conversation}") })];
    for answered in 0..turn {
        messages.push(json!({ "role": "assistant", "content": format!("answer {answered}") }));
        messages.push(json!({ "role": "user", "content": format!("question {answered}") }));
    }
    with(chat_body("x"), json!({ "messages": messages }))
}

#[tokio::test]
async fn conversation_of_a_sticky_model_stays_with_its_vendor() {
    const CONVERSATIONS: usize = 40;
    let setup = Setup::default().edit(
        "output_tokens_max = 4000",
        "output_tokens_max = 4000\nsticky = true",
    );
    let fleet = Fleet::start(setup, 2, |_| String::new(), |_| String::new()).await;
    let key = fleet.world.key().await;
    for number in 0..3 {
        for conversation in 0..CONVERSATIONS {
            fleet
                .world
                .chat(&key, &turn(conversation, number))
                .await
                .expect(200);
        }
    }
    let begins = |n: usize| -> Vec<String> {
        let received = fleet.vendor(n).received();
        let mut begins: Vec<String> = received
            .iter()
            .map(|received| received.json()["messages"][0]["content"].to_string())
            .collect();
        begins.sort();
        begins
    };
    for n in [0, 1] {
        let mut begins = begins(n);
        let all = begins.len();
        begins.dedup();
        assert_eq!(
            all,
            3 * begins.len(),
            "vendor {n}: each one wholly or not at all"
        );
        // Each vendor gets half of the conversations, within four standard deviations.
        assert!(
            (8..=32).contains(&begins.len()),
            "vendor {n}: {}",
            begins.len()
        );
    }
    // If the vendor of a conversation fails, the conversation continues at the other vendor.
    fleet.vendor(1).script(|_| refusal(500, "x"));
    for conversation in 0..CONVERSATIONS {
        fleet
            .world
            .chat(&key, &turn(conversation, 3))
            .await
            .expect(200);
    }
}

#[tokio::test]
async fn disabled_vendor_gets_no_call_until_it_is_enabled() {
    let fleet = Fleet::pair("").await;
    let key = fleet.world.key().await;
    for (status, requested) in [("disabled", [10, 0]), ("active", [10, 10])] {
        let path = format!("/admin/v1/vendors/{}", Fleet::name(Op::Chat, 1));
        let body = Some(json!({ "status": status }));
        let changed = fleet
            .world
            .admin(Method::PATCH, &path, body)
            .await
            .expect(200);
        let shown = changed.json()["routes"][0]["state"] == "disabled";
        assert_eq!(shown, status == "disabled", "{changed:?}");
        calls(&fleet, &key, 10, 5).await;
        assert_eq!([0, 1].map(|n| fleet.requested(n)), requested, "{status}");
    }
}

#[tokio::test]
async fn failing_vendor_is_avoided_until_it_recovers() {
    let fleet = Fleet::pair("").await;
    let key = fleet.world.key().await;
    fleet.vendor(1).script(|_| refusal(500, "x"));
    calls(&fleet, &key, 8, 1).await;
    assert_eq!([0, 1].map(|n| fleet.requested(n)), [8, 5], "five in a row");
    let vendors = fleet.world.admin_get("/admin/v1/vendors").await.json();
    let vendors = vendors["vendors"].as_array().unwrap();
    let name = Fleet::name(Op::Chat, 1);
    let sick = vendors.iter().find(|vendor| vendor["name"] == *name);
    assert_eq!(sick.unwrap()["routes"][0]["state"], "shut", "{vendors:?}");
    fleet.vendor(1).script(script::polite);
    eventually("it is asked again", async || {
        calls(&fleet, &key, 1, 1).await;
        (fleet.requested(1) > 5).then_some(())
    })
    .await;
    let before = fleet.requested(0);
    calls(&fleet, &key, 5, 1).await;
    assert_eq!(fleet.requested(0), before, "all calls are its own again");
}
