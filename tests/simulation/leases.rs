//! Leases in a simulated run: the clocks of the gateways, the rules that a sabotage removes from the ledger, and checks
//! of every grant.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    reserve::ledger::{Adjusted, Adjustment, Hold, LedgerError, Reserved},
};
use tollgate_ledger::leases::{
    LeaseLedger, LeaseSettings, LeaseSource, Leases, Now, Turn, TurnAnswer, Word, model::Rule,
};
use uuid::Uuid;

use crate::{
    ledger::SimLedger,
    plan::{EPOCH_MS, Kind, Ms},
    random::Random,
    server::{Answer, Ask},
    world::{Sabotage, Sim},
};

/// The maximum drift between two clocks during a lease, plus the travel time of messages.
const SLACK_MS: Ms = 25;
/// The largest jump of a gateway's clock, forwards or backwards.
const CLOCK_JUMP_MS: i64 = 3_600_000;

/// The settings of the leases in a run.
#[derive(Clone, Debug)]
pub(crate) struct LeasePlan {
    /// How long a lease may grant holds after a turn, in milliseconds.
    pub(crate) max: Ms,
    clocks: Vec<GatewayClock>,
    /// The shortest travel time of a gateway's message, in either direction.
    pub(crate) far: Ms,
}

/// The clock of one gateway.
#[derive(Clone, Debug)]
struct GatewayClock {
    /// How long a second of this clock is on the clock of the run, in thousandths.
    rate: u64,
    ahead: i64,
    jumps: Vec<(Ms, i64)>,
}

impl LeasePlan {
    pub(crate) fn of(random: &mut Random, kind: Kind, gateways: usize, load: Ms) -> Self {
        let clocks = (0..gateways).map(|_| GatewayClock {
            rate: random.between(990, 1_010),
            ahead: random.between(0, 4_000) as i64 - 2_000,
            jumps: if kind == Kind::Clock && random.chance(700) {
                let by = if random.chance(500) {
                    CLOCK_JUMP_MS
                } else {
                    -CLOCK_JUMP_MS
                };
                vec![(random.between(500, load), by)]
            } else {
                Vec::new()
            },
        });
        Self {
            clocks: clocks.collect(),
            max: random.between(200, 2_000),
            far: if random.chance(300) {
                random.between(20, 150)
            } else {
                0
            },
        }
    }
}

/// The clocks of a gateway, and names for leases and lease turns that depend only on the seed.
struct SimSource {
    sim: Arc<Sim>,
    gateway: usize,
    process: u32,
    named: AtomicU64,
}

impl LeaseSource for SimSource {
    fn now(&self) -> Now {
        let now = self.sim.now();
        let Some(plan) = &self.sim.plan.leases else {
            return Now::default();
        };
        let clock = &plan.clocks[self.gateway];
        let rate = match self.sim.sabotage {
            Some(Sabotage::SlowClock) => 250,
            _ => clock.rate,
        };
        let jumped = clock.jumps.iter().filter(|(at, _)| *at <= now);
        let ahead = clock.ahead + jumped.map(|(_, by)| by).sum::<i64>();
        let steady = now * rate / 1_000;
        Now {
            steady,
            wall: (EPOCH_MS + steady).saturating_add_signed(ahead),
        }
    }

    fn name(&self) -> Uuid {
        let nth = self.named.fetch_add(1, Ordering::Relaxed);
        let parts = [8, self.gateway as u64, u64::from(self.process), nth];
        let random = &mut Random::of(self.sim.plan.seed, &parts);
        let time = u128::from(EPOCH_MS + self.sim.now()) << 80;
        let noise = (u128::from(random.bits()) << 64) | u128::from(random.bits());
        let noise = noise & 0x0000_0000_0000_0FFF_3FFF_FFFF_FFFF_FFFF;
        Uuid::from_u128(time | (7 << 76) | (2 << 62) | noise)
    }
}

/// Returns the leases of a process; `None` if the run has no leases. A key gets a lease with its first call.
pub(crate) fn leases_of(sim: &Arc<Sim>, gateway: usize, process: u32) -> Option<Arc<Leases>> {
    let plan = sim.plan.leases.as_ref()?;
    let settings = LeaseSettings {
        calls_per_second_min: 0,
        ..LeaseSettings::new(Duration::from_millis(plan.max), format!("gateway{gateway}"))
    };
    let source = SimSource {
        sim: Arc::clone(sim),
        gateway,
        process,
        named: AtomicU64::new(0),
    };
    Some(Arc::new(Leases::by(settings, source)))
}

impl LeaseLedger for SimLedger {
    async fn turn(&self, turn: &Turn) -> Result<TurnAnswer, LedgerError> {
        let ask = Ask::Turn(Arc::new(turn.clone()));
        let mut answer = match self.sim.ask(self.gateway, ask).await? {
            Answer::Turn(answer) => answer,
            other => unreachable!("a turn is not answered {other:?}"),
        };
        if self.sim.sabotage == Some(Sabotage::Deaf) {
            if answer.word == Word::Refused {
                answer.word = Word::Done;
            }
            (answer.short, answer.recalled) = (false, false);
        }
        Ok(answer)
    }

    async fn recall(&self, account: &AccountId) -> Result<u64, LedgerError> {
        match self
            .sim
            .ask(self.gateway, Ask::Recall(account.clone()))
            .await?
        {
            Answer::Recalled(count) => Ok(count),
            other => unreachable!("a recall is not answered {other:?}"),
        }
    }

    async fn hold(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.hold_in_ledger(hold).await
    }

    async fn adjust_hold(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.adjust_in_ledger(adjustment).await
    }
}

/// The test's record of leases, with which each grant is checked.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// For each lease, the time of the last turn that allowed grants.
    reported: BTreeMap<RequestNumber, Ms>,
    /// Until this time, a grant is not checked against prohibitions: after a failover or a jump of the ledger's clock,
    /// the ledger may not know that it must wait for a lease.
    unsure_until: Ms,
    /// The accounts and keys that may get no grants, each with the time at which this was acknowledged to an operator.
    forbidden: BTreeMap<(AccountId, Option<KeyId>), Ms>,
    pub(crate) count: u64,
}

impl Grants {
    pub(crate) fn reported(&mut self, turn: &Turn, answer: &TurnAnswer, now: Ms) {
        if answer.word == Word::Done && turn.grants_ms > 0 {
            self.reported.insert(turn.lease, now);
        }
    }

    pub(crate) fn unsure(&mut self, until: Ms) {
        self.unsure_until = self.unsure_until.max(until + SLACK_MS);
    }

    /// Forbids grants on a key or on an account, or allows them again.
    pub(crate) fn forbid(
        &mut self,
        account: &AccountId,
        key: Option<&KeyId>,
        forbidden: bool,
        now: Ms,
    ) {
        let what = (account.clone(), key.cloned());
        if forbidden {
            self.forbidden.insert(what, now);
        } else {
            self.forbidden.remove(&what);
        }
    }

    /// Records that a lease has granted a hold. Returns the breach if the grant was not allowed.
    pub(crate) fn granted(
        &mut self,
        hold: &Hold,
        lease: RequestNumber,
        max: Ms,
        now: Ms,
    ) -> Option<String> {
        self.count += 1;
        let number = hold.number;
        let Some(reported) = self.reported.get(&lease) else {
            return Some(format!(
                "L1 {number}: granted from lease {lease}, which was never open"
            ));
        };
        if now > reported + max + SLACK_MS {
            return Some(format!(
                "L1 {number}: granted from lease {lease} {} ms after its last turn, of {max} ms",
                now - reported
            ));
        }
        let whole = (hold.account.clone(), None);
        let on_key = (hold.account.clone(), Some(hold.key.clone()));
        let since = [whole, on_key]
            .iter()
            .filter_map(|what| self.forbidden.get(what))
            .max()
            .copied();
        since.filter(|_| now > self.unsure_until).map(|since| {
            format!(
                "I12 {number}: granted from lease {lease} on key {}, which an operator knows to be forbidden since {since} ms",
                hold.key
            )
        })
    }
}

/// Returns whether, in runs with faults of this kind, a living gateway must not lose a lease.
pub(crate) const fn keeps_leases(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Calm
            | Kind::Leaving
            | Kind::Lossy
            | Kind::Away
            | Kind::BrokenDisk
            | Kind::Crash
            | Kind::PowerCut
            | Kind::SlowDisk
    )
}

/// Returns whether, in runs with faults of this kind, every lease must be returned at the end.
pub(crate) const fn gives_all_back(kind: Kind) -> bool {
    matches!(kind, Kind::Calm | Kind::Leaving | Kind::BrokenDisk)
}

impl Sabotage {
    /// Returns the rule that this sabotage removes from the ledger.
    pub(crate) const fn rule(self) -> Option<Rule> {
        Some(match self {
            Self::EndTwice => Rule::EndOnce,
            Self::TurnTwice => Rule::TurnOnce,
            Self::Unfenced => Rule::Fence,
            Self::PaysNothing => Rule::PaysItsOwn,
            Self::KeepsWhatItPaid => Rule::Paid,
            Self::KeepsWhatItGave => Rule::GivenBack,
            Self::GrantsForbidden => Rule::Forbidden,
            Self::Unheard => Rule::AnswerReceived,
            Self::LeasesLimited => Rule::CallsLimited,
            Self::RaisesBeyond => Rule::RaiseFits,
            Self::RaisesForbidden => Rule::RaiseForbidden,
            _ => return None,
        })
    }
}
