//! Tests of Redis with replicas, behind Sentinels, or as a Cluster: which server the ledger uses, which servers it
//! waits for, and what a failover may lose.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::Instant;
use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    key::{AccountId, KeyDigest, KeyStore},
    reserve::{
        ledger::{BookError, Booked, Hold, Ledger, LedgerAdmin, LedgerError},
        redis::{RedisLedger, RedisSettings, Watch},
    },
};
use tollgate_ledger::contract::EventStore;

use crate::{
    ledger::{
        HOUR, acme, hold, is_sound, micro, number, open, over, over_url, record, settlement, topup,
    },
    support::redis::{RedisCluster, RedisSentinels, RedisServer, eventually, slot_of},
};

/// On a busy machine, a call that need not wait is answered within this time. Waiting for a suspended server takes
/// longer.
const AT_ONCE: Duration = Duration::from_millis(400);
/// If the Redis server of a call is unreachable, the call must fail within this time.
const IN_TIME: Duration = Duration::from_secs(1);
/// After a failover, calls must be served again within this time.
const SOON: Duration = Duration::from_millis(1500);

/// Creates an account with 1000 µ₽ and with a key `key-<account>`.
async fn opened(ledger: &RedisLedger, account: &str, digest: u8) -> AccountId {
    let id: AccountId = account.parse().unwrap();
    ledger.create_account(&id, account).await.unwrap();
    let key = record(&id, &format!("key-{account}"), digest);
    ledger.create_key(&key, Ceilings::NONE).await.unwrap();
    ledger.enter(&id, &topup("first", 1000)).await.unwrap();
    id
}

/// Returns a hold of 1 µ₽ in an account that [`opened`] has created.
fn hold_in(account: &AccountId, n: u128) -> Hold {
    let mut hold = hold(n, &format!("key-{account}"), 1);
    hold.account = account.clone();
    hold
}

/// Requests a hold. Returns `Ok`, or the reason why the ledger is unavailable, and the time until this response.
async fn timed(ledger: &RedisLedger, hold: &Hold) -> (Result<(), String>, Duration) {
    let begin = Instant::now();
    let answer = match ledger.reserve(hold).await {
        Ok(_) => Ok(()),
        Err(LedgerError::Unavailable(cause)) => Err(cause.to_string()),
        Err(error) => panic!("{error}"),
    };
    (answer, begin.elapsed())
}

/// Returns the reason why the ledger was unavailable for this command.
fn away<T: std::fmt::Debug>(answer: Result<T, LedgerError>) -> String {
    match answer {
        Err(LedgerError::Unavailable(cause)) => cause.to_string(),
        answer => panic!("{answer:?}"),
    }
}

async fn watched(ledger: &RedisLedger) -> Watch {
    eventually("the servers are looked at", async || {
        ledger.watch().await.ok()
    })
    .await
}

/// Invariant I10: a payment that was acknowledged to an operator is not lost if the primary is lost.
#[tokio::test]
async fn payment_is_acknowledged_only_when_a_replica_has_it() {
    let primary = RedisServer::start().await;
    let replica = RedisServer::replica_of(&primary).await;
    let ledger = over(&primary).await;
    open(&ledger, 1000).await;
    let pay = async || ledger.enter(&acme(), &topup("second", 500)).await;

    replica.stop_signal();
    // The repeated payment changes nothing, but it is acknowledged only when a replica has the first payment.
    for _ in 0..2 {
        match pay().await {
            Err(BookError::Unavailable(cause)) => {
                let cause = cause.to_string();
                assert!(
                    cause.contains("no replica has acknowledged it yet"),
                    "{cause}"
                );
            }
            answer => panic!("{answer:?}"),
        }
    }
    // While an operator's payment waits for the replica, calls do not wait.
    let calls = async {
        for n in 1..=20 {
            let (answer, took) = timed(&ledger, &hold(n, "k1", 1)).await;
            assert_eq!(answer, Ok(()));
            assert!(took < AT_ONCE, "{took:?}");
        }
    };
    let (paid, ()) = join(pay(), calls).await;
    assert!(matches!(paid, Err(BookError::Unavailable(_))), "{paid:?}");

    replica.continue_signal();
    let view = eventually("the payment is acknowledged", async || pay().await.ok()).await;
    assert_eq!(view.balance_rub, micro(1500));

    // If the primary has no replica, a payment is acknowledged at once.
    replica.kill();
    eventually("the primary has no replica", async || {
        let info: String = primary.ask(&["INFO", "replication"]).await.ok()?;
        info.contains("connected_slaves:0").then_some(())
    })
    .await;
    assert_eq!(watched(&ledger).await, Watch::Same);
    let begin = Instant::now();
    ledger.enter(&acme(), &topup("third", 1)).await.unwrap();
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    is_sound(&ledger).await;
}

#[tokio::test]
async fn ledger_check_distinguishes_a_redis_restart_from_lost_data() {
    let server = RedisServer::start_durable().await;
    let ledger = over(&server).await;
    open(&ledger, 1000).await;
    assert_eq!(watched(&ledger).await, Watch::Same);

    server.restart().await;
    for _ in 0..2 {
        assert_eq!(watched(&ledger).await, Watch::Changed);
    }
    ledger.known();
    assert_eq!(watched(&ledger).await, Watch::Same);
    ledger.reserve(&hold(1, "k1", 10)).await.unwrap();

    server.ask::<String>(&["FLUSHALL"]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(watched(&ledger).await, Watch::Lost);
    }
    // A new gateway may use the empty Redis as a new ledger. A gateway that has used the lost data may not.
    let newcomer = over(&server).await;
    assert_eq!(watched(&newcomer).await, Watch::Same);
    assert_eq!(watched(&ledger).await, Watch::Lost);
    let found = ledger.find_key(&KeyDigest::new([1; 32])).await;
    for answer in [
        away(ledger.reserve(&hold(2, "k1", 10)).await),
        away(ledger.settle(&settlement(1, "k1", 5)).await),
        away(
            ledger
                .release(number(1), &acme(), &hold(1, "k1", 1).key)
                .await,
        ),
        away(ledger.extend(number(1), &acme(), HOUR).await),
        away(ledger.probe(&acme(), &hold(1, "k1", 1).key).await),
        found.unwrap_err().to_string(),
    ] {
        assert!(
            answer.contains("not the one that this gateway started with"),
            "{answer}"
        );
    }
}

/// If a call needs lost data, it may detect the loss before the gateway's regular check. Even then, no key may be
/// refused as unknown, and no charge may be lost.
#[tokio::test]
async fn lost_data_is_detected_by_the_first_call_that_needs_it() {
    let server = RedisServer::start().await;
    open(&over(&server).await, 1000).await;
    for meets in 0..4 {
        // This is a new connection, which has not detected yet that Redis has lost its data.
        let ledger = over(&server).await;
        let sys: Vec<String> = server.ask(&["HGETALL", "tg:sys"]).await.unwrap();
        server
            .ask::<i64>(&["DEL", "tg:sys", "tg:{acme}"])
            .await
            .unwrap();
        let k1 = hold(1, "k1", 1).key;
        let reported = match meets {
            0 => away(ledger.reserve(&hold(1, "k1", 10)).await),
            1 => away(ledger.settle(&settlement(1, "k1", 5)).await),
            2 => away(ledger.probe(&acme(), &k1).await),
            _ => {
                let found = ledger.find_key(&KeyDigest::new([9; 32])).await;
                found.unwrap_err().to_string()
            }
        };
        assert!(reported.contains("not the one"), "{meets}: {reported}");
        let mut words = vec!["HSET", "tg:sys"];
        words.extend(sys.iter().map(String::as_str));
        server.ask::<i64>(&words).await.unwrap();
    }
}

#[tokio::test]
async fn cluster_shard_without_its_data_counts_as_data_loss() {
    let cluster = RedisCluster::start(3, 0).await;
    let ledger = over_url(&cluster.url()).await;
    let sys = cluster.primary_of("tg:sys");
    assert_eq!(watched(&ledger).await, Watch::Same);
    let shard = &cluster.nodes()[(sys + 1) % 3];
    shard.ask::<String>(&["FLUSHALL"]).await.unwrap();
    assert_eq!(watched(&ledger).await, Watch::Lost);
    // A gateway that starts now must not accept the remaining data as a complete ledger.
    let newcomer = RedisLedger::connect(&cluster.url(), RedisSettings::default()).await;
    assert!(newcomer.is_err());
    assert_eq!(watched(&ledger).await, Watch::Lost);
}

#[tokio::test]
async fn replica_that_sentinels_promoted_for_a_dead_primary_is_found() {
    fails_over(RedisServer::kill).await;
}

#[tokio::test]
async fn replica_that_sentinels_promoted_for_a_suspended_primary_is_found() {
    fails_over(RedisServer::stop_signal).await;
}

async fn fails_over(gone: fn(&RedisServer)) {
    let primary = RedisServer::start().await;
    let replica = RedisServer::replica_of(&primary).await;
    let sentinels = RedisSentinels::start(&primary).await;
    let ledger = over_url(&sentinels.url()).await;
    open(&ledger, 1000).await;
    ledger.reserve(&hold(1, "k1", 100)).await.unwrap();
    // This entry is acknowledged only when a replica has it, so the replica also has everything that was written
    // before.
    ledger.enter(&acme(), &topup("second", 500)).await.unwrap();
    assert_eq!(watched(&ledger).await, Watch::Same);

    gone(&primary);
    for n in 2..5 {
        let (answer, took) = timed(&ledger, &hold(n, "k1", 1)).await;
        assert!(answer.is_err(), "{n}");
        assert!(took < IN_TIME, "{took:?}");
    }
    eventually("the replica is promoted", async || {
        // During the failover, the gateway continues to try calls.
        let _ = ledger.reserve(&hold(2, "k1", 1)).await;
        (sentinels.primary().await == replica.port()).then_some(())
    })
    .await;
    let begin = Instant::now();
    eventually("calls are served again", async || {
        ledger.reserve(&hold(2, "k1", 1)).await.ok()
    })
    .await;
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(watched(&ledger).await, Watch::Changed);
    ledger.known();
    assert_eq!(watched(&ledger).await, Watch::Same);

    let paid = ledger.settle(&settlement(1, "k1", 70)).await.unwrap();
    assert_eq!(paid.booked, Booked::Held);
    let view = ledger.account(&acme()).await.unwrap();
    assert_eq!(view.balance_rub, micro(1500 - 70));
    is_sound(&ledger).await;
}

#[tokio::test]
async fn suspended_cluster_primary_delays_only_its_own_accounts() {
    let cluster = RedisCluster::start(3, 0).await;
    let ledger = over_url(&cluster.url()).await;
    let mut accounts = Vec::new();
    for (index, digest) in [(0, 1), (1, 2), (2, 3)] {
        let account = cluster.account_on(index);
        accounts.push(opened(&ledger, &account, digest).await);
    }
    let gone = &cluster.nodes()[2];
    gone.stop_signal();
    // The node is suspended for longer than the other nodes need to declare it failed.
    let begin = Instant::now();
    let mut n = 0;
    while begin.elapsed() < Duration::from_secs(3) {
        let holds: Vec<Hold> = accounts
            .iter()
            .map(|account| {
                n += 1;
                hold_in(account, n)
            })
            .collect();
        let answers = join_all(holds.iter().map(|hold| timed(&ledger, hold))).await;
        for (index, (answer, took)) in answers.into_iter().enumerate() {
            if index == 2 {
                assert!(answer.is_err() && took < IN_TIME, "{answer:?} {took:?}");
            } else {
                assert!(answer.is_ok() && took < AT_ONCE, "{answer:?} {took:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The nodes that respond still have the same data set.
    assert_eq!(watched(&ledger).await, Watch::Same);

    gone.continue_signal();
    eventually("its accounts are served again", async || {
        ledger.reserve(&hold_in(&accounts[2], 1_000_000)).await.ok()
    })
    .await;
    is_sound(&ledger).await;
}

#[tokio::test]
async fn failed_cluster_primary_does_not_delay_events_of_accounts_on_other_primaries() {
    let cluster = RedisCluster::start(3, 0).await;
    let ledger = over_url(&cluster.url()).await;
    let of_feed = cluster.primary_of("feed");
    let others: Vec<usize> = (0..3).filter(|index| *index != of_feed).collect();
    let mut accounts = Vec::new();
    for (digest, index) in (1..).zip(others.iter()) {
        accounts.push(opened(&ledger, &cluster.account_on(*index), digest).await);
    }
    let before = ledger.gather().await.unwrap();
    // This gateway emits an event on a node. The node dies before another gateway has read the event.
    let teller = over_url(&cluster.url()).await;
    teller.enter(&accounts[0], &topup("lost", 5)).await.unwrap();
    teller.enter(&accounts[1], &topup("told", 7)).await.unwrap();
    cluster.nodes()[others[0]].kill();
    eventually("the other account's event has a number", async || {
        let last = ledger.gather().await.ok()?;
        (last == before + 1).then_some(())
    })
    .await;
    // The gateway that has emitted the lost event now makes a further entry.
    teller
        .enter(&accounts[1], &topup("told too", 7))
        .await
        .unwrap();
    eventually("the next one has a number", async || {
        let last = teller.gather().await.ok()?;
        (last == before + 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn calls_continue_on_the_replica_of_a_failed_cluster_primary() {
    let cluster = RedisCluster::start(3, 1).await;
    let ledger = over_url(&cluster.url()).await;
    let account = opened(&ledger, &cluster.account_on(1), 1).await;
    ledger.reserve(&hold_in(&account, 1)).await.unwrap();
    ledger.enter(&account, &topup("second", 500)).await.unwrap();
    assert_eq!(watched(&ledger).await, Watch::Same);

    cluster.nodes()[1].kill();
    let slot = slot_of(&account);
    eventually("a replica is promoted", async || {
        let _ = ledger.reserve(&hold_in(&account, 2)).await;
        cluster.primary_of_slot(slot).filter(|index| *index != 1)
    })
    .await;
    let begin = Instant::now();
    eventually("calls are served again", async || {
        ledger.reserve(&hold_in(&account, 2)).await.ok()
    })
    .await;
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(watched(&ledger).await, Watch::Changed);

    let mut call = settlement(1, &format!("key-{account}"), 1);
    call.account = account.clone();
    let paid = ledger.settle(&call).await.unwrap();
    assert_eq!(paid.booked, Booked::Held);
    let view = ledger.account(&account).await.unwrap();
    assert_eq!(view.balance_rub, micro(1500 - 1));
    is_sound(&ledger).await;
}

/// Checks how the ledger follows the Redis responses MOVED, ASK and TRYAGAIN.
#[tokio::test]
async fn account_is_charged_correctly_while_its_cluster_slot_moves() {
    let cluster = RedisCluster::start(3, 0).await;
    let ledger = over_url(&cluster.url()).await;
    open(&ledger, 1000).await;
    ledger.reserve(&hold(1, "k1", 100)).await.unwrap();

    let slot = slot_of("acme").to_string();
    let nodes = cluster.nodes();
    let source = cluster.primary_of("acme");
    let (source, target, third) = (
        &nodes[source],
        &nodes[(source + 1) % 3],
        &nodes[(source + 2) % 3],
    );
    let [from, to] = [
        source.ask::<String>(&["CLUSTER", "MYID"]).await.unwrap(),
        target.ask::<String>(&["CLUSTER", "MYID"]).await.unwrap(),
    ];
    for (node, how, whom) in [(target, "IMPORTING", &from), (source, "MIGRATING", &to)] {
        let words = ["CLUSTER", "SETSLOT", &slot, how, whom];
        node.ask::<String>(&words).await.unwrap();
    }
    let keys: Vec<String> = source
        .ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"])
        .await
        .unwrap();
    assert!(keys.len() > 3, "{keys:?}");
    source.migrate(target, &keys).await.unwrap();

    // A command that needs only one Redis key finds it on the node that has it.
    let key = hold(1, "k1", 1).key;
    ledger.probe(&acme(), &key).await.unwrap();
    // While the slot is moved, a missing key may be on either node, so the call must fail.
    let (answer, took) = timed(&ledger, &hold(2, "k1", 50)).await;
    assert!(answer.is_err() && took < IN_TIME, "{answer:?} {took:?}");

    let end = async {
        for node in [target, source, third] {
            let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &to];
            node.ask::<String>(&words).await.unwrap();
        }
    };
    // A command that may wait is repeated until the slot was moved.
    let (expired, ()) = join(ledger.expire(), end).await;
    assert_eq!(expired.unwrap(), 0);
    assert_eq!(cluster.primary_of("acme"), {
        let port = target.port();
        nodes.iter().position(|node| node.port() == port).unwrap()
    });
    for n in [1, 2] {
        let wanted = if n == 1 {
            hold(1, "k1", 100)
        } else {
            hold(2, "k1", 50)
        };
        ledger.reserve(&wanted).await.unwrap();
        let paid = ledger.settle(&settlement(n, "k1", 30)).await.unwrap();
        assert_eq!(paid.booked, Booked::Held, "{n}");
    }
    let view = ledger.account(&acme()).await.unwrap();
    assert_eq!(view.balance_rub, micro(1000 - 60));
    is_sound(&ledger).await;
}

/// A receipt is searched for first in the accounts that had calls on the receipt's day, and then in all accounts.
#[tokio::test]
async fn redis_records_which_accounts_had_calls_on_a_day() {
    let server = RedisServer::start().await;
    let ledger = over(&server).await;
    open(&ledger, 1000).await;
    let settle = async || {
        let number = RequestNumber::now_v7();
        let mut call = settlement(1, "k1", 1);
        call.number = number;
        ledger.settle(&call).await.unwrap();
        number
    };
    let first = settle().await;
    let days: Vec<String> = server.ask(&["KEYS", "tg:day:*"]).await.unwrap();
    let [day] = days.as_slice() else {
        panic!("{days:?}");
    };
    let noted: Vec<String> = server.ask(&["SMEMBERS", day]).await.unwrap();
    assert_eq!(noted, ["acme"]);
    let ttl: i64 = server.ask(&["TTL", day]).await.unwrap();
    assert!(ttl > 399 * 24 * 3600, "{ttl}");

    // The gateway records once a day that an account had calls. Receipts are found without this record, too.
    server.ask::<i64>(&["DEL", day]).await.unwrap();
    let second = settle().await;
    assert_eq!(server.ask::<i64>(&["EXISTS", day]).await.unwrap(), 0);
    for number in [first, second] {
        assert_eq!(ledger.receipt(number).await.unwrap().number, number);
    }
}

#[tokio::test]
async fn settings_of_every_redis_primary_are_checked() {
    let cluster = RedisCluster::start(3, 0).await;
    let ledger = over_url(&cluster.url()).await;
    let warnings = ledger.check_server().await.unwrap();
    for node in cluster.nodes() {
        for reported in ["appendonly is no", "no replica is connected"] {
            let begins = format!("{}: {reported}", node.address());
            let of_node = warnings
                .iter()
                .filter(|warning| warning.starts_with(&begins));
            assert_eq!(of_node.count(), 1, "{begins}: {warnings:?}");
        }
    }
    let third = &cluster.nodes()[2];
    let words = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    third.ask::<String>(&words).await.unwrap();
    let refused = away(ledger.check_server().await);
    assert!(refused.contains(&third.address()), "{refused}");
    assert!(refused.contains("noeviction"), "{refused}");
}

#[tokio::test]
async fn redis_url_for_the_wrong_kind_of_server_is_refused_and_the_right_kind_is_named() {
    let cluster = RedisCluster::start(3, 0).await;
    let single = RedisServer::start().await;
    let one = cluster.nodes()[0].address();
    for (url, reported) in [
        (format!("redis://{one}"), "write redis-cluster://"),
        (
            format!("redis-cluster://{}", single.address()),
            "returned an error",
        ),
        (
            format!("redis-sentinel://{}/mymaster", single.address()),
            "returned an error",
        ),
    ] {
        let opened = RedisLedger::connect(&url, RedisSettings::default()).await;
        let why = away(opened.map(drop));
        assert!(why.contains(reported), "{url}: {why}");
    }
}

/// The gateways of all tests log in as the Redis user of `deploy/redis.conf`. This user must have the rights for every
/// check.
#[tokio::test]
async fn documented_redis_user_has_the_rights_for_all_server_checks() {
    let primary = RedisServer::start().await;
    let replica = RedisServer::replica_of(&primary).await;
    let cluster = RedisCluster::start(3, 0).await;
    for url in [primary.url(), cluster.url()] {
        let warnings = over_url(&url).await.check_server().await.unwrap();
        assert!(
            !warnings
                .iter()
                .any(|warning| warning.contains("does not show")),
            "{warnings:?}"
        );
    }
    drop(replica);
}
