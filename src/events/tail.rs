//! Polls the ledger for the number of the last event, and wakes tasks that wait for new events.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tollgate_ledger::{
    contract::{BookError, EVENTS_AT_ONCE_MAX, EventStore},
    happening::Event,
};

use super::event::Filter;
use crate::{edge::panics::catch_round, ledger::AnyLedger};

/// How often the number of the last event is read if the ledger is in memory or in a file, because this read only takes
/// a lock. If the ledger is on a server, the read is a request, so the longer interval `ASK_EVERY` applies.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const ASK_EVERY: Duration = Duration::from_millis(250);
/// How often the ledger is polled while it is out of reach.
const AWAY: Duration = Duration::from_secs(1);
/// How long to wait before new events are read, after the number of the last event has changed. An event that already
/// has a number may still be queued for the ledger's file.
const READABLE: Duration = Duration::from_millis(10);
/// Maximum number of events that one request scans. The next request continues after them.
const LOOKED_THROUGH_MAX: usize = 10_000;

/// The events of a ledger, and the number of the last one. Clones share this number.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    /// The ledger whose events these are.
    pub(super) store: AnyLedger,
    last: Arc<watch::Sender<u64>>,
}

/// A page of events that pass a filter.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) events: Vec<Event>,
    /// The number of the last event that was scanned for this page, whether or not it passed the filter.
    pub(crate) until: u64,
}

impl Tail {
    pub(crate) fn new(store: AnyLedger) -> Self {
        Self {
            store,
            last: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Polls the ledger for new events. Never returns.
    pub(crate) async fn run(self) {
        let every = match &self.store {
            AnyLedger::Memory(_) | AnyLedger::Sqlite(_) => LOOK_EVERY,
            AnyLedger::Redis(_) => ASK_EVERY,
        };
        loop {
            let found = catch_round("the event poll", self.last()).await;
            let wait = match found {
                Some(Ok(_)) => every,
                // The error is not logged here: a task that requests events gets the same error, and returns it.
                Some(Err(_)) | None => AWAY,
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns the number of the last event in the ledger.
    pub(crate) async fn last(&self) -> Result<u64, BookError> {
        let last = self.store.gather().await?;
        self.last
            .send_if_modified(|known| std::mem::replace(known, last) != last);
        Ok(last)
    }

    /// Waits until the ledger has an event with a number above `after`.
    pub(crate) async fn beyond(&self, after: u64) {
        tokio::time::sleep(READABLE).await;
        let mut last = self.last.subscribe();
        // The wait cannot fail, because the sender is a field of `self`.
        let _ = last.wait_for(|last| *last > after).await;
    }

    /// Returns at most `limit` events that pass the filter and have a number above `after`.
    pub(crate) async fn read(
        &self,
        after: u64,
        limit: usize,
        filter: &Filter,
    ) -> Result<Page, BookError> {
        let mut page = Page {
            events: Vec::new(),
            until: after,
        };
        for _ in 0..LOOKED_THROUGH_MAX / EVENTS_AT_ONCE_MAX {
            let events = self.store.events(page.until, EVENTS_AT_ONCE_MAX).await?;
            let all = events.len() < EVENTS_AT_ONCE_MAX;
            for event in events {
                page.until = event.number;
                if filter.takes(&event) {
                    page.events.push(event);
                }
                if page.events.len() >= limit {
                    return Ok(page);
                }
            }
            if all || !page.events.is_empty() {
                break;
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_ledger::{contract::OnceEvent, happening::Happening, memory::MemoryLedger};

    use super::*;

    async fn emit(store: &AnyLedger, number: u64) {
        let event = OnceEvent {
            once: number.to_string(),
            account: None,
            key: None,
            what: match number % 2 {
                0 => Happening::RateStale { since_ms: number },
                _ => Happening::VendorOut { vendor: "v".into() },
            },
        };
        assert!(store.emit_once(&event).await.unwrap());
    }

    #[tokio::test]
    async fn page_of_events_ends_at_its_limit_and_reports_how_far_it_scanned() {
        let store = AnyLedger::Memory(MemoryLedger::new());
        for number in 1..=2500 {
            emit(&store, number).await;
        }
        let tail = Tail::new(store);
        let stale = Filter {
            kinds: vec!["rate_stale"],
            ..Filter::default()
        };
        let read = async |after, limit, filter: &Filter| {
            let page = tail.read(after, limit, filter).await.unwrap();
            let numbers: Vec<u64> = page.events.iter().map(|event| event.number).collect();
            (numbers, page.until)
        };
        assert_eq!(read(0, 2, &stale).await, (vec![2, 4], 4));
        assert_eq!(read(4, 1, &Filter::default()).await, (vec![5], 5));
        assert_eq!(read(2499, 10, &stale).await, (vec![2500], 2500));
        assert_eq!(read(2500, 10, &stale).await, (vec![], 2500));
        let none = Filter {
            accounts: vec!["acme".parse().unwrap()],
            ..Filter::default()
        };
        assert_eq!(read(0, 10, &none).await, (vec![], 2500));
    }

    #[tokio::test]
    async fn waiting_event_reader_is_woken_by_the_next_event() {
        let store = AnyLedger::Memory(MemoryLedger::new());
        emit(&store, 1).await;
        let tail = Tail::new(store.clone());
        let woken = async {
            tail.beyond(1).await;
            tail.read(1, 10, &Filter::default()).await.unwrap().until
        };
        let reported = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            emit(&store, 2).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            until = woken => assert_eq!(until, 2),
            () = reported => {}
            () = tail.clone().run() => {}
        }
    }
}
