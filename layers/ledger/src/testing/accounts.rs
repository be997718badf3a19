//! Tests of accounts, payments and corrections, and of the sums over them.

use super::{
    Books,
    desk::{booked, money, now_ms, open, pay, release, reserved, set_ceiling, set_status, settled},
    given::{acme, correction, hold, micro, number, topup},
};
use crate::{
    account::{AccountId, KeyStatus},
    contract::{AccountView, BookError, Booked},
    money::MicroRub,
};

/// Invariant I10: a payment is booked once per id.
pub(super) async fn a_payment_counts_once_by_its_id<L: Books>(ledger: &L) {
    open(ledger, 0).await;
    let once = pay(ledger, "invoice 1/2026 «Ромашка»", 100).await;
    expect_eq!(once.balance_rub, micro(100));
    expect_eq!(pay(ledger, "invoice 1/2026 «Ромашка»", 100).await, once);
    for amount in [99, 101, -100] {
        let entry = topup("invoice 1/2026 «Ромашка»", amount);
        let answer = ledger.enter(&acme(), &entry).await;
        expect_matches!(answer, Err(BookError::Exists));
    }
    // A clone of the ledger has the same account and entries. Another account has its own entry ids.
    let clone = ledger.clone();
    expect_eq!(pay(&clone, "invoice 1/2026 «Ромашка»", 100).await, once);
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    let view = ledger
        .enter(&other, &topup("invoice 1/2026 «Ромашка»", 7))
        .await
        .unwrap();
    expect_eq!(view.balance_rub, micro(7));
    expect_eq!(pay(ledger, "invoice 2", 5).await.balance_rub, micro(105));
}

pub(super) async fn an_entry_is_read_by_its_id_as_it_was_booked<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let (paid, corrected) = (topup("p «1»", 5), correction("c1", -3));
    for entry in [&paid, &corrected] {
        ledger.enter(&acme(), entry).await.unwrap();
    }
    // A repeated entry with the same amount changes nothing, not even the stored reason.
    let mistaken = correction("p «1»", 5);
    ledger.enter(&acme(), &mistaken).await.unwrap();
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    ledger.enter(&other, &topup("theirs", 1)).await.unwrap();
    for (id, booked) in [
        ("p «1»", Some(paid)),
        ("c1", Some(corrected)),
        ("theirs", None),
        ("none", None),
    ] {
        expect_eq!(ledger.entry(&acme(), id).await.unwrap(), booked, "{id}");
    }
}

/// Invariant I4: a correction cannot take money that is held.
pub(super) async fn a_correction_takes_no_held_money<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 60)).await;
    let correct =
        async |id: &str, amount: i64| ledger.enter(&acme(), &correction(id, amount)).await;
    for amount in [-41, -100, -1000] {
        let answer = correct("c1", amount).await;
        expect_matches!(answer, Err(BookError::BelowHeld));
    }
    // The id of a refused entry can be used again.
    let view = correct("c1", -40).await.unwrap();
    expect_eq!([view.balance_rub, view.free_rub], [60, 0].map(micro));
    expect_eq!(correct("c1", -40).await.unwrap(), view);
    expect_matches!(correct("c1", -39).await, Err(BookError::Exists));
    settled(ledger, 1, "k1", 10).await;
    let view = correct("c2", -50).await.unwrap();
    expect_eq!(view.balance_rub, micro(0));
    expect_matches!(correct("c3", -1).await, Err(BookError::BelowHeld));
    let view = correct("c3", 3).await.unwrap();
    expect_eq!([view.balance_rub, view.spent_rub], [3, 10].map(micro));
}

/// Invariant I3, for amounts up to the largest one, 2⁵³ − 1. This is the largest integer that a double represents
/// exactly.
pub(super) async fn amounts_are_exact_up_to_the_largest_and_never_exceed_it<L: Books>(ledger: &L) {
    const MAX: i64 = MicroRub::MAX.micro();
    open(ledger, MAX).await;
    let beyond = async |id: &str, amount: i64| {
        let answer = ledger.enter(&acme(), &topup(id, amount)).await;
        expect_matches!(answer, Err(BookError::AboveMax));
    };
    beyond("second", 1).await;
    beyond("second", MAX).await;
    let half = MAX / 2 + 1;
    set_ceiling(ledger, "k2", Some(MAX)).await;
    let first = reserved(ledger, &hold(1, "k1", half)).await;
    expect_eq!([first.held, first.free], [half, MAX - half].map(micro));
    let second = reserved(ledger, &hold(2, "k2", MAX - half)).await;
    expect_eq!([second.held, second.free], [MAX - half, 0].map(micro));
    expect_eq!(money(ledger).await, [MAX, MAX, 0, 0]);
    let paid = settled(ledger, 1, "k1", half - 1).await;
    expect_eq!(paid, booked(Booked::Held, half - 1, 0));
    expect_eq!(
        money(ledger).await,
        [MAX - half + 1, MAX - half, half - 1, 0]
    );
    // This settlement charges the whole balance. The remainder of the cost is the largest loss that an account can
    // have.
    let paid = settled(ledger, 2, "k2", MAX).await;
    expect_eq!(paid, booked(Booked::Held, MAX - half + 1, half - 1));
    expect_eq!(money(ledger).await, [0, 0, MAX, half - 1]);
    let receipt = ledger.receipt(number(2)).await.unwrap();
    expect_eq!(
        [receipt.cost_rub, receipt.charged_rub, receipt.loss_rub],
        [MAX, MAX - half + 1, half - 1].map(micro)
    );
    expect_eq!(pay(ledger, "second", MAX).await.balance_rub, micro(MAX));
    beyond("third", 1).await;
}

pub(super) async fn an_account_is_created_once_and_can_be_changed<L: Books>(ledger: &L) {
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
        holds_open: 0,
    };
    expect_eq!(made, expected);
    expect_eq!(create("acme", "ООО «Ромашка: 1»").await.unwrap(), expected);
    expect_matches!(create("acme", "Other").await, Err(BookError::Exists));
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
    expect_eq!(renamed.unwrap(), expected);
    let suspended = ledger.change_account(&acme(), None, Some(true)).await;
    let expected = AccountView {
        suspended: true,
        ..expected
    };
    expect_eq!(suspended.unwrap(), expected);
    let unchanged = ledger.change_account(&acme(), None, None).await;
    expect_eq!(unchanged.unwrap(), expected);
    expect_eq!(ledger.account(&acme()).await.unwrap(), expected);
    let all = ledger.accounts().await.unwrap();
    let ids: Vec<&str> = all.iter().map(|view| &*view.id).collect();
    expect_eq!(ids, ["1-b", "Zeta_1", "acme"]);
    expect_eq!(all[2], expected);
}

pub(super) async fn the_tariff_version_grows_only_with_a_change<L: Books>(ledger: &L) {
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
        expect_eq!(version.id, id, "{fingerprint}");
        if is_new {
            since = version.effective_from_ms;
            assert!((before..=now_ms()).contains(&since), "{before} {since}");
        } else {
            expect_eq!(version.effective_from_ms, since, "{fingerprint}");
        }
    }
}

pub(super) async fn an_audit_counts_accounts_keys_and_open_holds<L: Books>(ledger: &L) {
    let count = async || {
        let audit = ledger.audit().await.unwrap();
        expect_eq!(audit.breaches, Vec::<String>::new());
        [audit.accounts, audit.keys, audit.holds_open]
    };
    expect_eq!(count().await, [0, 0, 0]);
    open(ledger, 100).await;
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    for n in [1, 2, 3] {
        reserved(ledger, &hold(n, "k1", 10)).await;
    }
    release(ledger, 2, "k1").await;
    set_status(ledger, "k2", KeyStatus::Deleted).await;
    expect_eq!(count().await, [2, 2, 2]);
    settled(ledger, 1, "k1", 10).await;
    settled(ledger, 3, "k1", 10).await;
    expect_eq!(count().await, [2, 2, 0]);
}
