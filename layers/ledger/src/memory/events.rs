//! Events and documents of the memory store.

use std::{collections::VecDeque, time::Duration};

use super::{MemoryLedger, answer};
use crate::{
    account::AccountId,
    contract::{
        BookError, Document, Documents, EVENTS_AT_ONCE_MAX, EVENTS_MAX, EventStore, LeaderLease,
        OnceEvent,
    },
    embedded::{Record, now_ms},
    happening::{Event, Levels, Watched},
};

/// Appends events; beyond [`EVENTS_MAX`] the oldest are dropped.
pub(super) fn add(events: &mut VecDeque<Event>, reported: Vec<Event>) {
    for event in reported {
        events.push_back(event);
        if events.len() as u64 > EVENTS_MAX {
            events.pop_front();
        }
    }
}

impl EventStore for MemoryLedger {
    async fn set_levels(
        &self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> Result<(), BookError> {
        self.for_books()?
            .state
            .set_levels(account, of, levels)
            .map(answer)
    }

    async fn levels(&self, account: &AccountId) -> Result<Vec<(Watched, Levels)>, BookError> {
        self.for_books()?.state.levels(account)
    }

    async fn gather(&self) -> Result<u64, BookError> {
        Ok(self.for_books()?.state.last_event())
    }

    async fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, BookError> {
        let inner = self.for_books()?;
        let from = inner.events.partition_point(|event| event.number <= after);
        let limit = limit.clamp(1, EVENTS_AT_ONCE_MAX);
        Ok(inner
            .events
            .iter()
            .skip(from)
            .take(limit)
            .cloned()
            .collect())
    }

    async fn emit_once(&self, event: &OnceEvent) -> Result<bool, BookError> {
        let mut inner = self.for_books()?;
        let (emitted, record) = inner.state.emit_once(event, now_ms());
        if let Some(Record::Told { event, .. }) = record {
            add(&mut inner.events, vec![event]);
        }
        Ok(emitted)
    }
}

impl Documents for MemoryLedger {
    async fn document(&self, name: &str) -> Result<Option<Document>, BookError> {
        Ok(self.for_books()?.state.document(name))
    }

    async fn documents(&self, begins: &str) -> Result<Vec<Document>, BookError> {
        Ok(self.for_books()?.state.documents(begins))
    }

    async fn compare_and_swap(
        &self,
        name: &str,
        version: u64,
        text: &str,
    ) -> Result<bool, BookError> {
        let mut inner = self.for_books()?;
        Ok(answer(inner.state.compare_and_swap(name, version, text)))
    }
}

impl LeaderLease for MemoryLedger {
    /// No other process uses this ledger, so every leader lease is granted.
    async fn lead(&self, _: &str, _: &str, _: Duration) -> Result<bool, BookError> {
        Ok(true)
    }
}
