//! The events of the embedded stores, and the documents next to their books.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
};

use super::{Journaled, Record, State};
use crate::{
    account::{AccountId, KeyId},
    book::Millis,
    contract::{BookError, Note, TOLD_MS, Telling},
    happening::{Event, Happening, Levels, Watched},
};

/// The last event's number, the names of events that are emitted once, and the documents.
#[derive(Debug, Default)]
pub(super) struct FeedState {
    last: u64,
    /// The time of emission of each named event. An event with the same name is not emitted again.
    told: HashMap<String, Millis>,
    notes: BTreeMap<String, Note>,
}

impl FeedState {
    pub(super) fn events_of(
        &mut self,
        account: &AccountId,
        happened: Vec<(Option<KeyId>, Happening)>,
        at_ms: Millis,
    ) -> Vec<Event> {
        // Most charges emit no event, and then this allocates nothing.
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
    /// Takes what has happened in an account from its book, and numbers it as events.
    pub(super) fn tell_of(&mut self, account: &AccountId, at_ms: Millis) -> Vec<Event> {
        let happened = self.book.account_mut(account);
        let happened = happened.map(|account| account.happened());
        self.feed
            .events_of(account, happened.unwrap_or_default(), at_ms)
    }

    /// Returns the number of the last event.
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
        let record = Record::Levels {
            account: account.clone(),
            of: of.clone(),
            levels,
        };
        Ok(((), Some(record)))
    }

    /// Restores levels from a store's file. `None` if the account, key or group does not exist.
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

    pub(crate) fn tell(&mut self, telling: &Telling, now: Millis) -> Journaled<bool> {
        let told = &mut self.feed.told;
        told.retain(|_, at| now.saturating_sub(*at) < TOLD_MS);
        if told.contains_key(&telling.once) {
            return (false, None);
        }
        told.insert(telling.once.clone(), now);
        self.feed.last += 1;
        let event = Event {
            number: self.feed.last,
            at_ms: self.journal_time(now),
            account: telling.account.clone(),
            key: telling.key.clone(),
            what: telling.what.clone(),
        };
        let once = telling.once.clone();
        (true, Some(Record::Told { event, once }))
    }

    pub(crate) fn note_of(&self, name: &str) -> Option<Note> {
        self.feed.notes.get(name).cloned()
    }

    pub(crate) fn notes(&self, begins: &str) -> Vec<Note> {
        let from = self.feed.notes.range(begins.to_owned()..);
        from.map(|(_, note)| note)
            .take_while(|note| note.name.starts_with(begins))
            .cloned()
            .collect()
    }

    pub(crate) fn put_note(
        &mut self,
        name: &str,
        version: u64,
        text: &str,
    ) -> Result<Journaled<()>, BookError> {
        let there = self.feed.notes.get(name).map_or(0, |note| note.version);
        if there != version {
            return Err(BookError::Exists);
        }
        let note = Note {
            name: name.to_owned(),
            version: version + 1,
            text: text.to_owned(),
        };
        self.restore_note(note.clone());
        Ok(((), Some(Record::Note(note))))
    }

    /// Restores a document from a store's file.
    pub(crate) fn restore_note(&mut self, note: Note) {
        if note.text.is_empty() {
            self.feed.notes.remove(&note.name);
        } else {
            self.feed.notes.insert(note.name.clone(), note);
        }
    }

    /// Restores from a store's file the number of the last event, and when each named event was emitted.
    #[cfg(feature = "sqlite")]
    pub(crate) fn restore_feed(&mut self, last: u64, told: HashMap<String, Millis>) {
        (self.feed.last, self.feed.told) = (last, told);
    }
}
