//! Delivers the ledger's events to one receiver, in order, each at least once. The progress is stored in the ledger, so
//! any gateway can continue where another stopped. A leader lease makes sure that only one gateway at a time sends
//! events to the receiver.

use std::{sync::Arc, time::Duration};

use tollgate_ledger::{contract::BookError, happening::Event};

use super::{
    receiver::Receiver,
    state::{DeadLetter, DeliveryState, ReceiverStore},
    tail::Tail,
    webhook::Sent,
};
use crate::{
    edge::panics::catch_round,
    observe::metrics::events::{Outcome, Outgoing},
    text::time::now_ms,
};

/// Duration of the leader lease under which a gateway sends events to a receiver. The lease is renewed at each attempt
/// to send an event. An attempt takes at most two thirds of this time.
const LEASE: Duration = Duration::from_secs(30);
/// How often a delivery reads the state that other processes can change: which gateway sends events, and whether an
/// operator has stopped the receiver.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How many events a delivery reads in one request.
const PAGE: usize = 100;
/// How many events the filter may skip before the progress is written to the ledger although no event was sent. If the
/// delivery is restarted before the progress is written, it reads the skipped events again. The progress is stored only
/// in the ledger. So if a failover loses the ledger's latest events, it also loses the progress past these events. This
/// progress must be lost together with the events, because the ledger gives the lost numbers to new events, which must
/// be sent.
const PASSED_OVER_MAX: u64 = 100;

/// The delivery of events to one receiver.
#[derive(Debug)]
pub(super) struct Delivery {
    tail: Tail,
    receiver: Arc<Receiver>,
    stored: ReceiverStore,
    /// The id under which this gateway acquires leader leases for deliveries.
    owner: Arc<str>,
    metrics: Outgoing,
    /// Whether the ledger is out of reach. Only the first failure of an outage is logged as a warning.
    away: bool,
}

/// When the next round of a delivery begins.
enum Next {
    Now,
    /// When the ledger has an event with a higher number than this.
    Beyond(u64),
    In(Duration),
}

impl Delivery {
    pub(super) fn new(
        tail: Tail,
        receiver: Arc<Receiver>,
        owner: Arc<str>,
        metrics: Outgoing,
    ) -> Self {
        let stored = ReceiverStore::new(&tail, &receiver.name);
        Self {
            tail,
            receiver,
            stored,
            owner,
            metrics,
            away: false,
        }
    }

    /// Delivers events to the receiver as they are emitted. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            let next = catch_round("the event delivery", self.round()).await;
            match next {
                Some(Ok(Next::Now)) => {}
                Some(Ok(Next::In(wait))) => tokio::time::sleep(wait).await,
                Some(Ok(Next::Beyond(place))) => {
                    // The wait ends after at most a third of the leader lease, so that the lease is renewed in time.
                    let _ = tokio::time::timeout(LEASE / 3, self.tail.beyond(place)).await;
                }
                Some(Err(error)) => {
                    let receiver = &self.receiver.name;
                    match std::mem::replace(&mut self.away, true) {
                        true => {
                            tracing::debug!(receiver, %error, "the ledger is still out of reach")
                        }
                        false => {
                            tracing::warn!(receiver, %error, "events are not sent: the ledger is out of reach")
                        }
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
            self.away = false;
        }
    }

    async fn round(&self) -> Result<Next, BookError> {
        if !self.stored.lease(&self.owner, LEASE).await? {
            self.metrics.lag(Duration::ZERO);
            return Ok(Next::In(LOOK_EVERY));
        }
        let (mut version, mut state) = self.stored.begin(&self.tail).await?;
        let now = now_ms();
        let page = self.tail.read(state.after, PAGE, &self.receiver.filter);
        let page = page.await?;
        self.measure(page.events.first(), now);
        if state.stopped {
            return Ok(Next::In(LOOK_EVERY));
        }
        if state.next_ms > now {
            let wait = Duration::from_millis(state.next_ms - now);
            return Ok(Next::In(wait.min(LOOK_EVERY)));
        }
        if page.events.is_empty() {
            if page.until > state.after + PASSED_OVER_MAX {
                state.after = page.until;
                self.put(&mut version, &state).await?;
            }
            return Ok(Next::Beyond(page.until));
        }
        self.report_gap(&state, &page.events);
        for (index, event) in page.events.iter().enumerate() {
            // For the first event, the leader lease that was acquired before the loop is long enough.
            if index > 0 && !self.stored.lease(&self.owner, LEASE).await? {
                break;
            }
            let is_accepted = match self.receiver.send(event).await {
                Sent::Taken => {
                    self.accepted(&mut state, event);
                    true
                }
                Sent::Gone => {
                    self.gone(&mut state, event);
                    false
                }
                Sent::Failed { why, retry_after } => {
                    self.failed(&mut state, event, why, retry_after);
                    self.give_up(&mut state, &page.events[index..]).await?;
                    false
                }
            };
            if !self.put(&mut version, &state).await? || !is_accepted {
                break;
            }
        }
        Ok(Next::Now)
    }

    /// Logs how many events the ledger has dropped after the last event that the receiver accepted.
    fn report_gap(&self, state: &DeliveryState, events: &[Event]) {
        if let Some(first) = events.first()
            && state.after > 0
            && self.receiver.filter.takes_all()
            && first.number > state.after + 1
        {
            let lost = first.number - state.after - 1;
            tracing::error!(
                receiver = self.receiver.name,
                lost,
                "the ledger dropped events before they were sent"
            );
        }
    }

    fn accepted(&self, state: &mut DeliveryState, event: &Event) {
        self.metrics.count(Outcome::Delivered);
        if state.failures > 0 {
            let receiver = &self.receiver.name;
            tracing::info!(receiver, "the receiver accepts events again");
        }
        state.taken(event, now_ms());
    }

    fn gone(&self, state: &mut DeliveryState, event: &Event) {
        self.metrics.count(Outcome::Failed);
        tracing::error!(
            receiver = self.receiver.name,
            number = event.number,
            "the receiver answered 410 (Gone): it gets no events until `tollgate event resume`"
        );
        state.stopped = true;
        state.error = Some("answered 410 Gone".to_owned());
    }

    fn failed(
        &self,
        state: &mut DeliveryState,
        event: &Event,
        why: String,
        retry_after: Option<Duration>,
    ) {
        self.metrics.count(Outcome::Failed);
        tracing::warn!(
            receiver = self.receiver.name,
            number = event.number,
            failures = state.failures + 1,
            why,
            "the receiver did not accept an event"
        );
        let jitter = getrandom::u32().unwrap_or(100);
        state.failed(why, retry_after, now_ms(), jitter);
    }

    /// Moves events that were retried for longer than the receiver's retry time to the dead letters.
    async fn give_up(&self, state: &mut DeliveryState, events: &[Event]) -> Result<(), BookError> {
        let now_ms = now_ms();
        for event in events {
            if !state.gives_up(event, self.receiver.retry_max, now_ms) {
                return Ok(());
            }
            let letter = DeadLetter {
                event: event.clone(),
                dead_ms: now_ms,
                error: state.error.clone().unwrap_or_default(),
            };
            self.stored.add_dead_letter(&letter).await?;
            self.metrics.count(Outcome::Dead);
            tracing::error!(
                receiver = self.receiver.name,
                number = event.number,
                "delivery of an event was given up: `tollgate event replay` sends it again"
            );
            state.after = event.number;
        }
        Ok(())
    }

    /// Writes the receiver's state, and returns whether it was written. If an operator or another gateway has changed
    /// the state in the meantime, their change is kept and combined with the progress of this delivery.
    async fn put(&self, version: &mut u64, state: &DeliveryState) -> Result<bool, BookError> {
        if self.stored.put(*version, state).await? {
            *version += 1;
            return Ok(true);
        }
        let progress = |known: &mut DeliveryState| known.after = known.after.max(state.after);
        self.stored.change(progress).await?;
        Ok(false)
    }

    fn measure(&self, first: Option<&Event>, now_ms: u64) {
        let waited = first.map_or(0, |event| now_ms.saturating_sub(event.at_ms));
        self.metrics.lag(Duration::from_millis(waited));
    }
}
