//! The queue of the writer thread. It merges the waiting steps of one call into one row, or into no row.

use std::{
    collections::{BTreeMap, btree_map},
    time::Duration,
};

use super::TURN;
use crate::{
    durable::{crash_log::CallNote, group_commit::Moment},
    embedded::now_ms,
    number::RequestNumber,
    outbox::log::{CallStep, Ending},
};

/// How long an intent waits for further steps of its call. An intent is only needed to release the hold if the process
/// dies, so it may wait as long as a short call takes. A short call then writes nothing to the file.
pub(super) const INTENT_WAIT: Duration = Duration::from_millis(100);
/// How long a checkpoint waits for further steps of its call.
pub(super) const NOTE_WAIT: Duration = TURN.saturating_mul(3);
/// How long a settlement or release waits for the ledger's acknowledgement. The wait is short, because a settlement
/// contains the charge and the ledger answers soon: with leases, it answers the next lease turn. A settlement that is
/// acknowledged within this time is not written at all.
pub(super) const END_WAIT: Duration = TURN.saturating_mul(2);

/// The waiting steps, merged per call.
#[derive(Debug, Default)]
pub(super) struct Queue {
    calls: BTreeMap<RequestNumber, Waiting>,
}

/// The changes that the waiting steps of one call will make in the file.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Whether the file has no row for this call yet.
    new: bool,
    /// When the waiting steps of the call are to be written.
    due: Moment,
    /// The call's new record, if any. It replaces the record in the file.
    pub(super) note: Option<CallNote>,
    /// When the call was done: from then on, nothing of it is left to send to the ledger. `None` if it is not done.
    pub(super) done_at_ms: Option<u64>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn first_due(&self) -> Option<Moment> {
        self.calls.values().map(|waiting| waiting.due).min()
    }

    /// Takes the calls whose steps are due at `now`.
    pub(super) fn take_due(&mut self, now: Moment) -> Self {
        let due = self.calls.extract_if(.., |_, waiting| waiting.due <= now);
        Self {
            calls: due.collect(),
        }
    }

    /// Iterates over the waiting steps, sorted by call number. Call numbers are UUIDv7, so the oldest call is first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestNumber, &Waiting)> {
        self.calls
            .iter()
            .map(|(number, waiting)| (*number, waiting))
    }

    /// Adds the latest step of a call. Returns when it is to be written, or `None` if nothing is left to write for the
    /// call.
    pub(super) fn add(&mut self, step: CallStep, now: Moment) -> Option<Moment> {
        match step {
            CallStep::Intent {
                number,
                account,
                key,
                at_ms,
            } => {
                let waiting = self.calls.entry(number).or_insert(Waiting {
                    new: true,
                    due: now + INTENT_WAIT,
                    note: Some(CallNote::intent(number, account, key, at_ms)),
                    done_at_ms: None,
                });
                Some(waiting.due)
            }
            CallStep::Checkpoint(settlement) => {
                let waiting = self.waiting_mut(settlement.number, now);
                if !waiting.ends() {
                    waiting.due = waiting.due.min(now + NOTE_WAIT);
                    waiting.note = Some(CallNote::checkpoint(settlement, now_ms()));
                }
                Some(waiting.due)
            }
            CallStep::Settle(settlement, at_ms) => {
                Some(self.end(Ending::Settle(settlement), at_ms, now))
            }
            CallStep::Release {
                number,
                account,
                key,
                at_ms,
            } => Some(self.end(Ending::release(number, account, key), at_ms, now)),
            CallStep::Done { number, at_ms } => {
                let waiting = self.waiting_mut(number, now);
                if waiting.new {
                    self.calls.remove(&number);
                    None
                } else {
                    waiting.done_at_ms = Some(at_ms);
                    Some(waiting.due)
                }
            }
        }
    }

    /// Puts back into the queue the steps that could not be written; they are due immediately. If a call has newer
    /// steps in the queue, these take precedence.
    pub(super) fn put_back(&mut self, older: Self, now: Moment) {
        for (number, mut older) in older.calls {
            older.due = now;
            match self.calls.entry(number) {
                btree_map::Entry::Vacant(place) => {
                    place.insert(older);
                }
                btree_map::Entry::Occupied(mut place) => {
                    let newer = place.get_mut();
                    if newer.note.is_none() {
                        newer.note = older.note;
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

    fn end(&mut self, ending: Ending, at_ms: u64, now: Moment) -> Moment {
        let waiting = self.waiting_mut(ending.number(), now);
        waiting.due = now + END_WAIT;
        waiting.note = Some(CallNote::end(ending, at_ms));
        waiting.done_at_ms = None;
        waiting.due
    }

    fn waiting_mut(&mut self, number: RequestNumber, now: Moment) -> &mut Waiting {
        self.calls.entry(number).or_insert_with(|| Waiting {
            new: false,
            due: now + NOTE_WAIT,
            note: None,
            done_at_ms: None,
        })
    }
}

impl Waiting {
    fn ends(&self) -> bool {
        self.note.as_ref().is_some_and(|note| note.ended) || self.done_at_ms.is_some()
    }
}
