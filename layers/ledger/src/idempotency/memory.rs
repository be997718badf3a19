//! Idempotency claims and stored responses in memory. They are lost when the process ends.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{AnswerStore, Bounds, Claim, Claimed, Digest, Earlier, Finished, Outcome, Stage};
use crate::{BoxError, account::AccountId, number::RequestNumber};

/// A store of claims and responses in the memory of one process. Clones share it.
#[derive(Clone)]
pub struct MemoryAnswers(Arc<Inner>);

struct Inner {
    bounds: Bounds,
    table: Mutex<Table>,
}

type Key = (AccountId, Digest);

/// If the queue contains more entries of deleted claims than this, these entries are removed.
const GONE_MAX: usize = 1024;

#[derive(Default)]
struct Table {
    rows: HashMap<Key, Row>,
    /// The expiry time of each claim, in the order in which claims were made. The entries of deleted claims are removed
    /// later.
    expiring: VecDeque<(Instant, Key, RequestNumber)>,
    sums: HashMap<AccountId, Sums>,
    bytes: u64,
}

#[derive(Default)]
struct Sums {
    calls: u64,
    bytes: u64,
}

struct Row {
    first: RequestNumber,
    number: RequestNumber,
    fingerprint: Digest,
    state: State,
    expires: Instant,
}

enum State {
    Running { until: Instant },
    Answered(Vec<u8>),
    Unanswered,
}

impl MemoryAnswers {
    /// Creates an empty store.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Inner {
            bounds,
            table: Mutex::default(),
        }))
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.table().expiring.len()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim_now(&self, claim: &Claim, from: Option<RequestNumber>) -> Claimed {
        let now = Instant::now();
        let mut table = self.table();
        table.sweep(now);
        let key = (claim.account.clone(), claim.id);
        // The sweep may have missed this expired claim: its entry in the queue may come after an entry that expires
        // later.
        if table.rows.get(&key).is_some_and(|row| row.expires <= now) {
            table.remove(&key);
        }
        if let Some(row) = table.rows.get_mut(&key) {
            if from == Some(row.number) && row.is_abandoned(now) {
                row.number = claim.number;
                row.run_until(now + claim.lease);
            }
            if row.number == claim.number && matches!(row.state, State::Running { .. }) {
                return Claimed::Mine;
            }
            return Claimed::Earlier(row.earlier(now));
        }
        let sums = table.sums.entry(claim.account.clone()).or_default();
        let bounds = &self.0.bounds;
        if sums.calls >= bounds.account_calls_max || sums.bytes >= bounds.account_bytes_max {
            return Claimed::Full;
        }
        sums.calls += 1;
        let expires = now + claim.stored.max(claim.lease);
        let row = Row {
            first: claim.number,
            number: claim.number,
            fingerprint: claim.fingerprint,
            state: State::Running {
                until: now + claim.lease,
            },
            expires,
        };
        table.expiring.push_back((expires, key.clone(), row.first));
        table.rows.insert(key, row);
        Claimed::Mine
    }

    fn finish_now(&self, claim: &Claim, outcome: Outcome<'_>) -> Finished {
        let mut table = self.table();
        let table = &mut *table;
        let key = (claim.account.clone(), claim.id);
        let row = table.rows.get_mut(&key);
        let Some(row) = row.filter(|row| row.number == claim.number) else {
            return Finished::NotMine;
        };
        if !matches!(row.state, State::Running { .. }) {
            return Finished::Kept;
        }
        match outcome {
            Outcome::Free => {
                table.remove(&key);
                table.forget_gone();
                Finished::Kept
            }
            Outcome::Unanswered => {
                row.state = State::Unanswered;
                Finished::Kept
            }
            Outcome::Answered(answer) => {
                let bytes = answer.len() as u64;
                let sums = table.sums.entry(claim.account.clone()).or_default();
                let bounds = &self.0.bounds;
                if sums.bytes + bytes > bounds.account_bytes_max
                    || table.bytes + bytes > bounds.bytes_max
                {
                    row.state = State::Unanswered;
                    return Finished::TooMuch;
                }
                sums.bytes += bytes;
                table.bytes += bytes;
                row.state = State::Answered(answer.to_vec());
                Finished::Kept
            }
        }
    }
}

impl fmt::Debug for MemoryAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAnswers")
            .field("bounds", &self.0.bounds)
            .finish_non_exhaustive()
    }
}

impl AnswerStore for MemoryAnswers {
    async fn claim(&self, claim: &Claim, from: Option<RequestNumber>) -> Result<Claimed, BoxError> {
        Ok(self.claim_now(claim, from))
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, BoxError> {
        let mut table = self.table();
        let row = table.rows.get_mut(&(claim.account.clone(), claim.id));
        let runs = |row: &&mut Row| {
            row.number == claim.number && matches!(row.state, State::Running { .. })
        };
        let row = row.filter(runs);
        let is_ours = row.is_some();
        if let Some(row) = row {
            row.run_until(Instant::now() + claim.lease);
        }
        Ok(is_ours)
    }

    async fn finish(&self, claim: &Claim, outcome: Outcome<'_>) -> Result<Finished, BoxError> {
        Ok(self.finish_now(claim, outcome))
    }
}

impl Table {
    fn sweep(&mut self, now: Instant) {
        while let Some((at, key, first)) = self.expiring.front() {
            if *at > now {
                return;
            }
            let (key, first) = (key.clone(), *first);
            self.expiring.pop_front();
            match self.rows.get(&key) {
                Some(row) if row.first != first => {}
                // The claim was renewed while its call was in flight, so it expires later now.
                Some(row) if row.expires > now => {
                    self.expiring.push_back((row.expires, key, first));
                }
                _ => self.remove(&key),
            }
        }
    }

    /// Removes the queue entries of deleted claims. The claim of a free call is deleted long before it expires, and
    /// without this function its entry would stay in the queue until then.
    fn forget_gone(&mut self) {
        if self.expiring.len() > 2 * self.rows.len() + GONE_MAX {
            let rows = &self.rows;
            self.expiring
                .retain(|(_, key, first)| rows.get(key).is_some_and(|row| row.first == *first));
        }
    }

    fn remove(&mut self, key: &Key) {
        let Some(row) = self.rows.remove(key) else {
            return;
        };
        let bytes = match row.state {
            State::Answered(answer) => answer.len() as u64,
            State::Running { .. } | State::Unanswered => 0,
        };
        self.bytes -= bytes;
        if let Some(sums) = self.sums.get_mut(&key.0) {
            sums.calls -= 1;
            sums.bytes -= bytes;
            if sums.calls == 0 {
                self.sums.remove(&key.0);
            }
        }
    }
}

impl Row {
    /// Sets the time until which the call may run without renewing its claim. The claim does not expire before that
    /// time.
    fn run_until(&mut self, until: Instant) {
        self.state = State::Running { until };
        self.expires = self.expires.max(until);
    }

    fn is_abandoned(&self, now: Instant) -> bool {
        matches!(self.state, State::Running { until } if until <= now)
    }

    fn earlier(&self, now: Instant) -> Earlier {
        Earlier {
            number: self.number,
            fingerprint: self.fingerprint,
            stage: match &self.state {
                State::Running { until } => match until.saturating_duration_since(now) {
                    Duration::ZERO => Stage::Abandoned,
                    left => Stage::Running(left),
                },
                State::Answered(answer) => Stage::Answered(answer.clone()),
                State::Unanswered => Stage::Unanswered,
            },
        }
    }
}
