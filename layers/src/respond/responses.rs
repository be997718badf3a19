//! The end of a failed stream of the responses format. It consists of two events: SDKs raise an error on the first
//! event, and coding tools read the second event.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Refused;
use crate::{
    error::{Error, TOO_LONG},
    stream_progress::{Created, Reached},
};

/// Returns the events `error` and `response.failed`. If the stream had no `response.created`, this event comes first,
/// because one SDK requires it.
pub(super) fn events(refused: &Refused<'_>) -> String {
    let Reached {
        created,
        next_number,
    } = refused
        .progress()
        .map(|it| it.reached())
        .unwrap_or_default();
    let mut text = String::new();
    let mut number = next_number;
    let mut event = |kind: &str, mut data: Value| {
        data["type"] = kind.into();
        data["sequence_number"] = number.into();
        number += 1;
        // Writing to a `String` never fails.
        let _ = write!(text, "event: {kind}\ndata: {data}\n\n");
    };
    let is_begun = created.is_some();
    let created = created.unwrap_or_else(|| Created {
        id: format!("resp_{}", refused.number().uuid().simple()),
        ..Created::default()
    });
    if !is_begun {
        let response = created.answer("in_progress", &Value::Null, &Value::Null);
        event("response.created", json!({ "response": response }));
    }
    let (code, message) = (code(refused.error()), refused.message());
    let error = json!({ "type": refused.kind(), "code": code, "message": message, "param": null });
    event(
        "error",
        json!({ "code": code, "message": message, "param": null, "error": error }),
    );
    let error = json!({ "code": code, "message": message });
    let response = created.answer("failed", &error, &Value::Null);
    event("response.failed", json!({ "response": response }));
    text
}

/// Returns the code that the responses format has for this error; `server_error` if it has none. Codes for which
/// clients show texts of their own, such as the code of an empty account, are not used.
const fn code(error: &Error) -> &'static str {
    match error {
        Error::VendorLimit { .. } => "rate_limit_exceeded",
        Error::VendorRefused { too_long: true, .. } => TOO_LONG,
        Error::VendorRefused { .. } => "invalid_prompt",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        call::Format, facts::RequestNumber, respond::Language, stream_progress::StreamProgress,
    };

    fn ended(error: &Error, progress: Option<&StreamProgress>) -> (Vec<Value>, String) {
        let number = RequestNumber::now_v7();
        let refused = Refused::new(error, number, Language::Ru).within(progress);
        let text = refused.usual_event(Format::Responses);
        let text = std::str::from_utf8(&text).unwrap();
        let events = text.split_terminator("\n\n").map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        });
        (events.collect(), number.to_string())
    }

    #[test]
    fn failed_responses_stream_ends_with_events_that_sdks_and_coding_tools_read() {
        let progress = StreamProgress::default();
        progress.created(Created {
            id: "resp_v".into(),
            created_at: 5,
            model: "m".into(),
        });
        progress.number(7);
        for (error, code) in [
            (Error::VendorBroken("cut".into()), "server_error"),
            (Error::Draining, "server_error"),
            (
                Error::VendorLimit {
                    retry_after: std::time::Duration::ZERO,
                },
                "rate_limit_exceeded",
            ),
        ] {
            let (events, number) = ended(&error, Some(&progress));
            let [reported, failed] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!(
                (&reported["sequence_number"], &failed["sequence_number"]),
                (&json!(7), &json!(8))
            );
            assert_eq!(
                (&reported["code"], &reported["error"]["code"]),
                (&json!(code), &json!(code))
            );
            assert_eq!(reported["message"], reported["error"]["message"]);
            let response = &failed["response"];
            assert_eq!(
                (&response["id"], &response["status"]),
                (&json!("resp_v"), &json!("failed"))
            );
            assert_eq!(
                response["error"],
                json!({ "code": code, "message": reported["message"] })
            );
            assert!(
                reported["message"]
                    .as_str()
                    .unwrap()
                    .ends_with(&format!("({number})"))
            );
        }
    }

    #[test]
    fn stream_that_fails_before_its_first_event_begins_with_response_created() {
        let (events, number) = ended(&Error::Draining, None);
        let kinds: Vec<_> = events
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["response.created", "error", "response.failed"]);
        let numbers: Vec<_> = events
            .iter()
            .map(|event| event["sequence_number"].as_u64().unwrap())
            .collect();
        assert_eq!(numbers, [0, 1, 2]);
        let id = format!("resp_{}", number.replace('-', ""));
        assert_eq!(
            (&events[0]["response"]["id"], &events[2]["response"]["id"]),
            (&json!(id), &json!(id))
        );
    }
}
