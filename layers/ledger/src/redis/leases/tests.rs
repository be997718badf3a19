//! Tests leases and the scripts with random steps: gateways grant holds, answers to lease turns are lost, gateways die,
//! leases are recalled, operators change keys, and the server falls back to older data. `redis-server` must be
//! installed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::*;
use crate::{
    account::KeyId,
    ceiling::Ceilings,
    contract::{
        Booked, GroupRecord, Item, JournalLine, JournalPart, KeyChange, Ledger, LedgerAdmin,
        Settled, Settlement,
    },
    leases::{
        Now, Word,
        lease::{Acknowledged, Lease, NOTHING, Size},
    },
    money::MicroRub,
    number::RequestNumber,
    redis::{RECEIPT_MS, names::account_key, scripts, test_server::Server},
    testing::given::{HOUR, acme, hold, key, micro, record, settlement, topup},
    usage::End,
};

const GATEWAYS: usize = 3;
const KEYS: usize = 2;
const MONEY: i64 = 5_000;
/// How long a lease turn allows its gateway to grant holds, in milliseconds: longer than any test case. Other tests
/// cover expiry.
const GRANTS_MS: u64 = 3_600_000;

#[derive(Clone, Debug)]
enum Step {
    Call {
        gateway: usize,
        key: usize,
        want: i64,
    },
    End {
        gateway: usize,
        nth: usize,
        cost_percent: i64,
    },
    Release {
        gateway: usize,
        nth: usize,
    },
    Turn {
        gateway: usize,
        key: usize,
        free: i64,
        fate: Fate,
    },
    Crash {
        gateway: usize,
    },
    /// Sends a settlement that a dead process has left. It may have been sent before.
    Tell {
        nth: usize,
    },
    Recall,
    Recalled,
    Expire {
        gateway: usize,
        key: usize,
    },
    Enter(i64),
    SetKey {
        key: usize,
        enabled: bool,
        ceiling: Option<i64>,
    },
    /// Limits how many calls of a key may be open.
    Limit {
        key: usize,
        concurrency: Option<u32>,
    },
    /// Sets the ceiling of the group that contains both keys.
    SetGroup(Option<i64>),
    Suspend(bool),
    Remember,
    FallBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The turn did not reach the server.
    LostBefore,
    /// The server carried out the turn, but its answer was lost.
    LostAfter,
}

fn step(faults: bool) -> impl Strategy<Value = Step> {
    let gateway = || 0..GATEWAYS;
    let fate = prop_oneof![
        6 => Just(Fate::Answered),
        1 => Just(Fate::LostBefore),
        1 => Just(Fate::LostAfter),
    ];
    prop_oneof![
        24 => (gateway(), 0..KEYS, 0..120i64).prop_map(|(gateway, key, want)| Step::Call { gateway, key, want }),
        20 => (gateway(), 0..8usize, 0..130i64).prop_map(|(gateway, nth, cost_percent)| Step::End {
            gateway, nth, cost_percent,
        }),
        2 => (gateway(), 0..8usize).prop_map(|(gateway, nth)| Step::Release { gateway, nth }),
        12 => (gateway(), 0..KEYS, prop_oneof![1 => Just(0i64), 3 => 1..800i64], fate).prop_map(
            |(gateway, key, free, fate)| Step::Turn { gateway, key, free, fate }),
        1 => gateway().prop_map(|gateway| Step::Crash { gateway }),
        3 => (0..8usize).prop_map(|nth| Step::Tell { nth }),
        1 => Just(Step::Recall),
        2 => Just(Step::Recalled),
        2 => (-900..900i64).prop_map(Step::Enter),
        1 => (0..KEYS, prop_oneof![4 => Just(true), 1 => Just(false)], proptest::option::of(0..3_000i64))
            .prop_map(|(key, enabled, ceiling)| Step::SetKey { key, enabled, ceiling }),
        1 => (0..KEYS, prop_oneof![3 => Just(None), 1 => (1..4u32).prop_map(Some)])
            .prop_map(|(key, concurrency)| Step::Limit { key, concurrency }),
        1 => proptest::option::of(0..5_000i64).prop_map(Step::SetGroup),
        1 => prop_oneof![5 => Just(false), 1 => Just(true)].prop_map(Step::Suspend),
        1 => (gateway(), 0..KEYS).prop_map(|(gateway, key)| Step::Expire { gateway, key }),
        1 => Just(Step::Remember),
        1 => Just(Step::FallBack),
    ]
    .prop_map(move |step| match step {
        Step::Expire { .. } | Step::Remember | Step::FallBack if !faults => Step::Recalled,
        step => step,
    })
}

type Checked = Result<(), TestCaseError>;

/// A call that is in flight.
#[derive(Clone, Debug)]
struct Call {
    number: RequestNumber,
    key: usize,
    held: i64,
}

#[derive(Default)]
struct Gateway {
    leases: [Option<Lease>; KEYS],
    running: Vec<Call>,
    receiver: Vec<(RequestNumber, oneshot::Receiver<Acknowledged>)>,
}

/// The state of one run, including what the ledger has acknowledged to its gateways.
struct World<'a> {
    server: &'a Server,
    ledger: RedisLedger,
    gateways: Vec<Gateway>,
    /// Settlements that dead processes have left, and that are not acknowledged yet.
    left: Vec<Settlement>,
    /// Settlements that the server has acknowledged. They are sent again after the server falls back to older data.
    acknowledged: Vec<Settlement>,
    settled: HashMap<RequestNumber, Settled>,
    /// Calls that cost at most the amount held for them.
    covered: BTreeSet<RequestNumber>,
    entries: u32,
    clock: u64,
    /// The largest sum of spending and holds that the group's ceiling allows.
    of_group: i64,
    /// Turns that give back lost leases whose money is still leased on the server.
    left_behind: Vec<Turn>,
    /// Whether acknowledged data was lost or a lease has expired. The money of a call may then be gone.
    fell: bool,
    remembered: bool,
}

#[test]
fn invariants_hold_after_any_sequence_of_lease_steps() {
    let [granted, _] = run(120, false, None).unwrap_or_else(|found| panic!("{found}"));
    assert!(granted > 500, "only {granted} holds came from leases");
}

#[test]
fn invariants_hold_after_the_server_lost_data_and_leases_expired() {
    let [granted, given_back] = run(120, true, None).unwrap_or_else(|found| panic!("{found}"));
    assert!(granted > 300, "only {granted} holds came from leases");
    assert!(given_back > 0, "no lease was given back that had been lost");
}

/// The simulation fails if a rule for lease turns is removed from the script.
#[test]
fn simulation_detects_a_lease_rule_that_is_missing_in_the_lua_script() {
    let rules = [
        // The amount that a lease pays is taken out of the lease, whether it covers the cost in full or in part.
        (
            "left, all_held, money.held = left - total, minus(all_held, total), minus(money.held, total)",
            "",
        ),
        (
            "left, all_held, money.held = left - cover, minus(all_held, cover), minus(money.held, cover)",
            "",
        ),
        // A settlement that is reported twice is charged once.
        (
            "total and not known and booked_here",
            "total and booked_here",
        ),
        (
            "if first and first[1] ~= 'stale' then",
            "if first and first[1] == 'stale' then",
        ),
        // A charged call can be found by its number.
        ("      call('HSET', hash, unpack(fields))\n", ""),
        // The calls of a repeated lease turn are found by their numbers too.
        ("not goes_on and turns_in(batch.turns)", "false"),
        ("word == 'ok' and not again and", "word == 'ok' and"),
        // Each charged call has one line in the journal.
        (
            "    some[#some + 1] = lined[i]",
            "    some[math.max(#some, 1)] = lined[i]",
        ),
        // A lease turn that is sent twice is carried out once.
        ("step ~= 'tell' and not again then", "step ~= 'tell' then"),
        // A lease gets at most the free money of the account.
        ("math.min(more, math.floor(free / (2 * leases)))", "more"),
        // Money that a lease gives back is no longer held.
        (
            "left, all_held, money.held = left + change, minus(all_held + change, 0), minus(money.held + change, 0)",
            "left = left + change",
        ),
        // The money of a lease counts against the group's ceiling.
        ("    group.held = minus(group.held + change, 0)", ""),
        (
            "local free = room_in(minus(balance, all_held), money, group, 0)",
            "local free = room(minus(balance, all_held), money, 0)",
        ),
        // A charge that a lease pays counts as spending of the group.
        (
            "  charge_group(group, minus(used, money.used), now, change)",
            "",
        ),
        // If the number of open calls is limited, each call has its own hold.
        ("and not over and not money.calls", "and not over"),
        // The end of a lease reduces the number of open calls.
        ("    count_call(key, -1)", ""),
        // A lease pays only for its own calls.
        (
            "booked == 'held' and math.min(call_end.cover, cost, left) or 0",
            "0",
        ),
    ];
    for rule in rules {
        let found = run(150, false, Some(rule));
        assert!(found.is_err(), "{rule:?} is not missed");
    }
}

/// Runs test cases. Returns how many holds leases have granted and how many lost leases were given back, or the
/// failure. `sabotage` is a text of the script and its replacement.
fn run(cases: u32, faults: bool, sabotage: Option<(&str, &str)>) -> Result<[u64; 2], String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    let counts = std::cell::Cell::new([0; 2]);
    let mut config = Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    };
    if sabotage.is_some() {
        config.max_shrink_iters = 0;
    }
    let steps = proptest::collection::vec(step(faults), 20..160);
    let found = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(async {
            let mut world = World::begin(&server).await;
            of_few_ends(&mut world.ledger, sabotage);
            for step in &steps {
                world.step(step).await.map_err(|error| note(&error, step))?;
                world.check().await.map_err(|error| note(&error, step))?;
            }
            let [granted, given_back] = counts.get();
            let [more, more_back] = world.end().await?;
            counts.set([granted + more, given_back + more_back]);
            Ok(())
        })
    });
    found.map_err(|error| error.to_string())?;
    Ok(counts.get())
}

/// Lowers the script's thresholds, so that a few settlements are enough for a batch. `sabotage` is a text of the script
/// and its replacement.
pub(super) fn of_few_ends(ledger: &mut RedisLedger, sabotage: Option<(&str, &str)>) {
    let mut text = include_str!("../scripts/turn.lua").to_owned();
    let few = [
        ("TOGETHER = 8", "TOGETHER = 1"),
        ("APART_FEW = 128", "APART_FEW = 2"),
    ];
    for (rule, other) in few.into_iter().chain(sabotage) {
        assert!(text.contains(rule), "{rule:?} is no rule of the script");
        text = text.replacen(rule, other, 1);
    }
    let [script, asking] = [text.clone(), scripts::while_there_is_memory(&text)]
        .map(|text| scripts::whole(ledger.conn(), &text));
    let inner = Arc::get_mut(&mut ledger.0).expect("nobody else has it yet");
    inner.scripts.turn = script;
    inner.scripts.asking_turn = asking;
}

fn note(error: &TestCaseError, step: &Step) -> TestCaseError {
    TestCaseError::fail(format!("{step:?}: {error}"))
}

fn key_of(index: usize) -> KeyId {
    key(["k1", "k2"][index])
}

impl<'a> World<'a> {
    async fn begin(server: &'a Server) -> Self {
        let _: String = server.ask(&["FLUSHALL"]).await;
        let ledger = server.ledger().await;
        ledger.create_account(&acme(), "").await.unwrap();
        ledger.enter(&acme(), &topup("first", MONEY)).await.unwrap();
        let group = GroupRecord {
            id: "g1".parse().unwrap(),
            name: String::new(),
            removed: false,
        };
        ledger
            .create_group(&acme(), &group, Ceilings::NONE)
            .await
            .unwrap();
        for index in 0..KEYS {
            let ceilings = Ceilings {
                day: (index == 1).then(|| micro(3_000)),
                ..Ceilings::NONE
            };
            let digest = u8::try_from(index).unwrap() + 1;
            let mut record = record(&acme(), &key_of(index), digest);
            record.group = Some(group.id.clone());
            ledger.create_key(&record, ceilings).await.unwrap();
        }
        // With many alert levels, many lease turns emit events. A lease turn that emits events charges its calls one by
        // one.
        let levels: Vec<String> = (1..25).map(|n| (200 * n).to_string()).collect();
        let levels = levels.join(",");
        let _: i64 = server.ask(&["HSET", "tg:{acme}", "lo", &levels]).await;
        Self {
            server,
            ledger,
            gateways: (0..GATEWAYS).map(|_| Gateway::default()).collect(),
            left: Vec::new(),
            acknowledged: Vec::new(),
            settled: HashMap::new(),
            covered: BTreeSet::new(),
            entries: 0,
            clock: 0,
            of_group: i64::MAX,
            left_behind: Vec::new(),
            fell: false,
            remembered: false,
        }
    }

    fn now(&mut self) -> Now {
        self.clock += 1;
        Now {
            steady: self.clock,
            wall: self.clock,
        }
    }

    async fn step(&mut self, step: &Step) -> Checked {
        let now = self.now();
        match *step {
            Step::Call { gateway, key, want } => self.call(gateway, key, want, now).await,
            Step::End {
                gateway,
                nth,
                cost_percent,
            } => self.end_call(gateway, nth, cost_percent, now).await,
            Step::Release { gateway, nth } => self.release(gateway, nth).await,
            Step::Turn {
                gateway,
                key,
                free,
                fate,
            } => self.turn(gateway, key, free, fate, now).await,
            Step::Crash { gateway } => self.crash(gateway),
            Step::Tell { nth } => self.report(nth).await,
            Step::Recall => {
                self.ledger.recall(&acme()).await.unwrap();
                Ok(())
            }
            Step::Recalled => {
                let _: i64 = self.server.ask(&["HDEL", "tg:{acme}", "rc"]).await;
                Ok(())
            }
            Step::Expire { gateway, key } => self.expire(gateway, key).await,
            Step::Enter(amount) => {
                self.entries += 1;
                let parts = ["", ":t", ":j", ":ev"];
                let args = [
                    format!("c{}", self.entries),
                    amount.to_string(),
                    "a mistake".to_owned(),
                    RECEIPT_MS.to_string(),
                ];
                let word = self.operate(|scripts| &scripts.enter, &parts, &args).await;
                prop_assert!(word == "ok" || word == "below_held", "{}", word);
                Ok(())
            }
            Step::SetKey {
                key,
                enabled,
                ceiling,
            } => {
                let change = KeyChange {
                    status: Some(if enabled {
                        crate::account::KeyStatus::Active
                    } else {
                        crate::account::KeyStatus::Disabled
                    }),
                    ceiling: Some(ceiling.map(micro)),
                    ..KeyChange::default()
                };
                let known = self.ledger.stored_key(&key_of(key)).await.unwrap().unwrap();
                let (mut record, set) = (known.view.record, [change.ceiling, None, None]);
                change.apply(&mut record);
                let written = self.ledger.write_key(&known.json, &record, set).await;
                let version = written.unwrap().expect("nobody else changes it");
                self.ledger.publish(&record, version).await.unwrap();
                Ok(())
            }
            Step::Limit { key, concurrency } => {
                let known = self.ledger.stored_key(&key_of(key)).await.unwrap().unwrap();
                let mut record = known.view.record;
                record.concurrency = concurrency;
                let written = self.ledger.write_key(&known.json, &record, [None; 3]).await;
                let version = written.unwrap().expect("nobody else changes it");
                self.ledger.publish(&record, version).await.unwrap();
                Ok(())
            }
            Step::SetGroup(ceiling) => {
                let taken = self.taken_by_group().await;
                let digits = ceiling.map_or_else(String::new, |ceiling| ceiling.to_string());
                let args = ["g1", "change", "0", "", &digits, "=", "="].map(str::to_owned);
                let word = self
                    .operate(|scripts| &scripts.set_group, &["", ":k"], &args)
                    .await;
                prop_assert_eq!(word, "ok");
                // Spending and holds from before the ceiling was lowered remain.
                self.of_group = ceiling.map_or(i64::MAX, |ceiling| ceiling.max(taken));
                Ok(())
            }
            Step::Suspend(suspended) => {
                let args = ["s".to_owned(), u8::from(suspended).to_string()];
                let word = self
                    .operate(|scripts| &scripts.change_account, &[""], &args)
                    .await;
                prop_assert_eq!(word, "ok");
                Ok(())
            }
            Step::Remember => {
                self.copy("acme", "kept").await;
                self.remembered = true;
                let settled = &self.settled;
                // Removes settlements that are part of the stored state to which the server may fall back.
                self.acknowledged
                    .retain(|ended| !settled.contains_key(&ended.number));
                Ok(())
            }
            Step::FallBack => self.fall_back().await,
        }
    }

    /// Carries out an operator's command without waiting for the gateways. In this test, their lease turns are steps of
    /// their own.
    async fn operate(
        &self,
        script: impl Fn(&scripts::Scripts) -> &crate::conn::RedisScript,
        parts: &[&str],
        args: &[String],
    ) -> String {
        let keys: Vec<String> = parts
            .iter()
            .map(|part| account_key(&acme(), part))
            .collect();
        let script = script(&self.ledger.0.scripts);
        let word = self.ledger.ask_durably(script, &keys, args).await;
        word.unwrap()
    }

    async fn taken_by_group(&self) -> i64 {
        let groups = self.ledger.groups(&acme()).await.unwrap();
        groups[0].spent_rub.micro() + groups[0].held_rub.micro()
    }

    async fn call(&mut self, gateway: usize, key: usize, want: i64, now: Now) -> Checked {
        let number = RequestNumber::now_v7();
        let hold = Hold {
            number,
            ttl: HOUR,
            ..hold(0, &key_of(key), want)
        };
        let from_lease = self.gateways[gateway].leases[key]
            .as_mut()
            .and_then(|lease| lease.reserve(&hold, now));
        let answer = match from_lease {
            Some(answer) => answer.map_err(LedgerError::Refused),
            None => self.ledger.reserve_in_ledger(&hold).await,
        };
        match answer {
            Ok(reserved) => {
                let held = reserved.held.micro();
                self.gateways[gateway]
                    .running
                    .push(Call { number, key, held });
                Ok(())
            }
            Err(LedgerError::Refused(_)) => Ok(()),
            Err(error) => Err(TestCaseError::fail(error.to_string())),
        }
    }

    fn settlement_of(&self, gateway: usize, call: &Call, cost: i64) -> Settlement {
        let lease = self.gateways[gateway].leases[call.key].as_ref();
        Settlement {
            number: call.number,
            key: key_of(call.key),
            held: micro(call.held),
            lease: lease.and_then(|lease| lease.has_call(call.number).then(|| lease.number())),
            item: Item::new("m", "v", End::Finished),
            ..settlement(0, "k1", cost)
        }
    }

    async fn end_call(&mut self, gateway: usize, nth: usize, percent: i64, now: Now) -> Checked {
        let running = &mut self.gateways[gateway].running;
        if running.is_empty() {
            return Ok(());
        }
        let call = running.remove(nth % running.len());
        let cost = call.held * percent / 100;
        let settlement = self.settlement_of(gateway, &call, cost);
        if cost <= call.held {
            self.covered.insert(call.number);
        }
        let lease = self.gateways[gateway].leases[call.key].as_mut();
        match lease.and_then(|lease| lease.settle(&settlement, now)) {
            Some(receiver) => {
                self.gateways[gateway]
                    .receiver
                    .push((call.number, receiver));
                self.acknowledged.push(settlement);
                Ok(())
            }
            None => {
                let settled = self.ledger.settle_in_ledger(&settlement).await.unwrap();
                self.acknowledged.push(settlement);
                self.answered_to(call.number, settled)
            }
        }
    }

    async fn release(&mut self, gateway: usize, nth: usize) -> Checked {
        let running = &mut self.gateways[gateway].running;
        if running.is_empty() {
            return Ok(());
        }
        let call = running.remove(nth % running.len());
        let lease = self.gateways[gateway].leases[call.key].as_mut();
        if !lease.is_some_and(|lease| lease.release(call.number, &key_of(call.key))) {
            let key = key_of(call.key);
            self.ledger
                .release(call.number, &acme(), &key)
                .await
                .unwrap();
        }
        Ok(())
    }

    async fn turn(
        &mut self,
        gateway: usize,
        key: usize,
        free: i64,
        fate: Fate,
        now: Now,
    ) -> Checked {
        let place = &mut self.gateways[gateway].leases[key];
        if free == 0 && place.is_none() {
            return Ok(());
        }
        let lease = place.get_or_insert_with(|| {
            Lease::new(RequestNumber::now_v7(), &acme(), &key_of(key), GRANTS_MS)
        });
        let size = match free {
            0 => NOTHING,
            free => Size {
                free: micro(free),
                short_of: micro(50),
            },
        };
        let turn: Turn = lease.turn(size, now, Uuid::now_v7());
        if fate != Fate::LostBefore {
            let answer = self.ledger.turn(&turn).await.unwrap();
            if fate == Fate::Answered {
                lease.answered(&turn, &answer);
            }
        }
        if fate != Fate::Answered {
            lease.unanswered("lost".into());
        }
        lease.close_if_done();
        if lease.is_closed() {
            self.left_behind.extend(lease.left_behind(Uuid::now_v7()));
            *place = None;
        }
        self.hear(gateway)
    }

    /// Handles the results of settlements. A settlement without a result is reported again.
    fn hear(&mut self, gateway: usize) -> Checked {
        let mut waiting = Vec::new();
        for (number, mut receiver) in std::mem::take(&mut self.gateways[gateway].receiver) {
            match receiver.try_recv() {
                Ok(Ok(settled)) => self.answered_to(number, settled)?,
                Err(oneshot::error::TryRecvError::Empty) => waiting.push((number, receiver)),
                Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {
                    let mut ended = self.acknowledged.iter();
                    let settlement = ended.find(|ended| ended.number == number).cloned();
                    let settlement = settlement.expect("it was told");
                    let now = self.now();
                    let mut leases = self.gateways[gateway].leases.iter_mut().flatten();
                    let again = leases.find_map(|lease| lease.settle(&settlement, now));
                    match again {
                        Some(receiver) => waiting.push((number, receiver)),
                        None => self.left.push(settlement),
                    }
                }
            }
        }
        self.gateways[gateway].receiver = waiting;
        Ok(())
    }

    /// Checks a settlement: each call moves money once, and a call that cost at most its hold is charged in full.
    fn answered_to(&mut self, number: RequestNumber, settled: Settled) -> Checked {
        if let Some(first) = self.settled.get(&number)
            && !self.fell
        {
            prop_assert_eq!(first.charged, settled.charged, "{}", number);
            prop_assert!(settled.repeated, "{} moved money twice", number);
        }
        if self.covered.contains(&number) && !self.fell {
            prop_assert_eq!(settled.booked, Booked::Held, "{}", number);
            prop_assert_eq!(settled.loss, MicroRub::ZERO, "{}", number);
        }
        self.settled.entry(number).or_insert(settled);
        Ok(())
    }

    /// Kills a gateway. Its outbox has the settlements of ended calls and, for in-flight calls, the settlements as of
    /// now.
    fn crash(&mut self, gateway: usize) -> Checked {
        self.hear(gateway)?;
        let unheard: BTreeSet<RequestNumber> = {
            let receiver = &self.gateways[gateway].receiver;
            receiver.iter().map(|(number, _)| *number).collect()
        };
        let ended = self.acknowledged.iter();
        let mut left: Vec<Settlement> = ended
            .filter(|ended| unheard.contains(&ended.number))
            .cloned()
            .collect();
        for call in self.gateways[gateway].running.clone() {
            let half = self.settlement_of(gateway, &call, call.held / 2);
            self.covered.insert(call.number);
            left.push(Settlement {
                // The next process may start so late that a tombstone of the call could have expired. Then the
                // settlement is not fresh.
                fresh: half.lease.is_none(),
                ..half
            });
        }
        self.left.extend(left);
        self.gateways[gateway] = Gateway::default();
        Ok(())
    }

    async fn report(&mut self, nth: usize) -> Checked {
        if self.left.is_empty() {
            return Ok(());
        }
        let mut settlement = self.left[nth % self.left.len()].clone();
        if self.settled.contains_key(&settlement.number) && !self.fell {
            // A process that has the settlement but not the lease's number reports it without a lease.
            settlement.lease = None;
        }
        let settled = self.ledger.settle(&settlement).await.unwrap();
        if !self.acknowledged.contains(&settlement) {
            self.acknowledged.push(settlement.clone());
        }
        self.answered_to(settlement.number, settled)
    }

    async fn expire(&mut self, gateway: usize, key: usize) -> Checked {
        let Some(lease) = &self.gateways[gateway].leases[key] else {
            return Ok(());
        };
        let number = lease.number().to_string();
        let words = ["ZADD", "tg:{acme}:x", "XX", "1", &number];
        let _: i64 = self.server.ask(&words).await;
        let ended = self.ledger.expire_in(&acme()).await.unwrap();
        self.fell |= ended > 0;
        Ok(())
    }

    async fn fall_back(&mut self) -> Checked {
        if !self.remembered {
            return Ok(());
        }
        self.copy("kept", "acme").await;
        self.fell = true;
        for settlement in self.acknowledged.clone() {
            // The outbox replays settlements, except those that a lease has not reported yet.
            let known = |gateway: &Gateway| {
                let mut leases = gateway.leases.iter().flatten();
                leases.any(|lease| lease.has_call(settlement.number))
            };
            if !self.gateways.iter().any(known) {
                self.ledger.settle(&settlement).await.unwrap();
            }
        }
        Ok(())
    }

    /// Replaces the Redis keys of the account `to` by copies of those of the account `from`.
    async fn copy(&self, from: &str, to: &str) {
        let script = r"
local function keys_of(account)
  return redis.call('KEYS', 'tg:{' .. account .. '}*')
end
for _, key in ipairs(keys_of(ARGV[2])) do
  redis.call('DEL', key)
end
for _, key in ipairs(keys_of(ARGV[1])) do
  redis.call('COPY', key, (string.gsub(key, '{' .. ARGV[1] .. '}', '{' .. ARGV[2] .. '}')))
end
return 1";
        let _: i64 = self.server.ask(&["EVAL", script, "0", from, to]).await;
    }

    /// Checks the invariants that hold after every step.
    async fn check(&mut self) -> Checked {
        let audit = self.ledger.audit().await.unwrap();
        prop_assert_eq!(audit.breaches, Vec::<String>::new());
        if self.fell {
            return Ok(());
        }
        let taken = self.taken_by_group().await;
        prop_assert!(
            taken <= self.of_group,
            "the group has taken {} of {}",
            taken,
            self.of_group
        );
        let leases = self.ledger.leases_of(&acme()).await.unwrap();
        let stored: BTreeMap<RequestNumber, i64> = leases
            .iter()
            .map(|lease| (lease.number, lease.held_rub.micro()))
            .collect();
        for gateway in &self.gateways {
            for lease in gateway.leases.iter().flatten() {
                prop_assert!(!lease.is_lost(), "a lease was lost");
                let has = stored.get(&lease.number()).copied().unwrap_or_default();
                let (least, exact) = lease.must_be_there();
                prop_assert!(has >= least, "{} there, {} needed", has, least);
                if let Some(exact) = exact {
                    prop_assert_eq!(has, exact);
                }
            }
        }
        Ok(())
    }

    /// Ends all calls, gives all leases back, and checks the books. Returns how many holds leases have granted and how
    /// many lost leases were given back.
    async fn end(&mut self) -> Result<[u64; 2], TestCaseError> {
        for gateway in 0..GATEWAYS {
            while !self.gateways[gateway].running.is_empty() {
                let now = self.now();
                self.end_call(gateway, 0, 100, now).await?;
            }
            for key in 0..KEYS {
                for _ in 0..4 {
                    let now = self.now();
                    self.turn(gateway, key, 0, Fate::Answered, now).await?;
                }
                prop_assert!(self.gateways[gateway].leases[key].is_none());
            }
        }
        for nth in 0..self.left.len() {
            self.report(nth).await?;
        }
        let mut given_back = 0;
        for turn in std::mem::take(&mut self.left_behind) {
            prop_assert!(self.fell, "a lease was lost");
            // If the turn is not carried out, the server has fallen back once more.
            if self.ledger.turn(&turn).await.unwrap().word == Word::Done {
                given_back += 1;
                let leases = self.ledger.leases_of(&acme()).await.unwrap();
                prop_assert!(leases.iter().all(|lease| lease.number != turn.lease));
            }
        }
        self.check().await?;
        // The leases of dead processes expire.
        for lease in self.ledger.leases_of(&acme()).await.unwrap() {
            let number = lease.number.to_string();
            let _: i64 = self
                .server
                .ask(&["ZADD", "tg:{acme}:x", "XX", "1", &number])
                .await;
        }
        self.ledger.expire_in(&acme()).await.unwrap();
        let view = self.ledger.account(&acme()).await.unwrap();
        if !self.fell {
            prop_assert_eq!(view.held_rub, MicroRub::ZERO);
            prop_assert_eq!(view.loss_rub, self.loss());
        }
        Ok([self.receipts_are_found().await?, given_back])
    }

    fn loss(&self) -> MicroRub {
        let losses = self.settled.values().map(|settled| settled.loss);
        losses.fold(MicroRub::ZERO, MicroRub::plus_or_max)
    }

    /// Checks that each call that moved money has exactly one line and is found by its number.
    async fn receipts_are_found(&self) -> Result<u64, TestCaseError> {
        let page = self
            .ledger
            .journal(&acme(), &JournalPart::whole())
            .await
            .unwrap();
        let mut lines: BTreeMap<RequestNumber, u64> = BTreeMap::new();
        for line in &page.lines {
            if let JournalLine::Call(receipt) = line {
                *lines.entry(receipt.number).or_default() += 1;
            }
        }
        for (number, settled) in &self.settled {
            if settled.booked != Booked::Released && !self.fell {
                prop_assert_eq!(lines.get(number), Some(&1), "{}", number);
                let receipt = self.ledger.receipt(*number).await.unwrap();
                prop_assert_eq!(receipt.charged_rub, settled.charged);
            }
        }
        let from_lease = self.acknowledged.iter().filter(|call| call.lease.is_some());
        Ok(from_lease.count() as u64)
    }
}
