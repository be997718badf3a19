//! The ledger contract over all three stores: memory, a file, a real Redis. Redis is one server, one behind Sentinels
//! with a replica, and a Cluster of three primaries.
//!
//! The tests of the contract are in the layers, `reserve::testing`, so that every author of a ledger can run them.
//! After each one the books are audited.

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

/// Tests one promise on a new ledger.
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

        // Servers with a slow start are shared by all promises, which run one after the other.
        #[tokio::test]
        async fn every_promise_in_a_cluster() {
            let cluster = RedisCluster::start(3, 0).await;
            $(
                println!(stringify!($promise));
                cluster.flush().await;
                let ledger = over_url(&cluster.url()).await;
                keeps(&ledger, stringify!($promise)).await;
            )*
        }

        #[tokio::test]
        async fn every_promise_with_sentinels() {
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

        /// The list contains every promise.
        #[test]
        fn contract_suite_runs_every_promise() {
            let listed = [$(stringify!($promise)),*];
            let cases = testing::store_cases::<MemoryLedger>();
            let promised: Vec<&str> = cases.iter().map(Case::name).collect();
            assert_eq!(listed.as_slice(), promised);
        }
    };
}

on_every_store! {
    a_hold_lies_between_the_least_and_the_wish
    holds_of_all_keys_count_against_the_account
    of_many_holds_at_once_those_that_fit_are_granted
    a_hold_asked_for_again_is_granted_once
    a_number_that_has_ended_holds_nothing_again
    empty_is_what_has_no_posted_money
    a_key_holds_nothing_on_another_account
    a_settlement_charges_the_cost_and_frees_the_hold
    a_cost_beyond_the_hold_takes_free_money
    a_repeated_settlement_gets_the_first_result
    settlements_sent_together_are_answered_in_their_order
    a_release_costs_nothing_and_wins_over_what_comes_later
    holds_past_their_time_end_by_themselves
    an_expired_hold_blocks_no_other_hold
    an_expired_hold_is_settled_late_and_once
    a_number_never_held_is_forced_while_fresh_and_stale_later
    a_settlement_on_a_key_that_holds_nothing_moves_nothing
    a_smaller_hold_frees_money_at_once
    a_hold_grows_only_into_free_money
    an_expired_hold_keeps_no_other_from_growing
    an_older_adjustment_changes_nothing
    an_ended_hold_is_not_adjusted
    a_cost_is_charged_up_to_the_adjusted_hold_and_free_money
    a_dropped_reserve_leaves_nothing_after_its_release
    a_dropped_reserve_leaves_nothing_after_its_time
    a_dropped_reserve_sent_again_is_granted_once
    a_dropped_settlement_sent_again_charges_once
    dropped_settlements_sent_again_charge_once
    a_dropped_release_sent_again_frees_the_hold
    a_dropped_extension_leaves_the_hold
    a_dropped_adjustment_sent_again_counts_once
    a_dropped_adjustment_leaves_nothing_after_its_calls_end
    a_dropped_sweep_loses_no_hold
    of_holds_on_several_threads_no_more_is_granted_than_there_is
    a_hold_sent_by_two_threads_is_granted_once
    a_call_settled_by_two_threads_is_charged_once
    of_a_settlement_and_a_release_at_once_one_wins
    of_holds_grown_on_several_threads_those_that_fit_are_granted
    an_adjustment_and_a_settlement_at_once_lose_nothing
    a_hold_is_between_the_least_and_the_wanted_amount
    holds_of_all_keys_count_against_the_account_and_a_ceiling_against_its_key
    a_ceiling_can_be_raised_lowered_and_taken_away
    a_day_and_a_month_have_ceilings_of_their_own
    the_same_hold_asked_for_again_is_granted_once
    a_number_cannot_hold_two_things
    a_number_that_has_ended_is_gone
    nothing_to_spend_is_judged_by_posted_money
    unknown_accounts_and_keys_are_refused
    a_disabled_key_gets_no_new_hold_and_its_running_calls_are_charged
    a_suspended_account_gets_no_new_hold_and_its_running_calls_are_charged
    the_gravest_refusal_comes_first
    an_extended_hold_lives_on
    only_holds_past_their_time_expire
    a_reserve_that_does_not_fit_ends_some_due_holds_of_its_account
    account_and_key_have_to_allow_a_larger_hold
    an_adjusted_hold_expires_whole
    a_settled_call_pays_its_cost_and_frees_its_hold
    a_cost_beyond_the_hold_takes_free_money_and_the_rest_is_loss
    a_cost_beyond_the_hold_stays_below_the_days_ceiling
    a_lowered_ceiling_does_not_take_back_a_hold
    a_repeated_settlement_is_answered_with_the_first_result
    a_released_hold_costs_nothing
    a_release_that_comes_first_wins
    an_expired_hold_is_settled_late_once_from_what_is_free
    a_hold_that_was_lost_is_charged_by_force_while_fresh
    an_unknown_number_is_stale_and_moves_nothing
    a_settlement_on_another_key_than_its_holds_moves_nothing
    a_dispute_is_no_first_result
    an_account_that_is_gone_is_not_charged
    a_receipt_is_what_was_settled
    only_settled_calls_have_a_receipt
    a_group_spends_no_more_than_its_ceiling_whichever_key_asks
    account_key_and_group_have_to_allow_a_hold
    a_group_has_to_allow_a_larger_hold
    of_many_calls_at_once_a_group_lets_in_those_that_fit
    a_key_brings_its_holds_into_a_group_and_leaves_what_it_spent_there
    receipts_of_a_group_come_to_what_it_has_spent
    holds_that_end_by_themselves_leave_their_group
    a_group_is_made_once_and_removed_when_its_keys_are_gone
    no_more_calls_of_a_key_are_open_than_may_be
    of_many_calls_at_once_as_many_as_may_be_are_let_in
    a_payment_counts_once_by_its_id
    an_entry_is_found_by_its_id_as_it_was_booked
    a_correction_leaves_what_is_held
    amounts_are_exact_up_to_the_largest_and_none_goes_beyond
    accounts_are_opened_once_and_can_be_changed
    the_tariff_version_grows_with_a_change_only
    an_audit_counts_what_there_is
    a_key_comes_back_as_it_was_written
    a_key_is_made_once
    a_change_of_a_key_touches_what_it_names
    a_deleted_key_is_still_found_and_stays_deleted
}

/// A folder for a ledger file; in memory if the machine has such a file system, because the tests do not measure disk
/// syncs.
pub fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

pub fn in_file(folder: &TempDir) -> SqliteLedger {
    SqliteLedger::open(&folder.path().join("ledger.db")).unwrap()
}

pub async fn over(server: &RedisServer) -> RedisLedger {
    over_url(&server.url()).await
}

/// A ledger in Redis without any state of the process, as after a start.
pub async fn over_url(url: &str) -> RedisLedger {
    RedisLedger::connect(url, RedisSettings::default())
        .await
        .unwrap()
}
