//! Contract tests of a ledger, to run on your own implementation. The stores of this crate pass the same tests.
//!
//! [`check`] tests a [`Ledger`] for the promises that calls rely on. [`check_store`] tests a store (a ledger with
//! [`LedgerAdmin`] and keys), including the promises that operators rely on. Both functions use a new ledger for each
//! test, run all tests, and then panic with the names of the tests that failed.
//!
//! ```
//! use tollgate_ledger::{
//!     ceiling::Ceilings, contract::LedgerAdmin, memory::MemoryLedger, testing,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // Replace `MemoryLedger` with your ledger, and put this into a #[tokio::test].
//! testing::check(async |openings| {
//!     let ledger = MemoryLedger::new();
//!     for opening in openings {
//!         ledger.create_account(&opening.account, "").await.unwrap();
//!         ledger.enter(&opening.account, &opening.payment).await.unwrap();
//!         for key in &opening.keys {
//!             ledger.create_key(key, Ceilings::NONE).await.unwrap();
//!         }
//!     }
//!     ledger
//! })
//! .await;
//!
//! // A ledger that can open accounts needs no such set-up.
//! testing::check_store(async || MemoryLedger::new()).await;
//! # }
//! ```
//!
//! If a ledger cannot change holds, the promises about [`Ledger::adjust`] are not checked.
//!
//! If you have your own test harness, take the tests from [`cases`] and [`store_cases`]. To measure a ledger, use
//! [`mod@bench`].
//!
//! The comment of a test names the invariant that it checks. [`super::book`] defines I1 to I5. I7: every call is
//! charged for its usage in the end. I8: every hold ends, at the latest when its time to live has passed. I9: a refused
//! call is free. I10: a payment is booked once per id. I11: a call is charged at the prices that were in force when it
//! began. I12: no request affects the money of another account.

#![allow(
    clippy::unwrap_used,
    reason = "these are tests: a missing value fails the test"
)]

/// Panics with the expected and the found value unless they are equal.
macro_rules! expect_eq {
    ($found:expr, $expected:expr $(,)?) => {
        expect_eq!($found, $expected, "{}", stringify!($found))
    };
    ($found:expr, $expected:expr, $($what:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) if *found != *expected => {
                panic!("{}: expected {expected:?}, found {found:?}", format_args!($($what)+))
            }
            _ => {}
        }
    };
}

/// Panics with the expected pattern and the found value unless the value matches the pattern.
macro_rules! expect_matches {
    ($found:expr, $expected:pat) => {
        match &$found {
            $expected => {}
            found => panic!(
                "{}: expected {}, found {found:?}",
                stringify!($found),
                stringify!($expected)
            ),
        }
    };
}

mod accounts;
mod adjust;
pub mod bench;
mod calls;
mod desk;
mod documents;
mod drops;
mod ends;
mod events;
pub mod given;
mod groups;
mod holds;
mod keys;
#[cfg(test)]
mod planted;
mod threads;

use std::{any::Any, fmt, panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use futures_util::FutureExt;

pub use self::desk::{is_sound, open, spoil_sums};
use super::contract::{Documents, Entry, EventStore, Ledger, LedgerAdmin};
use crate::{
    account::{AccountId, KeyRecord, KeyStore},
    ceiling::Ceilings,
};

/// Runs every test of [`cases`]. For each test, `open` must return a new ledger with these accounts.
///
/// # Panics
/// If a test fails. The message contains the name of every failed test.
pub async fn check<L: Ledger>(open: impl AsyncFn(Vec<Opening>) -> L) {
    let mut broken = Vec::new();
    for case in cases::<Arc<L>>() {
        broken.extend(case.breach(&Arc::new(open(openings()).await)).await);
    }
    judge(&broken);
}

/// Runs every test of [`store_cases`]. For each test, `make` must return a new, empty store.
///
/// # Panics
/// If a test fails. The message contains the name of every failed test.
pub async fn check_store<L: Books>(make: impl AsyncFn() -> L) {
    check_all(store_cases(), make).await;
}

/// Lists tests by module. `$around` runs each test.
macro_rules! list_cases {
    ($around:ident; $($module:ident: $($name:ident)*;)*) => {
        [$($(Case {
            name: stringify!($name),
            run: |ledger: &L| Box::pin($around(ledger, $module::$name(ledger))),
        }),*),*]
    };
}

async fn alone<L>(_: &L, test: impl Future<Output = ()>) {
    test.await;
}

async fn audited<L: Books>(ledger: &L, test: impl Future<Output = ()>) {
    test.await;
    is_sound(ledger).await;
}

async fn opened_and_audited<L: Books>(ledger: &L, test: impl Future<Output = ()>) {
    open_all(ledger).await;
    audited(ledger, test).await;
}

/// Returns the tests of a store's events. Each test starts with an empty store, and ends with an audit of the store.
#[must_use]
pub fn event_cases<L: Books + EventStore>() -> Vec<Case<L>> {
    list_cases! {
        audited;
        events:
            each_entry_emits_one_event_in_order
            of_many_charges_at_once_one_passes_a_level
            a_payment_above_a_level_lets_it_be_reported_again
            ceilings_tell_when_they_run_low_and_when_they_are_reached
            levels_are_those_that_were_set
            an_event_with_the_same_name_is_emitted_once;
        groups:
            a_group_reports_when_its_ceiling_is_reached
            a_group_reports_when_its_ceilings_run_low;
    }
    .into()
}

/// Returns the tests of a ledger's documents. Each test starts with a ledger without documents.
#[must_use]
pub fn document_cases<L: Documents>() -> Vec<Case<L>> {
    list_cases! {
        alone;
        documents:
            a_document_is_changed_only_at_its_current_version
            concurrent_updates_of_a_document_all_take_effect
            a_removed_value_keeps_its_document_s_version;
    }
    .into()
}

/// Runs every test of [`event_cases`]. For each test, `make` must return a new, empty store.
///
/// # Panics
/// If a test fails. The message contains the name of every failed test.
pub async fn check_events<L: Books + EventStore>(make: impl AsyncFn() -> L) {
    check_all(event_cases(), make).await;
}

/// Runs every test of [`document_cases`]. For each test, `make` must return a new ledger without documents.
///
/// # Panics
/// If a test fails. The message contains the name of every failed test.
pub async fn check_documents<L: Documents>(make: impl AsyncFn() -> L) {
    check_all(document_cases(), make).await;
}

async fn check_all<L>(cases: Vec<Case<L>>, make: impl AsyncFn() -> L) {
    let mut broken = Vec::new();
    for case in cases {
        broken.extend(case.breach(&make().await).await);
    }
    judge(&broken);
}

fn judge(broken: &[String]) {
    assert!(
        broken.is_empty(),
        "{} promises are not kept:\n  {}",
        broken.len(),
        broken.join("\n  ")
    );
}

/// All traits that a store must implement so that a gateway can use it.
pub trait Books: Ledger + LedgerAdmin + KeyStore + Clone {}

impl<L: Ledger + LedgerAdmin + KeyStore + Clone> Books for L {}

/// An account that must exist before a test of [`cases`] runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opening {
    /// The id of the account. The account has no holds.
    pub account: AccountId,
    /// The only payment into the account.
    pub payment: Entry,
    /// The keys of the account, without ceilings. A ledger without [`LedgerAdmin`] needs only the ids of the keys.
    pub keys: Vec<KeyRecord>,
}

/// Returns the accounts that every test of [`cases`] needs.
#[must_use]
pub fn openings() -> Vec<Opening> {
    [
        ("acme", 1000, &["k1", "k2"][..]),
        ("other", 100, &["k3"][..]),
    ]
    .into_iter()
    .map(|(id, amount, keys)| {
        let account = given::account(id);
        let keys = keys.iter().map(|key| {
            let digest = key.bytes().last().unwrap_or_default();
            given::record(&account, key, digest)
        });
        Opening {
            keys: keys.collect(),
            payment: given::topup("first", amount),
            account,
        }
    })
    .collect()
}

/// A contract test. Its name is the promise that it checks.
pub struct Case<L> {
    name: &'static str,
    run: Run<L>,
}

type Run<L> = for<'a> fn(&'a L) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

impl<L> Case<L> {
    /// Returns the name of the test.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the test on a ledger that no other test has used. A test of [`cases`] needs a ledger with all accounts of
    /// [`openings`]; a test of [`store_cases`] needs an empty ledger.
    ///
    /// # Panics
    /// If the ledger breaks the promise that the test checks.
    pub async fn run(&self, ledger: &L) {
        (self.run)(ledger).await;
    }

    /// Runs the test. If the ledger breaks the promise, returns the name of the promise and the expected and found
    /// values.
    async fn breach(&self, ledger: &L) -> Option<String> {
        let run = AssertUnwindSafe(self.run(ledger));
        let panic = run.catch_unwind().await.err()?;
        Some(format!("{}: {}", self.name, text_of(&*panic)))
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<String>() {
        Some(text) => text,
        None => panic.downcast_ref::<&str>().copied().unwrap_or("it panics"),
    }
}

impl<L> fmt::Debug for Case<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Passes to a macro the names of the tests that concern calls, by module.
macro_rules! promises_to_calls {
    ($around:ident) => {
        list_cases! {
            $around;
            calls:
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
                a_settlement_by_a_key_without_the_hold_charges_nothing;
            adjust:
                a_smaller_hold_frees_money_at_once
                a_hold_grows_only_into_free_money
                an_expired_hold_does_not_keep_another_from_growing
                an_older_adjustment_changes_nothing
                an_ended_hold_is_not_adjusted
                a_cost_is_charged_up_to_the_adjusted_hold_and_free_money;
            drops:
                a_dropped_reserve_leaves_no_hold_after_its_release
                a_dropped_reserve_leaves_no_hold_after_its_expiry
                a_dropped_reserve_that_is_repeated_is_granted_once
                a_dropped_settlement_that_is_repeated_charges_once
                a_dropped_batch_of_settlements_that_is_repeated_charges_once
                a_dropped_release_that_is_repeated_frees_the_hold
                a_dropped_extension_does_not_end_the_hold
                a_dropped_adjustment_that_is_repeated_counts_once
                a_dropped_adjustment_leaves_no_hold_after_its_call_ends
                a_dropped_sweep_loses_no_hold;
            threads:
                holds_by_several_threads_are_granted_only_up_to_the_free_money
                a_hold_sent_by_two_threads_is_granted_once
                a_call_settled_by_two_threads_is_charged_once
                only_one_of_a_concurrent_settlement_and_release_takes_effect
                holds_grow_by_several_threads_only_up_to_the_free_money
                a_concurrent_adjustment_and_settlement_lose_no_money;
        }
    };
}

/// Returns the tests of the promises that calls rely on, for every ledger. Some tests use several threads, so all
/// clones of the ledger must share the money; if they do not, use an `Arc<L>`. The tests must run inside a tokio
/// runtime.
#[must_use]
pub fn cases<L: Ledger + Clone>() -> Vec<Case<L>> {
    promises_to_calls!(alone).into()
}

/// Returns the tests for stores: the tests of [`cases`], and tests of the promises that operators rely on. Each test
/// starts with an empty store, and ends with an audit of the store.
#[must_use]
pub fn store_cases<L: Books>() -> Vec<Case<L>> {
    let mut all: Vec<Case<L>> = promises_to_calls!(opened_and_audited).into();
    all.extend(list_cases! {
        audited;
        holds:
            holds_of_all_keys_count_against_the_account_and_a_ceiling_against_its_key
            a_ceiling_can_be_raised_lowered_and_removed
            a_key_has_separate_ceilings_of_day_and_month
            a_repeated_hold_is_granted_once
            unknown_accounts_and_keys_cannot_be_read_or_changed
            a_disabled_key_gets_no_new_hold_and_its_running_calls_are_charged
            a_suspended_account_gets_no_new_hold_and_its_running_calls_are_charged
            the_most_serious_refusal_is_reported
            only_holds_past_their_expiry_are_ended
            a_reserve_that_does_not_fit_ends_some_expired_holds_of_its_account;
        adjust:
            a_hold_grows_only_if_account_and_key_allow_it
            a_larger_hold_is_refused_for_the_reason_of_a_new_one
            the_whole_adjusted_hold_expires;
        ends:
            a_cost_beyond_the_hold_takes_free_money_and_the_rest_is_loss
            a_cost_beyond_the_hold_stays_below_the_days_ceiling
            a_lowered_ceiling_does_not_take_back_a_hold
            a_repeated_settlement_is_answered_with_the_first_result
            a_settlement_by_another_key_than_the_holds_charges_nothing
            a_stale_settlement_can_be_charged_later
            a_receipt_has_the_amounts_of_its_settlement
            only_settled_calls_have_a_receipt;
        groups:
            all_keys_of_a_group_together_spend_at_most_its_ceiling
            a_hold_is_granted_only_if_account_key_and_group_allow_it
            a_hold_grows_only_if_the_group_allows_it
            a_group_admits_concurrent_calls_only_up_to_its_ceiling
            a_key_that_joins_a_group_brings_its_holds_and_its_spending_stays_when_it_leaves
            receipts_of_a_group_add_up_to_its_spending
            expired_holds_no_longer_count_in_their_group
            a_group_is_created_once_and_removed_only_without_keys
            a_key_has_at_most_its_limit_of_open_calls
            concurrent_calls_of_a_key_are_admitted_up_to_its_limit;
        accounts:
            a_payment_counts_once_by_its_id
            an_entry_is_read_by_its_id_as_it_was_booked
            a_correction_takes_no_held_money
            amounts_are_exact_up_to_the_largest_and_never_exceed_it
            an_account_is_created_once_and_can_be_changed
            the_tariff_version_grows_only_with_a_change
            an_audit_counts_accounts_keys_and_open_holds;
        keys:
            a_key_is_read_as_it_was_written
            a_key_is_created_once
            a_change_of_a_key_changes_only_the_named_fields
            a_deleted_key_can_be_read_and_stays_deleted;
    });
    all
}

async fn open_all<L: Books>(ledger: &L) {
    for Opening {
        account,
        payment,
        keys,
    } in openings()
    {
        ledger.create_account(&account, "").await.unwrap();
        ledger.enter(&account, &payment).await.unwrap();
        for key in &keys {
            ledger.create_key(key, Ceilings::NONE).await.unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::memory::MemoryLedger;

    #[tokio::test]
    async fn memory_ledger_passes_every_contract_test() {
        check_store(async || MemoryLedger::new()).await;
    }

    #[tokio::test]
    async fn memory_ledger_passes_the_event_and_document_tests() {
        check_events(async || MemoryLedger::new()).await;
        check_documents(async || MemoryLedger::new()).await;
    }

    #[test]
    fn every_contract_test_has_a_unique_name() {
        let names: Vec<_> = store_cases::<MemoryLedger>()
            .iter()
            .map(Case::name)
            .collect();
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(names.len(), different.len());
        assert!(names.len() > cases::<MemoryLedger>().len());
    }
}
