//! The ledger as a gateway's process reaches it: over the simulated network, with a timeout.

use std::{fmt, sync::Arc, time::Duration};

use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    reserve::{
        book::{Command, Outcome},
        ledger::{Adjusted, Adjustment, Hold, Ledger, LedgerError, Reserved, Settled, Settlement},
    },
};
use tollgate_ledger::leases::{self, LeaseLedger, Leases, Turn};

use crate::{
    server::{Answer, Ask},
    world::{Sim, lock},
};

/// The connection of a process to the ledger's server.
pub(crate) struct SimLedger {
    pub(crate) sim: Arc<Sim>,
    pub(crate) gateway: usize,
    pub(crate) leases: Option<Arc<Leases>>,
}

impl SimLedger {
    async fn step(&self, command: Command) -> Result<Outcome, LedgerError> {
        self.outcome(Ask::Step(command)).await
    }

    async fn outcome(&self, ask: Ask) -> Result<Outcome, LedgerError> {
        match self.sim.ask(self.gateway, ask).await? {
            Answer::Step(outcome) => Ok(outcome),
            other => unreachable!("a step is not answered {other:?}"),
        }
    }

    pub(crate) async fn hold_in_ledger(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        match self.step(Command::Reserve(hold.clone())).await? {
            Outcome::Reserve(answer) => answer.map_err(LedgerError::Refused),
            other => unreachable!("RESERVE is not answered {other:?}"),
        }
    }

    pub(crate) async fn adjust_in_ledger(
        &self,
        adjustment: &Adjustment,
    ) -> Result<Adjusted, LedgerError> {
        match self.step(Command::Adjust(adjustment.clone())).await? {
            Outcome::Adjust(answer) => answer.map_err(LedgerError::Refused),
            other => unreachable!("ADJUST is not answered {other:?}"),
        }
    }
}

impl Ledger for SimLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let Some(leases) = &self.leases else {
            return self.hold_in_ledger(hold).await;
        };
        let reserved = leases::reserve(self, Some(leases), hold).await?;
        if let (Some(lease), Some(plan)) = (
            leases.lease_of(hold.number, &hold.key),
            &self.sim.plan.leases,
        ) {
            let now = self.sim.now();
            lock(&self.sim.server).lease_granted(now, hold, lease, plan.max);
        }
        Ok(reserved)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        if let Some(leases) = &self.leases
            && let Some(settled) = leases.settle(settlement).await
        {
            return settled;
        }
        if let Some(lease) = settlement.lease {
            let answer = self.turn(&Turn::report(lease, settlement)).await?;
            return Ok(answer.ends[0]);
        }
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
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        let leases = self.leases.as_ref();
        if leases.is_some_and(|leases| leases.release(number, key)) {
            return Ok(());
        }
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
        let leases = self.leases.as_ref();
        if leases.is_some_and(|leases| leases.extend(number, account, ttl)) {
            return Ok(true);
        }
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

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        leases::adjust(self, self.leases.as_deref(), adjustment).await
    }

    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        self.leases.as_ref()?.lease_of(number, key)
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
        match self.outcome(Ask::Expire).await? {
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
