//! Runs the contract tests for ledgers on a Redis ledger that takes leases from the first call on.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio::task::JoinSet;

use super::*;
use crate::{contract::EventStore, redis::test_server::Server, testing};

/// Contract tests that a ledger with leases need not pass. In the ledger, a lease is one hold: the ledger does not have
/// the calls' holds against the lease.
const OTHERWISE: &[&str] = &[
    // A lease that was opened after the first attempt may grant the repeated hold. Gateways request each hold once.
    "a_repeated_reserve_is_granted_once",
    "a_repeated_hold_is_granted_once",
    "a_dropped_reserve_that_is_repeated_is_granted_once",
    "a_hold_sent_by_two_threads_is_granted_once",
    // A lease removes a call when its settlement is acknowledged, so a later release is not rejected. Gateways end each
    // call once.
    "only_one_of_a_concurrent_settlement_and_release_takes_effect",
    // The ledger's sweep ends only the ledger's own holds. A gateway ends expired holds against its leases.
    "holds_end_by_themselves_after_their_expiry",
    "only_holds_past_their_expiry_are_ended",
    "a_reserve_that_does_not_fit_ends_some_expired_holds_of_its_account",
    // Operators see a lease as one of the key's holds.
    "a_disabled_key_gets_no_new_hold_and_its_running_calls_are_charged",
    "a_suspended_account_gets_no_new_hold_and_its_running_calls_are_charged",
    "amounts_are_exact_up_to_the_largest_and_never_exceed_it",
    "a_key_that_joins_a_group_brings_its_holds_and_its_spending_stays_when_it_leaves",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledger_with_leases_passes_the_contract_tests() {
    let server = Server::start().await;
    let mut tasks = JoinSet::new();
    let (mut broken, mut turns) = (Vec::new(), 0);
    for case in testing::store_cases::<RedisLedger>() {
        let _: String = server.ask(&["FLUSHALL"]).await;
        let settings = LeaseSettings {
            calls_per_second_min: 0,
            ..LeaseSettings::new(Duration::from_millis(500), "contract")
        };
        let ledger = server.ledger().await.with_leases(settings);
        let tended = ledger.clone();
        tasks.spawn(async move { tended.tend_leases().await });
        let tried = AssertUnwindSafe(case.run(&ledger)).catch_unwind().await;
        if tried.is_err() && !OTHERWISE.contains(&case.name()) {
            broken.push(case.name());
        }
        turns += ledger.lease_counts().unwrap().turns;
        tasks.abort_all();
    }
    assert_eq!(broken, [] as [&str; 0]);
    assert!(turns > 20, "{turns} turns: there were no leases");
}

/// The runtime that opened the connection for lease turns polls this connection. If this runtime has ended, the next
/// runtime opens a new connection. Other connections are not affected.
#[tokio::test]
async fn lease_turn_can_be_sent_after_its_connections_runtime_has_ended() {
    let server = Server::start().await;
    let ledger = server.ledger().await;
    for _ in 0..3 {
        let conn = ledger.conn().clone();
        let acknowledged = tokio::task::spawn_blocking(move || {
            let mut threads = tokio::runtime::Builder::new_current_thread();
            let runtime = threads.enable_all().build().unwrap();
            runtime.block_on(async {
                let script = conn.script("", "return 7\n");
                let none: [String; 0] = [];
                let limit = conn.response_timeout();
                conn.eval_in::<i64>(Lane::Leases, &script, &none, &none[..], limit)
                    .await
            })
        });
        assert_eq!(acknowledged.await.unwrap().unwrap(), 7);
        assert_eq!(ledger.gather().await.unwrap(), 0);
    }
}
