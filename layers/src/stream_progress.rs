//! How far a stream of the responses format has come: whoever has to end it in the middle goes on with its id and
//! its numbers, since clients of that format check both.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Deserialize;

use crate::sse::Event;

/// On an answer that is such a stream: written by who makes its events, read by who writes its error.
#[derive(Clone, Debug, Default)]
pub struct StreamProgress(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    created: Option<Created>,
    /// The next number, as far as it is counted.
    next_number: u64,
    /// The event of a vendor's that passed last. Its number is only looked for when it is asked for.
    passed: Bytes,
}

/// What `response.created` has told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Created {
    /// The answer's id.
    pub id: String,
    /// When the answer was begun, in Unix seconds.
    pub created_at: u64,
    /// Who answers.
    pub model: String,
}

/// What has to be known to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// `None`: there was no `response.created` yet.
    pub created: Option<Created>,
    /// The `sequence_number` of the next event.
    pub next_number: u64,
}

impl StreamProgress {
    /// `response.created` goes out.
    pub fn created(&self, created: Created) {
        self.state().created.get_or_insert(created);
    }

    /// The next event has this number.
    pub fn number(&self, next_number: u64) {
        self.state().next_number = next_number;
    }

    /// An event of the vendor's that has data goes on as it came.
    pub fn passed(&self, event: &Event) {
        self.state().passed = event.raw().clone();
    }

    /// How far it is.
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
        // Nothing is left half done under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Splitter;

    #[test]
    fn the_next_number_is_behind_the_last_event_that_passed_or_was_made() {
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
