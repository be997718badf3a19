//! Lines that wait for the writer: those of one call come to one row, or to nothing.

use std::{
    collections::{BTreeMap, btree_map},
    mem,
};

use crate::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    reserve::{ledger::Settlement, outbox::log::Line},
};

/// For so many turns a line waits for others of its call.
const TURNS: u64 = 4;
/// The same once the call has ended: what is said there is money, and the ledger's answer is near.
const END_TURNS: u64 = 2;

/// What waits, by call.
#[derive(Debug, Default)]
pub(super) struct Queue {
    calls: BTreeMap<RequestNumber, Waiting>,
    /// The writer's turns.
    turn: u64,
}

/// What the lines of one call that wait come to.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The file has nothing of this call yet.
    new: bool,
    /// The turn that takes it.
    due: u64,
    /// What takes the place of what the file has.
    pub(super) entry: Option<Entry>,
    /// Nothing more is to be told, since then.
    pub(super) done_at_ms: Option<u64>,
}

/// The newest of a call's lines.
#[derive(Debug)]
pub(super) enum Entry {
    Intent {
        account: AccountId,
        key: KeyId,
        at_ms: u64,
    },
    Checkpoint(Box<Settlement>, u64),
    Settle(Box<Settlement>, u64),
    Release {
        account: AccountId,
        key: KeyId,
        at_ms: u64,
    },
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Begins a turn, and takes the calls whose lines have waited long enough.
    pub(super) fn take_due(&mut self) -> Self {
        self.turn += 1;
        let turn = self.turn;
        let (due, early) = mem::take(&mut self.calls)
            .into_iter()
            .partition(|(_, waiting)| waiting.due <= turn);
        self.calls = early;
        Self { calls: due, turn }
    }

    /// By number, which is by age.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestNumber, &Waiting)> {
        self.calls
            .iter()
            .map(|(number, waiting)| (*number, waiting))
    }

    /// Takes a line that comes after all others of its call.
    pub(super) fn add(&mut self, line: Line, now_ms: u64) {
        match line {
            Line::Intent {
                number,
                account,
                key,
                at_ms,
            } => {
                let intent = Entry::Intent {
                    account,
                    key,
                    at_ms,
                };
                self.calls.entry(number).or_insert(Waiting {
                    new: true,
                    due: self.turn + TURNS,
                    entry: Some(intent),
                    done_at_ms: None,
                });
            }
            Line::Checkpoint(settlement) => {
                let waiting = self.of(settlement.number);
                if !waiting.ends() {
                    waiting.entry = Some(Entry::Checkpoint(settlement, now_ms));
                }
            }
            Line::Settle(settlement, at_ms) => {
                let due = self.turn + END_TURNS;
                let waiting = self.of(settlement.number);
                waiting.due = due;
                waiting.entry = Some(Entry::Settle(settlement, at_ms));
                waiting.done_at_ms = None;
            }
            Line::Release {
                number,
                account,
                key,
                at_ms,
            } => {
                let due = self.turn + END_TURNS;
                let waiting = self.of(number);
                waiting.due = due;
                waiting.entry = Some(Entry::Release {
                    account,
                    key,
                    at_ms,
                });
                waiting.done_at_ms = None;
            }
            Line::Done { number, at_ms } => {
                let waiting = self.of(number);
                if waiting.new {
                    self.calls.remove(&number);
                } else {
                    waiting.done_at_ms = Some(at_ms);
                }
            }
        }
    }

    /// Puts back what could not be written, below what has come since. It is due.
    pub(super) fn put_back(&mut self, older: Self) {
        for (number, mut older) in older.calls {
            older.due = 0;
            match self.calls.entry(number) {
                btree_map::Entry::Vacant(place) => {
                    place.insert(older);
                }
                btree_map::Entry::Occupied(mut place) => {
                    let newer = place.get_mut();
                    if newer.entry.is_none() {
                        newer.entry = older.entry;
                        newer.done_at_ms = newer.done_at_ms.or(older.done_at_ms);
                    }
                    newer.new = older.new;
                    newer.due = older.due;
                    if newer.new && newer.done_at_ms.is_some() {
                        place.remove();
                    }
                }
            }
        }
    }

    fn of(&mut self, number: RequestNumber) -> &mut Waiting {
        let due = self.turn + TURNS;
        self.calls.entry(number).or_insert_with(|| Waiting {
            due,
            ..Waiting::default()
        })
    }
}

impl Waiting {
    fn ends(&self) -> bool {
        let ends = matches!(self.entry, Some(Entry::Settle(..) | Entry::Release { .. }));
        ends || self.done_at_ms.is_some()
    }
}
