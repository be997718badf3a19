//! Tests of payments whose process is killed at any step. The test drops the future of the process at each await in
//! turn, and another process continues with the same books.

use std::{
    future::{Future, poll_fn},
    ops::Deref,
    pin::pin,
    task::Poll,
};

use tempfile::TempDir;
use tollgate::{
    config::{Config, PaymentsConfig},
    ledger::AnyLedger,
    payments::{IntentId, NewPayment, Payments, State},
};
use tollgate_layers::{
    money::MicroRub,
    reserve::{
        ledger::{JournalLine, JournalPart, LedgerAdmin},
        sqlite::SqliteLedger,
    },
    respond::Language,
};

use super::ANCHOR;
use crate::{
    harness::{config_text, secret},
    support::{config::edited, shop::Shop},
};

/// Books in a file, and a fake provider at which customers pay.
struct Given {
    books: Books,
    shop: Shop,
}

impl Given {
    async fn new() -> Self {
        let shop = Shop::start().await;
        let books = Books::over(&shop.config("")).await;
        Self { books, shop }
    }
}

impl Deref for Given {
    type Target = Books;

    fn deref(&self) -> &Books {
        &self.books
    }
}

/// Books in a file with the account `acme`, and the configuration of payments.
pub(super) struct Books {
    pub(super) store: AnyLedger,
    config: PaymentsConfig,
    _dir: TempDir,
}

impl Books {
    /// Creates books whose configuration has these sections for payments.
    pub(super) async fn over(sections: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteLedger::open(&dir.path().join("ledger.db")).unwrap();
        let account = "acme".parse().unwrap();
        store.create_account(&account, "Acme").await.unwrap();
        Self {
            store: AnyLedger::Sqlite(store),
            config: configured(sections),
            _dir: dir,
        }
    }

    /// Creates the payments part of a new process that uses these books.
    pub(super) fn process(&self) -> Payments {
        Payments::new(self.store.clone(), Some(self.config.clone()), Language::En)
    }

    pub(super) async fn entries(&self) -> Vec<(String, MicroRub)> {
        let account = "acme".parse().unwrap();
        let page = self.store.journal(&account, &JournalPart::whole()).await;
        let lines = page.unwrap().lines.into_iter();
        lines
            .filter_map(|line| match line {
                JournalLine::Entry { id, amount_rub, .. } => Some((id, amount_rub)),
                JournalLine::Call(_) => None,
            })
            .collect()
    }
}

/// Parses these sections as the configuration of payments.
pub(super) fn configured(sections: &str) -> PaymentsConfig {
    let text = config_text(([127, 0, 0, 1], 9).into(), "memory:", "outbox.db");
    let sections = format!("{sections}{ANCHOR}");
    let text = edited(text, &[(ANCHOR.to_owned(), sections)]);
    Config::parse(&text, &secret).unwrap().payments.unwrap()
}

fn wanted(id: IntentId) -> NewPayment {
    wish_of(id, MicroRub::rubles(5000))
}

pub(super) fn wish_of(id: IntentId, amount: MicroRub) -> NewPayment {
    NewPayment {
        id,
        account: "acme".parse().unwrap(),
        amount,
        provider: None,
        email: None,
        by: "admin".into(),
        saves_card: false,
    }
}

/// Polls the future this number of times, and then drops it. Returns whether the future had completed before the drop.
pub(super) async fn until_killed(work: impl Future, polls: usize) -> bool {
    let mut work = pin!(work);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        work.as_mut().poll(cx).map(|_| true)
    })
    .await
}

#[tokio::test]
async fn gateway_killed_between_payment_and_top_up_credits_the_payment_exactly_once() {
    let mut steps = 0;
    for polls in 0.. {
        let given = Given::new().await;
        let id = IntentId::new();
        let made = given.process().create(wanted(id)).await.unwrap();
        given.shop.pay(made.payment.as_deref().unwrap());
        let ended = until_killed(given.process().check(id), polls).await;
        // The provider sends no further notification, so the next process finds the payment with its regular poll.
        given.process().poll().await.unwrap();
        let found = given.process().find(id).await.unwrap();
        assert_eq!(found.state, State::Paid, "{polls}");
        let entries = given.entries().await;
        assert_eq!(entries.len(), 1, "{polls}: {entries:?}");
        assert_eq!(entries[0].1, MicroRub::rubles(5000));
        // The payment is credited, so the next poll does not fetch it again.
        let fetches = given.shop.fetches();
        given.process().poll().await.unwrap();
        assert_eq!(given.shop.fetches(), fetches, "{polls}");
        if ended {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 5, "{steps}");
}

#[tokio::test]
async fn provider_that_fails_gets_one_request_per_poll() {
    let given = Given::new().await;
    for _ in 0..3 {
        let wanted = wanted(IntentId::new());
        given.process().create(wanted).await.unwrap();
    }
    for (status, fetches) in [(Some(500), 1), (None, 3)] {
        given.shop.break_with(status);
        let before = given.shop.fetches();
        given.process().poll().await.unwrap();
        assert_eq!(given.shop.fetches() - before, fetches, "{status:?}");
    }
}

#[tokio::test]
async fn payment_is_created_once_if_the_process_is_killed_meanwhile() {
    for polls in 0.. {
        let given = Given::new().await;
        let id = IntentId::new();
        let ended = until_killed(given.process().create(wanted(id)), polls).await;
        let made = given.process().create(wanted(id)).await.unwrap();
        assert_eq!(made.state, State::Open, "{polls}");
        assert_eq!(given.shop.payments().len(), 1, "{polls}");
        given.shop.pay(made.payment.as_deref().unwrap());
        given.process().poll().await.unwrap();
        assert_eq!(given.entries().await.len(), 1, "{polls}");
        if ended {
            break;
        }
    }
}

#[tokio::test]
async fn gateway_killed_during_a_refund_deducts_it_once() {
    let mut steps = 0;
    for polls in 0.. {
        let given = Given::new().await;
        let id = IntentId::new();
        let made = given.process().create(wanted(id)).await.unwrap();
        let payment = made.payment.unwrap();
        given.shop.pay(&payment);
        given.process().check(id).await.unwrap();
        given.shop.refund(&payment, "r-1", "2000.00");
        let ended = until_killed(given.process().check(id), polls).await;
        // The account spends money after the process was killed and before the refund continues.
        let off = tollgate_layers::reserve::ledger::Entry {
            id: "spent".into(),
            amount: MicroRub::rubles(-2500),
            reason: Some("spent".into()),
        };
        let account = "acme".parse().unwrap();
        given.store.enter(&account, &off).await.unwrap();
        let begun = !given.process().find(id).await.unwrap().refunds.is_empty();
        if begun {
            // The refund was recorded before the process was killed, so the regular poll continues it.
            given.process().poll().await.unwrap();
        } else {
            // The process was killed before it recorded the refund. The provider got no response to its notification,
            // so it sends the notification again.
            given.process().check(id).await.unwrap();
        }
        let found = given.process().find(id).await.unwrap();
        let entries = given.entries().await;
        let mut taken = entries.clone();
        taken.retain(|(id, _)| id.contains(":refund:"));
        assert_eq!(taken.len(), 1, "{polls}: {entries:?}");
        assert_eq!(taken[0].1, MicroRub::rubles(-2000), "{polls}");
        assert_eq!(found.debt(), MicroRub::ZERO, "{polls}: {found:?}");
        if ended {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 8, "{steps}");
}
