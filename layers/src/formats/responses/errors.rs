//! The error with which a stream of the Responses format ends.

use serde_json::json;

use super::ending::Ending;
use crate::{
    error::{Error, TOO_LONG},
    formats::errors::StreamError,
};

/// Returns the events `error` and `response.failed`. SDKs raise an error on the first event; coding tools read the
/// second.
pub(crate) fn events(failure: &StreamError<'_>) -> String {
    let (code, message) = (code(failure.error), &failure.message);
    let reached = failure.progress.map(|it| it.reached()).unwrap_or_default();
    let mut ending = Ending::new(reached, || {
        format!("resp_{}", failure.number.uuid().simple())
    });
    let error = json!({ "type": failure.kind, "code": code, "message": message, "param": null });
    ending.push(
        json!({ "type": "error", "code": code, "message": message, "param": null, "error": error }),
    );
    let error = json!({ "code": code, "message": message });
    ending.push_response("failed", &error, &json!(null));
    ending.written()
}

/// Returns the code that the Responses format has for this error, or `server_error` if it has none. Codes for which
/// clients show texts of their own, for example the code of an empty account, are not used.
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
    use serde_json::Value;

    use super::*;
    use crate::{
        call::Format,
        facts::RequestNumber,
        respond::{Language, Refused},
        stream_progress::{Created, StreamProgress},
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
