//! Tracks the id and the sequence numbers of a Responses stream. If the gateway has to end the stream early, the last
//! event must continue them, because clients check both.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::sse::Event;

/// Extension of a response that is a Responses stream. The layer that produces events writes to it, and the layer that
/// adds an error event reads it.
#[derive(Clone, Debug, Default)]
pub struct StreamProgress(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    created: Option<Created>,
    /// The `sequence_number` of the stream's next event, if the layer that writes the events counts them.
    next_number: u64,
    /// The last event that was forwarded from the vendor. Its sequence number is parsed only if the gateway has to end
    /// the stream.
    passed: Bytes,
}

/// The fields of the event `response.created` that later events must repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Created {
    /// The id of the response, as sent to the client.
    pub id: String,
    /// The time at which the response was created, in Unix seconds.
    pub created_at: u64,
    /// The name of the model in the response.
    pub model: String,
}

impl Created {
    /// Creates the response object of an event that the gateway writes itself. The object has neither output nor usage.
    #[must_use]
    pub fn answer(&self, status: &str, error: &Value, incomplete: &Value) -> Value {
        let Self {
            id,
            created_at,
            model,
        } = self;
        json!({ "id": id, "object": "response", "created_at": created_at, "status": status, "model": model,
            "output": [], "usage": null, "error": error, "incomplete_details": incomplete, "instructions": null,
            "metadata": {}, "parallel_tool_calls": true, "temperature": null, "tool_choice": "auto", "tools": [],
            "top_p": null })
    }
}

/// How far a stream has got: what the gateway needs to end it with an event of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The fields of `response.created`; `None` if that event was not sent yet.
    pub created: Option<Created>,
    /// The `sequence_number` of the stream's next event.
    pub next_number: u64,
}

impl StreamProgress {
    /// Records that the event `response.created` was sent.
    pub fn created(&self, created: Created) {
        self.state().created.get_or_insert(created);
    }

    /// Sets the `sequence_number` of the stream's next event.
    pub fn number(&self, next_number: u64) {
        self.state().next_number = next_number;
    }

    /// Stores a vendor's event that was forwarded unchanged. If the stream ends early, the next `sequence_number` is
    /// computed from it.
    pub fn passed(&self, event: &Event) {
        self.state().passed = event.raw().clone();
    }

    /// Returns the id and the next `sequence_number` of the stream.
    #[must_use]
    pub fn reached(&self) -> Reached {
        #[derive(Deserialize)]
        struct Numbered {
            sequence_number: u64,
        }
        let state = self.state();
        let passed = Event::of(state.passed.clone());
        let passed = passed
            .data()
            .and_then(|data| serde_json::from_slice(&data).ok())
            .map_or(0, |Numbered { sequence_number }| {
                sequence_number.saturating_add(1)
            });
        Reached {
            created: state.created.clone(),
            next_number: state.next_number.max(passed),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the state half written, so the lock may be used after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Splitter;

    #[test]
    fn next_sequence_number_follows_the_last_event_sent_to_the_client() {
        let progress = StreamProgress::default();
        assert_eq!(progress.reached(), Reached::default());
        let pass = |event: &'static str| {
            let split = Splitter::default().push(&event.into(), |event| progress.passed(&event));
            split.unwrap();
            progress.reached().next_number
        };
        assert_eq!(pass("data: {\"sequence_number\":4,\"type\":\"x\"}\n\n"), 5);
        assert_eq!(pass("data: {\"type\":\"x\"}\n\n"), 0);
        progress.number(7);
        assert_eq!(pass("data: {\"type\":\"x\",\"sequence_number\":2}\n\n"), 7);
        let created = |id: &str| Created {
            id: id.into(),
            ..Created::default()
        };
        progress.created(created("resp_1"));
        progress.created(created("resp_2"));
        assert_eq!(progress.reached().created, Some(created("resp_1")));
    }
}
