//! The leases of gateways that share one Redis.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{ACCOUNTS_AT_ONCE, LeaseView, RedisLedger};
use crate::{
    account::AccountId,
    conn::{Lane, RedisFault},
    contract::{Adjusted, Adjustment, BookError, Hold, LedgerError, Reserved},
    leases::{
        LeaseCounts, LeaseLedger, LeaseSettings, Leases, RECALL_LOOK_EVERY, RECALL_WAIT, Turn,
        TurnAnswer, until_heard,
    },
};

/// If the ledger receives no turn of a lease with this gateway's name for this long, the lease's owner counts as dead.
/// A running gateway sends a turn of each of its leases at least every 5 s. So does a gateway with the same name on a
/// copy of this machine.
pub const LEFT_FOR: Duration = Duration::from_secs(6);
/// The time within which the end of a call reaches the ledger: gateways send it in a turn of the lease within 32 ms,
/// and the turn takes some time.
const ENDS_TOLD: Duration = Duration::from_millis(100);

impl LeaseLedger for RedisLedger {
    async fn turn(&self, turn: &Turn) -> Result<TurnAnswer, LedgerError> {
        self.turn_of(turn, Lane::Apart).await
    }

    async fn recall(&self, account: &AccountId) -> Result<u64, LedgerError> {
        Ok(self.recall_in(account).await?)
    }

    async fn hold(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.reserve_in_ledger(hold).await
    }

    async fn adjust_hold(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.adjust_in_ledger(adjustment).await
    }
}

impl RedisLedger {
    /// Enables leases, which are taken while [`RedisLedger::tend_leases`] runs. If the ledger has leases already, their
    /// settings do not change.
    #[must_use]
    pub fn with_leases(self, settings: LeaseSettings) -> Self {
        self.0.leases.get_or_init(|| Leases::new(settings));
        self
    }

    /// Counters of the leases; `None` if leases are not enabled.
    #[must_use]
    pub fn lease_counts(&self) -> Option<LeaseCounts> {
        self.leases().map(Leases::counts)
    }

    /// Returns the leases of an account, of all gateways.
    ///
    /// # Errors
    /// [`BookError::Unavailable`] if the ledger is out of reach.
    pub async fn leases_of(&self, account: &AccountId) -> Result<Vec<LeaseView>, BookError> {
        let (_, mut views) = self.leases_at(account).await?;
        if let Some(leases) = self.leases() {
            for view in &mut views {
                view.calls_rub = leases.held_by_calls(&view.key, view.number);
            }
        }
        Ok(views)
    }

    /// Returns the leases of all accounts, by account.
    ///
    /// # Errors
    /// [`BookError::Unavailable`] if the ledger is out of reach.
    pub async fn all_leases(&self) -> Result<Vec<LeaseView>, BookError> {
        let mut all = Vec::new();
        for ids in self.account_ids().await?.chunks(ACCOUNTS_AT_ONCE) {
            for views in join_all(ids.iter().map(|id| self.leases_of(id))).await {
                all.extend(views?);
            }
        }
        Ok(all)
    }

    /// Sends the turns of leases to the ledger. Never returns; run it on the runtime of the lease connection. While it
    /// does not run, no lease is taken, and existing leases expire. Without leases it does nothing.
    ///
    /// Turns of leases use a connection of their own, on the runtime that runs this future. Give this future a runtime
    /// with a thread of its own: if the server is on the same machine, sending a turn wakes the server, and this delays
    /// all other tasks of the sending thread.
    pub async fn tend_leases(&self) {
        match self.leases() {
            Some(leases) => leases.tend(self).await,
            None => std::future::pending().await,
        }
    }

    /// Gives back all money that no call holds, and takes no lease from now on. Returns whether all leases were closed.
    pub async fn give_back(&self) -> bool {
        match self.leases() {
            Some(leases) => leases.give_back().await,
            None => true,
        }
    }

    /// Gives back the leases of an earlier process of this gateway: their owner has this gateway's name, and the ledger
    /// has received no turn of them for `left_for`. Call this after the ends of that process's calls were sent. Returns
    /// the number of leases.
    ///
    /// # Errors
    /// An error if the ledger is out of reach. The leases of the earlier process then end when they expire.
    pub async fn give_back_left(&self, left_for: Duration) -> Result<usize, BookError> {
        let before = self.left_leases().await?;
        if before.is_empty() {
            return Ok(0);
        }
        let grants_for = self.leases().map_or(Duration::ZERO, Leases::grants_for);
        sleep(left_for.max(grants_for)).await;
        let words: HashMap<_, _> = before
            .iter()
            .map(|left| (left.number, &left.last))
            .collect();
        let mut count = 0;
        for left in self.left_leases().await? {
            if words.get(&left.number) == Some(&&left.last) {
                let (number, account, key) = (left.number, &left.account, &left.key);
                let turn = Turn::close(number, account, key, &left.last, Uuid::now_v7());
                let closed = self.turn_of(&turn, Lane::Apart).await;
                closed.map_err(|error| BookError::Unavailable(error.into()))?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Returns the leases whose owner has this gateway's name, but which this process does not have.
    async fn left_leases(&self) -> Result<Vec<LeaseView>, BookError> {
        let Some(leases) = self.leases() else {
            return Ok(Vec::new());
        };
        let mut left = self.all_leases().await?;
        left.retain(|lease| lease.owner == leases.owner() && lease.calls_rub.is_none());
        Ok(left)
    }

    /// Waits until the gateways have reported all ends of the account's calls until now. Charges made afterwards belong
    /// to calls that end later.
    pub(super) async fn ends_are_told(&self, account: &AccountId) -> Result<(), RedisFault> {
        let (now, leases) = self.leases_at(account).await?;
        let Some(grants_until_ms) = leases.iter().map(|lease| lease.grants_until_ms).max() else {
            return Ok(());
        };
        let until = Instant::now() + until_heard(now, grants_until_ms);
        while self.recall_in(account).await? > 0 && Instant::now() < until {
            if let Some(leases) = self.leases() {
                leases.recalled(account);
            }
            sleep(RECALL_LOOK_EVERY).await;
        }
        // A lease that grants no more holds may still have ends of calls to report.
        sleep(ENDS_TOLD).await;
        Ok(())
    }

    pub(super) fn leases(&self) -> Option<&Leases> {
        self.0.leases.get()
    }

    pub(super) fn owner(&self) -> &str {
        self.leases().map_or("", Leases::owner)
    }

    /// Recalls leased money for a correction that did not fit, and waits until gateways give it back. Returns whether
    /// any lease was recalled.
    pub(super) async fn recall_for_entry(&self, account: &AccountId) -> Result<bool, RedisFault> {
        let until = Instant::now() + RECALL_WAIT;
        let mut requested = false;
        while self.recall_in(account).await? > 0 && Instant::now() < until {
            requested = true;
            if let Some(leases) = self.leases() {
                leases.recalled(account);
            }
            sleep(RECALL_LOOK_EVERY).await;
        }
        Ok(requested)
    }

    /// Waits until no gateway may grant holds by permission of a turn of a lease before now. From then on an operator's
    /// command is in force on all gateways.
    pub(super) async fn leases_have_heard(&self, account: &AccountId) -> Result<(), RedisFault> {
        let (now, leases) = self.leases_at(account).await?;
        let until = leases.iter().map(|lease| lease.grants_until_ms).max();
        sleep(until_heard(now, until.unwrap_or_default())).await;
        Ok(())
    }
}

#[cfg(test)]
mod contract_tests;
#[cfg(test)]
mod fleet_tests;
#[cfg(test)]
mod journal_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
