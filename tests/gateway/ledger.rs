//! What every ledger promises, over each of the three: memory, a file, a real Redis. That is one server,
//! one behind Sentinels with a replica, and a Cluster of three primaries.
//!
//! A test that shows an invariant names it (I1 to I13, as in `book.rs`). After each test the books are
//! audited.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tempfile::TempDir;
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyDigest, KeyId, KeyRecord, KeyStatus, KeyStore},
    money::MicroRub,
    price::{Price, Rate},
    reserve::{
        book::EXPIRE_ON_RESERVE_MAX,
        ledger::{
            AccountView, BookError, Booked, Bookkeeping, Entry, Hold, Item, KeyChange, KeyView,
            Ledger, LedgerError, Receipt, Refusal, Reserved, Settled, Settlement,
        },
        memory::MemoryLedger,
        redis::{RedisLedger, RedisSettings},
        sqlite::SqliteLedger,
    },
    usage::{End, Usage},
};
use uuid::Uuid;

use crate::redis_servers::{RedisCluster, RedisSentinels, RedisServer};

/// All that a store of money is to the gateway.
pub trait Books: Ledger + Bookkeeping + KeyStore + Clone {}

impl<L: Ledger + Bookkeeping + KeyStore + Clone> Books for L {}

macro_rules! on_every_store {
    ($($promise:ident)*) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $promise() {
                    let ledger = super::MemoryLedger::new();
                    super::$promise(&ledger).await;
                    super::is_sound(&ledger).await;
                }
            )*
        }

        mod in_sqlite {
            $(
                #[tokio::test]
                async fn $promise() {
                    let folder = super::folder();
                    let ledger = super::in_file(&folder);
                    super::$promise(&ledger).await;
                    super::is_sound(&ledger).await;
                    ledger.close().await;
                }
            )*
        }

        mod in_redis {
            $(
                #[tokio::test]
                async fn $promise() {
                    let server = super::RedisServer::start().await;
                    let ledger = super::over(&server).await;
                    super::$promise(&ledger).await;
                    super::is_sound(&ledger).await;
                }
            )*
        }

        // Servers that take long to start are shared by all promises, one after the other.
        #[tokio::test]
        async fn every_promise_in_a_cluster() {
            let cluster = RedisCluster::start(3, 0).await;
            $(
                println!(stringify!($promise));
                cluster.flush().await;
                let ledger = over_url(&cluster.url()).await;
                $promise(&ledger).await;
                is_sound(&ledger).await;
            )*
        }

        #[tokio::test]
        async fn every_promise_behind_sentinels() {
            let primary = RedisServer::start().await;
            let _replica = RedisServer::replica_of(&primary).await;
            let sentinels = RedisSentinels::start(&primary).await;
            $(
                println!(stringify!($promise));
                primary.ask::<String>(&["FLUSHALL"]).await.unwrap();
                let ledger = over_url(&sentinels.url()).await;
                $promise(&ledger).await;
                is_sound(&ledger).await;
            )*
        }
    };
}

on_every_store! {
    what_is_held_lies_between_the_least_and_the_wish
    holds_of_all_keys_count_against_the_account_and_a_ceiling_against_its_key
    a_ceiling_can_be_raised_lowered_and_taken_away
    the_same_hold_asked_for_again_is_granted_once
    a_number_cannot_hold_two_things
    a_number_that_has_ended_is_gone
    nothing_to_spend_is_judged_by_posted_money
    unknown_accounts_and_keys_are_refused
    a_disabled_key_gets_no_new_hold_and_its_running_calls_are_charged
    a_suspended_account_gets_no_new_hold_and_its_running_calls_are_charged
    the_gravest_refusal_comes_first
    a_settled_call_pays_its_cost_and_frees_its_hold
    a_cost_beyond_the_hold_takes_free_money_and_the_rest_is_loss
    a_lowered_ceiling_does_not_take_back_a_hold
    a_repeated_settlement_is_answered_with_the_first_result
    a_released_hold_costs_nothing
    a_release_that_comes_first_wins
    an_extended_hold_lives_on
    only_holds_past_their_time_expire
    a_reserve_that_does_not_fit_ends_some_due_holds_of_its_account
    an_expired_hold_is_settled_late_once_from_what_is_free
    a_hold_that_was_lost_is_charged_by_force_while_fresh
    a_number_nobody_knows_is_stale_and_moves_nothing
    a_settlement_on_another_key_than_its_holds_is_nobodys
    a_dispute_is_no_first_result
    an_account_that_is_gone_is_not_charged
    a_payment_counts_once_by_its_id
    a_correction_leaves_what_is_held
    amounts_are_exact_up_to_the_largest_and_none_goes_beyond
    accounts_are_opened_once_and_can_be_changed
    a_key_comes_back_as_it_was_written
    a_key_is_made_once
    a_change_of_a_key_touches_what_it_names
    a_deleted_key_is_still_found_and_stays_deleted
    a_receipt_is_what_was_settled
    only_settled_calls_have_a_receipt
    the_tariff_version_grows_with_a_change_only
    an_audit_counts_what_there_is
}

pub const HOUR: Duration = Duration::from_secs(3600);

pub fn micro(amount: i64) -> MicroRub {
    MicroRub::new(amount)
}

pub fn number(n: u128) -> RequestNumber {
    RequestNumber::from_uuid(Uuid::from_u128(n))
}

pub fn acme() -> AccountId {
    "acme".parse().unwrap()
}

fn key(id: &str) -> KeyId {
    id.parse().unwrap()
}

pub fn record(account: &AccountId, id: &str, digest: u8) -> KeyRecord {
    KeyRecord {
        id: key(id),
        account: account.clone(),
        digest: KeyDigest::new([digest; 32]),
        prefix: "tg-AbC123…".into(),
        name: "laptop".into(),
        status: KeyStatus::Active,
        models: Vec::new(),
        addresses: Vec::new(),
        requests_per_second: None,
        expires_at_ms: None,
        created_at_ms: 1_790_000_000_000,
    }
}

pub fn topup(id: &str, amount: i64) -> Entry {
    Entry {
        id: id.into(),
        amount: micro(amount),
        reason: None,
    }
}

fn correction(id: &str, amount: i64) -> Entry {
    Entry {
        reason: Some("a mistake".into()),
        ..topup(id, amount)
    }
}

/// A hold of all or nothing that lives for an hour.
pub fn hold(n: u128, id: &str, want: i64) -> Hold {
    Hold {
        number: number(n),
        account: acme(),
        key: key(id),
        want: micro(want),
        least: micro(want),
        ttl: HOUR,
    }
}

/// A hold that is past its time at once.
fn due(n: u128, id: &str, want: i64) -> Hold {
    Hold {
        ttl: Duration::ZERO,
        ..hold(n, id, want)
    }
}

pub fn settlement(n: u128, id: &str, cost: i64) -> Settlement {
    Settlement {
        number: number(n),
        account: acme(),
        key: key(id),
        held: micro(100),
        cost: micro(cost),
        fresh: true,
        item: item(),
    }
}

/// No two fields alike.
pub fn item() -> Item {
    let price = Price {
        input: Rate::new(1_000_001),
        cached_input: Rate::new(100_002),
        output: Rate::new(2_000_003),
        cache_write: Rate::new(500_004),
        version: 7,
        exchange_rate: "98.7654".into(),
    };
    Item {
        model: "модель \"1\"".into(),
        vendor: "vendor-1".into(),
        usage: Usage {
            input: 11,
            cached_input: 12,
            cache_write: 13,
            output: 14,
        },
        price: Some(Arc::new(price)),
        estimated: true,
        end: End::ClientLeft,
    }
}

/// A folder for a ledger file; in memory where the machine has such a place, for what a disk's sync
/// takes is not what is tested here.
pub fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

pub fn in_file(folder: &TempDir) -> SqliteLedger {
    SqliteLedger::open(&folder.path().join("ledger.db")).unwrap()
}

pub async fn over(server: &RedisServer) -> RedisLedger {
    over_url(&server.url()).await
}

/// A ledger in Redis that knows nothing of what was there before, as after a start.
pub async fn over_url(url: &str) -> RedisLedger {
    RedisLedger::connect(url, RedisSettings::default())
        .await
        .unwrap()
}

/// The account `acme` with so much money and the keys `k1` and `k2`, neither limited.
pub async fn open<L: Books>(ledger: &L, balance: i64) {
    ledger.create_account(&acme(), "Acme").await.unwrap();
    for (id, digest) in [("k1", 1), ("k2", 2)] {
        let key = record(&acme(), id, digest);
        ledger.create_key(&key, None).await.unwrap();
    }
    if balance > 0 {
        pay(ledger, "first", balance).await;
    }
}

async fn pay<L: Books>(ledger: &L, id: &str, amount: i64) -> AccountView {
    ledger.enter(&acme(), &topup(id, amount)).await.unwrap()
}

async fn set_ceiling<L: Books>(ledger: &L, id: &str, ceiling: Option<i64>) -> KeyView {
    let change = KeyChange {
        ceiling: Some(ceiling.map(micro)),
        ..KeyChange::default()
    };
    ledger.change_key(&key(id), &change).await.unwrap()
}

async fn set_status<L: Books>(ledger: &L, id: &str, status: KeyStatus) -> KeyView {
    let change = KeyChange {
        status: Some(status),
        ..KeyChange::default()
    };
    ledger.change_key(&key(id), &change).await.unwrap()
}

async fn reserved<L: Books>(ledger: &L, hold: &Hold) -> Reserved {
    ledger
        .reserve(hold)
        .await
        .unwrap_or_else(|error| panic!("{hold:?}: {error}"))
}

async fn refused<L: Books>(ledger: &L, hold: &Hold) -> Refusal {
    match ledger.reserve(hold).await {
        Err(LedgerError::Refused(refusal)) => refusal,
        answer => panic!("{hold:?}: {answer:?}"),
    }
}

async fn probed<L: Books>(ledger: &L, account: &AccountId, id: &str) -> Result<(), Refusal> {
    match ledger.probe(account, &key(id)).await {
        Ok(()) => Ok(()),
        Err(LedgerError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

async fn settled<L: Books>(ledger: &L, n: u128, id: &str, cost: i64) -> Settled {
    ledger.settle(&settlement(n, id, cost)).await.unwrap()
}

async fn release<L: Books>(ledger: &L, n: u128, id: &str) {
    ledger.release(number(n), &acme(), &key(id)).await.unwrap();
}

fn booked(booked: Booked, charged: i64, loss: i64) -> Settled {
    Settled {
        booked,
        charged: micro(charged),
        loss: micro(loss),
        repeated: false,
    }
}

fn again(first: Settled) -> Settled {
    Settled {
        repeated: true,
        ..first
    }
}

const fn does_not_fit(free: i64, held: i64) -> Refusal {
    Refusal::DoesNotFit {
        free: MicroRub::new(free),
        held: MicroRub::new(held),
    }
}

/// Balance, held, spent, loss.
async fn money<L: Books>(ledger: &L) -> [i64; 4] {
    let view = ledger.account(&acme()).await.unwrap();
    [
        view.balance_rub,
        view.held_rub,
        view.spent_rub,
        view.loss_rub,
    ]
    .map(MicroRub::micro)
}

/// Spent, held, free.
async fn key_money<L: Books>(ledger: &L, id: &str) -> [i64; 3] {
    let view = ledger.key(&key(id)).await.unwrap();
    [view.spent_rub, view.held_rub, view.free_rub].map(MicroRub::micro)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// The audit finds nothing, and the views agree with each other: I2 and I4 as operators see them.
pub async fn is_sound<L: Books>(ledger: &L) {
    let audit = ledger.audit().await.unwrap();
    assert_eq!(audit.breaches, Vec::<String>::new());
    for view in ledger.accounts().await.unwrap() {
        let keys = ledger.keys(&view.id).await.unwrap();
        let sum = |field: fn(&KeyView) -> MicroRub| {
            let amounts = keys.iter().map(field).map(MicroRub::micro);
            amounts.sum::<i64>()
        };
        assert_eq!(sum(|key| key.held_rub), view.held_rub.micro(), "{view:?}");
        assert_eq!(sum(|key| key.spent_rub), view.spent_rub.micro(), "{view:?}");
        let [balance, held, free] =
            [view.balance_rub, view.held_rub, view.free_rub].map(MicroRub::micro);
        assert!(0 <= held && held <= balance, "{view:?}");
        assert_eq!(free, balance - held, "{view:?}");
    }
}

/// I1: no more than what is free, and all or nothing below the least.
async fn what_is_held_lies_between_the_least_and_the_wish<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    set_ceiling(ledger, "k2", Some(600)).await;
    for (n, (id, want, least, answer)) in [
        ("k1", 999, 999, Ok((999, 1))),
        ("k1", 1000, 1000, Ok((1000, 0))),
        ("k1", 1001, 1001, Err(does_not_fit(1000, 0))),
        ("k1", 1500, 1, Ok((1000, 0))),
        ("k1", 1500, 1000, Ok((1000, 0))),
        ("k1", 1500, 1001, Err(does_not_fit(1000, 0))),
        ("k1", 0, 0, Ok((0, 1000))),
        ("k2", 600, 600, Ok((600, 0))),
        ("k2", 601, 601, Err(does_not_fit(600, 0))),
        ("k2", 700, 10, Ok((600, 0))),
    ]
    .into_iter()
    .enumerate()
    {
        let n = n as u128;
        let hold = Hold {
            least: micro(least),
            ..hold(n, id, want)
        };
        match answer {
            Err(refusal) => {
                assert_eq!(refused(ledger, &hold).await, refusal, "{hold:?}");
                assert_eq!(money(ledger).await, [1000, 0, 0, 0], "{hold:?}");
            }
            Ok((held, free)) => {
                let (held, free) = (micro(held), micro(free));
                let granted = reserved(ledger, &hold).await;
                assert_eq!(granted, Reserved { held, free }, "{hold:?}");
                assert_eq!(money(ledger).await, [1000, held.micro(), 0, 0], "{hold:?}");
                release(ledger, n, id).await;
            }
        }
    }
}

/// I1 and I2 over several holds.
async fn holds_of_all_keys_count_against_the_account_and_a_ceiling_against_its_key<L: Books>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    set_ceiling(ledger, "k2", Some(250)).await;
    reserved(ledger, &hold(1, "k1", 700)).await;
    assert_eq!(
        refused(ledger, &hold(2, "k1", 301)).await,
        does_not_fit(300, 700)
    );
    // The key's ceiling is less than what the account has left.
    assert_eq!(
        refused(ledger, &hold(2, "k2", 251)).await,
        does_not_fit(250, 0)
    );
    reserved(ledger, &hold(3, "k2", 200)).await;
    assert_eq!(
        refused(ledger, &hold(4, "k2", 51)).await,
        does_not_fit(50, 200)
    );
    reserved(ledger, &hold(5, "k1", 60)).await;
    // And now what the account has left is less than the key's ceiling.
    assert_eq!(
        refused(ledger, &hold(6, "k2", 41)).await,
        does_not_fit(40, 200)
    );
    assert_eq!(money(ledger).await, [1000, 960, 0, 0]);
    assert_eq!(key_money(ledger, "k1").await, [0, 760, 40]);
    assert_eq!(key_money(ledger, "k2").await, [0, 200, 40]);
    for (n, id, cost) in [(1, "k1", 700), (3, "k2", 150), (5, "k1", 1)] {
        let paid = settled(ledger, n, id, cost).await;
        assert_eq!(paid, booked(Booked::Held, cost, 0));
    }
    assert_eq!(money(ledger).await, [149, 0, 851, 0]);
    assert_eq!(key_money(ledger, "k2").await, [150, 0, 100]);
}

async fn a_ceiling_can_be_raised_lowered_and_taken_away<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    settled(ledger, 1, "k1", 100).await;
    for (ceiling, free) in [
        (Some(400), 300),
        (Some(100), 0),
        (Some(40), 0),
        (Some(0), 0),
        (Some(5000), 900),
        (None, 900),
    ] {
        let view = set_ceiling(ledger, "k1", ceiling).await;
        assert_eq!(view.ceiling_rub, ceiling.map(micro));
        assert_eq!(view.free_rub, micro(free), "{ceiling:?}");
        let probe = probed(ledger, &acme(), "k1").await;
        let expected = match free {
            0 => Err(Refusal::CeilingUsedUp),
            _ => Ok(()),
        };
        assert_eq!(probe, expected, "{ceiling:?}");
    }
}

/// I5: a RESERVE whose answer was lost may be sent again.
async fn the_same_hold_asked_for_again_is_granted_once<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let wish = Hold {
        least: micro(50),
        ..hold(1, "k1", 80)
    };
    let first = reserved(ledger, &wish).await;
    assert_eq!(first.free, micro(20));
    assert_eq!(reserved(ledger, &wish).await, first);
    // What is free is said as it is now.
    reserved(ledger, &hold(2, "k2", 15)).await;
    let second = reserved(ledger, &wish).await;
    assert_eq!((second.held, second.free), (micro(80), micro(5)));
    // Not even a disabled key is told otherwise: the hold stands.
    set_status(ledger, "k1", KeyStatus::Disabled).await;
    assert_eq!(reserved(ledger, &wish).await, second);
    assert_eq!(money(ledger).await, [100, 95, 0, 0]);
}

/// I5.
async fn a_number_cannot_hold_two_things<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    for other in [
        hold(1, "k2", 100),
        hold(1, "k1", 101),
        Hold {
            least: micro(99),
            ..hold(1, "k1", 100)
        },
    ] {
        assert_eq!(refused(ledger, &other).await, Refusal::Conflict);
    }
    assert_eq!(money(ledger).await, [1000, 100, 0, 0]);
    assert_eq!(key_money(ledger, "k2").await, [0, 0, 900]);
}

/// I5.
async fn a_number_that_has_ended_is_gone<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    for n in [1, 2] {
        reserved(ledger, &hold(n, "k1", 100)).await;
    }
    reserved(ledger, &due(3, "k1", 100)).await;
    settled(ledger, 1, "k1", 10).await;
    release(ledger, 2, "k1").await;
    assert_eq!(ledger.expire().await.unwrap(), 1);
    settled(ledger, 4, "k1", 10).await;
    for n in 1..=4 {
        let refusal = refused(ledger, &hold(n, "k1", 100)).await;
        assert_eq!(refusal, Refusal::Gone, "{n}");
    }
    assert_eq!(money(ledger).await, [980, 0, 20, 0]);
}

/// A key whose money is merely held is told that the call does not fit, not that it is poor.
async fn nothing_to_spend_is_judged_by_posted_money<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    assert_eq!(
        refused(ledger, &hold(2, "k1", 1)).await,
        does_not_fit(0, 100)
    );
    assert_eq!(refused(ledger, &hold(2, "k2", 1)).await, does_not_fit(0, 0));
    assert_eq!(probed(ledger, &acme(), "k1").await, Ok(()));

    settled(ledger, 1, "k1", 100).await;
    for id in ["k1", "k2"] {
        assert_eq!(
            refused(ledger, &hold(2, id, 1)).await,
            Refusal::AccountEmpty
        );
        assert_eq!(
            probed(ledger, &acme(), id).await,
            Err(Refusal::AccountEmpty)
        );
    }

    pay(ledger, "second", 50).await;
    set_ceiling(ledger, "k1", Some(100)).await;
    set_ceiling(ledger, "k2", Some(0)).await;
    for id in ["k1", "k2"] {
        assert_eq!(
            refused(ledger, &hold(2, id, 1)).await,
            Refusal::CeilingUsedUp
        );
        assert_eq!(
            probed(ledger, &acme(), id).await,
            Err(Refusal::CeilingUsedUp)
        );
    }
}

async fn unknown_accounts_and_keys_are_refused<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    ledger.enter(&other, &topup("first", 100)).await.unwrap();
    let nobody: AccountId = "nobody".parse().unwrap();
    // No request touches another account: I12.
    for (account, id) in [(&acme(), "k3"), (&nobody, "k1"), (&other, "k1")] {
        let hold = Hold {
            account: account.clone(),
            ..hold(1, id, 1)
        };
        assert_eq!(
            refused(ledger, &hold).await,
            Refusal::Unknown,
            "{account} {id}"
        );
        assert_eq!(probed(ledger, account, id).await, Err(Refusal::Unknown));
        ledger.release(number(2), account, &key(id)).await.unwrap();
        assert!(!ledger.extend(number(3), account, HOUR).await.unwrap());
    }
    let missing = [
        ledger.account(&nobody).await.map(drop),
        ledger.keys(&nobody).await.map(drop),
        ledger.key(&key("k3")).await.map(drop),
        ledger.change_account(&nobody, None, None).await.map(drop),
        ledger.enter(&nobody, &topup("t", 1)).await.map(drop),
        ledger
            .change_key(&key("k3"), &KeyChange::default())
            .await
            .map(drop),
        ledger
            .create_key(&record(&nobody, "k3", 3), None)
            .await
            .map(drop),
    ];
    for (index, answer) in missing.into_iter().enumerate() {
        assert!(
            matches!(answer, Err(BookError::NotFound)),
            "{index}: {answer:?}"
        );
    }
    let found = ledger.find_key(&KeyDigest::new([3; 32])).await.unwrap();
    assert_eq!(found, None);
}

/// I12: from the acknowledged disabling on, whatever a gateway has cached.
async fn a_disabled_key_gets_no_new_hold_and_its_running_calls_are_charged<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    set_status(ledger, "k1", KeyStatus::Disabled).await;
    assert_eq!(refused(ledger, &hold(2, "k1", 1)).await, Refusal::Disabled);
    assert_eq!(probed(ledger, &acme(), "k1").await, Err(Refusal::Disabled));
    reserved(ledger, &hold(3, "k2", 1)).await;
    let paid = settled(ledger, 1, "k1", 60).await;
    assert_eq!(paid, booked(Booked::Held, 60, 0));
    set_status(ledger, "k1", KeyStatus::Active).await;
    reserved(ledger, &hold(4, "k1", 1)).await;
    assert_eq!(money(ledger).await, [940, 2, 60, 0]);
}

async fn a_suspended_account_gets_no_new_hold_and_its_running_calls_are_charged<L: Books>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    let suspend = async |suspended: bool| {
        let view = ledger.change_account(&acme(), None, Some(suspended)).await;
        assert_eq!(view.unwrap().suspended, suspended);
    };
    suspend(true).await;
    for id in ["k1", "k2"] {
        assert_eq!(refused(ledger, &hold(2, id, 1)).await, Refusal::Suspended);
        assert_eq!(probed(ledger, &acme(), id).await, Err(Refusal::Suspended));
    }
    pay(ledger, "second", 5).await;
    let paid = settled(ledger, 1, "k1", 60).await;
    assert_eq!(paid, booked(Booked::Held, 60, 0));
    suspend(false).await;
    reserved(ledger, &hold(3, "k2", 1)).await;
    assert_eq!(money(ledger).await, [945, 1, 60, 0]);
}

async fn the_gravest_refusal_comes_first<L: Books>(ledger: &L) {
    open(ledger, 0).await;
    set_ceiling(ledger, "k1", Some(0)).await;
    set_status(ledger, "k1", KeyStatus::Disabled).await;
    let suspend = async |suspended: bool| {
        let view = ledger.change_account(&acme(), None, Some(suspended)).await;
        view.unwrap();
    };
    suspend(true).await;
    let check = async |refusal: Refusal| {
        assert_eq!(refused(ledger, &hold(1, "k1", 1)).await, refusal);
        assert_eq!(probed(ledger, &acme(), "k1").await, Err(refusal));
    };
    check(Refusal::Disabled).await;
    set_status(ledger, "k1", KeyStatus::Active).await;
    check(Refusal::Suspended).await;
    suspend(false).await;
    check(Refusal::AccountEmpty).await;
    pay(ledger, "first", 10).await;
    check(Refusal::CeilingUsedUp).await;
    set_ceiling(ledger, "k1", None).await;
    assert_eq!(
        refused(ledger, &hold(1, "k1", 11)).await,
        does_not_fit(10, 0)
    );
    assert_eq!(probed(ledger, &acme(), "k1").await, Ok(()));
}

/// I2 and I3.
async fn a_settled_call_pays_its_cost_and_frees_its_hold<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    let mut spent = 0;
    for (n, cost) in [(1, 100), (2, 1), (3, 0), (4, 99)] {
        reserved(ledger, &hold(n, "k1", 100)).await;
        let paid = settled(ledger, n, "k1", cost).await;
        assert_eq!(paid, booked(Booked::Held, cost, 0));
        spent += cost;
        assert_eq!(money(ledger).await, [1000 - spent, 0, spent, 0]);
        assert_eq!(key_money(ledger, "k1").await, [spent, 0, 1000 - spent]);
    }
    assert_eq!(key_money(ledger, "k2").await, [0, 0, 800]);
}

/// I3 and I4: the balance never falls below what is held, and nothing vanishes.
async fn a_cost_beyond_the_hold_takes_free_money_and_the_rest_is_loss<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    // Another call's hold is not touched, whatever this one costs.
    reserved(ledger, &hold(1, "k2", 300)).await;
    reserved(ledger, &hold(2, "k1", 100)).await;
    let paid = settled(ledger, 2, "k1", 150).await;
    assert_eq!(paid, booked(Booked::Held, 150, 0));
    // Of a key with a ceiling, the ceiling counts: 250 are spent or held, 30 are beside it.
    set_ceiling(ledger, "k1", Some(280)).await;
    reserved(ledger, &hold(3, "k1", 100)).await;
    let paid = settled(ledger, 3, "k1", 200).await;
    assert_eq!(paid, booked(Booked::Held, 130, 70));
    set_ceiling(ledger, "k1", None).await;
    reserved(ledger, &hold(4, "k1", 100)).await;
    let paid = settled(ledger, 4, "k1", 1000).await;
    assert_eq!(paid, booked(Booked::Held, 420, 580));
    assert_eq!(money(ledger).await, [300, 300, 700, 650]);
    let paid = settled(ledger, 1, "k2", 301).await;
    assert_eq!(paid, booked(Booked::Held, 300, 1));
    assert_eq!(money(ledger).await, [0, 0, 1000, 651]);
}

async fn a_lowered_ceiling_does_not_take_back_a_hold<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    set_ceiling(ledger, "k1", Some(500)).await;
    reserved(ledger, &hold(1, "k1", 400)).await;
    let view = set_ceiling(ledger, "k1", Some(50)).await;
    assert_eq!((view.held_rub, view.free_rub), (micro(400), micro(0)));
    let paid = settled(ledger, 1, "k1", 450).await;
    assert_eq!(paid, booked(Booked::Held, 400, 50));
    assert_eq!(money(ledger).await, [600, 0, 400, 50]);
}

/// I5: also when the repeat says something else.
async fn a_repeated_settlement_is_answered_with_the_first_result<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 80)).await;
    let first = settled(ledger, 1, "k1", 120).await;
    assert_eq!(first, booked(Booked::Held, 100, 20));
    pay(ledger, "second", 500).await;
    for cost in [120, 0, 500] {
        assert_eq!(settled(ledger, 1, "k1", cost).await, again(first));
    }
    let stale = Settlement {
        fresh: false,
        ..settlement(1, "k1", 120)
    };
    assert_eq!(ledger.settle(&stale).await.unwrap(), again(first));
    release(ledger, 1, "k1").await;
    assert!(!ledger.extend(number(1), &acme(), HOUR).await.unwrap());
    assert_eq!(money(ledger).await, [500, 0, 100, 20]);
    let receipt = ledger.receipt(number(1)).await.unwrap();
    assert_eq!(
        (receipt.cost_rub, receipt.charged_rub),
        (micro(120), micro(100))
    );
}

/// I5 and I9.
async fn a_released_hold_costs_nothing<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    for _ in 0..2 {
        release(ledger, 1, "k1").await;
        assert_eq!(money(ledger).await, [100, 0, 0, 0]);
    }
    let late = settled(ledger, 1, "k1", 40).await;
    assert_eq!(late, again(booked(Booked::Released, 0, 0)));
    reserved(ledger, &hold(2, "k1", 100)).await;
    assert_eq!(money(ledger).await, [100, 100, 0, 0]);
}

/// The RESERVE of a call that gave up may still be on its way.
async fn a_release_that_comes_first_wins<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    release(ledger, 1, "k1").await;
    assert_eq!(refused(ledger, &hold(1, "k1", 10)).await, Refusal::Gone);
    assert_eq!(money(ledger).await, [100, 0, 0, 0]);
}

async fn an_extended_hold_lives_on<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &due(1, "k1", 10)).await;
    reserved(ledger, &hold(2, "k1", 10)).await;
    let extend =
        async |n: u128, ttl: Duration| ledger.extend(number(n), &acme(), ttl).await.unwrap();
    assert!(extend(1, HOUR).await);
    assert_eq!(ledger.expire().await.unwrap(), 0);
    assert!(extend(2, Duration::ZERO).await);
    assert_eq!(ledger.expire().await.unwrap(), 1);
    assert_eq!(money(ledger).await, [100, 10, 0, 0]);
    // What has ended is not called back.
    for n in [2, 3] {
        assert!(!extend(n, HOUR).await, "{n}");
    }
    assert_eq!(money(ledger).await, [100, 10, 0, 0]);
}

/// I8: an account that is idle comes back to nothing held by itself.
async fn only_holds_past_their_time_expire<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    ledger
        .create_key(&record(&other, "k3", 3), None)
        .await
        .unwrap();
    ledger.enter(&other, &topup("first", 100)).await.unwrap();
    for n in 1..=4 {
        reserved(ledger, &due(n, "k1", 10)).await;
    }
    reserved(ledger, &hold(5, "k2", 10)).await;
    let others = Hold {
        account: other.clone(),
        ..due(6, "k3", 50)
    };
    reserved(ledger, &others).await;
    settled(ledger, 1, "k1", 5).await;
    release(ledger, 2, "k1").await;
    assert_eq!(ledger.expire().await.unwrap(), 3);
    assert_eq!(ledger.expire().await.unwrap(), 0);
    assert_eq!(money(ledger).await, [995, 10, 5, 0]);
    let view = ledger.account(&other).await.unwrap();
    assert_eq!((view.held_rub, view.free_rub), (micro(0), micro(100)));
}

/// I8, and a bound on what one RESERVE does on its way.
async fn a_reserve_that_does_not_fit_ends_some_due_holds_of_its_account<L: Books>(ledger: &L) {
    let some = i64::try_from(EXPIRE_ON_RESERVE_MAX).unwrap();
    open(ledger, some + 8).await;
    for n in 1..=u128::try_from(some + 8).unwrap() {
        reserved(ledger, &due(n, "k1", 1)).await;
    }
    assert_eq!(
        refused(ledger, &hold(100, "k2", some + 8)).await,
        does_not_fit(some, 0)
    );
    assert_eq!(money(ledger).await, [some + 8, 8, 0, 0]);
    // What fits leaves the rest of them alone.
    reserved(ledger, &hold(101, "k2", some)).await;
    assert_eq!(money(ledger).await, [some + 8, some + 8, 0, 0]);
    reserved(ledger, &hold(102, "k2", 8)).await;
    assert_eq!(key_money(ledger, "k1").await, [0, 0, 0]);
    assert_eq!(money(ledger).await, [some + 8, some + 8, 0, 0]);
}

/// I5: at most once, and I4: never out of another call's hold.
async fn an_expired_hold_is_settled_late_once_from_what_is_free<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    for (n, want) in [(1, 50), (2, 40), (3, 10)] {
        reserved(ledger, &due(n, "k1", want)).await;
    }
    assert_eq!(ledger.expire().await.unwrap(), 3);
    assert_eq!(money(ledger).await, [100, 0, 0, 0]);
    reserved(ledger, &hold(4, "k2", 60)).await;
    let first = settled(ledger, 1, "k1", 30).await;
    assert_eq!(first, booked(Booked::Late, 30, 0));
    let second = settled(ledger, 2, "k1", 40).await;
    assert_eq!(second, booked(Booked::Late, 10, 30));
    assert_eq!(settled(ledger, 1, "k1", 30).await, again(first));
    assert_eq!(settled(ledger, 2, "k1", 40).await, again(second));
    // Released after it expired, it is not settled any more.
    release(ledger, 3, "k1").await;
    let third = settled(ledger, 3, "k1", 10).await;
    assert_eq!(third, again(booked(Booked::Released, 0, 0)));
    assert_eq!(money(ledger).await, [60, 60, 40, 30]);
    assert_eq!(
        ledger.receipt(number(2)).await.unwrap().booked,
        Booked::Late
    );
}

/// I7: a failover may lose a hold, not its charge.
async fn a_hold_that_was_lost_is_charged_by_force_while_fresh<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k2", 30)).await;
    let first = settled(ledger, 2, "k1", 50).await;
    assert_eq!(first, booked(Booked::Forced, 50, 0));
    assert_eq!(settled(ledger, 2, "k1", 50).await, again(first));
    set_ceiling(ledger, "k1", Some(55)).await;
    let second = settled(ledger, 3, "k1", 50).await;
    assert_eq!(second, booked(Booked::Forced, 5, 45));
    set_ceiling(ledger, "k1", None).await;
    let third = settled(ledger, 4, "k1", 50).await;
    assert_eq!(third, booked(Booked::Forced, 15, 35));
    assert_eq!(money(ledger).await, [30, 30, 70, 80]);
    assert_eq!(
        ledger.receipt(number(3)).await.unwrap().booked,
        Booked::Forced
    );
}

/// I3: a dispute is written down, and nothing is moved.
async fn a_number_nobody_knows_is_stale_and_moves_nothing<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let stale = Settlement {
        fresh: false,
        ..settlement(1, "k1", 50)
    };
    for _ in 0..2 {
        let answer = ledger.settle(&stale).await.unwrap();
        assert_eq!(answer, booked(Booked::Stale, 0, 0));
    }
    let receipt = ledger.receipt(number(1)).await.unwrap();
    assert_eq!(receipt.booked, Booked::Stale);
    assert_eq!(
        [receipt.cost_rub, receipt.charged_rub, receipt.loss_rub],
        [50, 0, 0].map(micro)
    );
    // Nor does a fresh one on a key that there is not.
    let stray = settled(ledger, 2, "k3", 50).await;
    assert_eq!(stray, booked(Booked::Stale, 0, 0));
    assert_eq!(money(ledger).await, [100, 0, 0, 0]);
}

/// I12: no request touches another key's money. The hold stands, and its own settlement is booked and
/// gets the receipt.
async fn a_settlement_on_another_key_than_its_holds_is_nobodys<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 50)).await;
    reserved(ledger, &due(2, "k1", 20)).await;
    ledger.expire().await.unwrap();
    for n in [1, 2] {
        for _ in 0..2 {
            let stray = settled(ledger, n, "k2", 50).await;
            assert_eq!(stray, booked(Booked::Stale, 0, 0));
        }
        // The dispute is written down.
        let receipt = ledger.receipt(number(n)).await.unwrap();
        assert_eq!((&*receipt.key, receipt.booked), ("k2", Booked::Stale));
    }
    assert_eq!(money(ledger).await, [100, 50, 0, 0]);
    for (n, cost, how) in [(1, 30, Booked::Held), (2, 10, Booked::Late)] {
        let own = settled(ledger, n, "k1", cost).await;
        assert_eq!(own, booked(how, cost, 0));
        let receipt = ledger.receipt(number(n)).await.unwrap();
        assert_eq!(
            (&*receipt.key, receipt.booked, receipt.charged_rub),
            ("k1", how, micro(cost))
        );
    }
    assert_eq!(money(ledger).await, [60, 0, 40, 0]);
}

/// As the book has it: a stale number is as unknown as before.
async fn a_dispute_is_no_first_result<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    for n in [1, 2] {
        let stale = Settlement {
            fresh: false,
            ..settlement(n, "k1", 50)
        };
        let answer = ledger.settle(&stale).await.unwrap();
        assert_eq!(answer, booked(Booked::Stale, 0, 0));
    }
    let forced = settled(ledger, 1, "k1", 30).await;
    assert_eq!(forced, booked(Booked::Forced, 30, 0));
    reserved(ledger, &hold(2, "k1", 40)).await;
    let paid = settled(ledger, 2, "k1", 40).await;
    assert_eq!(paid, booked(Booked::Held, 40, 0));
    for (n, first) in [(1, forced), (2, paid)] {
        let receipt = ledger.receipt(number(n)).await.unwrap();
        assert_eq!(
            (receipt.booked, receipt.charged_rub),
            (first.booked, first.charged)
        );
        assert_eq!(settled(ledger, n, "k1", 50).await, again(first));
    }
    assert_eq!(money(ledger).await, [30, 0, 70, 0]);
}

async fn an_account_that_is_gone_is_not_charged<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let call = Settlement {
        account: "nobody".parse().unwrap(),
        ..settlement(1, "k1", 50)
    };
    for _ in 0..2 {
        let answer = ledger.settle(&call).await.unwrap();
        assert_eq!(answer, booked(Booked::NoAccount, 0, 0));
    }
    assert!(matches!(
        ledger.receipt(number(1)).await,
        Err(BookError::NotFound)
    ));
    assert_eq!(money(ledger).await, [100, 0, 0, 0]);
}

/// I10.
async fn a_payment_counts_once_by_its_id<L: Books>(ledger: &L) {
    open(ledger, 0).await;
    let once = pay(ledger, "invoice 1/2026 «Ромашка»", 100).await;
    assert_eq!(once.balance_rub, micro(100));
    assert_eq!(pay(ledger, "invoice 1/2026 «Ромашка»", 100).await, once);
    for amount in [99, 101, -100] {
        let entry = topup("invoice 1/2026 «Ромашка»", amount);
        let answer = ledger.enter(&acme(), &entry).await;
        assert!(matches!(answer, Err(BookError::Exists)), "{answer:?}");
    }
    // Another clone of the ledger knows of it; another account's ids are its own.
    let clone = ledger.clone();
    assert_eq!(pay(&clone, "invoice 1/2026 «Ромашка»", 100).await, once);
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    let view = ledger
        .enter(&other, &topup("invoice 1/2026 «Ромашка»", 7))
        .await
        .unwrap();
    assert_eq!(view.balance_rub, micro(7));
    assert_eq!(pay(ledger, "invoice 2", 5).await.balance_rub, micro(105));
}

/// I4.
async fn a_correction_leaves_what_is_held<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 60)).await;
    let correct =
        async |id: &str, amount: i64| ledger.enter(&acme(), &correction(id, amount)).await;
    for amount in [-41, -100, -1000] {
        let answer = correct("c1", amount).await;
        assert!(
            matches!(answer, Err(BookError::BelowHeld)),
            "{amount}: {answer:?}"
        );
    }
    // A refused id is not used up.
    let view = correct("c1", -40).await.unwrap();
    assert_eq!([view.balance_rub, view.free_rub], [60, 0].map(micro));
    assert_eq!(correct("c1", -40).await.unwrap(), view);
    assert!(matches!(correct("c1", -39).await, Err(BookError::Exists)));
    settled(ledger, 1, "k1", 10).await;
    let view = correct("c2", -50).await.unwrap();
    assert_eq!(view.balance_rub, micro(0));
    assert!(matches!(correct("c3", -1).await, Err(BookError::BelowHeld)));
    let view = correct("c3", 3).await.unwrap();
    assert_eq!([view.balance_rub, view.spent_rub], [3, 10].map(micro));
}

/// I3 where a double is exact for the last time: 2⁵³ − 1.
async fn amounts_are_exact_up_to_the_largest_and_none_goes_beyond<L: Books>(ledger: &L) {
    const MAX: i64 = MicroRub::MAX.micro();
    open(ledger, MAX).await;
    let beyond = async |id: &str, amount: i64| {
        let answer = ledger.enter(&acme(), &topup(id, amount)).await;
        assert!(matches!(answer, Err(BookError::AboveMax)), "{answer:?}");
    };
    beyond("second", 1).await;
    beyond("second", MAX).await;
    let half = MAX / 2 + 1;
    set_ceiling(ledger, "k2", Some(MAX)).await;
    let first = reserved(ledger, &hold(1, "k1", half)).await;
    assert_eq!([first.held, first.free], [half, MAX - half].map(micro));
    let second = reserved(ledger, &hold(2, "k2", MAX - half)).await;
    assert_eq!([second.held, second.free], [MAX - half, 0].map(micro));
    assert_eq!(money(ledger).await, [MAX, MAX, 0, 0]);
    let paid = settled(ledger, 1, "k1", half - 1).await;
    assert_eq!(paid, booked(Booked::Held, half - 1, 0));
    assert_eq!(
        money(ledger).await,
        [MAX - half + 1, MAX - half, half - 1, 0]
    );
    // All of it, and the greatest loss there can be.
    let paid = settled(ledger, 2, "k2", MAX).await;
    assert_eq!(paid, booked(Booked::Held, MAX - half + 1, half - 1));
    assert_eq!(money(ledger).await, [0, 0, MAX, half - 1]);
    let receipt = ledger.receipt(number(2)).await.unwrap();
    assert_eq!(
        [receipt.cost_rub, receipt.charged_rub, receipt.loss_rub],
        [MAX, MAX - half + 1, half - 1].map(micro)
    );
    assert_eq!(pay(ledger, "second", MAX).await.balance_rub, micro(MAX));
    beyond("third", 1).await;
}

async fn accounts_are_opened_once_and_can_be_changed<L: Books>(ledger: &L) {
    let create = async |id: &str, name: &str| {
        let id: AccountId = id.parse().unwrap();
        ledger.create_account(&id, name).await
    };
    let made = create("acme", "ООО «Ромашка: 1»").await.unwrap();
    let expected = AccountView {
        id: acme(),
        name: "ООО «Ромашка: 1»".into(),
        suspended: false,
        balance_rub: micro(0),
        held_rub: micro(0),
        free_rub: micro(0),
        spent_rub: micro(0),
        loss_rub: micro(0),
    };
    assert_eq!(made, expected);
    assert_eq!(create("acme", "ООО «Ромашка: 1»").await.unwrap(), expected);
    assert!(matches!(
        create("acme", "Other").await,
        Err(BookError::Exists)
    ));
    create("Zeta_1", "").await.unwrap();
    create("1-b", "Acme").await.unwrap();
    pay(ledger, "first", 5).await;
    let renamed = ledger.change_account(&acme(), Some("Acme"), None).await;
    let expected = AccountView {
        name: "Acme".into(),
        balance_rub: micro(5),
        free_rub: micro(5),
        ..expected
    };
    assert_eq!(renamed.unwrap(), expected);
    let suspended = ledger.change_account(&acme(), None, Some(true)).await;
    let expected = AccountView {
        suspended: true,
        ..expected
    };
    assert_eq!(suspended.unwrap(), expected);
    let unchanged = ledger.change_account(&acme(), None, None).await;
    assert_eq!(unchanged.unwrap(), expected);
    assert_eq!(ledger.account(&acme()).await.unwrap(), expected);
    let all = ledger.accounts().await.unwrap();
    let ids: Vec<&str> = all.iter().map(|view| &*view.id).collect();
    assert_eq!(ids, ["1-b", "Zeta_1", "acme"]);
    assert_eq!(all[2], expected);
}

/// A key with every field set, none to its default.
fn full_record() -> KeyRecord {
    KeyRecord {
        prefix: "tg-«ё»…".into(),
        name: "Ключ \"1\": {a}'\\\n".into(),
        status: KeyStatus::Disabled,
        models: vec!["chat".into(), "модель:2".into()],
        addresses: vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ],
        requests_per_second: Some(7),
        expires_at_ms: Some(4_000_000_000_001),
        ..record(&acme(), "K-9_z", 0xab)
    }
}

async fn a_key_comes_back_as_it_was_written<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let record = full_record();
    let view = KeyView {
        record: record.clone(),
        ceiling_rub: Some(micro(60)),
        spent_rub: micro(0),
        held_rub: micro(0),
        free_rub: micro(60),
    };
    let made = ledger.create_key(&record, Some(micro(60))).await.unwrap();
    assert_eq!(made, view);
    assert_eq!(ledger.key(&record.id).await.unwrap(), view);
    let found = ledger.find_key(&record.digest).await.unwrap();
    assert_eq!(found.as_deref(), Some(&record));
    let keys = ledger.keys(&acme()).await.unwrap();
    let ids: Vec<&str> = keys.iter().map(|key| &*key.record.id).collect();
    assert_eq!(ids, ["K-9_z", "k1", "k2"]);
    assert_eq!(keys[0], view);
}

async fn a_key_is_made_once<L: Books>(ledger: &L) {
    open(ledger, 0).await;
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    let first = ledger
        .create_key(&full_record(), Some(micro(60)))
        .await
        .unwrap();
    let second = ledger.create_key(&full_record(), Some(micro(60))).await;
    assert_eq!(second.unwrap(), first);
    let renamed = KeyRecord {
        name: "desk".into(),
        ..full_record()
    };
    let of_another_digest = KeyRecord {
        digest: KeyDigest::new([9; 32]),
        ..full_record()
    };
    let of_another_account = KeyRecord {
        account: other.clone(),
        ..full_record()
    };
    for (record, ceiling) in [
        (renamed, Some(60)),
        (of_another_digest, Some(60)),
        (of_another_account, Some(60)),
        (full_record(), Some(61)),
        (full_record(), None),
        // A digest is one key's, whichever account it is in.
        (record(&acme(), "k3", 0xab), None),
        (record(&other, "k4", 0xab), None),
    ] {
        let answer = ledger.create_key(&record, ceiling.map(micro)).await;
        assert!(
            matches!(answer, Err(BookError::Exists)),
            "{record:?} {ceiling:?}: {answer:?}"
        );
    }
    assert_eq!(ledger.key(&full_record().id).await.unwrap(), first);
    let found = ledger.find_key(&full_record().digest).await.unwrap();
    assert_eq!(found.as_deref(), Some(&full_record()));
    assert!(ledger.keys(&other).await.unwrap().is_empty());
}

type Edit = fn(&mut KeyView);

async fn a_change_of_a_key_touches_what_it_names<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let mut view = ledger
        .create_key(&full_record(), Some(micro(60)))
        .await
        .unwrap();
    let id = full_record().id;
    let steps: [(KeyChange, Edit); 9] = [
        (KeyChange::default(), |_| {}),
        (
            KeyChange {
                name: Some("desk".into()),
                ..KeyChange::default()
            },
            |view| view.record.name = "desk".into(),
        ),
        (
            KeyChange {
                status: Some(KeyStatus::Active),
                ..KeyChange::default()
            },
            |view| view.record.status = KeyStatus::Active,
        ),
        (
            KeyChange {
                ceiling: Some(Some(micro(40))),
                ..KeyChange::default()
            },
            |view| {
                view.ceiling_rub = Some(micro(40));
                view.free_rub = micro(40);
            },
        ),
        (
            KeyChange {
                models: Some(vec!["messages".into()]),
                ..KeyChange::default()
            },
            |view| view.record.models = vec!["messages".into()],
        ),
        (
            KeyChange {
                addresses: Some(Vec::new()),
                ..KeyChange::default()
            },
            |view| view.record.addresses = Vec::new(),
        ),
        (
            KeyChange {
                requests_per_second: Some(None),
                ..KeyChange::default()
            },
            |view| view.record.requests_per_second = None,
        ),
        (
            KeyChange {
                expires_at_ms: Some(None),
                ..KeyChange::default()
            },
            |view| view.record.expires_at_ms = None,
        ),
        (
            KeyChange {
                name: Some("all".into()),
                ceiling: Some(None),
                requests_per_second: Some(Some(3)),
                expires_at_ms: Some(Some(5)),
                ..KeyChange::default()
            },
            |view| {
                view.record.name = "all".into();
                view.ceiling_rub = None;
                view.free_rub = micro(100);
                view.record.requests_per_second = Some(3);
                view.record.expires_at_ms = Some(5);
            },
        ),
    ];
    for (change, edit) in steps {
        // Read before, so that a cache has something to forget.
        ledger.find_key(&view.record.digest).await.unwrap();
        edit(&mut view);
        let changed = ledger.change_key(&id, &change).await.unwrap();
        assert_eq!(changed, view, "{change:?}");
        assert_eq!(ledger.key(&id).await.unwrap(), view, "{change:?}");
        let found = ledger.find_key(&view.record.digest).await.unwrap();
        assert_eq!(found.as_deref(), Some(&view.record), "{change:?}");
    }
    // The other keys are as they were.
    let other = ledger.key(&key("k1")).await.unwrap();
    assert_eq!(other.record, record(&acme(), "k1", 1));
}

async fn a_deleted_key_is_still_found_and_stays_deleted<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 50)).await;
    for status in [KeyStatus::Deleted, KeyStatus::Active, KeyStatus::Disabled] {
        let view = set_status(ledger, "k1", status).await;
        assert_eq!(view.record.status, KeyStatus::Deleted, "{status:?}");
        assert_eq!(refused(ledger, &hold(2, "k1", 1)).await, Refusal::Disabled);
    }
    let found = ledger.find_key(&KeyDigest::new([1; 32])).await.unwrap();
    assert_eq!(found.unwrap().status, KeyStatus::Deleted);
    // Its books are kept, and its digest is not free again.
    let paid = settled(ledger, 1, "k1", 50).await;
    assert_eq!(paid, booked(Booked::Held, 50, 0));
    assert_eq!(key_money(ledger, "k1").await[0], 50);
    assert_eq!(ledger.keys(&acme()).await.unwrap().len(), 2);
    let answer = ledger.create_key(&record(&acme(), "k3", 1), None).await;
    assert!(matches!(answer, Err(BookError::Exists)), "{answer:?}");
}

/// I3 and I11: every field, the prices of the call's snapshot among them.
async fn a_receipt_is_what_was_settled<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 60)).await;
    reserved(ledger, &due(2, "k2", 30)).await;
    ledger.expire().await.unwrap();
    let plain = Item {
        price: None,
        estimated: false,
        end: End::Finished,
        usage: Usage::default(),
        ..item()
    };
    let calls = [
        (settlement(1, "k1", 70), Booked::Held, 70, 0),
        (
            Settlement {
                item: Item {
                    end: End::VendorCut,
                    ..item()
                },
                held: micro(30),
                ..settlement(2, "k2", 10)
            },
            Booked::Late,
            10,
            0,
        ),
        (
            Settlement {
                item: Item {
                    end: End::VendorError,
                    ..plain.clone()
                },
                held: micro(0),
                ..settlement(3, "k2", 50)
            },
            Booked::Forced,
            20,
            30,
        ),
        (
            Settlement {
                fresh: false,
                item: plain,
                ..settlement(4, "k1", 5)
            },
            Booked::Stale,
            0,
            0,
        ),
    ];
    for (call, how, charged, loss) in calls {
        let before = now_ms();
        let answer = ledger.settle(&call).await.unwrap();
        let after = now_ms();
        assert_eq!(answer, booked(how, charged, loss));
        let receipt = ledger.receipt(call.number).await.unwrap();
        assert!(
            (before..=after).contains(&receipt.at_ms),
            "{before} {after} {receipt:?}"
        );
        let expected = Receipt {
            number: call.number,
            at_ms: receipt.at_ms,
            account: call.account,
            key: call.key,
            held_rub: call.held,
            cost_rub: call.cost,
            charged_rub: micro(charged),
            loss_rub: micro(loss),
            booked: how,
            item: call.item,
        };
        assert_eq!(receipt, expected);
    }
}

/// I9.
async fn only_settled_calls_have_a_receipt<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    for n in [1, 2] {
        reserved(ledger, &hold(n, "k1", 10)).await;
    }
    reserved(ledger, &due(3, "k1", 10)).await;
    ledger.expire().await.unwrap();
    release(ledger, 2, "k1").await;
    settled(ledger, 2, "k1", 5).await;
    refused(ledger, &hold(4, "k1", 1000)).await;
    for n in 1..=5 {
        let answer = ledger.receipt(number(n)).await;
        assert!(
            matches!(answer, Err(BookError::NotFound)),
            "{n}: {answer:?}"
        );
    }
}

async fn the_tariff_version_grows_with_a_change_only<L: Books>(ledger: &L) {
    let mut since = 0;
    for (fingerprint, id, is_new) in [
        ("a", 1, true),
        ("a", 1, false),
        ("b", 2, true),
        ("b", 2, false),
        ("a", 3, true),
    ] {
        let before = now_ms();
        let version = ledger.tariff_version(fingerprint).await.unwrap();
        assert_eq!(version.id, id, "{fingerprint}");
        if is_new {
            since = version.effective_from_ms;
            assert!((before..=now_ms()).contains(&since), "{before} {since}");
        } else {
            assert_eq!(version.effective_from_ms, since, "{fingerprint}");
        }
    }
}

async fn an_audit_counts_what_there_is<L: Books>(ledger: &L) {
    let count = async || {
        let audit = ledger.audit().await.unwrap();
        assert_eq!(audit.breaches, Vec::<String>::new());
        [audit.accounts, audit.keys, audit.holds_open]
    };
    assert_eq!(count().await, [0, 0, 0]);
    open(ledger, 100).await;
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    for n in [1, 2, 3] {
        reserved(ledger, &hold(n, "k1", 10)).await;
    }
    release(ledger, 2, "k1").await;
    set_status(ledger, "k2", KeyStatus::Deleted).await;
    assert_eq!(count().await, [2, 2, 2]);
    settled(ledger, 1, "k1", 10).await;
    settled(ledger, 3, "k1", 10).await;
    assert_eq!(count().await, [2, 2, 0]);
}
