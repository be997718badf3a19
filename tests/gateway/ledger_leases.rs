//! Tests of leases on real servers: a single Redis, a Redis behind Sentinels, and a Cluster of three primaries.
//! Gateways that take leases serve exactly as many calls as the accounts' money covers.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    key::AccountId,
    reserve::{
        ledger::{Ledger, LedgerAdmin, LedgerError},
        redis::{LeaseSettings, RedisLedger},
    },
};

use crate::{
    ledger::{hold, is_sound, micro, over_url, record, settlement, topup},
    support::redis::{RedisCluster, RedisSentinels, RedisServer},
};

const PRICE: i64 = 10;

/// Gateways that share one ledger. Each has its own connection and its own background task.
struct Fleet {
    gateways: Vec<RedisLedger>,
    tasks: JoinSet<()>,
}

impl Fleet {
    async fn new(url: &str, count: usize) -> Self {
        let (mut gateways, mut tasks) = (Vec::new(), JoinSet::new());
        for n in 0..count {
            let settings = LeaseSettings {
                calls_per_second_min: 0,
                ..LeaseSettings::new(Duration::from_millis(500), format!("gateway {n}"))
            };
            let ledger = over_url(url).await.with_leases(settings);
            let tended = ledger.clone();
            tasks.spawn(async move { tended.tend_leases().await });
            gateways.push(ledger);
        }
        Self { gateways, tasks }
    }

    /// Gives each account the money for `calls` calls and spends it at all gateways at the same time. Checks that
    /// exactly this number of calls is served.
    async fn spend(mut self, accounts: &[&str], calls: usize) {
        let money = i64::try_from(calls).unwrap() * PRICE;
        let first = self.gateways[0].clone();
        for (account, digest) in accounts.iter().zip(1..) {
            let id: AccountId = account.parse().unwrap();
            first.create_account(&id, "").await.unwrap();
            first.enter(&id, &topup("first", money)).await.unwrap();
            let record = record(&id, &key_of(account), digest + 100);
            first.create_key(&record, Ceilings::NONE).await.unwrap();
        }
        let mut calling = JoinSet::new();
        for (nth, account) in accounts.iter().enumerate() {
            for gateway in &self.gateways {
                for _ in 0..16 {
                    let (gateway, account) = (gateway.clone(), (*account).to_owned());
                    calling.spawn(async move { (nth, until_refused(&gateway, &account).await) });
                }
            }
        }
        let mut served = vec![0; accounts.len()];
        for (nth, more) in calling.join_all().await {
            served[nth] += more;
        }
        assert_eq!(served, vec![calls; accounts.len()]);
        let granted = self.gateways.iter().filter_map(RedisLedger::lease_counts);
        let granted: u64 = granted.map(|counts| counts.granted).sum();
        assert!(
            10 * granted > calls as u64,
            "{granted} holds came from leases"
        );
        for gateway in &self.gateways {
            assert!(gateway.give_back().await, "{:?}", gateway.lease_counts());
        }
        assert_eq!(first.all_leases().await.unwrap(), []);
        for account in accounts {
            let view = first.account(&account.parse().unwrap()).await.unwrap();
            assert_eq!(view.balance_rub, micro(0), "{view:?}");
            assert_eq!(view.loss_rub, micro(0), "{view:?}");
        }
        is_sound(&first).await;
        self.tasks.shutdown().await;
    }
}

fn key_of(account: &str) -> String {
    format!("key-{account}")
}

/// Makes one call after another until two consecutive calls are refused. Returns the number of calls that were served.
async fn until_refused(gateway: &RedisLedger, account: &str) -> usize {
    let (mut served, mut refused) = (0, 0);
    while refused < 2 {
        let mut wanted = hold(0, &key_of(account), PRICE);
        wanted.number = RequestNumber::now_v7();
        wanted.account = account.parse().unwrap();
        match gateway.reserve(&wanted).await {
            Ok(reserved) => {
                let mut end = settlement(0, &key_of(account), PRICE);
                (end.number, end.account) = (wanted.number, wanted.account.clone());
                end.held = reserved.held;
                // On a busy machine, a response may arrive too late. The settlement is then sent again, as an outbox
                // would do.
                let settled = loop {
                    if let Ok(settled) = gateway.settle(&end).await {
                        break settled;
                    }
                };
                assert_eq!(settled.charged, micro(PRICE));
                (served, refused) = (served + 1, 0);
            }
            Err(LedgerError::Refused(_)) => refused += 1,
            Err(LedgerError::Unavailable(cause)) => {
                // The hold may have been made although its response is missing, so it is released.
                gateway
                    .release(wanted.number, &wanted.account, &wanted.key)
                    .await
                    .unwrap_or_else(|error| panic!("{cause}, then {error}"));
            }
        }
    }
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_one_redis_server_serve_exactly_what_the_money_pays_for() {
    let server = RedisServer::start().await;
    let fleet = Fleet::new(&server.url(), 2).await;
    fleet.spend(&["acme"], 1_500).await;
}

/// The account has money for one call at a time. Each call is settled while the next call requests its hold, as with a
/// settler. The hold must wait for the settlement.
#[tokio::test]
async fn next_call_waits_for_the_settlement_of_the_previous_one_and_is_not_refused() {
    let server = RedisServer::start().await;
    let ledger = over_url(&server.url()).await;
    let account: AccountId = "acme".parse().unwrap();
    let key = key_of("acme");
    ledger.create_account(&account, "").await.unwrap();
    ledger
        .enter(&account, &topup("first", 2 * PRICE - 1))
        .await
        .unwrap();
    let record = record(&account, &key, 101);
    ledger.create_key(&record, Ceilings::NONE).await.unwrap();
    let mut ends = JoinSet::new();
    for nth in 0..20 {
        let mut wanted = hold(0, &key, PRICE);
        wanted.number = RequestNumber::now_v7();
        wanted.account = account.clone();
        let held = ledger.reserve(&wanted).await.map(|reserved| reserved.held);
        let held = held.unwrap_or_else(|error| panic!("call {nth}: {error}"));
        let mut end = settlement(0, &key, 0);
        (end.number, end.account, end.held) = (wanted.number, account.clone(), held);
        let settler = ledger.clone();
        ends.spawn(async move { settler.settle(&end).await.unwrap() });
    }
    ends.join_all().await;
    is_sound(&ledger).await;
}

/// A hold waits for the settlement of another call. If the caller who needs this hold disconnects meanwhile, no hold
/// may be made, neither now nor later.
#[tokio::test]
async fn call_abandoned_while_its_hold_waits_for_another_calls_settlement_leaves_no_hold() {
    let server = RedisServer::start().await;
    let ledger = over_url(&server.url()).await;
    let account: AccountId = "acme".parse().unwrap();
    let key = key_of("acme");
    ledger.create_account(&account, "").await.unwrap();
    let paid = topup("first", 2 * PRICE - 1);
    ledger.enter(&account, &paid).await.unwrap();
    let record = record(&account, &key, 101);
    ledger.create_key(&record, Ceilings::NONE).await.unwrap();
    let wanted = |price| {
        let mut hold = hold(0, &key, price);
        hold.number = RequestNumber::now_v7();
        hold.account = account.clone();
        hold
    };
    let runs = wanted(PRICE);
    ledger.reserve(&runs).await.unwrap();
    for millis in [0, 1, 2, 5, 8, 10, 11, 12] {
        let left = wanted(PRICE);
        let requested = tokio::time::timeout(Duration::from_millis(millis), ledger.reserve(&left));
        assert!(!matches!(requested.await, Ok(Ok(_))), "it does not fit");
        // The guard of a call sends the same release when it is dropped.
        ledger
            .release(left.number, &account, &left.key)
            .await
            .unwrap();
    }
    ledger
        .release(runs.number, &account, &runs.key)
        .await
        .unwrap();
    let view = ledger.account(&account).await.unwrap();
    assert_eq!(view.held_rub, micro(0));
    is_sound(&ledger).await;
}

/// Each node of the Cluster has one of the accounts. The leases, the request numbers and the journal of an account must
/// be in one slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_on_a_redis_cluster_serve_exactly_what_the_money_pays_for() {
    let cluster = RedisCluster::start(3, 0).await;
    let accounts = [0, 1, 2].map(|node| cluster.account_on(node));
    let fleet = Fleet::new(&cluster.url(), 3).await;
    fleet
        .spend(&accounts.each_ref().map(String::as_str), 800)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_with_redis_sentinels_serve_exactly_what_the_money_pays_for() {
    let primary = RedisServer::start().await;
    let _replica = RedisServer::replica_of(&primary).await;
    let sentinels = RedisSentinels::start(&primary).await;
    let fleet = Fleet::new(&sentinels.url(), 2).await;
    fleet.spend(&["acme"], 1_500).await;
}
