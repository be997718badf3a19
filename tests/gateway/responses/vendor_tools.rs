//! Tests of vendors of the Responses format that report calls of their own tools, although callers cannot request these
//! tools (docs/prices.md).

use super::{
    answer, ask, beginning, body, delta, event, last,
    prices::{both, priced},
    says, setup, usage,
};
use crate::{metrics::shows, prelude::*, price_rules::computed};

/// Returns the three ways in which a vendor may report two web searches that the caller did not request: outside the
/// usage, inside the usage, or only as output items. Each pair has the fields inside and outside the usage.
fn searched() -> [(Value, Value); 3] {
    let item = json!({ "type": "web_search_call", "id": "ws_1", "status": "completed",
        "action": { "type": "search", "query": "x" } });
    let of_xai =
        json!({ "server_side_tool_usage_details": { "web_search_calls": 2, "x_search_calls": 0 } });
    [
        (
            json!({}),
            json!({ "tool_usage": { "image_gen": { "input_tokens": 0 }, "web_search": { "num_requests": 2 } } }),
        ),
        (of_xai, json!({})),
        (json!({}), json!({ "output": [item, item] })),
    ]
}

#[tokio::test]
async fn searches_that_were_not_requested_are_charged_or_flagged_if_unpriced() {
    let (sold, usual) = (priced().start().await, setup().start().await);
    let keys = [sold.key().await, usual.key().await];
    let mut unpriced = 0.0;
    for (in_usage, beside) in searched() {
        let used = with(usage([20, 0, 0, 10]), in_usage);
        for (world, key) in [&sold, &usual].into_iter().zip(&keys) {
            for (reply, stream) in both(&used, &beside) {
                says(world, reply);
                // The hold for this long input is large enough to cover the searches.
                let long = body(json!({ "stream": stream, "input": "x".repeat(60_000) }));
                let answered = ask(world, key, &long).await.expect(200);
                let receipt = world.receipt(&answered.number()).await;
                let count = &receipt["usage"]["classes"]["web_search_call"];
                assert_eq!(count, 2, "{receipt}");
                let rate = &receipt["price"]["classes"]["web_search_call"];
                assert_eq!(rate, "1.00", "{receipt}");
                assert_eq!(micro(&receipt["charged_rub"]), computed(&receipt));
                assert_eq!(receipt["bounded"], false, "{receipt}");
                let seen = receipt["unpriced"] == true;
                assert_eq!(seen, std::ptr::eq(world, &usual), "{receipt}");
            }
        }
        unpriced += 2.0;
    }
    shows(&usual, &[("tollgate_unpriced_calls_total", unpriced)]).await;
    shows(&sold, &[("tollgate_unpriced_calls_total", 0.0)]).await;
}

#[tokio::test]
async fn vendor_tools_without_a_rate_class_are_flagged_wherever_the_vendor_reports_them() {
    let (world, key) = priced().start_with_key().await;
    let item = json!({ "type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "1" });
    let of_xai = json!({ "server_side_tool_usage_details": { "x_search_calls": 1 } });
    let used = usage([20, 0, 0, 10]);
    let mut replies = Vec::new();
    for (in_usage, beside) in [
        (json!({}), json!({ "output": [item] })),
        (
            json!({}),
            json!({ "tool_usage": { "file_search": { "num_requests": 1 } } }),
        ),
        (of_xai, json!({})),
    ] {
        replies.extend(both(&with(used.clone(), in_usage), &beside));
    }
    // In one of the streams, the item of the search is only in an earlier event. In the other stream, the last event is
    // missing as well.
    let done = event(
        &json!({ "type": "response.output_item.done", "sequence_number": 3,
        "output_index": 0, "item": item }),
    );
    let mut events = beginning();
    events.extend([delta(2, "да"), done]);
    let cut = events.clone();
    events.push(last(4, answer("да", &used)));
    replies.extend([(Reply::stream(events), true), (Reply::stream(cut), true)]);
    let count = replies.len();
    for (reply, stream) in replies {
        says(&world, reply);
        let answered = ask(&world, &key, &body(json!({ "stream": stream })))
            .await
            .expect(200);
        let receipt = world.receipt(&answered.number()).await;
        assert_eq!(receipt["unpriced"], true, "{receipt}");
    }
    let count = u32::try_from(count).unwrap();
    shows(
        &world,
        &[("tollgate_unpriced_calls_total", f64::from(count))],
    )
    .await;
}
