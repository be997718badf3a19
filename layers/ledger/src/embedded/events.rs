//! The events and documents of the embedded stores.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
};

use super::{Journaled, Record, State};
use crate::{
    account::{AccountId, KeyId},
    book::Millis,
    contract::{BookError, Document, ONCE_MS, OnceEvent},
    happening::{Event, Happening, Levels, Watched},
};

/// The number of the last event, the emitted events that may be emitted only once, and the documents.
#[derive(Debug, Default)]
pub(super) struct EventState {
    last: u64,
    /// When each event that may be emitted only once was emitted, by the event's name.
    reported: HashMap<String, Millis>,
    documents: BTreeMap<String, Document>,
}

impl EventState {
    pub(super) fn events_of(
        &mut self,
        account: &AccountId,
        happened: Vec<(Option<KeyId>, Happening)>,
        at_ms: Millis,
    ) -> Vec<Event> {
        // Most charges emit no event, so usually nothing is allocated here.
        let event = |(key, what)| {
            self.last += 1;
            Event {
                number: self.last,
                at_ms,
                account: Some(account.clone()),
                key,
                what,
            }
        };
        happened.into_iter().map(event).collect()
    }
}

impl State {
    /// Removes the new events of an account from the book, and numbers them.
    pub(super) fn take_events(&mut self, account: &AccountId, at_ms: Millis) -> Vec<Event> {
        let happened = self.book.account_mut(account);
        let happened = happened.map(|account| account.happened());
        self.feed
            .events_of(account, happened.unwrap_or_default(), at_ms)
    }

    pub(crate) const fn last_event(&self) -> u64 {
        self.feed.last
    }

    pub(crate) fn set_levels(
        &mut self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> Result<Journaled<()>, BookError> {
        self.put_levels(account, of, levels)
            .ok_or(BookError::NotFound)?;
        let record = Record::Levels(account.clone(), of.clone(), levels);
        Ok(((), Some(record)))
    }

    /// Sets alert levels that were read from a store's file. `None` if the account, key or group does not exist.
    pub(crate) fn put_levels(
        &mut self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> Option<()> {
        let account = self.book.account_mut(account)?;
        match of {
            Watched::Balance => account.levels = levels,
            Watched::Key(key) => account.key_mut(key)?.levels = levels,
            Watched::Group(group) => account.group_mut(group)?.money.levels = levels,
        }
        Some(())
    }

    pub(crate) fn levels(&self, account: &AccountId) -> Result<Vec<(Watched, Levels)>, BookError> {
        let account = self.book.account(account).ok_or(BookError::NotFound)?;
        let keys = account.keys();
        let keys = keys.map(|(id, key)| (Watched::Key(id.clone()), key.levels));
        let groups = account.groups();
        let groups = groups.map(|(id, group)| (Watched::Group(id.clone()), group.money.levels));
        let all = iter::once((Watched::Balance, account.levels));
        let all = all.chain(keys).chain(groups);
        Ok(all.filter(|(_, levels)| !levels.is_empty()).collect())
    }

    pub(crate) fn emit_once(&mut self, event: &OnceEvent, now: Millis) -> Journaled<bool> {
        let reported = &mut self.feed.reported;
        reported.retain(|_, at| now.saturating_sub(*at) < ONCE_MS);
        let once = event.once.clone();
        if reported.contains_key(&once) {
            return (false, None);
        }
        reported.insert(once.clone(), now);
        self.feed.last += 1;
        let event = Event {
            number: self.feed.last,
            at_ms: self.journal_time(now),
            account: event.account.clone(),
            key: event.key.clone(),
            what: event.what.clone(),
        };
        (true, Some(Record::EmittedOnce { event, once }))
    }

    pub(crate) fn document(&self, name: &str) -> Option<Document> {
        self.feed.documents.get(name).cloned()
    }

    pub(crate) fn documents(&self, begins: &str) -> Vec<Document> {
        let from = self.feed.documents.range(begins.to_owned()..);
        from.map(|(_, document)| document)
            .take_while(|document| document.name.starts_with(begins))
            .cloned()
            .collect()
    }

    pub(crate) fn compare_and_swap(
        &mut self,
        name: &str,
        version: u64,
        text: &str,
    ) -> Journaled<bool> {
        let found = self.feed.documents.get(name);
        if found.map_or(0, |found| found.version) != version {
            return (false, None);
        }
        let document = Document {
            name: name.to_owned(),
            version: version + 1,
            text: text.to_owned(),
        };
        self.restore_document(document.clone());
        (true, Some(Record::Document(document)))
    }

    /// Adds a document that was read from a store's file.
    pub(crate) fn restore_document(&mut self, document: Document) {
        if document.text.is_empty() {
            self.feed.documents.remove(&document.name);
        } else {
            self.feed.documents.insert(document.name.clone(), document);
        }
    }

    /// Sets the number of the last event, and the times of events that may be emitted only once, as read from a store's
    /// file.
    #[cfg(feature = "sqlite")]
    pub(crate) fn restore_feed(&mut self, last: u64, reported: HashMap<String, Millis>) {
        (self.feed.last, self.feed.reported) = (last, reported);
    }
}
