//! Stores intents as documents of the ledger, each changed by compare-and-swap of its version.
//!
//! `payment/<id>` is an intent, `payment-of/<provider>/<id>` maps the provider's id to it, and `payments-open` lists
//! the intents to poll. An intent is added to the list before it is created, and removed from it after it is closed. So
//! if a process dies in between, the list may contain an intent too many, but no open intent is missing.
//! `payment-debts/<account>` lists an account's intents with a debt, and is updated in the same order.

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::contract::{Document, Documents, Update, Versioned};

use super::intent::{Intent, IntentId};
use crate::ledger::AnyLedger;

/// The largest number of open intents of all accounts.
const OPEN_MAX: usize = 10_000;
/// The largest length of a provider's id, in bytes.
const PAYMENT_BYTES_MAX: usize = 128;

const OPEN: &str = "payments-open";

/// An entry in the list of open intents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) id: IntentId,
    pub(super) account: AccountId,
}

/// Reads and changes intents in the ledger.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    store: AnyLedger,
}

/// The reason why an intent was not added to the list of open intents.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// The account, or all accounts together, have the maximum number of open intents.
    TooMany,
    Ledger(BookError),
}

impl From<BookError> for NotOpened {
    fn from(error: BookError) -> Self {
        Self::Ledger(error)
    }
}

impl Shelf {
    pub(super) const fn new(store: AnyLedger) -> Self {
        Self { store }
    }

    pub(super) async fn find(&self, id: IntentId) -> Result<Option<Intent>, BookError> {
        Ok(self.store.read_value(&name(id)).await?.value)
    }

    /// Returns the intent to which a provider's payment belongs.
    pub(super) async fn of_payment(
        &self,
        provider: &str,
        payment: &str,
    ) -> Result<Option<Intent>, BookError> {
        let Some(name) = payment_name(provider, payment) else {
            return Ok(None);
        };
        let document = self.store.document(&name).await?;
        match document.and_then(|document| document.text.parse().ok()) {
            Some(id) => self.find(id).await,
            None => Ok(None),
        }
    }

    /// Returns all intents, newest first.
    pub(super) async fn all(&self) -> Result<Vec<Intent>, BookError> {
        let documents = self.store.documents("payment/").await?;
        documents.iter().rev().map(Document::parse).collect()
    }

    /// Writes a new intent and returns it. If an intent with this id exists, returns the existing intent.
    pub(super) async fn make(&self, intent: &Intent) -> Result<Intent, BookError> {
        if self.store.write_value(&name(intent.id), 0, intent).await? {
            return Ok(intent.clone());
        }
        self.find(intent.id).await?.ok_or(BookError::NotFound)
    }

    /// Maps the provider's payment id to an intent, unless the id already belongs to another intent.
    pub(super) async fn lead(
        &self,
        intent: IntentId,
        provider: &str,
        payment: &str,
    ) -> Result<(), BookError> {
        let name = payment_name(provider, payment).ok_or_else(|| {
            BookError::Unavailable("the provider's payment id cannot be stored".into())
        })?;
        let text = intent.to_string();
        if self.store.compare_and_swap(&name, 0, &text).await? {
            return Ok(());
        }
        let found = self.store.document(&name).await?;
        let same = found.is_some_and(|found| found.text == text);
        same.then_some(()).ok_or(BookError::Exists)
    }

    /// Changes the current version of an intent; `change` returns whether it has changed anything.
    pub(super) async fn change(
        &self,
        id: IntentId,
        change: impl Fn(&mut Intent) -> bool + Send,
    ) -> Result<Intent, BookError> {
        let change = move |found: Option<Intent>| {
            let mut intent = found.ok_or(BookError::NotFound)?;
            Ok(match change(&mut intent) {
                true => Update::Write(intent.clone(), intent),
                false => Update::Keep(intent),
            })
        };
        self.store.update(&name(id), change).await
    }

    pub(super) async fn open(&self) -> Result<Vec<Open>, BookError> {
        let open = self.store.read_value(OPEN).await?;
        Ok(open.value.unwrap_or_default())
    }

    /// Adds an intent to the list of open intents, if the account has fewer than the maximum.
    pub(super) async fn add_open(
        &self,
        intent: &Intent,
        of_account_max: usize,
    ) -> Result<(), NotOpened> {
        let added = Open {
            id: intent.id,
            account: intent.account.clone(),
        };
        let add = |open: Option<Vec<Open>>| {
            let mut open = open.unwrap_or_default();
            if open.contains(&added) {
                return Ok(Update::Keep(()));
            }
            let of_account = open.iter().filter(|one| one.account == added.account);
            if of_account.count() >= of_account_max || open.len() >= OPEN_MAX {
                return Err(NotOpened::TooMany);
            }
            open.push(added.clone());
            Ok(Update::Write(open, ()))
        };
        self.store.update(OPEN, add).await
    }

    /// Removes an intent from the list of open intents.
    pub(super) async fn close(&self, id: IntentId) -> Result<(), BookError> {
        let remove = |open: Option<Vec<Open>>| {
            let mut open = open.unwrap_or_default();
            let count = open.len();
            open.retain(|one| one.id != id);
            Ok(match open.len() == count {
                true => Update::Keep(()),
                false => Update::Write(open, ()),
            })
        };
        self.store.update(OPEN, remove).await
    }

    /// Returns the intents for which an account may have a debt.
    pub(super) async fn owing(&self, account: &AccountId) -> Result<Vec<IntentId>, BookError> {
        let owing = self.store.read_value(&owing_name(account)).await?;
        Ok(owing.value.unwrap_or_default())
    }

    /// Adds an intent to the list of intents with a debt. The list is written even if it already contains the intent: a
    /// concurrent removal then fails on its version and checks again.
    pub(super) async fn owe(&self, intent: &Intent) -> Result<(), BookError> {
        let add = |owing: Option<Vec<IntentId>>| {
            let mut owing = owing.unwrap_or_default();
            if !owing.contains(&intent.id) {
                owing.push(intent.id);
            }
            Ok(Update::Write(owing, ()))
        };
        self.store.update(&owing_name(&intent.account), add).await
    }

    /// Removes an intent from the list of intents with a debt, if its debt is paid.
    pub(super) async fn owe_no_more(&self, intent: &Intent) -> Result<(), BookError> {
        let remove = async |found: Versioned<Vec<IntentId>>| {
            let mut owing = found.value.unwrap_or_default();
            let count = owing.len();
            owing.retain(|one| *one != intent.id);
            // The intent is read after the list. If a debt arises later, that changes the list, and this update runs
            // again.
            let found = self.find(intent.id).await?;
            let owes = found.is_some_and(|found| found.debt() > MicroRub::ZERO);
            Ok(match owing.len() == count || owes {
                true => Update::Keep(()),
                false => Update::Write(owing, ()),
            })
        };
        let name = owing_name(&intent.account);
        self.store.update_async(&name, remove).await
    }
}

fn owing_name(account: &AccountId) -> String {
    format!("payment-debts/{account}")
}

fn name(id: IntentId) -> String {
    format!("payment/{id}")
}

/// Returns the name of the document that maps a provider's id; `None` if the id is not valid, so that nothing is stored
/// under it.
fn payment_name(provider: &str, payment: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let good = (1..=PAYMENT_BYTES_MAX).contains(&payment.len()) && payment.bytes().all(plain);
    good.then(|| format!("payment-of/{provider}/{payment}"))
}
