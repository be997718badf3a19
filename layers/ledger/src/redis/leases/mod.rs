//! Leases of a Redis ledger, which several gateways share.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{ACCOUNTS_AT_ONCE, LeaseView, RedisLedger};
use crate::{
    account::AccountId,
    conn::{Lane, Result},
    contract::{Adjusted, Adjustment, BookError, Hold, LedgerError, Reserved},
    leases::{
        LeaseCounts, LeaseLedger, LeaseSettings, Leases, RECALL_LOOK_EVERY, Turn, TurnAnswer,
        until_heard,
    },
};

/// A lease's owner counts as dead if no turn of the lease has arrived for this long. A running gateway sends a turn of
/// each lease at least every 5 s. So the leases of a second gateway with the same name, for example on a copy of this
/// machine, are not given back by mistake.
pub const LEFT_FOR: Duration = Duration::from_secs(6);
/// How long a settlement takes to reach the ledger: a gateway sends it in a lease turn within 32 ms, and the turn takes
/// some time.
const END_REPORT_TIME: Duration = Duration::from_millis(100);

impl LeaseLedger for RedisLedger {
    async fn turn(&self, turn: &Turn) -> Result<TurnAnswer, LedgerError> {
        self.turn_of(turn, Lane::Leases).await
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
    /// Enables leases. They are taken only while [`RedisLedger::tend_leases`] runs. If leases are already enabled,
    /// their settings do not change.
    #[must_use]
    pub fn with_leases(self, settings: LeaseSettings) -> Self {
        self.0.leases.get_or_init(|| Leases::new(settings));
        self
    }

    /// Returns the lease counters; `None` if leases are not enabled.
    #[must_use]
    pub fn lease_counts(&self) -> Option<LeaseCounts> {
        self.leases().map(Leases::counts)
    }

    /// Returns the leases that all gateways have on an account.
    ///
    /// # Errors
    /// [`BookError::Unavailable`] if the ledger is unreachable.
    pub async fn leases_of(&self, account: &AccountId) -> Result<Vec<LeaseView>, BookError> {
        let (_, mut views) = self.leases_at(account).await?;
        if let Some(leases) = self.leases() {
            for view in &mut views {
                view.calls_rub = leases.held_by_calls(&view.key, view.number);
            }
        }
        Ok(views)
    }

    /// Returns the leases of all accounts, sorted by account.
    ///
    /// # Errors
    /// [`BookError::Unavailable`] if the ledger is unreachable.
    pub async fn all_leases(&self) -> Result<Vec<LeaseView>, BookError> {
        let mut all = Vec::new();
        for ids in self.account_ids().await?.chunks(ACCOUNTS_AT_ONCE) {
            for views in join_all(ids.iter().map(|id| self.leases_of(id))).await {
                all.extend(views?);
            }
        }
        Ok(all)
    }

    /// Sends the lease turns to the ledger, and never returns. Run it on the runtime of the lease connection. While it
    /// does not run, no lease is taken, and existing leases expire. If leases are not enabled, it does nothing.
    ///
    /// Lease turns use their own connection, on the runtime that runs this future. Use a runtime with its own thread.
    /// If the server is on the same machine, sending a turn wakes the server, and this delays all other tasks of the
    /// sending thread.
    pub async fn tend_leases(&self) {
        match self.leases() {
            Some(leases) => leases.tend(self).await,
            None => std::future::pending().await,
        }
    }

    /// Gives back all leased money that no call holds, and takes no further lease. Returns whether all leases are
    /// closed.
    pub async fn give_back(&self) -> bool {
        match self.leases() {
            Some(leases) => leases.give_back().await,
            None => true,
        }
    }

    /// Gives back the leases of an earlier process of this gateway. These are leases whose owner has this gateway's
    /// name, and for which no turn has arrived for `left_for`. Call this after the settlements of that process were
    /// sent. Returns how many leases were given back.
    ///
    /// # Errors
    /// An error if the ledger is unreachable. The leases of the earlier process then stay until they expire.
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
                let closed = self.turn_of(&turn, Lane::Leases).await;
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

    /// Waits until the gateways have reported the settlements of all calls of the account that have ended before now.
    /// Settlements that arrive later belong to calls that end later.
    pub(super) async fn wait_for_reported_ends(&self, account: &AccountId) -> Result<()> {
        let (now, leases) = self.leases_at(account).await?;
        let Some(grants_until_ms) = leases.iter().map(|lease| lease.grants_until_ms).max() else {
            return Ok(());
        };
        self.recall_until_returned(account, until_heard(now, grants_until_ms))
            .await?;
        // A lease that grants no more holds may still have settlements to report, so its gateway gets time to report
        // them.
        sleep(END_REPORT_TIME).await;
        Ok(())
    }

    pub(super) fn leases(&self) -> Option<&Leases> {
        self.0.leases.get()
    }

    pub(super) fn owner(&self) -> &str {
        self.leases().map_or("", Leases::owner)
    }

    /// Recalls leased money until no lease may grant holds, but for at most `limit`. Returns whether any lease was
    /// recalled.
    pub(super) async fn recall_until_returned(
        &self,
        account: &AccountId,
        limit: Duration,
    ) -> Result<bool> {
        let until = Instant::now() + limit;
        let mut recalled = false;
        while self.recall_in(account).await? > 0 && Instant::now() < until {
            recalled = true;
            if let Some(leases) = self.leases() {
                leases.recalled(account);
            }
            sleep(RECALL_LOOK_EVERY).await;
        }
        Ok(recalled)
    }

    /// A lease turn permits its gateway to grant holds for some time. Waits until this time is over for every lease
    /// turn that was answered before now. From then on, an operator's command is in force on all gateways.
    pub(super) async fn wait_for_leases(&self, account: &AccountId) -> Result<()> {
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
