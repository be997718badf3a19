//! Steps and checks that several contract tests use.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{
    Books,
    given::{acme, key, micro, number, record, settlement, topup},
};
use crate::{
    account::{AccountId, KeyStatus},
    ceiling::{Ceiling, Ceilings},
    contract::{
        AccountView, Booked, EventStore, Hold, KeyChange, KeyView, Ledger, LedgerError, Refusal,
        Reserved, Settled,
    },
    happening::{Levels, Watched},
    money::MicroRub,
    rollup::{Change, Rollup, RowId, Scope},
};

/// Opens the account `acme` with this balance, and creates its keys `k1` and `k2` without ceilings.
///
/// # Panics
/// If the store refuses one of these operations.
pub async fn open<L: Books>(ledger: &L, balance: i64) {
    ledger.create_account(&acme(), "Acme").await.unwrap();
    for (id, digest) in [("k1", 1), ("k2", 2)] {
        let key = record(&acme(), id, digest);
        ledger.create_key(&key, Ceilings::NONE).await.unwrap();
    }
    if balance > 0 {
        pay(ledger, "first", balance).await;
    }
}

/// Falsifies a stored sum of this scope by one micro-ruble. Returns the change that was written.
///
/// # Panics
/// If the scope has no sums, or if the sums have changed meanwhile.
pub async fn spoil_sums<L: Rollup>(ledger: &L, scope: Scope) -> Change {
    let rolled = ledger.rolled(&[(scope.clone(), 0..u64::MAX)]).await;
    let (at_ms, words, mut sums) = rolled.unwrap().rows.swap_remove(0);
    sums.charged_micro += 1;
    let id = RowId {
        scope,
        at_ms,
        words,
    };
    let change = Change {
        version: ledger.marks().await.unwrap().version,
        rows: vec![(id, sums)],
        ..Change::default()
    };
    assert!(ledger.change_sums(&change).await.unwrap().is_some());
    change
}

pub(super) fn levels(amounts: &[i64]) -> Levels {
    let amounts: Vec<_> = amounts.iter().copied().map(micro).collect();
    Levels::new(&amounts).unwrap()
}

pub(super) fn of_key(id: &str) -> Watched {
    Watched::Key(key(id))
}

pub(super) fn of_group(id: &str) -> Watched {
    Watched::Group(id.parse().unwrap())
}

pub(super) async fn set<L: EventStore>(ledger: &L, of: &Watched, levels: Levels) {
    ledger.set_levels(&acme(), of, levels).await.unwrap();
}

pub(super) async fn pay<L: Books>(ledger: &L, id: &str, amount: i64) -> AccountView {
    ledger.enter(&acme(), &topup(id, amount)).await.unwrap()
}

pub(super) async fn set_ceiling<L: Books>(ledger: &L, id: &str, ceiling: Option<i64>) -> KeyView {
    let change = KeyChange {
        ceiling: Some(ceiling.map(micro)),
        ..KeyChange::default()
    };
    ledger.change_key(&key(id), &change).await.unwrap()
}

pub(super) async fn set_ceilings<L: Books>(ledger: &L, id: &str, ceilings: Ceilings) -> KeyView {
    let change = KeyChange {
        ceiling: Some(ceilings.total),
        ceiling_month: Some(ceilings.month),
        ceiling_day: Some(ceilings.day),
        ..KeyChange::default()
    };
    ledger.change_key(&key(id), &change).await.unwrap()
}

pub(super) async fn set_status<L: Books>(ledger: &L, id: &str, status: KeyStatus) -> KeyView {
    let change = KeyChange {
        status: Some(status),
        ..KeyChange::default()
    };
    ledger.change_key(&key(id), &change).await.unwrap()
}

pub(super) async fn reserved<L: Ledger>(ledger: &L, hold: &Hold) -> Reserved {
    ledger
        .reserve(hold)
        .await
        .unwrap_or_else(|error| panic!("{hold:?}: expected to be granted, found {error}"))
}

pub(super) async fn refused<L: Ledger>(ledger: &L, hold: &Hold) -> Refusal {
    match ledger.reserve(hold).await {
        Err(LedgerError::Refused(refusal)) => refusal,
        answer => panic!("{hold:?}: expected a refusal, found {answer:?}"),
    }
}

pub(super) async fn probed<L: Ledger>(
    ledger: &L,
    account: &AccountId,
    id: &str,
) -> Result<(), Refusal> {
    match ledger.probe(account, &key(id)).await {
        Ok(()) => Ok(()),
        Err(LedgerError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

pub(super) async fn settled<L: Ledger>(ledger: &L, n: u128, id: &str, cost: i64) -> Settled {
    let answer = ledger.settle(&settlement(n, id, cost)).await;
    answer.unwrap_or_else(|error| panic!("call {n}: expected to be settled, found {error}"))
}

pub(super) async fn release<L: Ledger>(ledger: &L, n: u128, id: &str) {
    let answer = ledger.release(number(n), &acme(), &key(id)).await;
    answer.unwrap_or_else(|error| panic!("call {n}: expected to be released, found {error}"));
}

pub(super) fn booked(booked: Booked, charged: i64, loss: i64) -> Settled {
    Settled {
        booked,
        charged: micro(charged),
        loss: micro(loss),
        repeated: false,
    }
}

pub(super) fn again(first: Settled) -> Settled {
    Settled {
        repeated: true,
        ..first
    }
}

/// Returns the expected refusal of a hold that does not fit into the account's money.
pub(super) const fn does_not_fit(free: i64, held: i64) -> Refusal {
    Refusal::DoesNotFit {
        free: MicroRub::new(free),
        held: MicroRub::new(held),
        ceiling: None,
    }
}

/// Returns the expected refusal of a hold that does not fit under this ceiling.
pub(super) const fn under(ceiling: Ceiling, free: i64, held: i64) -> Refusal {
    Refusal::DoesNotFit {
        free: MicroRub::new(free),
        held: MicroRub::new(held),
        ceiling: Some(ceiling),
    }
}

/// Returns the account's balance, held amount, spending and loss, in this order.
pub(super) async fn money<L: Books>(ledger: &L) -> [i64; 4] {
    let view = ledger.account(&acme()).await.unwrap();
    [
        view.balance_rub,
        view.held_rub,
        view.spent_rub,
        view.loss_rub,
    ]
    .map(MicroRub::micro)
}

/// Returns the key's spending, held amount and free amount, in this order.
pub(super) async fn key_money<L: Books>(ledger: &L, id: &str) -> [i64; 3] {
    let view = ledger.key(&key(id)).await.unwrap();
    [view.spent_rub, view.held_rub, view.free_rub].map(MicroRub::micro)
}

pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// Asserts that the audit finds no breach, and that the operators' views agree with each other (invariants I2 and I4).
///
/// # Panics
/// If the audit finds a breach, or if the views disagree.
pub async fn is_sound<L: Books>(ledger: &L) {
    let audit = ledger.audit().await.unwrap();
    expect_eq!(audit.breaches, Vec::<String>::new());
    for view in ledger.accounts().await.unwrap() {
        let keys = ledger.keys(&view.id).await.unwrap();
        let sum = |field: fn(&KeyView) -> MicroRub| {
            let amounts = keys.iter().map(field).map(MicroRub::micro);
            amounts.sum::<i64>()
        };
        expect_eq!(sum(|key| key.held_rub), view.held_rub.micro(), "{view:?}");
        expect_eq!(sum(|key| key.spent_rub), view.spent_rub.micro(), "{view:?}");
        let [balance, held, free] =
            [view.balance_rub, view.held_rub, view.free_rub].map(MicroRub::micro);
        assert!(0 <= held && held <= balance, "{view:?}");
        expect_eq!(free, balance - held, "{view:?}");
    }
}
