//! The state of a receiver, stored in the ledger: up to which event number events were delivered, and the dead letters.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_ledger::{
    contract::{BookError, Document, Documents, EventStore, LeaderLease, Update, Versioned},
    happening::Event,
};

use super::tail::Tail;
use crate::{ledger::AnyLedger, text::time::millis};

/// Maximum number of dead letters that are stored per receiver. A further dead letter replaces the oldest.
pub(crate) const DEAD_MAX: usize = 1000;
/// The pause after the first failed attempt to deliver an event. Each further failure doubles the pause.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The delivery state of one receiver: up to which event number events were delivered, and its failures since then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeliveryState {
    /// The number of an event. All events up to it were delivered, given up, or excluded by the filter.
    pub(crate) after: u64,
    /// The number of failed attempts since an event was last delivered.
    #[serde(default)]
    pub(crate) failures: u32,
    /// The Unix time (ms) of the first failed attempt since an event was last delivered.
    pub(crate) failing_since_ms: Option<u64>,
    /// The Unix time (ms) before which no event is sent.
    #[serde(default)]
    pub(crate) next_ms: u64,
    /// Why the last attempt failed; `None` if it succeeded.
    pub(crate) error: Option<String>,
    /// Whether the delivery is stopped, because the receiver answered 410 or an operator stopped it.
    #[serde(default)]
    pub(crate) stopped: bool,
    /// The Unix time (ms) at which an event was last delivered.
    pub(crate) taken_ms: Option<u64>,
}

impl DeliveryState {
    pub(super) fn taken(&mut self, event: &Event, now_ms: u64) {
        *self = Self {
            after: event.number,
            taken_ms: Some(now_ms),
            ..Self::default()
        };
    }

    /// Records a failed attempt, and sets the pause before the next one. `jitter` is a random number by which the pause
    /// varies by up to a tenth.
    pub(super) fn failed(
        &mut self,
        why: String,
        retry_after: Option<Duration>,
        now_ms: u64,
        jitter: u32,
    ) {
        let pause = pause(self.failures) * (900 + jitter % 201) / 1000;
        let pause = pause.max(retry_after.unwrap_or_default());
        self.failures = self.failures.saturating_add(1);
        self.failing_since_ms.get_or_insert(now_ms);
        self.next_ms = now_ms.saturating_add(millis(pause));
        self.error = Some(why);
    }

    /// Returns whether the delivery of this event must be given up: the event was retried for `retry_max`, and no other
    /// event was delivered in that time.
    pub(super) fn gives_up(&self, event: &Event, retry_max: Duration, now_ms: u64) -> bool {
        let since = self.failing_since_ms.unwrap_or(now_ms).max(event.at_ms);
        now_ms.saturating_sub(since) >= millis(retry_max)
    }

    /// Resumes the delivery, at an operator's request. The next attempt is made immediately.
    pub(super) fn resume(&mut self) {
        *self = Self {
            after: self.after,
            taken_ms: self.taken_ms,
            ..Self::default()
        };
    }
}

fn pause(failures: u32) -> Duration {
    let pause = PAUSE.saturating_mul(1 << failures.min(16));
    pause.min(PAUSE_MAX)
}

/// An event that a receiver did not accept within its retry time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeadLetter {
    pub(crate) event: Event,
    /// The Unix time (ms) at which the delivery of the event was given up.
    pub(crate) dead_ms: u64,
    /// Why the last attempt to deliver the event failed.
    pub(crate) error: String,
}

/// The state and the dead letters of one receiver, in the ledger.
#[derive(Clone, Debug)]
pub(crate) struct ReceiverStore {
    store: AnyLedger,
    name: String,
}

impl ReceiverStore {
    /// Opens the state of a receiver. It is stored in the same ledger as the events.
    pub(super) fn new(tail: &Tail, receiver: &str) -> Self {
        Self {
            store: tail.store.clone(),
            name: receiver.to_owned(),
        }
    }

    fn state_name(&self) -> String {
        format!("receiver/{}", self.name)
    }

    fn dead_names(&self) -> String {
        format!("dead/{}/", self.name)
    }

    /// Acquires or renews the leader lease, for `ttl`, under which a gateway sends events to the receiver. Returns
    /// `false` if another gateway holds it.
    pub(super) async fn lease(&self, owner: &str, ttl: Duration) -> Result<bool, BookError> {
        self.store.lead(&self.state_name(), owner, ttl).await
    }

    /// Returns the state of the receiver with its version; `None` if the delivery to this receiver has never begun.
    pub(crate) async fn state(&self) -> Result<Option<(u64, DeliveryState)>, BookError> {
        let found = self.store.read_value(&self.state_name()).await?;
        Ok(found.value.map(|state| (found.version, state)))
    }

    /// Returns the state of the receiver with its version. For a new receiver the state is created, so that the
    /// delivery begins with the next event.
    pub(super) async fn begin(&self, tail: &Tail) -> Result<(u64, DeliveryState), BookError> {
        let begin = async |found: Versioned<DeliveryState>| {
            if let Some(known) = found.value {
                return Ok(Update::Keep((found.version, known)));
            }
            let state = DeliveryState {
                after: tail.last().await?,
                ..DeliveryState::default()
            };
            Ok(Update::Write(state.clone(), (found.version + 1, state)))
        };
        self.store.update_async(&self.state_name(), begin).await
    }

    /// Writes the state of the receiver, if the stored version is still `version`. Returns whether it was written.
    pub(super) async fn put(&self, version: u64, state: &DeliveryState) -> Result<bool, BookError> {
        let name = self.state_name();
        self.store.write_value(&name, version, state).await
    }

    /// Changes the current state of the receiver, which must exist.
    pub(super) async fn change(
        &self,
        change: impl Fn(&mut DeliveryState) + Send,
    ) -> Result<DeliveryState, BookError> {
        let change = move |found: Option<DeliveryState>| {
            let mut state = found.ok_or(BookError::NotFound)?;
            change(&mut state);
            Ok(Update::Write(state.clone(), state))
        };
        self.store.update(&self.state_name(), change).await
    }

    pub(super) async fn add_dead_letter(&self, letter: &DeadLetter) -> Result<(), BookError> {
        let names = self.dead_names();
        let name = format!("{names}{:020}", letter.event.number);
        // If the dead letter already exists, a gateway has stored it, and then stopped before recording the progress of
        // the delivery.
        self.store.write_value(&name, 0, letter).await?;
        let letters = self.store.documents(&names).await?;
        for oldest in letters.iter().rev().skip(DEAD_MAX) {
            self.forget(oldest).await?;
        }
        Ok(())
    }

    /// Returns the dead letters of the receiver, oldest first.
    pub(crate) async fn dead(&self) -> Result<Vec<DeadLetter>, BookError> {
        let letters = self.store.documents(&self.dead_names()).await?;
        letters.iter().map(Document::parse).collect()
    }

    pub(crate) async fn dead_count(&self) -> Result<usize, BookError> {
        Ok(self.store.documents(&self.dead_names()).await?.len())
    }

    /// Returns the event with this number, if the ledger still has it. If the event is a dead letter, also returns the
    /// dead letter's document.
    pub(super) async fn event(
        &self,
        number: u64,
    ) -> Result<Option<(Event, Option<Document>)>, BookError> {
        let name = format!("{}{number:020}", self.dead_names());
        if let Some(document) = self.store.document(&name).await? {
            let letter: DeadLetter = document.parse()?;
            return Ok(Some((letter.event, Some(document))));
        }
        let Some(before) = number.checked_sub(1) else {
            return Ok(None);
        };
        let event = self.store.events(before, 1).await?.into_iter().next();
        let event = event.filter(|event| event.number == number);
        Ok(event.map(|event| (event, None)))
    }

    pub(super) async fn forget(&self, letter: &Document) -> Result<(), BookError> {
        let Document { name, version, .. } = letter;
        self.store.compare_and_swap(name, *version, "").await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tollgate_ledger::happening::Happening;

    use super::*;

    fn event(number: u64, at_ms: u64) -> Event {
        Event {
            number,
            at_ms,
            account: None,
            key: None,
            what: Happening::RateStale { since_ms: 1 },
        }
    }

    #[test]
    fn pause_between_delivery_attempts_grows_to_an_hour_or_to_the_receivers_retry_after() {
        let mut state = DeliveryState::default();
        let mut pauses = Vec::new();
        for _ in 0..40 {
            state.failed("why".into(), None, 0, 100);
            pauses.push(state.next_ms);
        }
        assert_eq!(pauses[..4], [1000, 2000, 4000, 8000]);
        assert_eq!(pauses[39], 3_600_000);
        state.failed("why".into(), Some(Duration::from_secs(7200)), 5, 0);
        assert_eq!(state.next_ms, 7_200_005);
        let mut early = DeliveryState::default();
        early.failed("why".into(), None, 0, 0);
        let mut late = DeliveryState::default();
        late.failed("why".into(), None, 0, 200);
        assert_eq!((early.next_ms, late.next_ms), (900, 1100));
    }

    #[test]
    fn event_is_abandoned_if_nothing_is_delivered_during_its_retry_time() {
        let hour = Duration::from_secs(3600);
        let mut state = DeliveryState::default();
        assert!(!state.gives_up(&event(1, 0), hour, 9_000_000));
        state.failed("why".into(), None, 9_000_000, 0);
        assert!(!state.gives_up(&event(1, 0), hour, 9_000_000 + 3_599_999));
        assert!(state.gives_up(&event(1, 0), hour, 9_000_000 + 3_600_000));
        // This event was emitted after the first failure, so its retry time begins when it was emitted.
        assert!(!state.gives_up(&event(2, 9_500_000), hour, 9_000_000 + 3_600_000));
        state.taken(&event(1, 0), 13_000_000);
        assert_eq!((state.after, state.failing_since_ms), (1, None));
    }
}
