//! What every ledger promises, as tests to run on one's own: the same that this crate's stores pass.
//!
//! [`check`] asks a [`Ledger`] for what calls rely on. [`check_store`] asks a store, which is a ledger
//! with [`LedgerAdmin`] and keys, for what operators rely on as well. Both begin each promise with a new
//! ledger, try all of them, and panic with the names of those that are not kept.
//!
//! ```
//! use tollgate_ledger::{
//!     ceiling::Ceilings, contract::LedgerAdmin, memory::MemoryLedger, testing,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // With your ledger in the place of this one, and under #[tokio::test].
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
//! // A ledger that can open accounts itself needs no help.
//! testing::check_store(async || MemoryLedger::new()).await;
//! # }
//! ```
//!
//! A harness of one's own takes the promises one by one from [`cases`] and [`store_cases`].
//!
//! Where a promise shows an invariant, the test's comment names it: I1 to I5 stand in [`super::book`].
//! I7: what was used is charged in the end. I8: no hold outlives its time. I9: what was refused is free. I10: a
//! payment counts once. I11: a call is charged by the prices that it began with. I12: no request touches
//! another's money.

#![allow(
    clippy::unwrap_used,
    reason = "these are tests: what is not there fails them"
)]

mod accounts;
mod calls;
mod desk;
mod ends;
mod feed;
pub mod given;
mod groups;
mod holds;
mod keys;

use std::{fmt, panic::AssertUnwindSafe, pin::Pin};

use futures_util::FutureExt;

pub use self::desk::{is_sound, open, spoil_sums};
use super::contract::{Entry, Feed, Ledger, LedgerAdmin};
use crate::{
    account::{AccountId, KeyRecord, KeyStore},
    ceiling::Ceilings,
};

/// Tries every promise of [`cases`]. `open` makes a new ledger with these accounts in it, each time.
///
/// # Panics
/// Some are not kept; the text names them.
pub async fn check<L: Ledger>(open: impl AsyncFn(Vec<Opening>) -> L) {
    let mut broken = Vec::new();
    for case in cases::<L>() {
        if !case.is_kept(&open(openings()).await).await {
            broken.push(case.name);
        }
    }
    judge(&broken);
}

/// Tries every promise of [`store_cases`]. `make` makes a new, empty store, each time.
///
/// # Panics
/// Some are not kept; the text names them.
pub async fn check_store<L: Books>(make: impl AsyncFn() -> L) {
    let mut broken = Vec::new();
    for case in store_cases::<L>() {
        if !case.is_kept(&make().await).await {
            broken.push(case.name);
        }
    }
    judge(&broken);
}

/// What every store tells. Each promise begins with an empty store and ends with an audit of it.
#[must_use]
pub fn feed_cases<L: Books + Feed>() -> Vec<Case<L>> {
    macro_rules! cases {
        ($($name:ident)*) => {
            vec![$(Case {
                name: stringify!($name),
                run: |ledger: &L| {
                    Box::pin(async move {
                        feed::$name(ledger).await;
                        is_sound(ledger).await;
                    })
                },
            }),*]
        };
    }
    cases! {
        each_entry_is_told_once_in_order
        of_many_charges_at_once_one_passes_a_level
        a_payment_lets_a_level_be_told_again
        ceilings_tell_when_they_run_low_and_when_they_are_reached
        a_group_tells_when_its_ceiling_is_reached
        a_group_tells_when_its_ceilings_run_low
        levels_are_those_that_were_set
        what_was_told_before_is_not_told_again
        a_note_is_changed_by_who_knows_its_version
    }
}

/// Tries what a store with a [`Feed`] tells. `make` makes a new, empty store, each time.
///
/// # Panics
/// Some promises are not kept; the text names them.
pub async fn check_feed<L: Books + Feed>(make: impl AsyncFn() -> L) {
    let mut broken = Vec::new();
    for case in feed_cases::<L>() {
        let ledger = make().await;
        if !case.is_kept(&ledger).await {
            broken.push(case.name);
        }
    }
    judge(&broken);
}

fn judge(broken: &[&str]) {
    assert!(
        broken.is_empty(),
        "{} promises are not kept (each one's panic stands above):\n  {}",
        broken.len(),
        broken.join("\n  ")
    );
}

/// All that a store of money is to a gateway.
pub trait Books: Ledger + LedgerAdmin + KeyStore + Clone {}

impl<L: Ledger + LedgerAdmin + KeyStore + Clone> Books for L {}

/// An account that is there before a promise of [`cases`] is tried.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opening {
    /// The account; it has no holds.
    pub account: AccountId,
    /// Its first payment, and all of its money.
    pub payment: Entry,
    /// Its keys, without ceilings. A ledger without [`LedgerAdmin`] needs their ids alone.
    pub keys: Vec<KeyRecord>,
}

/// What each promise of [`cases`] begins with.
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

/// A promise: its name, and the test of it.
pub struct Case<L> {
    name: &'static str,
    run: Run<L>,
}

type Run<L> = for<'a> fn(&'a L) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

impl<L> Case<L> {
    /// The promise.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Tries it on a ledger that nothing else was tried on: one with all [`openings`] for [`cases`], an
    /// empty one for [`store_cases`].
    ///
    /// # Panics
    /// The promise is not kept.
    pub async fn run(&self, ledger: &L) {
        (self.run)(ledger).await;
    }

    async fn is_kept(&self, ledger: &L) -> bool {
        let run = AssertUnwindSafe(self.run(ledger));
        run.catch_unwind().await.is_ok()
    }
}

impl<L> fmt::Debug for Case<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Hands the names of the promises in `calls` to a macro.
macro_rules! promises_to_calls {
    ($take:ident) => {
        $take! {
            a_hold_lies_between_the_least_and_the_wish
            holds_of_all_keys_count_against_the_account
            of_many_holds_at_once_those_that_fit_are_granted
            a_hold_asked_for_again_is_granted_once
            a_number_that_has_ended_holds_nothing_again
            empty_is_what_has_no_posted_money
            nobody_holds_on_an_account_that_is_not_theirs
            a_settlement_charges_the_cost_and_frees_the_hold
            what_costs_more_than_its_hold_takes_what_is_free
            a_settlement_told_again_is_answered_as_the_first
            settlements_told_together_are_each_answered_in_their_order
            a_release_costs_nothing_and_wins_over_what_comes_later
            holds_past_their_time_end_by_themselves
            a_hold_past_its_time_stands_in_nobodys_way
            an_expired_hold_is_settled_late_and_once
            a_number_never_held_is_forced_while_fresh_and_stale_later
            a_settlement_on_a_key_that_holds_nothing_moves_nothing
        }
    };
}

/// The promises that calls rely on: of every ledger.
#[must_use]
pub fn cases<L: Ledger>() -> Vec<Case<L>> {
    macro_rules! cases {
        ($($name:ident)*) => {
            vec![$(Case {
                name: stringify!($name),
                run: |ledger| Box::pin(calls::$name(ledger)),
            }),*]
        };
    }
    promises_to_calls!(cases)
}

/// The promises of every store: those of [`cases`], and what operators rely on. Each begins with an
/// empty store and ends with an audit of it.
#[must_use]
pub fn store_cases<L: Books>() -> Vec<Case<L>> {
    macro_rules! cases_with_openings {
        ($($name:ident)*) => {
            vec![$(Case {
                name: stringify!($name),
                run: |ledger| {
                    Box::pin(async move {
                        open_all(ledger).await;
                        calls::$name(ledger).await;
                        is_sound(ledger).await;
                    })
                },
            }),*]
        };
    }
    macro_rules! cases {
        ($($module:ident: $($name:ident)*;)*) => {
            [$($(Case {
                name: stringify!($name),
                run: |ledger: &L| {
                    Box::pin(async move {
                        $module::$name(ledger).await;
                        is_sound(ledger).await;
                    })
                },
            }),*),*]
        };
    }
    let mut all: Vec<Case<L>> = promises_to_calls!(cases_with_openings);
    all.extend(cases! {
        holds:
            what_is_held_lies_between_the_least_and_the_wish
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
            a_reserve_that_does_not_fit_ends_some_due_holds_of_its_account;
        ends:
            a_settled_call_pays_its_cost_and_frees_its_hold
            a_cost_beyond_the_hold_takes_free_money_and_the_rest_is_loss
            a_cost_beyond_the_hold_stays_below_the_days_ceiling
            a_lowered_ceiling_does_not_take_back_a_hold
            a_repeated_settlement_is_answered_with_the_first_result
            a_released_hold_costs_nothing
            a_release_that_comes_first_wins
            an_expired_hold_is_settled_late_once_from_what_is_free
            a_hold_that_was_lost_is_charged_by_force_while_fresh
            a_number_nobody_knows_is_stale_and_moves_nothing
            a_settlement_on_another_key_than_its_holds_is_nobodys
            a_dispute_is_no_first_result
            an_account_that_is_gone_is_not_charged
            a_receipt_is_what_was_settled
            only_settled_calls_have_a_receipt;
        groups:
            a_group_spends_no_more_than_its_ceiling_whichever_key_asks
            account_key_and_group_have_to_allow_a_hold
            of_many_calls_at_once_a_group_lets_in_those_that_fit
            a_key_brings_its_holds_into_a_group_and_leaves_what_it_spent_there
            receipts_of_a_group_come_to_what_it_has_spent
            holds_that_end_by_themselves_leave_their_group
            a_group_is_made_once_and_removed_when_its_keys_are_gone
            no_more_calls_of_a_key_are_open_than_may_be
            of_many_calls_at_once_as_many_as_may_be_are_let_in;
        accounts:
            a_payment_counts_once_by_its_id
            an_entry_is_found_by_its_id_as_it_was_booked
            a_correction_leaves_what_is_held
            amounts_are_exact_up_to_the_largest_and_none_goes_beyond
            accounts_are_opened_once_and_can_be_changed
            the_tariff_version_grows_with_a_change_only
            an_audit_counts_what_there_is;
        keys:
            a_key_comes_back_as_it_was_written
            a_key_is_made_once
            a_change_of_a_key_touches_what_it_names
            a_deleted_key_is_still_found_and_stays_deleted;
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
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::{
        account::KeyId,
        contract::{Hold, LedgerError, Reserved, Settled, Settlement},
        memory::MemoryLedger,
        number::RequestNumber,
    };

    #[tokio::test]
    async fn the_ledger_in_memory_keeps_every_promise() {
        check_store(async || MemoryLedger::new()).await;
    }

    #[tokio::test]
    async fn the_ledger_in_memory_tells_what_happens() {
        check_feed(async || MemoryLedger::new()).await;
    }

    #[test]
    fn promises_have_names_of_their_own() {
        let names: Vec<_> = store_cases::<MemoryLedger>()
            .iter()
            .map(Case::name)
            .collect();
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(names.len(), different.len());
        assert!(names.len() > cases::<MemoryLedger>().len());
    }

    /// Forgets every second release.
    struct Forgetful {
        ledger: MemoryLedger,
        forgets: AtomicBool,
    }

    impl Ledger for Forgetful {
        async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
            self.ledger.reserve(hold).await
        }

        async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
            self.ledger.settle(settlement).await
        }

        async fn release(
            &self,
            number: RequestNumber,
            account: &AccountId,
            key: &KeyId,
        ) -> Result<(), LedgerError> {
            if self.forgets.fetch_not(Ordering::Relaxed) {
                return Ok(());
            }
            self.ledger.release(number, account, key).await
        }

        async fn extend(
            &self,
            number: RequestNumber,
            account: &AccountId,
            ttl: Duration,
        ) -> Result<bool, LedgerError> {
            self.ledger.extend(number, account, ttl).await
        }

        async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
            self.ledger.probe(account, key).await
        }

        async fn expire(&self) -> Result<usize, LedgerError> {
            self.ledger.expire().await
        }
    }

    #[tokio::test]
    #[should_panic(expected = "a_release_costs_nothing_and_wins_over_what_comes_later")]
    async fn a_promise_that_is_not_kept_is_named() {
        check(async |_| {
            let ledger = MemoryLedger::new();
            open_all(&ledger).await;
            Forgetful {
                ledger,
                forgets: AtomicBool::new(true),
            }
        })
        .await;
    }
}
