//! The events with which the gateway itself ends a Responses stream.

use serde_json::{Value, json};

use crate::{
    formats::errors::named_events,
    stream_progress::{Created, Reached},
};

/// The last events of a stream. They continue the stream's id and its sequence numbers.
#[derive(Debug)]
pub(super) struct Ending {
    created: Created,
    next_number: u64,
    events: Vec<Value>,
}

impl Ending {
    /// Continues after the events that were already sent. If `response.created` was not sent, it is sent first, because
    /// one SDK requires it; `id` then returns the id of the response.
    pub(super) fn new(reached: Reached, id: impl FnOnce() -> String) -> Self {
        let is_begun = reached.created.is_some();
        let mut ending = Self {
            created: reached.created.unwrap_or_else(|| Created {
                id: id(),
                ..Created::default()
            }),
            next_number: reached.next_number,
            events: Vec::new(),
        };
        if !is_begun {
            let response = ending
                .created
                .answer("in_progress", &Value::Null, &Value::Null);
            ending.push(json!({ "type": "response.created", "response": response }));
        }
        ending
    }

    /// Adds the event `response.<status>`, which contains the response with this status.
    pub(super) fn push_response(&mut self, status: &str, error: &Value, incomplete: &Value) {
        let response = self.created.answer(status, error, incomplete);
        self.push(json!({ "type": format!("response.{status}"), "response": response }));
    }

    /// Adds an event with the next sequence number.
    pub(super) fn push(&mut self, mut event: Value) {
        event["sequence_number"] = self.next_number.into();
        self.next_number += 1;
        self.events.push(event);
    }

    pub(super) fn written(&self) -> String {
        named_events(&self.events)
    }
}
