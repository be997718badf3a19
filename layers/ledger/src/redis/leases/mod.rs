//! The leases of gateways on one Redis.

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::{ACCOUNTS_AT_ONCE, LeaseView, RedisLedger};
use crate::{
    account::AccountId,
    conn::{Lane, RedisFault},
    contract::{BookError, Hold, LedgerError, Reserved},
    leases::{
        LeaseCounts, LeaseLedger, LeaseSettings, Leases, RECALL_LOOK_EVERY, RECALL_WAIT, Turn,
        TurnAnswer, until_heard,
    },
};

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
}

impl RedisLedger {
    /// The same ledger, and from here on with leases while [`RedisLedger::tend_leases`] runs. One that has them keeps
    /// those that it has.
    #[must_use]
    pub fn with_leases(self, settings: LeaseSettings) -> Self {
        self.0.leases.get_or_init(|| Leases::new(settings));
        self
    }

    /// What leases have done; `None` where there are none.
    #[must_use]
    pub fn lease_counts(&self) -> Option<LeaseCounts> {
        self.leases().map(Leases::counts)
    }

    /// The leases of an account, of all gateways.
    ///
    /// # Errors
    /// The ledger is out of reach.
    pub async fn leases_of(&self, account: &AccountId) -> Result<Vec<LeaseView>, BookError> {
        let (_, mut views) = self.leases_at(account).await?;
        if let Some(leases) = self.leases() {
            for view in &mut views {
                view.calls_rub = leases.held_by_calls(&view.key, view.number);
            }
        }
        Ok(views)
    }

    /// The leases of all accounts, by account.
    ///
    /// # Errors
    /// The ledger is out of reach.
    pub async fn all_leases(&self) -> Result<Vec<LeaseView>, BookError> {
        let mut all = Vec::new();
        for ids in self.account_ids().await?.chunks(ACCOUNTS_AT_ONCE) {
            for views in join_all(ids.iter().map(|id| self.leases_of(id))).await {
                all.extend(views?);
            }
        }
        Ok(all)
    }

    /// Looks after leases: tells the ledger of them. Does not end; whoever owns the runtime runs it. While nobody does,
    /// no lease is got, and those that there are end when their time is over. Without leases there is nothing to do.
    ///
    /// Turns have a connection to themselves, on the runtime that runs this. Give it one with a thread of its own: a server
    /// on the same machine is woken where a turn is written, and calls whose thread wrote it would wait behind the turn.
    pub async fn tend_leases(&self) {
        match self.leases() {
            Some(leases) => leases.tend(self).await,
            None => std::future::pending().await,
        }
    }

    /// Gives back all that no call holds; no lease is taken from here on. Says whether all leases were ended.
    pub async fn give_back(&self) -> bool {
        match self.leases() {
            Some(leases) => leases.give_back().await,
            None => true,
        }
    }

    pub(super) fn leases(&self) -> Option<&Leases> {
        self.0.leases.get()
    }

    pub(super) fn owner(&self) -> &str {
        self.leases().map_or("", Leases::owner)
    }

    /// What a correction would take may lie in leases that no call holds anything of. Says whether some was asked for,
    /// and waited for.
    pub(super) async fn recall_for_entry(&self, account: &AccountId) -> Result<bool, RedisFault> {
        let until = Instant::now() + RECALL_WAIT;
        let mut asked = false;
        while self.recall_in(account).await? > 0 && Instant::now() < until {
            asked = true;
            if let Some(leases) = self.leases() {
                leases.recalled(account);
            }
            sleep(RECALL_LOOK_EVERY).await;
        }
        Ok(asked)
    }

    /// Waits until no gateway grants anything on the account that it was leased before now: what an operator has
    /// forbidden is forbidden everywhere then.
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
