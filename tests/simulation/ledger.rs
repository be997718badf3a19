//! The ledger as one process of a gateway reaches it: over the network, by number, with a timeout.

use std::{fmt, sync::Arc, time::Duration};

use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    reserve::{
        book::{Command, Outcome},
        ledger::{Hold, Ledger, LedgerError, Reserved, Settled, Settlement},
    },
};

use crate::{server::Ask, world::Sim};

/// The way to the server.
pub(crate) struct SimLedger {
    pub(crate) sim: Arc<Sim>,
    pub(crate) gateway: usize,
}

impl SimLedger {
    async fn step(&self, command: Command) -> Result<Outcome, LedgerError> {
        self.sim.ask(self.gateway, Ask::Step(command)).await
    }
}

impl Ledger for SimLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        match self.step(Command::Reserve(hold.clone())).await? {
            Outcome::Reserve(answer) => answer.map_err(LedgerError::Refused),
            other => unreachable!("RESERVE is not answered {other:?}"),
        }
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let command = Command::Settle {
            number: settlement.number,
            account: settlement.account.clone(),
            key: settlement.key.clone(),
            cost: settlement.cost,
            fresh: settlement.fresh,
        };
        match self.step(command).await? {
            Outcome::Settled(settled) => Ok(settled),
            other => unreachable!("SETTLE is not answered {other:?}"),
        }
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        _: &KeyId,
    ) -> Result<(), LedgerError> {
        let account = account.clone();
        self.step(Command::Release { number, account })
            .await
            .map(drop)
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        let command = Command::Extend {
            number,
            account: account.clone(),
            ttl,
        };
        match self.step(command).await? {
            Outcome::Extended(stood) => Ok(stood),
            other => unreachable!("EXTEND is not answered {other:?}"),
        }
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        let command = Command::Probe {
            account: account.clone(),
            key: key.clone(),
        };
        match self.step(command).await? {
            Outcome::Probe(answer) => answer.map_err(LedgerError::Refused),
            other => unreachable!("PROBE is not answered {other:?}"),
        }
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        match self.sim.ask(self.gateway, Ask::Expire).await? {
            Outcome::Expired(count) => Ok(count),
            other => unreachable!("EXPIRE is not answered {other:?}"),
        }
    }
}

impl fmt::Debug for SimLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLedger")
            .field("gateway", &self.gateway)
            .finish_non_exhaustive()
    }
}
