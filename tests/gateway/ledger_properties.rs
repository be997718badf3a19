//! Tests with random commands: the book keeps its invariants, and every store returns the same responses as the book.
//!
//! The test checks the invariants without the book's code, only from the commands and their responses.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use tokio::runtime::{Builder, Runtime};
use tollgate_layers::{
    calendar::day_of,
    ceiling::{Ceiling, Ceilings},
    facts::RequestNumber,
    key::{AccountId, GroupId, KeyId, KeyRecord, KeyStatus},
    money::MicroRub,
    reserve::{
        book::{self, Book, Command, Outcome, Rejection},
        ledger::{
            AccountView, Adjusted, Adjustment, BookError, Booked, Entry, GroupChange, GroupRecord,
            Hold, KeyChange, KeyView, LedgerError, Refusal, Reserved, Settled, Settlement,
        },
        memory::MemoryLedger,
    },
};

use crate::{
    ledger::{Books, HOUR, folder, in_file, item, micro, number, over_url, record, topup},
    support::{
        random::{Random, new_seed, seed},
        redis::{RedisCluster, RedisServer},
    },
};

/// The number of accounts. Two exist from the start; the third exists after a command has created it.
const ACCOUNTS: u8 = 3;
/// The number of keys per account. Each account has three keys from the start; commands may create a fourth.
const KEYS: u8 = 4;
/// The number of request numbers. It is small, so that commands often meet calls that exist. It is also smaller than
/// [`ALL`], so one sweep ends all holds that expire at the same moment.
const NUMBERS: u8 = 13;
/// The maximum number of holds that one sweep ends. It is larger than the number of holds that can exist.
const ALL: usize = 100;

type Checked = Result<(), TestCaseError>;

#[test]
fn ledger_book_keeps_its_invariants_for_random_commands() {
    run(400, |commands| {
        // The commands run three times: within one day, with a midnight in the middle, and with the beginning of a
        // month in the middle. Each command takes one millisecond.
        let at = (prelude().len() + commands.len() / 2) as u64;
        let midnights = [
            (NOON, Midnight::NONE),
            (MARCH_2_2026 - at, Midnight::new(MARCH_2_2026, false)),
            (MARCH_1_2026 - at, Midnight::new(MARCH_1_2026, true)),
        ];
        for (begin, midnight) in midnights {
            let (mut book, mut history) = (Book::default(), History::new(midnight));
            for (now, command) in (begin..).zip(prelude().iter().chain(&commands)) {
                step(&mut book, &mut history, command, now)?;
            }
        }
        Ok(())
    });
}

const MARCH_1_2026: u64 = 1_772_323_200_000;
const MARCH_2_2026: u64 = MARCH_1_2026 + 86_400_000;
const NOON: u64 = MARCH_1_2026 + 43_200_000;

#[test]
fn memory_ledger_gives_the_same_results_as_the_book() {
    let runtime = runtime();
    run(200, |commands| {
        runtime.block_on(agree(&MemoryLedger::new(), &commands))
    });
}

/// Checks in addition that all accounts and keys are the same after a restart, which ends the holds.
#[test]
fn sqlite_ledger_gives_the_same_results_as_the_book() {
    let runtime = runtime();
    // A settlement may wait some milliseconds to share a commit, so this test runs fewer cases than the others.
    run(100, |commands| {
        runtime.block_on(async {
            let folder = folder();
            let ledger = in_file(&folder);
            agree(&ledger, &commands).await?;
            let before = shown_without_holds(&ledger).await;
            ledger.close().await;
            let ledger = in_file(&folder);
            let after = shown_without_holds(&ledger).await;
            ledger.close().await;
            same(after, before, &"after a restart")
        })
    });
}

#[test]
fn redis_ledger_gives_the_same_results_as_the_book() {
    let runtime = runtime();
    let server = runtime.block_on(RedisServer::start());
    let url = server.url();
    run(200, |commands| {
        runtime.block_on(async {
            server.ask::<String>(&["FLUSHALL"]).await.map_err(failed)?;
            // Like a gateway that starts, this opens a new connection: a ledger that was connected before the FLUSHALL
            // would report lost data.
            agree(&over_url(&url).await, &commands).await
        })
    });
}

/// Each account is on a different primary of the Cluster.
#[test]
fn redis_cluster_ledger_gives_the_same_results_as_the_book() {
    let runtime = runtime();
    let cluster = runtime.block_on(RedisCluster::start(3, 0));
    let mut primaries: Vec<usize> = (0..ACCOUNTS)
        .map(|index| cluster.primary_of(&account(index)))
        .collect();
    primaries.sort_unstable();
    primaries.dedup();
    assert!(primaries.len() > 1, "{primaries:?}");
    let url = cluster.url();
    run(100, |commands| {
        runtime.block_on(async {
            cluster.flush().await;
            agree(&over_url(&url).await, &commands).await
        })
    });
}

/// Returns the accounts and keys without the amounts that depend on open holds.
async fn shown_without_holds<L: Books>(ledger: &L) -> (Vec<AccountView>, Vec<KeyView>) {
    let (mut accounts, mut keys) = (ledger.accounts().await.unwrap(), Vec::new());
    for account in &mut accounts {
        keys.extend(ledger.keys(&account.id).await.unwrap());
        (account.held_rub, account.free_rub, account.holds_open) = (micro(0), micro(0), 0);
    }
    for key in &mut keys {
        (key.held_rub, key.free_rub) = (micro(0), micro(0));
    }
    (accounts, keys)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn run(cases: u32, test: impl Fn(Vec<Command>) -> Checked) {
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    };
    let commands = proptest::collection::vec(command(), 1..60);
    let seed = Random::of(seed(new_seed()), &[]).bytes();
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    if let Err(error) = TestRunner::new_with_rng(config, random).run(&commands, test) {
        panic!("{error}");
    }
}

/// Sends the same commands to the book and to a store, and compares their responses and views. The store uses its own
/// clock, so a run is ignored if midnight passes during it.
async fn agree<L: Books>(ledger: &L, commands: &[Command]) -> Checked {
    let begin = now_ms();
    let agreed = agree_from(ledger, commands, begin).await;
    if day_of(now_ms() + 1_000) == day_of(begin) {
        agreed
    } else {
        Ok(())
    }
}

async fn agree_from<L: Books>(ledger: &L, commands: &[Command], begin: u64) -> Checked {
    let (mut book, mut history) = (Book::default(), History::new(Midnight::NONE));
    for (now, command) in (begin..).zip(prelude().iter().chain(commands)) {
        let expected = step(&mut book, &mut history, command, now)?;
        let answer = play(ledger, command).await?;
        same(answer, expected, &command)?;
        match command {
            Command::Expire { .. } => views_agree(ledger, &book, 0..ACCOUNTS, now).await?,
            command => {
                let touched = account_of(command);
                views_agree(ledger, &book, touched..touched + 1, now).await?;
            }
        }
    }
    views_agree(ledger, &book, 0..ACCOUNTS, begin).await?;
    let audit = ledger.audit().await.map_err(failed)?;
    same(audit, book.audit(), &"audit")
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// Applies one command to the book, and then checks the invariants.
fn step(
    book: &mut Book,
    history: &mut History,
    command: &Command,
    now: u64,
) -> Result<Outcome, TestCaseError> {
    let outcome = match command {
        // The ledger's command `Expire` applies to all accounts.
        Command::Expire { most, .. } => Outcome::Expired(book.expire(*most, now)),
        command => book::apply(book, command, now),
    };
    history.now = now;
    history.note(command, &outcome)?;
    history.check(book, &command)?;
    same(book.audit().breaches, Vec::new(), &command)?;
    Ok(outcome)
}

fn prelude() -> Vec<Command> {
    let mut commands = Vec::new();
    for index in 0..2 {
        commands.push(Command::SetAccount {
            account: account(index),
            suspended: false,
        });
        commands.push(Command::Enter {
            account: account(index),
            entry: topup("start", 500),
        });
        for key in 0..3 {
            commands.push(Command::SetKey {
                account: account(index),
                key: key_of(index, key),
                ceilings: Ceilings {
                    total: (key == 2).then(|| micro(200)),
                    day: (key == 1).then(|| micro(250)),
                    ..Ceilings::NONE
                },
                enabled: true,
            });
        }
        // One group with a key exists from the start. A second group is created later.
        commands.push(Command::SetGroup {
            account: account(index),
            group: group_of(0),
            ceilings: Ceilings::total(micro(300)),
        });
        commands.push(Command::Bind {
            account: account(index),
            key: key_of(index, 0),
            group: Some(group_of(0)),
            concurrency: Some(3),
        });
    }
    commands
}

fn account(index: u8) -> AccountId {
    format!("a{index}").parse().unwrap()
}

fn account_of(command: &Command) -> u8 {
    let id = match command {
        Command::Reserve(hold) => &hold.account,
        Command::SetAccount { account, .. }
        | Command::SetKey { account, .. }
        | Command::SetGroup { account, .. }
        | Command::Bind { account, .. }
        | Command::Enter { account, .. }
        | Command::Settle { account, .. }
        | Command::Release { account, .. }
        | Command::Extend { account, .. }
        | Command::Adjust(Adjustment { account, .. })
        | Command::Probe { account, .. }
        | Command::Expire { account, .. } => account,
    };
    id[1..].parse().unwrap()
}

fn key_of(account: u8, key: u8) -> KeyId {
    format!("a{account}k{key}").parse().unwrap()
}

fn group_of(group: u8) -> GroupId {
    format!("g{group}").parse().unwrap()
}

fn record_of(account_id: &AccountId, key: &KeyId, enabled: bool) -> KeyRecord {
    let digits: Vec<u8> = key.bytes().filter(u8::is_ascii_digit).collect();
    let digest = 16 * (digits[0] - b'0') + (digits[1] - b'0');
    let mut record = record(account_id, key, digest);
    record.status = status(enabled);
    record
}

const fn status(enabled: bool) -> KeyStatus {
    if enabled {
        KeyStatus::Active
    } else {
        KeyStatus::Disabled
    }
}

/// Returns the number of a call, and the account and key that usually belong to it. No number belongs to two accounts.
fn call() -> impl Strategy<Value = (RequestNumber, u8, u8)> {
    let stray = prop_oneof![9 => Just(None::<u8>), 1 => (0..KEYS).prop_map(Some)];
    (0..NUMBERS, stray).prop_map(|(n, stray)| {
        let account = if n + 1 == NUMBERS { 2 } else { n % 2 };
        let key = stray.unwrap_or(n / 2 % 3);
        (number(u128::from(n)), account, key)
    })
}

fn ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![1 => Just(Duration::ZERO), 2 => Just(HOUR)]
}

fn account_index() -> impl Strategy<Value = u8> {
    prop_oneof![9 => 0..2u8, 1 => Just(2u8)]
}

fn key_index() -> impl Strategy<Value = u8> {
    prop_oneof![9 => 0..3u8, 1 => Just(3u8)]
}

fn command() -> impl Strategy<Value = Command> {
    let ceiling = || proptest::option::of((0..400i64).prop_map(micro));
    let ceilings = || {
        let ceilings = (ceiling(), ceiling(), ceiling());
        ceilings.prop_map(|(total, month, day)| Ceilings { total, month, day })
    };
    let group = proptest::option::of(0..2u8);
    let concurrency = proptest::option::of(1..3u32);
    let fresh = prop_oneof![4 => Just(true), 1 => Just(false)];
    prop_oneof![
        1 => (account_index(), any::<bool>()).prop_map(|(index, suspended)| Command::SetAccount {
            account: account(index),
            suspended,
        }),
        2 => (account_index(), key_index(), ceilings(), prop_oneof![3 => Just(true), 1 => Just(false)])
            .prop_map(|(index, key, ceilings, enabled)| Command::SetKey {
                account: account(index),
                key: key_of(index, key),
                ceilings,
                enabled,
            }),
        1 => (account_index(), 0..2u8, ceilings()).prop_map(|(index, group, ceilings)| Command::SetGroup {
            account: account(index),
            group: group_of(group),
            ceilings,
        }),
        2 => (account_index(), key_index(), group, concurrency).prop_map(|(index, key, group, concurrency)| {
            Command::Bind {
                account: account(index),
                key: key_of(index, key),
                group: group.map(group_of),
                concurrency,
            }
        }),
        3 => (account_index(), 0..5u8, -300..500i64).prop_map(|(index, id, amount)| Command::Enter {
            account: account(index),
            entry: topup(&format!("t{id}"), amount),
        }),
        9 => (call(), 0..250i64, 0..250i64, ttl())
            .prop_map(|((number, index, key), want, least, ttl)| {
                let mut hold = Hold::new(number, account(index), key_of(index, key), micro(want), ttl);
                hold.least = micro(least.min(want));
                Command::Reserve(hold)
            }),
        7 => (call(), 0..300i64, fresh).prop_map(|((number, index, key), cost, fresh)| Command::Settle {
            number,
            account: account(index),
            key: key_of(index, key),
            cost: micro(cost),
            fresh,
        }),
        2 => call().prop_map(|(number, index, _)| Command::Release {
            number,
            account: account(index),
        }),
        2 => (call(), ttl()).prop_map(|((number, index, _), ttl)| Command::Extend {
            number,
            account: account(index),
            ttl,
        }),
        6 => (call(), 0..6u32, 0..300i64).prop_map(|((number, index, key), sequence, amount)| {
            Command::Adjust(Adjustment {
                number,
                account: account(index),
                key: key_of(index, key),
                sequence,
                amount: micro(amount),
            })
        }),
        1 => (account_index(), key_index()).prop_map(|(index, key)| Command::Probe {
            account: account(index),
            key: key_of(index, key),
        }),
        2 => Just(Command::Expire {
            account: account(0),
            most: ALL,
        }),
    ]
}

/// Sends a command to a store. Converts the response to the type that the book returns.
async fn play<L: Books>(ledger: &L, command: &Command) -> Result<Outcome, TestCaseError> {
    Ok(match command {
        Command::SetAccount { account, suspended } => {
            let opened = ledger.create_account(account, account).await;
            opened.map_err(failed)?;
            let changed = ledger.change_account(account, None, Some(*suspended)).await;
            done(changed.map(drop))?
        }
        Command::SetKey {
            account,
            key,
            ceilings,
            enabled,
        } => {
            let changed = ledger
                .change_key(
                    key,
                    &KeyChange {
                        status: Some(status(*enabled)),
                        ceiling: Some(ceilings.total),
                        ceiling_month: Some(ceilings.month),
                        ceiling_day: Some(ceilings.day),
                        ..KeyChange::default()
                    },
                )
                .await;
            match changed {
                Err(BookError::NotFound) => {
                    let record = record_of(account, key, *enabled);
                    done(ledger.create_key(&record, *ceilings).await.map(drop))?
                }
                changed => done(changed.map(drop))?,
            }
        }
        Command::SetGroup {
            account,
            group,
            ceilings,
        } => {
            let record = GroupRecord {
                id: group.clone(),
                name: String::new(),
                removed: false,
            };
            let set = match ledger.create_group(account, &record, *ceilings).await {
                Err(BookError::Exists) => {
                    let change = GroupChange {
                        ceiling: Some(ceilings.total),
                        ceiling_month: Some(ceilings.month),
                        ceiling_day: Some(ceilings.day),
                        ..GroupChange::default()
                    };
                    ledger.change_group(account, group, &change).await
                }
                made => made,
            };
            done(set.map(drop))?
        }
        Command::Bind {
            key,
            group,
            concurrency,
            ..
        } => {
            let change = KeyChange {
                group: Some(group.clone()),
                concurrency: Some(*concurrency),
                ..KeyChange::default()
            };
            done(ledger.change_key(key, &change).await.map(drop))?
        }
        Command::Enter { account, entry } => done(ledger.enter(account, entry).await.map(drop))?,
        Command::Reserve(hold) => Outcome::Reserve(refusable(ledger.reserve(hold).await)?),
        Command::Settle {
            number,
            account,
            key,
            cost,
            fresh,
        } => {
            let held = micro(100);
            let hold = Hold::new(*number, account.clone(), key.clone(), held, Duration::ZERO);
            let mut settlement = Settlement::new(&hold, held, *cost, item(cost.micro()));
            settlement.fresh = *fresh;
            Outcome::Settled(ledger.settle(&settlement).await.map_err(failed)?)
        }
        Command::Release { number, account } => {
            let key = key_of(0, 0);
            let released = ledger.release(*number, account, &key).await;
            released.map_err(failed)?;
            Outcome::Done
        }
        Command::Extend {
            number,
            account,
            ttl,
        } => {
            let extended = ledger.extend(*number, account, *ttl).await;
            Outcome::Extended(extended.map_err(failed)?)
        }
        Command::Adjust(adjustment) => Outcome::Adjust(refusable(ledger.adjust(adjustment).await)?),
        Command::Probe { account, key } => {
            Outcome::Probe(refusable(ledger.probe(account, key).await)?)
        }
        Command::Expire { .. } => Outcome::Expired(ledger.expire().await.map_err(failed)?),
    })
}

fn done(answer: Result<(), BookError>) -> Result<Outcome, TestCaseError> {
    Ok(match answer {
        Ok(()) => Outcome::Done,
        Err(BookError::NotFound) => Outcome::Refused(Rejection::NotFound),
        Err(BookError::Exists) => Outcome::Refused(Rejection::Exists),
        Err(BookError::BelowHeld) => Outcome::Refused(Rejection::BelowHeld),
        Err(BookError::AboveMax) => Outcome::Refused(Rejection::AboveMax),
        Err(BookError::NoGroup) => Outcome::Refused(Rejection::NoGroup),
        Err(error) => return Err(failed(error)),
    })
}

fn refusable<T>(answer: Result<T, LedgerError>) -> Result<Result<T, Refusal>, TestCaseError> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(LedgerError::Refused(refusal)) => Ok(Err(refusal)),
        Err(error) => Err(failed(error)),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: impl fmt::Debug) -> TestCaseError {
    TestCaseError::fail(format!("{error:?}"))
}

/// Checks that the store returns the same operators' views of these accounts as the book.
async fn views_agree<L: Books>(
    ledger: &L,
    book: &Book,
    accounts: std::ops::Range<u8>,
    now: u64,
) -> Checked {
    for index in accounts {
        let id = account(index);
        let (view, keys) = match (ledger.account(&id).await, ledger.keys(&id).await) {
            (Err(BookError::NotFound), Err(BookError::NotFound)) => {
                same(book.account(&id).is_none(), true, &id)?;
                continue;
            }
            (view, keys) => (view.map_err(failed)?, keys.map_err(failed)?),
        };
        let Some(account) = book.account(&id) else {
            return Err(failed(view));
        };
        let shown = [
            view.balance_rub,
            view.held_rub,
            view.free_rub,
            view.spent_rub,
            view.loss_rub,
        ];
        let booked = [
            account.balance,
            account.held,
            account.balance.minus_or_zero(account.held),
            account.spent(),
            account.loss,
        ];
        same((view.suspended, shown), (account.suspended, booked), &id)?;
        same(view.holds_open, account.holds_open() as u64, &id)?;
        let shown: Vec<_> = keys
            .into_iter()
            .map(|key| {
                let enabled = key.record.status == KeyStatus::Active;
                let money = [key.spent_rub, key.held_rub, key.free_rub];
                let periods = (key.month, key.day);
                (key.record.id, enabled, key.ceiling_rub, money, periods)
            })
            .collect();
        let booked: Vec<_> = (0..KEYS)
            .filter_map(|key| {
                let key_id = key_of(index, key);
                let key = account.key(&key_id)?;
                let money = [key.used, key.held, account.free(&key_id, now)];
                let view = key.view(record_of(&id, &key_id, key.enabled), micro(0), now);
                let periods = (view.month, view.day);
                Some((key_id, key.enabled, key.ceilings.total, money, periods))
            })
            .collect();
        same(shown, booked, &id)?;
        let shown = ledger.groups(&id).await.map_err(failed)?;
        let booked = account
            .groups()
            .map(|(group, _)| account.group_view(group, now));
        let booked: Vec<_> = booked.flatten().collect();
        same(shown, booked, &id)?;
    }
    Ok(())
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "sums are compared where they are made"
)]
fn same<T: PartialEq + fmt::Debug>(found: T, expected: T, at: &impl fmt::Debug) -> Checked {
    if found == expected {
        return Ok(());
    }
    Err(TestCaseError::fail(format!(
        "{at:?}: found {found:?}, expected {expected:?}"
    )))
}

fn holds(condition: bool, what: &str, at: &impl fmt::Debug) -> Checked {
    if condition {
        return Ok(());
    }
    Err(TestCaseError::fail(format!("{at:?}: not true: {what}")))
}

/// State that the test computes from the commands and their responses, without the book: sums and sets.
#[derive(Debug)]
struct History {
    accounts: BTreeMap<AccountId, Seen>,
    now: u64,
    midnight: Midnight,
}

/// The midnight that passes between two commands, if any.
#[derive(Clone, Copy, Debug)]
struct Midnight {
    at: u64,
    /// Whether this midnight is also the beginning of a month.
    of_month: bool,
}

impl Midnight {
    const NONE: Self = Self::new(u64::MAX, false);

    const fn new(at: u64, of_month: bool) -> Self {
        Self { at, of_month }
    }
}

/// Ceilings are compared without the time at which they reset, because `History` does not compute this time.
const MONTH: Ceiling = Ceiling::Month { resets_at_ms: 0 };
const DAY: Ceiling = Ceiling::Day { resets_at_ms: 0 };

fn without_times(outcome: &Outcome) -> Outcome {
    let timeless = |ceiling| match ceiling {
        Ceiling::Total => Ceiling::Total,
        Ceiling::Month { .. } => MONTH,
        Ceiling::Day { .. } => DAY,
        Ceiling::GroupTotal => Ceiling::GroupTotal,
        Ceiling::GroupMonth { .. } => MONTH.of_group(),
        Ceiling::GroupDay { .. } => DAY.of_group(),
    };
    let refusal = |refusal| match refusal {
        Refusal::CeilingUsedUp(ceiling) => Refusal::CeilingUsedUp(timeless(ceiling)),
        Refusal::DoesNotFit {
            free,
            held,
            ceiling,
        } => Refusal::DoesNotFit {
            free,
            held,
            ceiling: ceiling.map(timeless),
        },
        other => other,
    };
    match outcome.clone() {
        Outcome::Reserve(answer) => Outcome::Reserve(answer.map_err(refusal)),
        Outcome::Adjust(answer) => Outcome::Adjust(answer.map_err(refusal)),
        Outcome::Probe(answer) => Outcome::Probe(answer.map_err(refusal)),
        other => other,
    }
}

#[derive(Debug, Default)]
struct Seen {
    suspended: bool,
    keys: BTreeMap<KeyId, (Ceilings, bool)>,
    groups: BTreeMap<GroupId, Ceilings>,
    /// For each key: its group, and its maximum number of concurrent calls.
    bound: BTreeMap<KeyId, (Option<GroupId>, Option<u32>)>,
    entries: BTreeMap<String, i64>,
    /// For each charge: the key, the group, the amount, and whether it was made after midnight.
    charges: Vec<(KeyId, Option<GroupId>, i64, bool)>,
    after_midnight: bool,
    midnight_of_month: bool,
    costs: i64,
    losses: i64,
    open: BTreeMap<RequestNumber, Held>,
    expired: BTreeMap<RequestNumber, KeyId>,
    ended: BTreeMap<RequestNumber, Settled>,
}

#[derive(Debug)]
struct Held {
    hold: Hold,
    amount: i64,
    adjusted: u32,
    due: bool,
}

impl History {
    const fn new(midnight: Midnight) -> Self {
        Self {
            accounts: BTreeMap::new(),
            now: 0,
            midnight,
        }
    }

    /// Records a command and its response. Checks that this response is allowed after the earlier commands.
    fn note(&mut self, command: &Command, outcome: &Outcome) -> Checked {
        for seen in self.accounts.values_mut() {
            seen.after_midnight = self.now >= self.midnight.at;
            seen.midnight_of_month = self.midnight.of_month;
        }
        match (command, outcome) {
            (Command::SetAccount { account, suspended }, outcome) => {
                same(outcome, &Outcome::Done, command)?;
                self.accounts.entry(account.clone()).or_default().suspended = *suspended;
                Ok(())
            }
            (Command::Expire { .. }, Outcome::Expired(count)) => {
                let ended: usize = self.accounts.values_mut().map(Seen::expire).sum();
                same(*count, ended, command)
            }
            (command, outcome) => {
                let account = account(account_of(command));
                match self.accounts.get_mut(&account) {
                    Some(seen) => seen.note(command, outcome),
                    None => same(outcome, &without_account(command), command),
                }
            }
        }
    }

    fn check(&self, book: &Book, at: &impl fmt::Debug) -> Checked {
        same(book.accounts().count(), self.accounts.len(), at)?;
        for (id, seen) in &self.accounts {
            let Some(account) = book.account(id) else {
                return holds(false, "the account is in the book", at);
            };
            let (balance, held) = (account.balance.micro(), account.held.micro());
            same((id, "I2", held), (id, "I2", seen.held()), at)?;
            same((id, "I3", balance), (id, "I3", seen.balance()), at)?;
            let loss = account.loss.micro();
            same((id, "I3", loss), (id, "I3", seen.losses), at)?;
            same(
                (id, "I3", seen.costs),
                (id, "I3", seen.charged() + loss),
                at,
            )?;
            holds(0 <= held && held <= balance, "I4: 0 ≤ h ≤ b", at)?;
            let twice = seen
                .open
                .keys()
                .any(|number| seen.expired.contains_key(number) || seen.ended.contains_key(number));
            holds(!twice, "I5: no hold is both open and ended", at)?;
            for key in seen.keys.keys() {
                let book = account.key(key);
                let money = book.map(|book| (book.used.micro(), book.held.micro()));
                same(
                    (key, money),
                    (key, Some((seen.used(key), seen.held_by(key)))),
                    at,
                )?;
                same(account.free(key, self.now).micro(), seen.free(key), at)?;
            }
            for group in seen.groups.keys() {
                let book = account.group(group).map(|group| group.money);
                let money = book.map(|money| (money.used.micro(), money.held.micro()));
                let used = seen.used_in(group, Ceiling::Total);
                same(
                    (group, money),
                    (group, Some((used, seen.held_in(group)))),
                    at,
                )?;
            }
        }
        Ok(())
    }
}

/// Returns the expected response to a command if its account does not exist.
fn without_account(command: &Command) -> Outcome {
    match command {
        Command::SetAccount { .. } | Command::Release { .. } => Outcome::Done,
        Command::SetKey { .. }
        | Command::SetGroup { .. }
        | Command::Bind { .. }
        | Command::Enter { .. } => Outcome::Refused(Rejection::NotFound),
        Command::Reserve(_) => Outcome::Reserve(Err(Refusal::Unknown)),
        Command::Settle { .. } => Outcome::Settled(settled(Booked::NoAccount, 0, 0)),
        Command::Extend { .. } => Outcome::Extended(false),
        Command::Adjust(_) => Outcome::Adjust(Ok(Adjusted::Gone)),
        Command::Probe { .. } => Outcome::Probe(Err(Refusal::Unknown)),
        Command::Expire { .. } => Outcome::Expired(0),
    }
}

const fn settled(booked: Booked, charged: i64, loss: i64) -> Settled {
    Settled {
        booked,
        charged: MicroRub::new(charged),
        loss: MicroRub::new(loss),
        repeated: false,
    }
}

impl Seen {
    fn charged(&self) -> i64 {
        self.charges.iter().map(|(_, _, amount, _)| amount).sum()
    }

    fn balance(&self) -> i64 {
        self.entries.values().sum::<i64>() - self.charged()
    }

    fn held(&self) -> i64 {
        self.open.values().map(|held| held.amount).sum()
    }

    fn held_by(&self, key: &KeyId) -> i64 {
        let of_key = self.open.values().filter(|held| held.hold.key == *key);
        of_key.map(|held| held.amount).sum()
    }

    fn used(&self, key: &KeyId) -> i64 {
        self.used_under(key, Ceiling::Total)
    }

    /// Returns the charges of the key that count under a ceiling: all charges, or only those of the current day or
    /// month.
    fn used_under(&self, key: &KeyId, ceiling: Ceiling) -> i64 {
        self.counted(ceiling, |of_key, _| of_key == key)
    }

    fn counted(&self, ceiling: Ceiling, counts: impl Fn(&KeyId, Option<&GroupId>) -> bool) -> i64 {
        let all = match ceiling {
            Ceiling::Total | Ceiling::GroupTotal => true,
            Ceiling::Month { .. } | Ceiling::GroupMonth { .. } => !self.midnight_of_month,
            Ceiling::Day { .. } | Ceiling::GroupDay { .. } => false,
        };
        let of_key = self.charges.iter();
        let of_key = of_key.filter(|charge| counts(&charge.0, charge.1.as_ref()));
        let counted = of_key.filter(|charge| all || charge.3 == self.after_midnight);
        counted.map(|(_, _, amount, _)| amount).sum()
    }

    /// Returns the charges of a group's keys that count under this ceiling.
    fn used_in(&self, group: &GroupId, ceiling: Ceiling) -> i64 {
        self.counted(ceiling, |_, in_group| in_group == Some(group))
    }

    /// Returns the amount that the present keys of the group hold.
    fn held_in(&self, group: &GroupId) -> i64 {
        let keys = self.bound.iter();
        let keys = keys.filter(|(_, (of_key, _))| of_key.as_ref() == Some(group));
        keys.map(|(key, _)| self.held_by(key)).sum()
    }

    fn group_of(&self, key: &KeyId) -> Option<&GroupId> {
        self.bound.get(key)?.0.as_ref()
    }

    fn is_full(&self, key: &KeyId) -> Option<u32> {
        let most = self.bound.get(key)?.1?;
        let open = self.open.values().filter(|held| held.hold.key == *key);
        (open.count() >= most as usize).then_some(most)
    }

    /// Returns the ceilings of the key, each with the amount that its charges leave.
    fn left(&self, key: &KeyId) -> Vec<(Ceiling, i64)> {
        let Some((ceilings, _)) = self.keys.get(key) else {
            return Vec::new();
        };
        let each = [
            (Ceiling::Total, ceilings.total),
            (MONTH, ceilings.month),
            (DAY, ceilings.day),
        ];
        let left = |(ceiling, limit): (Ceiling, Option<MicroRub>)| {
            Some((ceiling, limit?.micro() - self.used_under(key, ceiling)))
        };
        each.into_iter().filter_map(left).collect()
    }

    /// Returns the ceilings of the key's group, each with the amount that its charges leave.
    fn left_in_group(&self, key: &KeyId) -> Vec<(Ceiling, i64)> {
        let Some((group, ceilings)) = self
            .group_of(key)
            .and_then(|group| Some((group, self.groups.get(group)?)))
        else {
            return Vec::new();
        };
        let each = [
            (Ceiling::Total, ceilings.total),
            (MONTH, ceilings.month),
            (DAY, ceilings.day),
        ];
        let left = |(ceiling, limit): (Ceiling, Option<MicroRub>)| {
            let used = self.used_in(group, ceiling);
            Some((ceiling.of_group(), limit?.micro() - used))
        };
        each.into_iter().filter_map(left).collect()
    }

    fn free(&self, key: &KeyId) -> i64 {
        self.room(key).0
    }

    /// Returns the amount that the key may still hold, and the ceiling that limits it, if any.
    fn room(&self, key: &KeyId) -> (i64, Option<Ceiling>) {
        if !self.keys.contains_key(key) {
            return (0, None);
        }
        let mut room = (self.balance() - self.held(), None);
        for (ceiling, left) in self.left(key) {
            let left = (left - self.held_by(key)).max(0);
            if left < room.0 {
                room = (left, Some(ceiling));
            }
        }
        for (ceiling, left) in self.left_in_group(key) {
            let held = self.group_of(key).map_or(0, |group| self.held_in(group));
            let left = (left - held).max(0);
            if left < room.0 {
                room = (left, Some(ceiling));
            }
        }
        room
    }

    fn expire(&mut self) -> usize {
        let due: Vec<RequestNumber> = self
            .open
            .iter()
            .filter(|(_, held)| held.due)
            .map(|(number, _)| *number)
            .collect();
        for number in &due {
            if let Some(held) = self.open.remove(number) {
                self.expired.insert(*number, held.hold.key);
            }
        }
        due.len()
    }

    /// Returns the reason why the key may hold nothing now. If several ceilings are used up, the refusal names the one
    /// that resets last.
    fn refusal(&self, key: &KeyId) -> Option<Refusal> {
        let Some((_, enabled)) = self.keys.get(key) else {
            return Some(Refusal::Unknown);
        };
        if !enabled {
            Some(Refusal::Disabled)
        } else if self.suspended {
            Some(Refusal::Suspended)
        } else if self.balance() == 0 {
            Some(Refusal::AccountEmpty)
        } else {
            let left = self.left(key).into_iter().chain(self.left_in_group(key));
            let used_up = left.into_iter().find(|(_, left)| *left <= 0);
            used_up.map(|(ceiling, _)| Refusal::CeilingUsedUp(ceiling))
        }
    }

    fn note(&mut self, command: &Command, outcome: &Outcome) -> Checked {
        let expected = match command {
            Command::SetKey {
                key,
                ceilings,
                enabled,
                ..
            } => {
                self.keys.insert(key.clone(), (*ceilings, *enabled));
                Outcome::Done
            }
            Command::SetGroup {
                group, ceilings, ..
            } => {
                self.groups.insert(group.clone(), *ceilings);
                Outcome::Done
            }
            Command::Bind {
                key,
                group,
                concurrency,
                ..
            } => {
                if !self.keys.contains_key(key) {
                    Outcome::Refused(Rejection::NotFound)
                } else if group
                    .as_ref()
                    .is_some_and(|group| !self.groups.contains_key(group))
                {
                    Outcome::Refused(Rejection::NoGroup)
                } else {
                    self.bound
                        .insert(key.clone(), (group.clone(), *concurrency));
                    Outcome::Done
                }
            }
            Command::Enter { entry, .. } => self.enter(entry),
            Command::Reserve(hold) => Outcome::Reserve(self.reserve(hold)),
            Command::Settle {
                number,
                key,
                cost,
                fresh,
                ..
            } => Outcome::Settled(self.settle(*number, key, cost.micro(), *fresh)),
            Command::Release { number, .. } => {
                self.open.remove(number);
                self.expired.remove(number);
                let released = settled(Booked::Released, 0, 0);
                self.ended.entry(*number).or_insert(released);
                Outcome::Done
            }
            Command::Extend { number, ttl, .. } => {
                let open = self.open.get_mut(number);
                Outcome::Extended(open.map(|held| held.due = ttl.is_zero()).is_some())
            }
            Command::Adjust(adjustment) => Outcome::Adjust(self.adjust(adjustment)),
            Command::Probe { key, .. } => Outcome::Probe(self.refusal(key).map_or(Ok(()), Err)),
            Command::SetAccount { .. } | Command::Expire { .. } => outcome.clone(),
        };
        same(without_times(outcome), expected, command)
    }

    fn enter(&mut self, entry: &Entry) -> Outcome {
        let amount = entry.amount.micro();
        match self.entries.get(&entry.id) {
            Some(before) if *before == amount => Outcome::Done,
            Some(_) => Outcome::Refused(Rejection::Exists),
            None if amount < 0 && self.balance() + amount < self.held() => {
                Outcome::Refused(Rejection::BelowHeld)
            }
            None => {
                self.entries.insert(entry.id.clone(), amount);
                Outcome::Done
            }
        }
    }

    /// Returns the response that this history allows to a request for a hold. Checks the invariants I1, I5 and I12.
    fn reserve(&mut self, hold: &Hold) -> Result<Reserved, Refusal> {
        if self.ended.contains_key(&hold.number) || self.expired.contains_key(&hold.number) {
            return Err(Refusal::Gone);
        }
        if let Some(open) = self.open.get(&hold.number) {
            let first = &open.hold;
            let same = (&first.key, first.want, first.least) == (&hold.key, hold.want, hold.least);
            return if same {
                Ok(Reserved {
                    held: micro(open.amount),
                    free: micro(self.free(&hold.key)),
                })
            } else {
                Err(Refusal::Conflict)
            };
        }
        if let Some(refusal) = self.refusal(&hold.key) {
            return Err(refusal);
        }
        if self.is_full(&hold.key).is_some() {
            self.expire();
        }
        if let Some(most) = self.is_full(&hold.key) {
            return Err(Refusal::TooManyCalls { most });
        }
        if self.free(&hold.key) < hold.want.micro() {
            self.expire();
        }
        let (free, ceiling) = self.room(&hold.key);
        let amount = free.min(hold.want.micro());
        if amount < hold.least.micro() {
            return Err(Refusal::DoesNotFit {
                free: micro(free),
                held: micro(self.held_by(&hold.key)),
                ceiling,
            });
        }
        let held = Held {
            hold: hold.clone(),
            amount,
            adjusted: 0,
            due: hold.ttl.is_zero(),
        };
        self.open.insert(hold.number, held);
        Ok(Reserved {
            held: micro(amount),
            free: micro(free - amount),
        })
    }

    /// Returns the response that this history allows to the change of a hold. Checks the invariants I1, I5 and I12.
    fn adjust(&mut self, adjustment: &Adjustment) -> Result<Adjusted, Refusal> {
        let (number, key) = (adjustment.number, &adjustment.key);
        let open = self.open.get(&number);
        let Some(open) = open.filter(|open| open.hold.key == *key) else {
            return Ok(Adjusted::Gone);
        };
        if adjustment.sequence <= open.adjusted {
            return Ok(Adjusted::Held(micro(open.amount)));
        }
        let more = adjustment.amount.micro() - open.amount;
        if more > 0 {
            if let Some(refusal) = self.refusal(key) {
                return Err(refusal);
            }
            if self.free(key) < more {
                self.expire();
            }
            if !self.open.contains_key(&number) {
                return Ok(Adjusted::Gone);
            }
            let (free, ceiling) = self.room(key);
            if free < more {
                return Err(Refusal::DoesNotFit {
                    free: micro(free),
                    held: micro(self.held_by(key)),
                    ceiling,
                });
            }
        }
        let Some(open) = self.open.get_mut(&number) else {
            return Ok(Adjusted::Gone);
        };
        (open.amount, open.adjusted) = (adjustment.amount.micro(), adjustment.sequence);
        Ok(Adjusted::Held(adjustment.amount))
    }

    /// Returns the response that this history allows to a settlement. Checks the invariants I3, I4 and I5.
    fn settle(&mut self, number: RequestNumber, key: &KeyId, cost: i64, fresh: bool) -> Settled {
        if let Some(first) = self.ended.get(&number) {
            return Settled {
                repeated: true,
                ..*first
            };
        }
        let open = self.open.get(&number);
        let holder = open
            .map(|held| &held.hold.key)
            .or_else(|| self.expired.get(&number));
        let (booked, promised) = match (holder, open) {
            (Some(holder), _) if holder != key => return settled(Booked::Stale, 0, 0),
            (Some(_), Some(open)) => (Booked::Held, open.amount),
            (Some(_), None) => (Booked::Late, 0),
            (None, _) if fresh && self.keys.contains_key(key) => (Booked::Forced, 0),
            (None, _) => return settled(Booked::Stale, 0, 0),
        };
        // The money available for this call is the free amount of the key, plus the amount that the call's hold has
        // reserved.
        let charged = cost.min(promised + self.free(key));
        self.open.remove(&number);
        self.expired.remove(&number);
        let group = self.group_of(key).cloned();
        self.charges
            .push((key.clone(), group, charged, self.after_midnight));
        self.costs += cost;
        self.losses += cost - charged;
        let settled = settled(booked, charged, cost - charged);
        self.ended.insert(number, settled);
        settled
    }
}
