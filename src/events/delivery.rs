//! Sends events to a receiver, in order, at least once. How far it has come is kept beside the books, so any gateway goes
//! on where another has ended; one of them sends at a time.

use std::{sync::Arc, time::Duration};

use tollgate_ledger::{contract::BookError, happening::Event};

use super::{
    Tail,
    receiver::Receiver,
    standing::{DeadLetter, Notes, Standing},
    webhook::Sent,
};
use crate::{
    admin::now_ms,
    edge::panics::catch_round,
    observe::metrics::events::{Outcome, Outgoing},
};

/// For how long a gateway alone sends, from each attempt on. No attempt takes longer than two thirds of it.
const LEASE: Duration = Duration::from_secs(30);
/// Between two looks at what somebody else may have changed: who sends, whether it was stopped.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Events that are read at once.
const PAGE: usize = 100;
/// So many that are not wanted are read again until it is noted that they are behind. It is in the note alone: a ledger that
/// a failover has taken back takes the note back too, and gives the numbers of what it has lost to others.
const PASSED_OVER_MAX: u64 = 100;

/// The way of events to one receiver.
#[derive(Debug)]
pub(super) struct Delivery {
    tail: Tail,
    receiver: Arc<Receiver>,
    notes: Notes,
    /// This gateway, among those of the ledger.
    owner: Arc<str>,
    metrics: Outgoing,
    /// The ledger is out of reach, and that has been said.
    away: bool,
}

/// What comes next.
enum Next {
    Now,
    /// When there is an event behind this place.
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
        let notes = tail.notes_of(&receiver.name);
        Self {
            tail,
            receiver,
            notes,
            owner,
            metrics,
            away: false,
        }
    }

    /// Sends what there is and what comes. Does not end.
    pub(super) async fn run(mut self) {
        loop {
            let next = catch_round("the delivery of events", self.round()).await;
            match next {
                Some(Ok(Next::Now)) => {}
                Some(Ok(Next::In(wait))) => tokio::time::sleep(wait).await,
                Some(Ok(Next::Beyond(place))) => {
                    // The lease is kept meanwhile.
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
        let (mut version, mut standing) = self.notes.begin(&self.tail).await?;
        let now = now_ms();
        let page = self
            .tail
            .read(standing.after, PAGE, &self.receiver.filter)
            .await?;
        self.measure(page.events.first(), now);
        if standing.stopped {
            return Ok(Next::In(LOOK_EVERY));
        }
        if standing.next_ms > now {
            let wait = Duration::from_millis(standing.next_ms - now);
            return Ok(Next::In(wait.min(LOOK_EVERY)));
        }
        if page.events.is_empty() {
            if page.until > standing.after + PASSED_OVER_MAX {
                standing.after = page.until;
                self.put(&mut version, &standing).await?;
            }
            return Ok(Next::Beyond(page.until));
        }
        if let Some(first) = page.events.first()
            && standing.after > 0
            && self.receiver.filter.takes_all()
            && first.number > standing.after + 1
        {
            let lost = first.number - standing.after - 1;
            tracing::error!(
                receiver = self.receiver.name,
                lost,
                "events were forgotten before they were sent"
            );
        }
        for (index, event) in page.events.iter().enumerate() {
            // The first is sent by the lease above.
            if index > 0 && !self.notes.lease(&self.owner, LEASE).await? {
                break;
            }
            let sent = self.receiver.send(event).await;
            let now = now_ms();
            match sent {
                Sent::Taken => {
                    self.metrics.count(Outcome::Delivered);
                    if standing.failures > 0 {
                        tracing::info!(receiver = self.receiver.name, "events are taken again");
                    }
                    standing.taken(event, now);
                }
                Sent::Gone => {
                    tracing::error!(
                        receiver = self.receiver.name,
                        number = event.number,
                        "the receiver is gone (410): nothing is sent any more, until it is resumed"
                    );
                    self.metrics.count(Outcome::Failed);
                    standing.stopped = true;
                    standing.error = Some("answered 410 Gone".to_owned());
                    self.put(&mut version, &standing).await?;
                    break;
                }
                Sent::Failed { why, retry_after } => {
                    tracing::warn!(
                        receiver = self.receiver.name,
                        number = event.number,
                        failures = standing.failures + 1,
                        why,
                        "an event was not taken"
                    );
                    self.metrics.count(Outcome::Failed);
                    let jitter = getrandom::u32().unwrap_or(100);
                    standing.failed(why, retry_after, now, jitter);
                    self.give_up(&mut standing, &page.events[index..], now)
                        .await?;
                    self.put(&mut version, &standing).await?;
                    break;
                }
            }
            if !self.put(&mut version, &standing).await? {
                break;
            }
        }
        Ok(Next::Now)
    }

    /// Buries what was tried for too long.
    async fn give_up(
        &self,
        standing: &mut Standing,
        events: &[Event],
        now_ms: u64,
    ) -> Result<(), BookError> {
        for event in events {
            if !standing.gives_up(event, self.receiver.retry_max, now_ms) {
                return Ok(());
            }
            let letter = DeadLetter {
                event: event.clone(),
                dead_ms: now_ms,
                error: standing.error.clone().unwrap_or_default(),
            };
            self.notes.bury(&letter).await?;
            self.metrics.count(Outcome::Dead);
            tracing::error!(
                receiver = self.receiver.name,
                number = event.number,
                "an event was given up"
            );
            standing.after = event.number;
        }
        Ok(())
    }

    /// Whether this is what stands now. Where somebody else has changed it, an operator or another gateway, theirs
    /// stands, beside the place that has been reached.
    async fn put(&self, version: &mut u64, standing: &Standing) -> Result<bool, BookError> {
        match self.notes.put(*version, standing).await {
            Ok(()) => {
                *version += 1;
                return Ok(true);
            }
            Err(BookError::Exists) => {}
            Err(error) => return Err(error),
        }
        if let Some((version, known)) = self.notes.standing().await? {
            let kept = Standing {
                after: known.after.max(standing.after),
                ..known
            };
            match self.notes.put(version, &kept).await {
                // Changed once more: what was sent since is sent again.
                Ok(()) | Err(BookError::Exists) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn measure(&self, first: Option<&Event>, now_ms: u64) {
        let waited = first.map_or(0, |event| now_ms.saturating_sub(event.at_ms));
        self.metrics.lag(Duration::from_millis(waited));
    }
}
