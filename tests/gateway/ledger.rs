//! The contract tests for ledgers, run on every store: memory, a file and a real Redis. Redis runs as one server, as a
//! server behind Sentinels with a replica, and as a Cluster of three primaries.
//!
//! The tests themselves are in the layers, in `reserve::testing`, so that every author of a ledger can run them. The
//! books are audited after each test.

use tempfile::TempDir;
pub use tollgate_layers::reserve::testing::{
    Books,
    given::{HOUR, acme, hold, item, micro, number, record, settlement, topup},
    is_sound, open,
};
use tollgate_layers::reserve::{
    memory::MemoryLedger,
    redis::{RedisLedger, RedisSettings},
    sqlite::SqliteLedger,
    testing::{self, Case},
};

use crate::support::redis::{RedisCluster, RedisSentinels, RedisServer};

/// Runs the contract test with this name on a new ledger.
async fn keeps<L: Books>(ledger: &L, promise: &str) {
    let cases = testing::store_cases::<L>();
    let case = cases.iter().find(|case| case.name() == promise);
    case.expect("it is listed").run(ledger).await;
}

macro_rules! on_every_store {
    ($($promise:ident)*) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $promise() {
                    let ledger = super::MemoryLedger::new();
                    super::keeps(&ledger, stringify!($promise)).await;
                }
            )*
        }

        mod in_sqlite {
            $(
                #[tokio::test]
                async fn $promise() {
                    let folder = super::folder();
                    let ledger = super::in_file(&folder);
                    super::keeps(&ledger, stringify!($promise)).await;
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
                    super::keeps(&ledger, stringify!($promise)).await;
                }
            )*
        }

        // A Cluster starts slowly, so all contract tests share one Cluster and run one after the other.
        #[tokio::test]
        async fn cluster_ledger_passes_the_contract_tests() {
            let cluster = RedisCluster::start(3, 0).await;
            $(
                println!(stringify!($promise));
                cluster.flush().await;
                let ledger = over_url(&cluster.url()).await;
                keeps(&ledger, stringify!($promise)).await;
            )*
        }

        #[tokio::test]
        async fn ledger_with_sentinels_passes_the_contract_tests() {
            let primary = RedisServer::start().await;
            let _replica = RedisServer::replica_of(&primary).await;
            let sentinels = RedisSentinels::start(&primary).await;
            $(
                println!(stringify!($promise));
                primary.ask::<String>(&["FLUSHALL"]).await.unwrap();
                let ledger = over_url(&sentinels.url()).await;
                keeps(&ledger, stringify!($promise)).await;
            )*
        }

        /// Checks that the list of contract tests in this file is complete.
        #[test]
        fn contract_suite_runs_every_test() {
            let listed = [$(stringify!($promise)),*];
            let cases = testing::store_cases::<MemoryLedger>();
            let promised: Vec<&str> = cases.iter().map(Case::name).collect();
            assert_eq!(listed.as_slice(), promised);
        }
    };
}

on_every_store! {
    a_reserve_grants_between_the_least_and_the_wanted_amount
    holds_of_all_keys_count_against_the_account
    concurrent_holds_are_granted_only_up_to_the_free_money
    a_repeated_reserve_is_granted_once
    a_reserve_for_an_ended_call_holds_nothing
    an_account_is_empty_only_without_posted_money
    a_key_cannot_hold_money_of_another_account
    a_settlement_charges_the_cost_and_frees_the_hold
    a_cost_beyond_the_hold_takes_free_money
    a_repeated_settlement_gets_the_first_result
    settlements_of_one_batch_are_answered_in_order
    a_release_costs_nothing_and_blocks_later_requests_of_its_call
    holds_end_by_themselves_after_their_expiry
    an_expired_hold_blocks_no_other_hold
    an_expired_hold_is_settled_late_once
    a_call_without_a_hold_is_charged_by_force_while_fresh_and_is_stale_later
    a_settlement_by_a_key_without_the_hold_charges_nothing
    a_smaller_hold_frees_money_at_once
    a_hold_grows_only_into_free_money
    an_expired_hold_does_not_keep_another_from_growing
    an_older_adjustment_changes_nothing
    an_ended_hold_is_not_adjusted
    a_cost_is_charged_up_to_the_adjusted_hold_and_free_money
    a_dropped_reserve_leaves_no_hold_after_its_release
    a_dropped_reserve_leaves_no_hold_after_its_expiry
    a_dropped_reserve_that_is_repeated_is_granted_once
    a_dropped_settlement_that_is_repeated_charges_once
    a_dropped_batch_of_settlements_that_is_repeated_charges_once
    a_dropped_release_that_is_repeated_frees_the_hold
    a_dropped_extension_does_not_end_the_hold
    a_dropped_adjustment_that_is_repeated_counts_once
    a_dropped_adjustment_leaves_no_hold_after_its_call_ends
    a_dropped_sweep_loses_no_hold
    holds_by_several_threads_are_granted_only_up_to_the_free_money
    a_hold_sent_by_two_threads_is_granted_once
    a_call_settled_by_two_threads_is_charged_once
    only_one_of_a_concurrent_settlement_and_release_takes_effect
    holds_grow_by_several_threads_only_up_to_the_free_money
    a_concurrent_adjustment_and_settlement_lose_no_money
    a_hold_is_between_the_least_and_the_wanted_amount
    holds_of_all_keys_count_against_the_account_and_a_ceiling_against_its_key
    a_ceiling_can_be_raised_lowered_and_removed
    a_key_has_separate_ceilings_of_day_and_month
    a_repeated_hold_is_granted_once
    a_call_number_cannot_have_two_different_holds
    an_ended_call_number_gets_no_new_hold
    an_empty_account_is_recognised_by_its_posted_money
    unknown_accounts_and_keys_are_refused
    a_disabled_key_gets_no_new_hold_and_its_running_calls_are_charged
    a_suspended_account_gets_no_new_hold_and_its_running_calls_are_charged
    the_most_serious_refusal_is_reported
    an_extended_hold_does_not_expire_at_its_first_time
    only_holds_past_their_expiry_are_ended
    a_reserve_that_does_not_fit_ends_some_expired_holds_of_its_account
    a_hold_grows_only_if_account_and_key_allow_it
    a_larger_hold_is_refused_for_the_reason_of_a_new_one
    the_whole_adjusted_hold_expires
    a_settled_call_pays_its_cost_and_frees_its_hold
    a_cost_beyond_the_hold_takes_free_money_and_the_rest_is_loss
    a_cost_beyond_the_hold_stays_below_the_days_ceiling
    a_lowered_ceiling_does_not_take_back_a_hold
    a_repeated_settlement_is_answered_with_the_first_result
    a_released_hold_costs_nothing
    a_reserve_after_its_release_is_refused
    an_expired_hold_is_settled_late_once_from_what_is_free
    a_lost_hold_is_charged_by_force_while_fresh
    a_settlement_of_an_old_unknown_call_is_stale_and_charges_nothing
    a_settlement_by_another_key_than_the_holds_charges_nothing
    a_stale_settlement_can_be_charged_later
    an_unknown_account_is_not_charged
    a_receipt_has_the_amounts_of_its_settlement
    only_settled_calls_have_a_receipt
    all_keys_of_a_group_together_spend_at_most_its_ceiling
    a_hold_is_granted_only_if_account_key_and_group_allow_it
    a_hold_grows_only_if_the_group_allows_it
    a_group_admits_concurrent_calls_only_up_to_its_ceiling
    a_key_that_joins_a_group_brings_its_holds_and_its_spending_stays_when_it_leaves
    receipts_of_a_group_add_up_to_its_spending
    expired_holds_no_longer_count_in_their_group
    a_group_is_created_once_and_removed_only_without_keys
    a_key_has_at_most_its_limit_of_open_calls
    concurrent_calls_of_a_key_are_admitted_up_to_its_limit
    a_payment_counts_once_by_its_id
    an_entry_is_read_by_its_id_as_it_was_booked
    a_correction_takes_no_held_money
    amounts_are_exact_up_to_the_largest_and_never_exceed_it
    an_account_is_created_once_and_can_be_changed
    the_tariff_version_grows_only_with_a_change
    an_audit_counts_accounts_keys_and_open_holds
    a_key_is_read_as_it_was_written
    a_key_is_created_once
    a_change_of_a_key_changes_only_the_named_fields
    a_deleted_key_can_be_read_and_stays_deleted
}

/// A folder for a ledger file. If the machine has a file system in memory, the folder is there, because the tests do
/// not measure disk syncs.
pub fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

pub fn in_file(folder: &TempDir) -> SqliteLedger {
    SqliteLedger::open(&folder.path().join("ledger.db")).unwrap()
}

pub async fn over(server: &RedisServer) -> RedisLedger {
    over_url(&server.url()).await
}

/// Connects to a ledger in Redis, as a newly started process does.
pub async fn over_url(url: &str) -> RedisLedger {
    RedisLedger::connect(url, RedisSettings::default())
        .await
        .unwrap()
}
