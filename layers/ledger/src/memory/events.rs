//! Events and documents of the memory store.

use std::{collections::VecDeque, time::Duration};

use super::MemoryLedger;
use crate::{
    account::AccountId,
    contract::{
        BookError, Document, Documents, EVENTS_AT_ONCE_MAX, EVENTS_MAX, EventStore, LeaderLease,
        OnceEvent,
    },
    embedded::{State, admin},
    happening::{Event, Levels, Watched},
};

/// Appends events. If there are more than [`EVENTS_MAX`], the oldest are dropped.
pub(super) fn add(events: &mut VecDeque<Event>, reported: Vec<Event>) {
    for event in reported {
        events.push_back(event);
        if events.len() as u64 > EVENTS_MAX {
            events.pop_front();
        }
    }
}

impl EventStore for MemoryLedger {
    admin::event_store!();

    async fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, BookError> {
        let inner = self.lock()?;
        let from = inner.events.partition_point(|event| event.number <= after);
        let limit = limit.clamp(1, EVENTS_AT_ONCE_MAX);
        let events = inner.events.iter().skip(from).take(limit);
        Ok(events.cloned().collect())
    }
}

admin::documents!(MemoryLedger);
