//! A simulated world: the state that its processes share, and the steps of its plan.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::book::{Command, Outcome},
};
use tollgate_ledger::leases;

use crate::{
    disk::Disk,
    gateway::{EXPIRE_EVERY, Process},
    leases::gives_all_back,
    net::{Name, Net, OPERATOR, ms},
    plan::{CallPlan, Crash, Failover, Ms, Plan, about},
    random::Random,
    server::{Answer, Ask, Server},
    trace::{Trace, Tracing},
    vendor::Short,
    verdict::{Verdict, judge},
};

/// The maximum time between the last fault and the settlement of all calls.
const SETTLE_MS_MAX: Ms = 300_000;
/// The interval at which the run checks whether all calls are settled.
const LOOK_MS: Ms = 250;
/// A time that is longer than any hold lasts. At the end, the ledger's clock is moved by this time, so that every hold
/// expires.
const PAST_ALL_HOLDS_MS: i64 = 4 * 3_600_000;
/// The time after which an operator repeats a request that got no response.
const OPERATOR_RETRY_MS: Ms = 1_000;
/// The time after which a gateway that could not reach its ledger tries to start again.
const RESTART_MS: Ms = 1_000;

/// A bug that is put into the ledger or the gateway on purpose, to check that the verdict finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Bug: the ledger deletes a settlement that it has recorded, so that a repeated settlement is charged again.
    SettleTwice,
    /// Bug: the ledger acknowledges some settlements without recording them.
    LoseSettle,
    /// Bug: after a failover, no gateway sends again the settlements that were acknowledged before.
    NoReplay,
    /// Bug: a hold is checked in one step and made in a later step.
    SkipAtomicity,
    /// Bug: if two turns of a lease report the same settlement, the settlement is charged twice.
    EndTwice,
    /// Bug: if a lease turn is sent twice, it is executed twice.
    TurnTwice,
    /// Bug: a lease turn is executed even if it does not name the last turn of its lease.
    Unfenced,
    /// Bug: a lease does not pay for the calls whose holds it has granted.
    PaysNothing,
    /// Bug: money that a lease has paid for a call stays in the lease.
    KeepsWhatItPaid,
    /// Bug: money that a lease has returned is still held.
    KeepsWhatItGave,
    /// Bug: a lease turn gets money although an operator has forbidden it.
    GrantsForbidden,
    /// Bug: an operator's command is acknowledged although an earlier lease turn may still let a gateway grant holds.
    Unheard,
    /// Bug: a key with limited concurrency gets a lease.
    LeasesLimited,
    /// Bug: a gateway continues to grant holds after a lease turn whose response forbids it.
    Deaf,
    /// Bug: the clocks of a gateway are too slow.
    SlowClock,
    /// Bug: an operator's command is acknowledged before the time at which leases can no longer grant holds.
    Hasty,
    /// Bug: a change of a hold is executed although a later change of the same hold was executed before.
    StaleAdjustment,
    /// Bug: the ledger acknowledges some requests for a larger hold, and does not enlarge the hold.
    LoseAdjustment,
    /// Bug: a lease turn enlarges the holds of calls in flight by more money than is free.
    RaisesBeyond,
    /// Bug: a lease turn enlarges the holds of calls in flight although their key is disabled.
    RaisesForbidden,
}

impl Sabotage {
    pub(crate) const ALL: [Self; 20] = [
        Self::SettleTwice,
        Self::LoseSettle,
        Self::NoReplay,
        Self::SkipAtomicity,
        Self::EndTwice,
        Self::TurnTwice,
        Self::Unfenced,
        Self::PaysNothing,
        Self::KeepsWhatItPaid,
        Self::KeepsWhatItGave,
        Self::GrantsForbidden,
        Self::Unheard,
        Self::LeasesLimited,
        Self::Deaf,
        Self::SlowClock,
        Self::Hasty,
        Self::StaleAdjustment,
        Self::LoseAdjustment,
        Self::RaisesBeyond,
        Self::RaisesForbidden,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SettleTwice => "settle-twice",
            Self::LoseSettle => "lose-settle",
            Self::NoReplay => "no-replay",
            Self::SkipAtomicity => "skip-atomicity",
            Self::EndTwice => "end-twice",
            Self::TurnTwice => "turn-twice",
            Self::Unfenced => "unfenced",
            Self::PaysNothing => "pays-nothing",
            Self::KeepsWhatItPaid => "keeps-what-it-paid",
            Self::KeepsWhatItGave => "keeps-what-it-gave",
            Self::GrantsForbidden => "grants-forbidden",
            Self::Unheard => "unheard",
            Self::LeasesLimited => "leases-limited",
            Self::Deaf => "deaf",
            Self::SlowClock => "slow-clock",
            Self::Hasty => "hasty",
            Self::StaleAdjustment => "stale-adjustment",
            Self::LoseAdjustment => "lose-adjustment",
            Self::RaisesBeyond => "raises-beyond",
            Self::RaisesForbidden => "raises-forbidden",
        }
    }
}

/// Runs a seed on this thread, from its first call to the verdict.
pub(crate) fn play(seed: u64, tracing: Tracing, sabotage: Option<Sabotage>) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without sockets needs nothing of the system");
    runtime.block_on(async {
        let sim = Arc::new(Sim::new(Plan::of(seed), tracing, sabotage));
        World::begin(sim).await.play().await
    })
}

/// The state that the parts of a world share.
pub(crate) struct Sim {
    pub(crate) plan: Plan,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) trace: Trace,
    pub(crate) net: Net,
    pub(crate) server: Mutex<Server>,
    pub(crate) disks: Vec<Disk>,
    /// The log of the vendor, by request number.
    pub(crate) calls: Mutex<BTreeMap<RequestNumber, Call>>,
    /// The time at which each dead process died, and whether its machine lost power.
    pub(crate) crashed: Mutex<BTreeMap<(usize, u32), (Ms, bool)>>,
    /// The entries that were acknowledged to operators.
    pub(crate) entered: Mutex<Vec<(AccountId, String, MicroRub)>>,
    operator_done: AtomicBool,
    breaches: Mutex<Vec<String>>,
    began: Instant,
}

/// A call of a gateway, and what the vendor has served for it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) gateway: usize,
    /// The number of the gateway's process that makes the call.
    pub(crate) process: u32,
    pub(crate) began: Ms,
    pub(crate) input: u64,
    /// The amount that the call holds, according to the last response that its gateway has received.
    pub(crate) held: MicroRub,
    pub(crate) dispatched: bool,
    pub(crate) vendor_refused: bool,
    /// The number of output tokens that the vendor has served, by the vendor's count.
    pub(crate) output: u64,
    /// For each time, the number of tokens that were served until then. The input is included.
    pub(crate) marks: Vec<(Ms, u64)>,
    /// The time at which the vendor's work ended.
    pub(crate) ended: Option<Ms>,
    /// Whether the gateway has refused the call, so that nothing is held for it.
    pub(crate) refused: bool,
    /// The time at which a gateway first reported that the ledger has recorded the end of the call.
    pub(crate) reported: Option<Ms>,
}

/// Whether a process is alive. Clones share this state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life(Arc<AtomicBool>);

impl Life {
    pub(crate) fn lasts(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Locks the mutex, even if it is poisoned: a world has only one thread, so its data is consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    fn new(plan: Plan, tracing: Tracing, sabotage: Option<Sabotage>) -> Self {
        let lag = (!plan.failovers.is_empty()).then_some(plan.replica_lag);
        Self {
            trace: Trace::new(tracing),
            net: Net::default(),
            server: Mutex::new(Server::new(&plan.opening, lag)),
            disks: (0..plan.gateways).map(|_| Disk::default()).collect(),
            calls: Mutex::default(),
            crashed: Mutex::default(),
            entered: Mutex::default(),
            operator_done: AtomicBool::new(false),
            breaches: Mutex::default(),
            began: Instant::now(),
            plan,
            sabotage,
        }
    }

    /// Returns the milliseconds since the run began.
    pub(crate) fn now(&self) -> Ms {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(Ms::MAX)
    }

    pub(crate) fn moment(&self, at: Ms) -> Instant {
        self.began + ms(at)
    }

    pub(crate) fn note(&self, line: impl FnOnce() -> String) {
        self.trace.note(self.now(), line);
    }

    pub(crate) fn breach(&self, breach: String) {
        self.note(|| format!("BREACH   {breach}"));
        lock(&self.breaches).push(breach);
    }

    pub(crate) fn breaches(&self) -> Vec<String> {
        lock(&self.breaches).clone()
    }

    /// Returns the number of the ledger's server that a gateway uses now.
    pub(crate) fn epoch(&self, gateway: usize) -> u64 {
        lock(&self.server).epoch(gateway, self.now())
    }

    pub(crate) fn disk_is_broken(&self, gateway: usize) -> bool {
        let breaks = self.plan.disk.breaks;
        breaks.is_some_and(|(broken, at)| broken == gateway && at <= self.now())
    }

    /// Returns how long leases may grant holds after a turn.
    pub(crate) fn lease_max(&self) -> Ms {
        self.plan.leases.as_ref().map_or(0, |leases| leases.max)
    }

    /// Changes the entry of a call in the vendor's log.
    pub(crate) fn log(&self, number: RequestNumber, change: impl FnOnce(&mut Call)) {
        if let Some(call) = lock(&self.calls).get_mut(&number) {
            change(call);
        }
    }

    /// Records that the vendor begins to work on a call.
    pub(crate) fn dispatched(&self, number: RequestNumber) {
        self.note(|| format!("vendor   {} begins", Short(number)));
        if !lock(&self.server).was_granted(number) {
            self.breach(format!("I6 {number}: served without a hold"));
        }
        let breaks = self.plan.disk.breaks;
        let mut unwritten = false;
        self.log(number, |call| {
            call.dispatched = true;
            unwritten =
                breaks.is_some_and(|(gateway, at)| gateway == call.gateway && at < call.began);
        });
        if unwritten {
            self.breach(format!(
                "{number}: served though its outbox could not be written"
            ));
        }
    }

    /// Records that a gateway has reported that the ledger has recorded the end of a call.
    pub(crate) fn reported(&self, number: RequestNumber) {
        let now = self.now();
        self.log(number, |call| {
            call.reported.get_or_insert(now);
        });
    }
}

/// A run that is in progress.
struct World {
    sim: Arc<Sim>,
    processes: Vec<Option<Process>>,
    steps: BTreeMap<(Ms, usize), Step>,
    /// The tasks of the network and of the operator.
    background: JoinSet<()>,
}

#[derive(Clone, Debug)]
enum Step {
    Start(usize),
    Call(Box<CallPlan>),
    Crash(Crash),
    FailOver(Failover),
    SetClock(i64),
}

impl World {
    async fn begin(sim: Arc<Sim>) -> Self {
        let mut background = JoinSet::new();
        let network = Arc::clone(&sim);
        background.spawn(async move { network.deliver().await });
        background.spawn(operate(Arc::clone(&sim)));
        let mut processes = Vec::new();
        for gateway in 0..sim.plan.gateways {
            processes.push(Some(Process::start(&sim, gateway).await));
        }
        let mut world = Self {
            sim,
            processes,
            steps: BTreeMap::new(),
            background,
        };
        world.plan_steps();
        world
    }

    fn plan_steps(&mut self) {
        let sim = Arc::clone(&self.sim);
        let plan = &sim.plan;
        for call in &plan.calls {
            self.later(call.at, Step::Call(Box::new(call.clone())));
        }
        for (at, crash) in &plan.crashes {
            self.later(*at, Step::Crash(*crash));
            self.later(crash.restart, Step::Start(crash.gateway));
        }
        for (at, failover) in &plan.failovers {
            self.later(*at, Step::FailOver(*failover));
        }
        for (at, by) in &plan.clock_jumps {
            self.later(*at, Step::SetClock(*by));
        }
    }

    fn later(&mut self, at: Ms, step: Step) {
        // Steps that are planned for the same moment run in the order in which they were planned.
        let mut place = 0;
        while self.steps.contains_key(&(at, place)) {
            place += 1;
        }
        self.steps.insert((at, place), step);
    }

    async fn play(mut self) -> Verdict {
        while let Some(((at, _), step)) = self.steps.pop_first() {
            sleep_until(self.sim.moment(at)).await;
            self.step(step).await;
        }
        sleep_until(self.sim.moment(self.sim.plan.heal)).await;
        self.sim.note(|| "heal     no more faults".into());
        self.audit();
        let patience = self.sim.now() + SETTLE_MS_MAX;
        while let Some(what) = self.unfinished() {
            if self.sim.now() > patience {
                self.sim.breach(format!("never settled: {what}"));
                break;
            }
            sleep(ms(LOOK_MS)).await;
        }
        self.find_idle_money();
        // The remaining holds belong to no call, so a sweep must end them.
        let now = self.sim.now();
        lock(&self.sim.server).set_clock(now, PAST_ALL_HOLDS_MS, 0);
        // Messages of a distant gateway take longer in both directions, and the gateway may have to repeat them.
        let far = self.sim.plan.leases.as_ref().map_or(0, |leases| leases.far);
        sleep(EXPIRE_EVERY + ms(LOOK_MS + 3 * far)).await;
        for process in self.processes.iter_mut().flatten() {
            process.find_panics();
        }
        while let Some(ended) = self.background.try_join_next() {
            if let Err(error) = ended {
                self.sim.breach(format!("the simulation died: {error}"));
            }
        }
        judge(&self.sim)
    }

    async fn step(&mut self, step: Step) {
        let sim = Arc::clone(&self.sim);
        let now = sim.now();
        match step {
            Step::Start(gateway) => {
                if self.processes[gateway].is_some() {
                    return;
                }
                if sim.reaches(gateway) {
                    self.processes[gateway] = Some(Process::start(&sim, gateway).await);
                } else {
                    self.later(now + RESTART_MS, Step::Start(gateway));
                }
            }
            Step::Call(call) => self.call(*call, now),
            Step::Crash(crash) => self.crash(crash, now),
            Step::FailOver(failover) => {
                sim.note(|| format!("failover {failover:?}"));
                lock(&sim.server).fail_over(now, failover, sim.lease_max(), sim.sabotage);
                self.audit();
            }
            Step::SetClock(by) => {
                sim.note(|| format!("clock    {by} ms"));
                lock(&sim.server).set_clock(now, by, sim.lease_max());
            }
        }
    }

    fn call(&mut self, plan: CallPlan, now: Ms) {
        let Some(process) = &mut self.processes[plan.gateway] else {
            return;
        };
        let call = Call {
            gateway: plan.gateway,
            process: process.number,
            began: now,
            input: plan.order.input_tokens,
            held: MicroRub::ZERO,
            dispatched: false,
            vendor_refused: false,
            output: 0,
            marks: Vec::new(),
            ended: None,
            refused: false,
            reported: None,
        };
        self.sim.note(|| {
            let (number, gateway) = (Short(plan.number), Name(plan.gateway));
            format!("client   {number} calls {gateway} on {}", plan.key)
        });
        lock(&self.sim.calls).insert(plan.number, call);
        process.call(plan);
    }

    fn crash(&mut self, crash: Crash, now: Ms) {
        let Some(process) = self.processes[crash.gateway].take() else {
            return;
        };
        let sim = &self.sim;
        sim.note(|| format!("crash    {crash:?}"));
        lock(&sim.crashed).insert((crash.gateway, process.number), (now, crash.power));
        process.crash();
        let fate = &mut Random::of(sim.plan.seed, &[6, crash.gateway as u64, now]);
        sim.disks[crash.gateway].crash(now, crash.power, fate);
    }

    /// Returns a description of the work that is not finished; `None` if everything is finished.
    fn unfinished(&self) -> Option<String> {
        let sim = &self.sim;
        if !sim.operator_done.load(Ordering::Relaxed) {
            return Some("an operator's request".into());
        }
        for (gateway, process) in self.processes.iter().enumerate() {
            if !process.as_ref().is_some_and(Process::is_idle) {
                return Some(format!("{} is not idle", Name(gateway)));
            }
        }
        let crashed = lock(&sim.crashed);
        let calls = lock(&sim.calls);
        let open = calls.iter().find(|(_, call)| {
            !call.refused
                && call.reported.is_none()
                && !crashed.contains_key(&(call.gateway, call.process))
        });
        if let Some((number, call)) = open {
            return Some(format!("call {} {number}: {call:?}", Short(*number)));
        }
        (!sim.net_is_idle()).then(|| "a message is on its way".into())
    }

    /// Checks that no money is held at the end, if every lease must be returned in this run.
    fn find_idle_money(&self) {
        let sim = &self.sim;
        if sim.plan.leases.is_none() || !gives_all_back(sim.plan.kind) {
            return;
        }
        let server = lock(&sim.server);
        for (id, account) in server.books().book.accounts() {
            if account.held > MicroRub::ZERO {
                sim.breach(format!("I8 account {id}: quiet, and {} held", account.held));
            }
        }
    }

    fn audit(&self) {
        let audit = lock(&self.sim.server).books().book.audit();
        for breach in audit.breaches {
            self.sim.breach(breach);
        }
    }
}

/// Acts as the operator: sends one request after another, and repeats each until it is answered.
async fn operate(sim: Arc<Sim>) {
    for (at, command) in &sim.plan.operator {
        sleep_until(sim.moment(*at)).await;
        let forbids = forbids(command);
        if let (Command::SetKey { key, .. }, Some((_, _, false))) = (command, &forbids) {
            lock(&sim.server).close(key, false);
        }
        if let Some((account, key, false)) = forbids {
            lock(&sim.server)
                .grants
                .forbid(account, key, false, sim.now());
        }
        let outcome = loop {
            let requested = sim.ask(OPERATOR, Ask::Step(command.clone())).await;
            if let Ok(Answer::Step(outcome)) = requested
                && (forbids.is_none() || received(&sim, about(command).0).await)
            {
                break outcome;
            }
            sleep(ms(OPERATOR_RETRY_MS)).await;
        };
        match (command, forbids) {
            (Command::Enter { account, entry }, _) if outcome == Outcome::Done => {
                lock(&sim.entered).push((account.clone(), entry.id.clone(), entry.amount));
            }
            (_, Some((account, key, true))) => {
                let mut server = lock(&sim.server);
                server.grants.forbid(account, key, true, sim.now());
                if let Some(key) = key {
                    server.close(key, true);
                }
            }
            _ => {}
        }
    }
    sim.operator_done.store(true, Ordering::Relaxed);
}

/// Returns the key or the account that an operator's command disables (`true`) or enables again (`false`).
const fn forbids(command: &Command) -> Option<(&AccountId, Option<&KeyId>, bool)> {
    match command {
        Command::SetKey {
            account,
            key,
            enabled,
            ..
        } => Some((account, Some(key), !*enabled)),
        Command::SetAccount { account, suspended } => Some((account, None, *suspended)),
        _ => None,
    }
}

/// Waits, as an operator's gateway does, until the leases that exist now can no longer grant holds. Returns whether the
/// ledger has answered.
async fn received(sim: &Sim, account: &AccountId) -> bool {
    if sim.plan.leases.is_none() || sim.sabotage == Some(Sabotage::Hasty) {
        return true;
    }
    match sim.ask(OPERATOR, Ask::Leases(account.clone())).await {
        Ok(Answer::Leases(now, until)) => {
            sleep(leases::until_heard(now, until)).await;
            true
        }
        _ => false,
    }
}
