//! The steps that wait for the writer. The steps of one call become one row, or no row.

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

/// The time for which an intent waits for further steps of its call. If the process dies, an intent only identifies the
/// hold to release. So it may wait as long as a short call takes, and a short call writes nothing to the file.
pub(super) const INTENT_WAIT: Duration = Duration::from_millis(100);
/// The time for which a checkpoint waits for further steps of its call.
pub(super) const NOTE_WAIT: Duration = TURN.saturating_mul(3);
/// The time for which the end of a call waits for the ledger's acknowledgement. It is short because the end contains
/// the charge, and the ledger answers soon: with leases, at the lease's next turn. An end that is acknowledged within
/// this time is not written at all.
pub(super) const END_WAIT: Duration = TURN.saturating_mul(2);

/// The steps that wait to be written, merged per call.
#[derive(Debug, Default)]
pub(super) struct Queue {
    calls: BTreeMap<RequestNumber, Waiting>,
}

/// The changes that the waiting steps of one call make in the file.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Whether the file has no row for this call yet.
    new: bool,
    /// The time until which the steps wait for further steps of the call.
    due: Moment,
    /// The new record of the call, which replaces the record in the file.
    pub(super) note: Option<CallNote>,
    /// The time at which the call was done: nothing of it is left to send to the ledger. `None` if it is not done.
    pub(super) done_at_ms: Option<u64>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// The time at which the first of the steps is due.
    pub(super) fn first_due(&self) -> Option<Moment> {
        self.calls.values().map(|waiting| waiting.due).min()
    }

    /// Takes the calls whose steps are due.
    pub(super) fn take_due(&mut self, now: Moment) -> Self {
        let due = self
            .calls
            .extract_if(.., |_, waiting| waiting.due <= now)
            .collect();
        Self { calls: due }
    }

    /// The waiting steps, sorted by call number, which sorts them by age.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestNumber, &Waiting)> {
        self.calls
            .iter()
            .map(|(number, waiting)| (*number, waiting))
    }

    /// Adds the latest step of a call. Returns when it is due; `None` if nothing is left to write for the call.
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
                let waiting = self.of(settlement.number, now);
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
            } => {
                let release = Ending::Release {
                    number,
                    account,
                    key,
                };
                Some(self.end(release, at_ms, now))
            }
            CallStep::Done { number, at_ms } => {
                let waiting = self.of(number, now);
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

    /// Puts back steps that could not be written. Steps of the same call that were added meanwhile are newer and take
    /// precedence. All of them are due at once.
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
        let waiting = self.of(ending.number(), now);
        waiting.due = now + END_WAIT;
        waiting.note = Some(CallNote::end(ending, at_ms));
        waiting.done_at_ms = None;
        waiting.due
    }

    fn of(&mut self, number: RequestNumber, now: Moment) -> &mut Waiting {
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
