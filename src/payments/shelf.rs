//! Stores intents as documents of the ledger, each changed by compare-and-swap of its version.
//!
//! `payment/<id>` is an intent, `payment-of/<provider>/<id>` maps the provider's id to it, and `payments-open` lists
//! the intents to poll. An intent is added to the list before it is created, and removed after it is closed: if a
//! process dies in between, the list has an intent too many, never one too few. `payment-debts/<account>` lists an
//! account's intents with a debt, and is updated in the same order.

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::contract::Feed;

use super::intent::{Intent, IntentId};
use crate::ledger::AnyLedger;

/// The largest number of open intents of all accounts.
const OPEN_MAX: usize = 10_000;
/// The maximum attempts of a change while other processes change the same document.
const TRIES_MAX: usize = 100;
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

/// The reason why an intent was not added to the open ones.
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
        Ok(self.versioned(id).await?.map(|(_, intent)| intent))
    }

    /// Returns the intent of a provider's payment.
    pub(super) async fn of_payment(
        &self,
        provider: &str,
        payment: &str,
    ) -> Result<Option<Intent>, BookError> {
        let Some(name) = payment_name(provider, payment) else {
            return Ok(None);
        };
        let note = self.store.note(&name).await?;
        match note.and_then(|note| note.text.parse().ok()) {
            Some(id) => self.find(id).await,
            None => Ok(None),
        }
    }

    /// Returns all intents, the latest first.
    pub(super) async fn all(&self) -> Result<Vec<Intent>, BookError> {
        let notes = self.store.notes("payment/").await?;
        notes.iter().rev().map(|note| read(&note.text)).collect()
    }

    /// Writes a new intent; returns an existing one with this id instead.
    pub(super) async fn make(&self, intent: &Intent) -> Result<Intent, BookError> {
        match self
            .store
            .put_note(&name(intent.id), 0, &text(intent)?)
            .await
        {
            Ok(()) => Ok(intent.clone()),
            Err(BookError::Exists) => self.find(intent.id).await?.ok_or(BookError::NotFound),
            Err(error) => Err(error),
        }
    }

    /// Maps the provider's id to an intent, unless the id already belongs to another intent.
    pub(super) async fn lead(
        &self,
        intent: IntentId,
        provider: &str,
        payment: &str,
    ) -> Result<(), BookError> {
        let name = payment_name(provider, payment)
            .ok_or_else(|| BookError::Unavailable("a payment's id that cannot be stored".into()))?;
        match self.store.put_note(&name, 0, &intent.to_string()).await {
            Err(BookError::Exists) => {
                let note = self.store.note(&name).await?;
                let same = note.is_some_and(|note| note.text == intent.to_string());
                same.then_some(()).ok_or(BookError::Exists)
            }
            done => done,
        }
    }

    /// Changes the current version of an intent; `change` returns whether it has changed anything.
    pub(super) async fn change(
        &self,
        id: IntentId,
        change: impl Fn(&mut Intent) -> bool,
    ) -> Result<Intent, BookError> {
        for _ in 0..TRIES_MAX {
            let (version, mut intent) = self.versioned(id).await?.ok_or(BookError::NotFound)?;
            if !change(&mut intent) {
                return Ok(intent);
            }
            match self
                .store
                .put_note(&name(id), version, &text(&intent)?)
                .await
            {
                Ok(()) => return Ok(intent),
                Err(BookError::Exists) => tokio::task::yield_now().await,
                Err(error) => return Err(error),
            }
        }
        Err(busy("an intent"))
    }

    pub(super) async fn open(&self) -> Result<Vec<Open>, BookError> {
        Ok(self.open_list().await?.1)
    }

    /// Adds an intent to the open ones, if the account has fewer than the maximum.
    pub(super) async fn add_open(
        &self,
        intent: &Intent,
        of_account_max: usize,
    ) -> Result<(), NotOpened> {
        let added = Open {
            id: intent.id,
            account: intent.account.clone(),
        };
        for _ in 0..TRIES_MAX {
            let (version, mut open) = self.open_list().await?;
            if open.contains(&added) {
                return Ok(());
            }
            let of_account = open
                .iter()
                .filter(|one| one.account == added.account)
                .count();
            if of_account >= of_account_max || open.len() >= OPEN_MAX {
                return Err(NotOpened::TooMany);
            }
            open.push(added.clone());
            if self.put_open(version, &open).await? {
                return Ok(());
            }
        }
        Err(busy("the open payments").into())
    }

    /// Removes an intent from the open ones.
    pub(super) async fn close(&self, id: IntentId) -> Result<(), BookError> {
        for _ in 0..TRIES_MAX {
            let (version, mut open) = self.open_list().await?;
            let count = open.len();
            open.retain(|one| one.id != id);
            if open.len() == count || self.put_open(version, &open).await? {
                return Ok(());
            }
        }
        Err(busy("the open payments"))
    }

    /// Returns the intents for which an account may have a debt.
    pub(super) async fn owing(&self, account: &AccountId) -> Result<Vec<IntentId>, BookError> {
        Ok(self.owing_list(account).await?.1)
    }

    /// Adds an intent to those with a debt. The list is written even if it already contains the intent: a concurrent
    /// removal then fails on its version and checks again.
    pub(super) async fn owe(&self, intent: &Intent) -> Result<(), BookError> {
        for _ in 0..TRIES_MAX {
            let (version, mut owing) = self.owing_list(&intent.account).await?;
            if !owing.contains(&intent.id) {
                owing.push(intent.id);
            }
            if self.put_owing(&intent.account, version, &owing).await? {
                return Ok(());
            }
        }
        Err(busy("the account's list of debts"))
    }

    /// Removes an intent from those with a debt, if its debt is paid.
    pub(super) async fn owe_no_more(&self, intent: &Intent) -> Result<(), BookError> {
        for _ in 0..TRIES_MAX {
            let (version, mut owing) = self.owing_list(&intent.account).await?;
            let count = owing.len();
            owing.retain(|one| *one != intent.id);
            let found = self.find(intent.id).await?;
            let owes = found.is_some_and(|found| found.debt() > MicroRub::ZERO);
            if owing.len() == count
                || owes
                || self.put_owing(&intent.account, version, &owing).await?
            {
                return Ok(());
            }
        }
        Err(busy("the account's list of debts"))
    }

    async fn owing_list(&self, account: &AccountId) -> Result<(u64, Vec<IntentId>), BookError> {
        match self.store.note(&owing_name(account)).await? {
            None => Ok((0, Vec::new())),
            Some(note) => Ok((note.version, read(&note.text)?)),
        }
    }

    async fn put_owing(
        &self,
        account: &AccountId,
        version: u64,
        owing: &[IntentId],
    ) -> Result<bool, BookError> {
        self.put(&owing_name(account), version, &text(&owing)?)
            .await
    }

    async fn versioned(&self, id: IntentId) -> Result<Option<(u64, Intent)>, BookError> {
        let note = self.store.note(&name(id)).await?;
        note.map(|note| Ok((note.version, read(&note.text)?)))
            .transpose()
    }

    async fn open_list(&self) -> Result<(u64, Vec<Open>), BookError> {
        match self.store.note(OPEN).await? {
            None => Ok((0, Vec::new())),
            Some(note) => Ok((note.version, read(&note.text)?)),
        }
    }

    /// Writes the list if its stored version is still `version`. Returns whether it was written.
    async fn put_open(&self, version: u64, open: &[Open]) -> Result<bool, BookError> {
        self.put(OPEN, version, &text(&open)?).await
    }

    async fn put(&self, name: &str, version: u64, text: &str) -> Result<bool, BookError> {
        match self.store.put_note(name, version, text).await {
            Ok(()) => Ok(true),
            Err(BookError::Exists) => {
                tokio::task::yield_now().await;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

pub(super) fn busy(what: &str) -> BookError {
    BookError::Unavailable(format!("{what}: changed by other gateways at each attempt").into())
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

pub(super) fn text<T: Serialize>(value: &T) -> Result<String, BookError> {
    serde_json::to_string(value).map_err(|error| BookError::Unavailable(error.into()))
}

pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, BookError> {
    serde_json::from_str(text).map_err(|error| BookError::Unavailable(error.into()))
}
