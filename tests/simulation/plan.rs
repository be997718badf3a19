//! The plan of a simulated run, drawn from its seed: calls, operators' commands and faults. Also defines which losses
//! each kind of fault may cause.

use std::{fmt, time::Duration};

use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    key::{AccountId, GroupId, KeyId},
    money::MicroRub,
    reserve::{
        book::Command,
        ledger::{Adjustment, Entry, Hold},
    },
};
use uuid::Uuid;

use crate::{
    leases::LeasePlan,
    random::Random,
    vendor::{Finish, OrderPlan, Script, cost},
};

/// A time in milliseconds since the run began.
pub(crate) type Ms = u64;

/// How long a hold lasts. Some calls take longer.
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// How long a gateway waits for a response of the ledger.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// The Unix time at the beginning of a run, on every clock that has not jumped.
pub(crate) const EPOCH_MS: u64 = 1_750_000_000_000;
/// The largest jump of the ledger's clock, in either direction.
const CLOCK_JUMP_MS: i64 = 3_600_000;

/// The kind of faults in a run. It is selected by the seed modulo the number of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Calm,
    Leaving,
    Lossy,
    Away,
    LongAway,
    Partition,
    Failover,
    Clock,
    Crash,
    PowerCut,
    SlowDisk,
    BrokenDisk,
    CrashAndFailover,
    Storm,
}

/// The effects on money that faults of one kind may have. No kind of fault may charge a call twice or make a balance
/// negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allows {
    /// Whether a call may be charged from free money because its hold has expired.
    pub(crate) late: bool,
    /// Whether a call may be charged from free money because the ledger has lost its hold.
    pub(crate) forced: bool,
    /// Whether the books may contain a loss because other calls have spent the money of an expired or lost hold.
    pub(crate) short: bool,
    /// Which charges of dead gateways may be missing from the books.
    pub(crate) lost: Lost,
}

/// Which charges of a dead gateway may be missing from the books. A charge of a living gateway must never be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// No charge may be missing, because no gateway dies.
    Nothing,
    /// Charges may be missing for output that was served after the last checkpoint in the cache of the system. The
    /// cache survives the process.
    SinceCheckpoint,
    /// Charges may be missing of calls in flight, and of calls that ended so recently that the outbox was not synced
    /// yet.
    Unsynced,
    /// Any charge of a dead gateway may be missing, because simultaneous faults may destroy both the ledger's record
    /// and the outbox's record.
    OfTheDead,
}

impl Kind {
    pub(crate) const ALL: [Self; 14] = [
        Self::Calm,
        Self::Leaving,
        Self::Lossy,
        Self::Away,
        Self::LongAway,
        Self::Partition,
        Self::Failover,
        Self::Clock,
        Self::Crash,
        Self::PowerCut,
        Self::SlowDisk,
        Self::BrokenDisk,
        Self::CrashAndFailover,
        Self::Storm,
    ];

    pub(crate) const fn of(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }

    /// Returns whether the gateways take leases in the run of a seed. Every second round of seeds has leases.
    pub(crate) const fn has_leases(seed: u64) -> bool {
        seed / Self::ALL.len() as u64 % 2 == 1
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Leaving => "clients-leave",
            Self::Lossy => "lossy-network",
            Self::Away => "ledger-away",
            Self::LongAway => "ledger-away-past-ttl",
            Self::Partition => "partition",
            Self::Failover => "failover",
            Self::Clock => "clock",
            Self::Crash => "crash",
            Self::PowerCut => "power-cut",
            Self::SlowDisk => "slow-disk-and-crash",
            Self::BrokenDisk => "broken-disk",
            Self::CrashAndFailover => "crash-and-failover",
            Self::Storm => "storm",
        }
    }

    /// Returns the effects that faults of this kind may have.
    pub(crate) const fn allows(self) -> Allows {
        let (late, forced, short, lost) = match self {
            // Every hold lasts as long as its call, so every call is charged from its own hold.
            Self::Calm | Self::Leaving | Self::Lossy | Self::Away | Self::BrokenDisk => {
                (false, false, false, Lost::Nothing)
            }
            // While the ledger is unreachable, no hold can be extended or settled, so holds expire.
            Self::LongAway | Self::Partition | Self::Clock => (true, false, true, Lost::Nothing),
            // The failover loses the newest holds and charges. The gateways' replay sends the charges again.
            Self::Failover => (true, true, true, Lost::Nothing),
            // A dead gateway cannot extend its holds, so they expire.
            Self::Crash | Self::SlowDisk => (true, false, true, Lost::SinceCheckpoint),
            Self::PowerCut => (true, false, true, Lost::Unsynced),
            Self::CrashAndFailover => (true, true, true, Lost::SinceCheckpoint),
            Self::Storm => (true, true, true, Lost::OfTheDead),
        };
        Allows {
            late,
            forced,
            short,
            lost,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The plan of a simulated run, drawn from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    pub(crate) gateways: usize,
    pub(crate) outbox_calls_max: usize,
    /// The commands that prepare the books before the first call.
    pub(crate) opening: Vec<Command>,
    pub(crate) calls: Vec<CallPlan>,
    pub(crate) operator: Vec<(Ms, Command)>,
    pub(crate) network: Network,
    pub(crate) disk: DiskPlan,
    /// The spans of time in which the ledger does not respond.
    pub(crate) away: Vec<Window>,
    /// The gateways that cannot reach the ledger, each with a span of time.
    pub(crate) partitions: Vec<(usize, Window)>,
    /// How long it takes until the replica has a change.
    pub(crate) replica_lag: Ms,
    pub(crate) failovers: Vec<(Ms, Failover)>,
    pub(crate) clock_jumps: Vec<(Ms, i64)>,
    pub(crate) crashes: Vec<(Ms, Crash)>,
    pub(crate) leases: Option<LeasePlan>,
    /// No fault occurs after this time, so that all calls can be settled.
    pub(crate) heal: Ms,
}

/// A span of simulated time: its start is included, its end is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: Ms,
    pub(crate) until: Ms,
}

impl Window {
    pub(crate) const fn contains(&self, at: Ms) -> bool {
        self.from <= at && at < self.until
    }
}

/// A call: its time, its caller, and the request that is sent to the vendor.
#[derive(Clone, Debug)]
pub(crate) struct CallPlan {
    pub(crate) at: Ms,
    pub(crate) gateway: usize,
    pub(crate) number: RequestNumber,
    pub(crate) account: AccountId,
    pub(crate) key: KeyId,
    pub(crate) order: OrderPlan,
    /// The time from the start of the call to the client disconnect; `None` if the client stays.
    pub(crate) leaves_after: Option<Ms>,
}

/// The probabilities of message faults between gateways and ledger, in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    pub(crate) slow: u64,
    pub(crate) slow_ms_max: Ms,
}

/// The properties of the gateways' disks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskPlan {
    /// The longest time until the line about a call's end reaches the cache of the system.
    pub(crate) ending_ms_max: Ms,
    /// The longest time until any other line reaches the cache of the system.
    pub(crate) write_ms_max: Ms,
    pub(crate) sync_ms_max: Ms,
    /// The gateway whose disk stops accepting writes, and the time at which it does.
    pub(crate) breaks: Option<(usize, Ms)>,
}

/// A failover, at which the replica becomes the ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failover {
    /// Commands that the old primary executed this long before the failover, or later, are lost, unless the replica has
    /// them.
    pub(crate) drops: Ms,
    /// The gateway that still uses the old primary after the failover, and for how long.
    pub(crate) split: Option<(usize, Ms)>,
}

/// The death of a gateway's process, and the time of its restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crash {
    pub(crate) gateway: usize,
    /// Whether the machine loses power as well, so that lines that are not on the disk are lost.
    pub(crate) power: bool,
    pub(crate) restart: Ms,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let kind = Kind::of(seed);
        let random = &mut Random::of(seed, &[0]);
        let gateways = 1 + random.index(3);
        let load = random.between(6_000, 18_000);
        let with_leases = Kind::has_leases(seed);
        let mut accounts = accounts(random);
        if with_leases {
            enrich(&mut Random::of(seed, &[7]), &mut accounts);
        }
        let opening = opening(&accounts);
        let mut operator = operator(random, &accounts, load);
        let leaving = match kind {
            Kind::Calm => 0,
            Kind::Leaving => 600,
            _ => 120,
        };
        let many = &mut Random::of(seed, &[1]);
        let mut calls = if with_leases {
            trains(many, &accounts, gateways, load, leaving)
        } else {
            calls(many, &accounts, gateways, load, leaving)
        };
        if with_leases {
            let greedy = greedy_calls(&mut Random::of(seed, &[10]), gateways, &calls);
            calls.extend(greedy);
            operator.extend(between_calls(
                &mut Random::of(seed, &[9]),
                &accounts,
                &calls,
            ));
            operator.sort_by_key(|(at, _)| *at);
        }
        let mut plan = Self {
            seed,
            kind,
            gateways,
            outbox_calls_max: 100_000,
            opening,
            calls,
            operator,
            network: Network {
                lost: 0,
                twice: 0,
                slow: 0,
                slow_ms_max: 0,
            },
            disk: DiskPlan {
                ending_ms_max: 2,
                write_ms_max: 10,
                sync_ms_max: 10,
                breaks: None,
            },
            away: Vec::new(),
            partitions: Vec::new(),
            replica_lag: 0,
            failovers: Vec::new(),
            clock_jumps: Vec::new(),
            crashes: Vec::new(),
            leases: with_leases
                .then(|| LeasePlan::of(&mut Random::of(seed, &[9]), kind, gateways, load)),
            heal: load,
        };
        plan.faults(&mut Random::of(seed, &[2]), load);
        plan
    }

    fn faults(&mut self, random: &mut Random, load: Ms) {
        let at = |random: &mut Random| random.between(500, load);
        match self.kind {
            Kind::Calm | Kind::Leaving => {}
            Kind::Lossy => self.lossy(random),
            Kind::Away => {
                for _ in 0..random.between(1, 2) {
                    let from = at(random);
                    // With this kind of faults, there are at most two short interruptions, because a hold must survive
                    // both together.
                    let until = from + random.between(100, 4_000);
                    self.away.push(Window { from, until });
                }
            }
            Kind::LongAway => {
                let from = at(random);
                let until = from + random.between(5_000, 50_000);
                self.away.push(Window { from, until });
            }
            Kind::Partition => self.partition(random, load),
            Kind::Failover => {
                for _ in 0..random.between(1, 2) {
                    self.failover(random, load, true);
                }
            }
            Kind::Clock => {
                self.clock(random, load);
                if random.chance(500) {
                    self.lossy(random);
                }
            }
            Kind::Crash => {
                for _ in 0..random.between(1, 2) {
                    self.crash(random, load, false);
                }
            }
            Kind::PowerCut => self.crash(random, load, true),
            Kind::SlowDisk => {
                self.slow_disk(random);
                self.crash(random, load, false);
            }
            Kind::BrokenDisk => {
                self.disk.breaks = Some((random.index(self.gateways), at(random)));
            }
            Kind::CrashAndFailover => {
                self.crash(random, load, false);
                self.failover(random, load, false);
            }
            Kind::Storm => self.storm(random, load),
        }
        let ends = [
            self.away.iter().map(|window| window.until).max(),
            self.partitions.iter().map(|(_, window)| window.until).max(),
            self.failovers
                .iter()
                .map(|(at, failover)| at + failover.split.map_or(0, |(_, ms)| ms))
                .max(),
            self.clock_jumps.iter().map(|(at, _)| *at).max(),
            self.crashes.iter().map(|(_, crash)| crash.restart).max(),
        ];
        self.heal = ends.into_iter().flatten().fold(load, Ms::max) + 100;
    }

    fn storm(&mut self, random: &mut Random, load: Ms) {
        if random.chance(500) {
            self.lossy(random);
        }
        if random.chance(400) {
            let from = random.between(500, load);
            let until = from + random.between(100, 40_000);
            self.away.push(Window { from, until });
        }
        if random.chance(400) {
            self.partition(random, load);
        }
        if random.chance(500) {
            self.failover(random, load, true);
        }
        if random.chance(300) {
            self.clock(random, load);
        }
        for _ in 0..random.between(0, 3) {
            let power = random.chance(300);
            self.crash(random, load, power);
        }
        if random.chance(300) {
            self.slow_disk(random);
        }
        // A small outbox cannot keep all acknowledged calls for a replay, so a failover could lose some of them.
        // Therefore only runs without a failover get a small outbox.
        if self.failovers.is_empty() && random.chance(300) {
            self.outbox_calls_max = random.between(1, 4) as usize;
        }
    }

    const fn lossy(&mut self, random: &mut Random) {
        self.network = Network {
            lost: random.between(10, 60),
            twice: random.between(0, 100),
            slow: random.between(0, 60),
            slow_ms_max: random.between(500, 3_000),
        };
    }

    const fn slow_disk(&mut self, random: &mut Random) {
        self.disk.ending_ms_max = random.between(5, 200);
        self.disk.write_ms_max = random.between(20, 500);
        self.disk.sync_ms_max = random.between(100, 1_500);
    }

    fn partition(&mut self, random: &mut Random, load: Ms) {
        let from = random.between(500, load);
        let until = from + random.between(300, 50_000);
        self.partitions
            .push((random.index(self.gateways), Window { from, until }));
    }

    /// Plans a failover. The lost time and the duration of the split together must not exceed the replay window.
    fn failover(&mut self, random: &mut Random, load: Ms, may_split: bool) {
        let at = random.between(1_000, load);
        let lag = if random.chance(400) {
            random.between(0, 500)
        } else {
            random.between(500, 25_000)
        };
        // The run has a single replication delay, the longest of its failovers. Operators' commands wait that long for
        // the replica.
        self.replica_lag = self.replica_lag.max(lag);
        let drops = random.between(0, lag);
        let split = (may_split && random.chance(250))
            .then(|| (random.index(self.gateways), random.between(500, 20_000)));
        self.failovers.push((at, Failover { drops, split }));
        self.away.push(Window {
            from: at,
            until: at + random.between(100, 4_000),
        });
    }

    fn clock(&mut self, random: &mut Random, load: Ms) {
        for _ in 0..random.between(1, 2) {
            let by = if random.chance(500) {
                CLOCK_JUMP_MS
            } else {
                -CLOCK_JUMP_MS
            };
            self.clock_jumps.push((random.between(500, load), by));
        }
    }

    fn crash(&mut self, random: &mut Random, load: Ms, power: bool) {
        let at = random.between(200, load);
        let crash = Crash {
            gateway: random.index(self.gateways),
            power,
            restart: at + random.between(50, 15_000),
        };
        self.crashes.push((at, crash));
    }
}

struct AccountPlan {
    id: AccountId,
    balance: MicroRub,
    keys: Vec<KeyPlan>,
    /// The ceiling of the group that contains all keys of the account; `None` if there is no group.
    group: Option<MicroRub>,
    /// The maximum number of open calls of one of the account's keys.
    concurrency: Option<u32>,
}

#[derive(Clone)]
struct KeyPlan {
    id: KeyId,
    ceiling: Option<MicroRub>,
    enabled: bool,
}

fn accounts(random: &mut Random) -> Vec<AccountPlan> {
    (0..random.between(1, 3))
        .map(|account| AccountPlan {
            id: format!("a{account}").parse().expect("a good id"),
            balance: cost(random.between(150, 2_500)),
            keys: (0..random.between(1, 2))
                .map(|key| KeyPlan {
                    id: format!("k{account}{key}").parse().expect("a good id"),
                    ceiling: random.chance(300).then(|| cost(random.between(100, 1_500))),
                    enabled: true,
                })
                .collect(),
            group: random.chance(300).then(|| cost(random.between(100, 1_500))),
            concurrency: random.chance(200).then(|| random.between(1, 8) as u32),
        })
        .collect()
}

fn opening(accounts: &[AccountPlan]) -> Vec<Command> {
    let mut commands = Vec::new();
    for account in accounts {
        commands.push(Command::SetAccount {
            account: account.id.clone(),
            suspended: false,
        });
        commands.push(Command::Enter {
            account: account.id.clone(),
            entry: entry("opening".into(), account.balance),
        });
        commands.extend(account.keys.iter().map(|key| set_key(&account.id, key)));
        let group = account.group.map(|ceiling| {
            let group: GroupId = "all".parse().expect("a good id");
            commands.push(Command::SetGroup {
                account: account.id.clone(),
                group: group.clone(),
                ceilings: Ceilings {
                    total: Some(ceiling),
                    ..Ceilings::NONE
                },
            });
            group
        });
        commands.extend(account.keys.iter().map(|key| Command::Bind {
            account: account.id.clone(),
            key: key.id.clone(),
            group: group.clone(),
            concurrency: account.concurrency,
        }));
    }
    commands
}

fn operator(random: &mut Random, accounts: &[AccountPlan], load: Ms) -> Vec<(Ms, Command)> {
    let mut times: Vec<Ms> = (0..random.between(0, 6))
        .map(|_| random.between(200, load))
        .collect();
    times.sort_unstable();
    let mut keys: Vec<Vec<KeyPlan>> = accounts
        .iter()
        .map(|account| account.keys.clone())
        .collect();
    times
        .into_iter()
        .enumerate()
        .map(|(step, at)| {
            let account = random.index(accounts.len());
            let id = accounts[account].id.clone();
            let key = random.index(keys[account].len());
            let key = &mut keys[account][key];
            let command = match random.index(8) {
                0..3 => {
                    let amount = cost(random.between(100, 800));
                    Command::Enter {
                        account: id,
                        entry: entry(format!("payment-{step}"), amount),
                    }
                }
                3 => {
                    let amount = cost(random.between(10, 300)).negated();
                    Command::Enter {
                        account: id,
                        entry: entry(format!("correction-{step}"), amount),
                    }
                }
                4 => {
                    key.ceiling = random.chance(700).then(|| cost(random.between(20, 1_500)));
                    set_key(&id, key)
                }
                5 => Command::SetAccount {
                    account: id,
                    suspended: random.chance(400),
                },
                _ => {
                    key.enabled = !key.enabled;
                    set_key(&id, key)
                }
            };
            (at, command)
        })
        .collect()
}

/// Plans that an operator disables a key while calls with this key arrive, and enables the key again some time later.
fn between_calls(
    random: &mut Random,
    accounts: &[AccountPlan],
    calls: &[CallPlan],
) -> Vec<(Ms, Command)> {
    let mut commands = Vec::new();
    for _ in 0..random.between(0, 3) {
        let call = &calls[random.index(calls.len())];
        let at = call.at + random.between(0, 100);
        let of_account = accounts.iter().find(|account| account.id == call.account);
        let mut keys = of_account.into_iter().flat_map(|account| &account.keys);
        let Some(key) = keys.find(|key| key.id == call.key) else {
            continue;
        };
        for (at, enabled) in [(at, false), (at + random.between(300, 2_000), true)] {
            let key = KeyPlan {
                enabled,
                ..key.clone()
            };
            commands.push((at, set_key(&call.account, &key)));
        }
    }
    commands
}

fn entry(id: String, amount: MicroRub) -> Entry {
    Entry {
        id,
        amount,
        reason: (amount < MicroRub::ZERO).then(|| "correction".into()),
    }
}

fn set_key(account: &AccountId, key: &KeyPlan) -> Command {
    Command::SetKey {
        account: account.clone(),
        key: key.id.clone(),
        ceilings: Ceilings {
            total: key.ceiling,
            ..Ceilings::NONE
        },
        enabled: key.enabled,
    }
}

fn calls(
    random: &mut Random,
    accounts: &[AccountPlan],
    gateways: usize,
    load: Ms,
    leaving: u64,
) -> Vec<CallPlan> {
    let mut calls = Vec::new();
    let many = random.between(5, 16) as usize;
    while calls.len() < many {
        // Calls arrive alone, or several at the same moment. In some cases the account does not have enough money for
        // all of them.
        let at = random.between(0, load);
        let together = if random.chance(250) {
            random.between(2, 6)
        } else {
            1
        };
        let account = &accounts[random.index(accounts.len())];
        for _ in 0..together {
            let order = order(random);
            let lasts = order.script.lasts();
            calls.push(CallPlan {
                at,
                gateway: random.index(gateways),
                number: number(random, at),
                account: account.id.clone(),
                key: account.keys[random.index(account.keys.len())].id.clone(),
                leaves_after: random
                    .chance(leaving)
                    .then(|| random.between(0, lasts + 20)),
                order,
            });
        }
    }
    calls
}

/// In runs with leases, gives most accounts money for many calls, and some accounts money for few calls.
fn enrich(random: &mut Random, accounts: &mut [AccountPlan]) {
    for account in accounts {
        let times = |random: &mut Random, amount: MicroRub| {
            let times = random.between(4, 60) as i64;
            MicroRub::new(amount.micro().saturating_mul(times))
        };
        if random.chance(750) {
            account.balance = times(random, account.balance);
            for key in &mut account.keys {
                key.ceiling = key.ceiling.map(|ceiling| times(random, ceiling));
            }
            account.group = account.group.map(|ceiling| times(random, ceiling));
        }
    }
}

/// Plans a series of calls with one key, mostly at one gateway.
fn trains(
    random: &mut Random,
    accounts: &[AccountPlan],
    gateways: usize,
    load: Ms,
    leaving: u64,
) -> Vec<CallPlan> {
    let mut calls = Vec::new();
    for _ in 0..random.between(2, 8) {
        let account = &accounts[random.index(accounts.len())];
        let key = account.keys[random.index(account.keys.len())].id.clone();
        let home = random.index(gateways);
        let (mut at, apart) = (random.between(0, load), random.between(1, 400));
        for _ in 0..random.between(3, 14) {
            let order = order(random);
            let lasts = order.script.lasts();
            calls.push(CallPlan {
                at,
                gateway: if random.chance(800) {
                    home
                } else {
                    random.index(gateways)
                },
                number: number(random, at),
                account: account.id.clone(),
                key: key.clone(),
                leaves_after: random
                    .chance(leaving)
                    .then(|| random.between(0, lasts + 20)),
                order,
            });
            at += random.between(0, apart);
        }
    }
    calls
}

/// Plans calls that hold all free money of their account while other calls are in flight. The holds of the other calls
/// then cannot grow.
fn greedy_calls(random: &mut Random, gateways: usize, calls: &[CallPlan]) -> Vec<CallPlan> {
    let mut greedy = Vec::new();
    for _ in 0..random.between(0, 2) {
        let other = &calls[random.index(calls.len())];
        let at = other.at + random.between(0, 600);
        greedy.push(CallPlan {
            at,
            gateway: random.index(gateways),
            number: number(random, at),
            leaves_after: None,
            order: OrderPlan {
                output_tokens_max: 1_000_000,
                output_tokens_min: 1,
                slice_tokens: None,
                ..order(random)
            },
            ..other.clone()
        });
    }
    greedy
}

fn order(random: &mut Random) -> OrderPlan {
    let output_tokens_max = random.between(20, 200);
    let least = if random.chance(500) {
        output_tokens_max
    } else {
        random.between(5, 20)
    };
    // Some calls take longer than a hold lasts if it is not extended.
    let frame_ms_max = match random.index(20) {
        0 => 5_000,
        1..8 => 800,
        _ => 150,
    };
    let frames = (0..random.between(1, 10))
        .map(|_| (random.between(0, frame_ms_max), random.between(1, 30)))
        .collect();
    let finish = match random.index(10) {
        0..4 => Finish::Plain,
        4..6 => Finish::WithLastFrame,
        6 | 7 => Finish::UsageLater(random.between(1, 1_500)),
        8 => Finish::Cut,
        _ => Finish::Overrun,
    };
    OrderPlan {
        input_tokens: random.between(5, 100),
        output_tokens_max,
        output_tokens_min: least,
        finish_without_client: random.chance(400),
        slice_tokens: random.chance(500).then(|| random.between(5, 60)),
        script: Script {
            head_ms: random.between(0, 600),
            refuses: random.chance(60),
            frames,
            finish,
        },
    }
}

/// Creates a request number: a UUIDv7 from the clock of the run and the randomness of the seed.
fn number(random: &mut Random, at: Ms) -> RequestNumber {
    let time = u128::from(EPOCH_MS + at) << 80;
    let noise = (u128::from(random.bits()) << 64) | u128::from(random.bits());
    let noise = noise & 0x0000_0000_0000_0FFF_3FFF_FFFF_FFFF_FFFF;
    let version: u128 = (7 << 76) | (2 << 62);
    RequestNumber::from_uuid(Uuid::from_u128(time | version | noise))
}

/// Returns the random bits of a request number, by which the random generators of the run identify the call.
pub(crate) fn bits_of(number: RequestNumber) -> u64 {
    number.uuid().as_u128() as u64
}

/// Returns the account of a command, and the request number of its call if it has one.
pub(crate) const fn about(command: &Command) -> (&AccountId, Option<RequestNumber>) {
    match command {
        Command::Reserve(Hold {
            account, number, ..
        })
        | Command::Settle {
            account, number, ..
        }
        | Command::Release { account, number }
        | Command::Extend {
            account, number, ..
        }
        | Command::Adjust(Adjustment {
            account, number, ..
        }) => (account, Some(*number)),
        Command::SetAccount { account, .. }
        | Command::SetKey { account, .. }
        | Command::SetGroup { account, .. }
        | Command::Bind { account, .. }
        | Command::Enter { account, .. }
        | Command::Probe { account, .. }
        | Command::Expire { account, .. } => (account, None),
    }
}
