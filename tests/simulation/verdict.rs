//! The verdict on a simulated run: compares the vendor's log with the books, and checks the books themselves.

use tollgate_layers::{money::MicroRub, reserve::ledger::Booked};

use crate::{
    plan::{ASK_TIMEOUT, Kind, Lost, Ms, Plan},
    server::{Books, Charge},
    vendor::cost,
    world::{Call, Sim, lock},
};

/// The interval at which the settler records checkpoints of calls in flight.
const TEND_MS: Ms = 1_000;
/// An allowance for messages and scheduling, in addition to the times in the plan.
const SLACK_MS: Ms = 100;

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) kind: Kind,
    /// The number of calls that reached a gateway.
    pub(crate) calls: u64,
    /// The number of calls for which a vendor worked.
    pub(crate) served: u64,
    /// The number of holds that leases have granted.
    pub(crate) leased: u64,
    pub(crate) late: u64,
    pub(crate) forced: u64,
    /// The losses in the books, in micro-rubles, of calls whose hold had expired or was lost.
    pub(crate) short: i64,
    /// The amount that dead gateways have not charged, in micro-rubles.
    pub(crate) lost: i64,
    /// The number of calls that were charged twice.
    pub(crate) double: u64,
    /// The number of balances below zero.
    pub(crate) negative: u64,
    pub(crate) breaches: Vec<String>,
    pub(crate) hash: u64,
}

/// Makes all comparisons. Before that, every call must be settled, and every hold must have expired.
pub(crate) fn judge(sim: &Sim) -> Verdict {
    let mut verdict = Verdict {
        kind: sim.plan.kind,
        calls: 0,
        served: 0,
        leased: 0,
        late: 0,
        forced: 0,
        short: 0,
        lost: 0,
        double: 0,
        negative: 0,
        breaches: sim.breaches(),
        hash: 0,
    };
    let server = lock(&sim.server);
    verdict.breaches.extend(server.breaches.iter().cloned());
    verdict.leased = server.grants.count;
    let books = server.books();
    verdict.calls(sim, books);
    verdict.accounts(sim, books);
    drop(server);
    for breach in &verdict.breaches {
        sim.note(|| format!("verdict  {breach}"));
    }
    verdict.hash = sim.trace.hash();
    verdict
}

impl Verdict {
    fn calls(&mut self, sim: &Sim, books: &Books) {
        let calls = lock(&sim.calls);
        let crashed = lock(&sim.crashed);
        self.calls = calls.len() as u64;
        for (number, call) in &*calls {
            self.served += u64::from(call.dispatched);
            let charges = books
                .charges
                .get(number)
                .map_or::<&[Charge], _>(&[], Vec::as_slice);
            if charges.len() > 1 {
                self.double += 1;
                self.breach(format!("I5 {number}: charged twice: {charges:?}"));
            }
            let booked: i64 = charges.iter().map(|charge| charge.cost.micro()).sum();
            let owed = owed(call).micro();
            let died = crashed
                .get(&(call.gateway, call.process))
                .map(|(at, power)| {
                    // If the machine loses power later, lines that an earlier process has not synced are lost as well.
                    let later = crashed.iter().any(|((gateway, _), (cut, power))| {
                        *gateway == call.gateway && *power && cut >= at
                    });
                    (*at, *power || later)
                });
            let (least, why) = match died {
                None => (owed, "its gateway lived".to_owned()),
                Some((at, power)) => (
                    self.least_of_the_dead(&sim.plan, call, at, power).micro(),
                    format!("its gateway died at {at} ms, power cut: {power}"),
                ),
            };
            if booked > owed || booked < least {
                self.breach(format!(
                    "I7 {number}: booked {booked} µ₽ of {owed}, at least {least}, {why}: {call:?}"
                ));
            }
            self.lost += (owed - booked).max(0);
            for charge in charges {
                self.charge(charge, call);
            }
        }
        for number in books.charges.keys() {
            if !calls.contains_key(number) {
                self.breach(format!("I9 {number}: charged, and nobody called"));
            }
        }
    }

    /// Returns the minimum that must be charged for a call whose gateway died at `at`.
    fn least_of_the_dead(&self, plan: &Plan, call: &Call, at: Ms, power: bool) -> MicroRub {
        let lost = self.kind.allows().lost;
        let owed = owed(call);
        let (disk, fell_over) = (plan.disk, !plan.failovers.is_empty());
        let ended_for = |ms: Ms| call.ended.is_some_and(|ended| ended + ms < at);
        let write_ms = disk.write_ms_max.max(disk.ending_ms_max);
        // A failover may lose an acknowledged charge, and another fault may lose the outbox's record of this charge.
        if lost == Lost::OfTheDead && fell_over {
            return MicroRub::ZERO;
        }
        // An acknowledged charge is in the ledger, or it is in the outbox and the next process sends it again.
        let written = ended_for(write_ms + 1);
        if call.reported.is_some_and(|reported| reported < at) && (written || !fell_over) {
            return owed;
        }
        if power {
            let requested = u64::try_from(ASK_TIMEOUT.as_millis()).unwrap_or(Ms::MAX);
            let window = requested + disk.write_ms_max + disk.sync_ms_max + SLACK_MS;
            return if ended_for(window) {
                owed
            } else {
                MicroRub::ZERO
            };
        }
        if written {
            return owed;
        }
        let checkpoint = at.saturating_sub(TEND_MS + write_ms + SLACK_MS);
        let mark = call.marks.iter().rev().find(|(ms, _)| *ms <= checkpoint);
        mark.map_or(MicroRub::ZERO, |(_, tokens)| cost(*tokens))
    }

    fn charge(&mut self, charge: &Charge, call: &Call) {
        let allows = self.kind.allows();
        let Charge { settled, .. } = charge;
        if settled.charged.plus_or_max(settled.loss) != charge.cost {
            self.breach(format!("I3 a cost is not charge and loss: {charge:?}"));
        }
        if charge.held.is_some_and(|held| held < call.held) && !allows.forced {
            self.breach(format!(
                "I2 a hold is smaller than its gateway knows: {charge:?} {call:?}"
            ));
        }
        // In every run, the part of a call's cost that exceeds its hold may be a loss.
        let beyond = charge.cost.minus_or_zero(call.held);
        let short = match settled.booked {
            Booked::Late => {
                self.late += 1;
                if !allows.late {
                    self.breach(format!("a hold was let expire: {charge:?} {call:?}"));
                }
                settled.loss
            }
            Booked::Forced => {
                self.forced += 1;
                if !allows.forced {
                    self.breach(format!("a hold was lost: {charge:?} {call:?}"));
                }
                settled.loss
            }
            _ => settled.loss.minus_or_zero(beyond),
        };
        if short > MicroRub::ZERO && !allows.short {
            self.breach(format!("its hold did not pay: {charge:?} {call:?}"));
        }
        self.short += short.micro();
    }

    fn accounts(&mut self, sim: &Sim, books: &Books) {
        let audit = books.book.audit();
        if audit.holds_open > 0 {
            self.breach(format!("I8 {} holds outlive their time", audit.holds_open));
        }
        self.breaches.extend(audit.breaches);
        for (id, account) in books.book.accounts() {
            let entered: i64 = books
                .entries
                .iter()
                .filter(|((of, _), _)| of == id)
                .map(|(_, amount)| amount.micro())
                .sum();
            let charged: i64 = books
                .charges
                .values()
                .flatten()
                .filter(|charge| charge.account == *id)
                .map(|charge| charge.settled.charged.micro())
                .sum();
            let balance = account.balance.micro();
            if entered - charged != balance {
                self.breach(format!(
                    "I3 account {id}: entered {entered} less charged {charged} is not {balance} µ₽"
                ));
            }
            if balance < 0 {
                self.negative += 1;
                self.breach(format!("I4 account {id}: a balance of {balance} µ₽"));
            }
            if account.held != MicroRub::ZERO {
                self.breach(format!("I8 account {id}: idle, and {} held", account.held));
            }
        }
        for (account, id, amount) in &*lock(&sim.entered) {
            if books.entries.get(&(account.clone(), id.clone())) != Some(amount) {
                self.breach(format!(
                    "I10 account {account}: entry {id} was acknowledged"
                ));
            }
        }
    }

    fn breach(&mut self, breach: String) {
        self.breaches.push(breach);
    }
}

/// Returns the cost of a call according to the vendor's log: the served output and the input, or only the input if the
/// client disconnected before any output. If the gateway of the call has died, at most this amount may be charged.
fn owed(call: &Call) -> MicroRub {
    if call.dispatched && !call.vendor_refused {
        cost(call.input + call.output)
    } else {
        MicroRub::ZERO
    }
}
