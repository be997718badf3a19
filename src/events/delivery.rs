//! Delivers events to a receiver, in order, at least once. The progress is stored in the ledger, so any gateway
//! continues where another stopped. A leader lease lets only one gateway at a time send to the receiver.

use std::{sync::Arc, time::Duration};

use tollgate_ledger::{contract::BookError, happening::Event};

use super::{
    receiver::Receiver,
    state::{DeadLetter, DeliveryState, Notes},
    tail::Tail,
    webhook::Sent,
};
use crate::{
    edge::panics::catch_round,
    observe::metrics::events::{Outcome, Outgoing},
    text::time::now_ms,
};

/// The duration of the leader lease under which a gateway sends events, counted from each attempt to send an event. An
/// attempt takes at most two thirds of this time.
const LEASE: Duration = Duration::from_secs(30);
/// The interval at which a delivery reads the state that other processes may change: which gateway sends events, and
/// whether an operator has stopped the receiver.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The number of events that a delivery reads at once.
const PAGE: usize = 100;
/// The maximum number of events that the filter may skip before the progress is written to the ledger. If the delivery
/// is restarted before that, it reads the skipped events again. The progress is stored only in the ledger: if a
/// failover loses the ledger's latest events, it also loses the progress past these events. The ledger then gives their
/// numbers to new events, which must be sent.
const PASSED_OVER_MAX: u64 = 100;

/// Delivers events to one receiver.
#[derive(Debug)]
pub(super) struct Delivery {
    tail: Tail,
    receiver: Arc<Receiver>,
    notes: Notes,
    /// The id under which this gateway holds leader leases for deliveries.
    owner: Arc<str>,
    metrics: Outgoing,
    /// Whether the ledger is out of reach, and this was logged already.
    away: bool,
}

/// When the next round of a delivery begins.
enum Next {
    Now,
    /// The next round begins when there is an event after this number.
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
        let notes = Notes::new(&tail, &receiver.name);
        Self {
            tail,
            receiver,
            notes,
            owner,
            metrics,
            away: false,
        }
    }

    /// Delivers events as they arrive. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            let next = catch_round("the delivery of events", self.round()).await;
            match next {
                Some(Ok(Next::Now)) => {}
                Some(Ok(Next::In(wait))) => tokio::time::sleep(wait).await,
                Some(Ok(Next::Beyond(place))) => {
                    // The wait ends after a third of the leader lease at the latest, so that the leader lease is
                    // renewed in time.
                    let _ = tokio::time::timeout(LEASE / 3, self.tail.beyond(place)).await;
                }
                Some(Err(error)) if self.away => {
                    tracing::debug!(receiver = self.receiver.name, %error, "the ledger is still out of reach");
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                Some(Err(error)) => {
                    self.away = true;
                    tracing::warn!(receiver = self.receiver.name, %error, "events are not sent: the ledger is out of reach");
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
            self.away = false;
        }
    }

    async fn round(&mut self) -> Result<Next, BookError> {
        if !self.notes.lease(&self.owner, LEASE).await? {
            self.metrics.lag(Duration::ZERO);
            return Ok(Next::In(LOOK_EVERY));
        }
        let (mut version, mut state) = self.notes.begin(&self.tail).await?;
        let now = now_ms();
        let page = self
            .tail
            .read(state.after, PAGE, &self.receiver.filter)
            .await?;
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
        if let Some(first) = page.events.first()
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
        for (index, event) in page.events.iter().enumerate() {
            // The leader lease acquired before the loop is long enough for the first event.
            if index > 0 && !self.notes.lease(&self.owner, LEASE).await? {
                break;
            }
            let sent = self.receiver.send(event).await;
            let now = now_ms();
            match sent {
                Sent::Taken => {
                    self.metrics.count(Outcome::Delivered);
                    if state.failures > 0 {
                        tracing::info!(
                            receiver = self.receiver.name,
                            "the receiver accepts events again"
                        );
                    }
                    state.taken(event, now);
                }
                Sent::Gone => {
                    tracing::error!(
                        receiver = self.receiver.name,
                        number = event.number,
                        "the receiver is gone (410): no event is sent until it is resumed"
                    );
                    self.metrics.count(Outcome::Failed);
                    state.stopped = true;
                    state.error = Some("answered 410 Gone".to_owned());
                    self.put(&mut version, &state).await?;
                    break;
                }
                Sent::Failed { why, retry_after } => {
                    tracing::warn!(
                        receiver = self.receiver.name,
                        number = event.number,
                        failures = state.failures + 1,
                        why,
                        "the receiver did not accept an event"
                    );
                    self.metrics.count(Outcome::Failed);
                    let jitter = getrandom::u32().unwrap_or(100);
                    state.failed(why, retry_after, now, jitter);
                    self.give_up(&mut state, &page.events[index..], now).await?;
                    self.put(&mut version, &state).await?;
                    break;
                }
            }
            if !self.put(&mut version, &state).await? {
                break;
            }
        }
        Ok(Next::Now)
    }

    /// Moves events that were retried for too long to the dead letters.
    async fn give_up(
        &self,
        state: &mut DeliveryState,
        events: &[Event],
        now_ms: u64,
    ) -> Result<(), BookError> {
        for event in events {
            if !state.gives_up(event, self.receiver.retry_max, now_ms) {
                return Ok(());
            }
            let letter = DeadLetter {
                event: event.clone(),
                dead_ms: now_ms,
                error: state.error.clone().unwrap_or_default(),
            };
            self.notes.bury(&letter).await?;
            self.metrics.count(Outcome::Dead);
            tracing::error!(
                receiver = self.receiver.name,
                number = event.number,
                "delivery of an event was given up"
            );
            state.after = event.number;
        }
        Ok(())
    }

    /// Writes the receiver's state; returns whether it was written. If an operator or another gateway has changed the
    /// state meanwhile, that change is kept, together with the progress made here.
    async fn put(&self, version: &mut u64, state: &DeliveryState) -> Result<bool, BookError> {
        if self.notes.put(*version, state).await? {
            *version += 1;
            return Ok(true);
        }
        let progress = |known: &mut DeliveryState| known.after = known.after.max(state.after);
        self.notes.change(progress).await?;
        Ok(false)
    }

    fn measure(&self, first: Option<&Event>, now_ms: u64) {
        let waited = first.map_or(0, |event| now_ms.saturating_sub(event.at_ms));
        self.metrics.lag(Duration::from_millis(waited));
    }
}
