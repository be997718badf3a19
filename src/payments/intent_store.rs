//! Stores payment intents as documents in the ledger. Each document is changed by a compare-and-swap of its version.
//!
//! The documents are:
//!
//! - `payment/<id>`: an intent.
//! - `payment-of/<provider>/<id>`: maps the provider's payment id to the intent.
//! - `payments-open`: lists the intents to poll. An intent is added to the list before it is created, and removed after
//!   it is closed. If a process dies between two of these writes, the list may contain an intent that does not exist or
//!   is closed. But the list never lacks an open intent.
//! - `payment-debts/<account>`: lists the account's intents that have a debt. An intent is added before its debt is
//!   stored, and removed after the debt is paid.

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::contract::{Document, Documents, Update, Versioned};

use super::intent::{Intent, IntentId};
use crate::ledger::AnyLedger;

/// Maximum number of open intents, over all accounts.
const OPEN_MAX: usize = 10_000;
/// Maximum length of a provider's payment id, in bytes.
const PAYMENT_BYTES_MAX: usize = 128;

const OPEN: &str = "payments-open";

/// An entry in the list of open intents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) id: IntentId,
    pub(super) account: AccountId,
}

/// Reads and changes the intents in the ledger.
#[derive(Clone, Debug)]
pub(super) struct IntentStore {
    pub(super) store: AnyLedger,
}

impl IntentStore {
    pub(super) async fn find(&self, id: IntentId) -> Result<Option<Intent>, BookError> {
        Ok(self.store.read_value(&name(id)).await?.value)
    }

    /// Returns the intent that a provider's payment belongs to.
    pub(super) async fn find_by_payment(
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

    /// Writes a new intent and returns it. If an intent with this id exists already, returns the existing intent.
    pub(super) async fn create(&self, intent: &Intent) -> Result<Intent, BookError> {
        if self.store.write_value(&name(intent.id), 0, intent).await? {
            return Ok(intent.clone());
        }
        self.find(intent.id).await?.ok_or(BookError::NotFound)
    }

    /// Records that the provider's payment id belongs to an intent, unless it already belongs to another intent.
    pub(super) async fn map_payment(
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

    /// Changes an intent. `change` gets the current intent and returns whether it has changed anything. If another
    /// process changes the intent at the same time, `change` is called again.
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

    /// Adds an intent to the list of open intents. Returns `false` and adds nothing if the account, or all accounts
    /// together, already have the maximum number of open intents.
    pub(super) async fn add_open(
        &self,
        intent: &Intent,
        of_account_max: usize,
    ) -> Result<bool, BookError> {
        let added = Open {
            id: intent.id,
            account: intent.account.clone(),
        };
        let add = |open: Option<Vec<Open>>| {
            let mut open = open.unwrap_or_default();
            if open.contains(&added) {
                return Ok(Update::Keep(true));
            }
            let of_account = open.iter().filter(|one| one.account == added.account);
            if of_account.count() >= of_account_max || open.len() >= OPEN_MAX {
                return Ok(Update::Keep(false));
            }
            open.push(added.clone());
            Ok(Update::Write(open, true))
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

    /// Returns the intents because of which an account may have a debt.
    pub(super) async fn owing(&self, account: &AccountId) -> Result<Vec<IntentId>, BookError> {
        let owing = self.store.read_value(&owing_name(account)).await?;
        Ok(owing.value.unwrap_or_default())
    }

    /// Adds an intent to the list of intents with a debt. The list is written even if it already contains the intent.
    /// This changes the list's version, so a concurrent removal of the intent fails, and checks again whether the
    /// intent has a debt.
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

    /// Removes an intent from the list of intents with a debt, if the intent has no debt any more.
    pub(super) async fn owe_no_more(&self, intent: &Intent) -> Result<(), BookError> {
        let remove = async |found: Versioned<Vec<IntentId>>| {
            let mut owing = found.value.unwrap_or_default();
            let count = owing.len();
            owing.retain(|one| *one != intent.id);
            // The intent is read after the list. If a debt arises later, the list in the ledger changes. Then writing
            // this list fails, and this update runs again.
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

/// Returns the name of the document that maps a provider's payment id to its intent; `None` if the id is too long or
/// has invalid characters, so that nothing is stored under such an id.
fn payment_name(provider: &str, payment: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let good = (1..=PAYMENT_BYTES_MAX).contains(&payment.len()) && payment.bytes().all(plain);
    good.then(|| format!("payment-of/{provider}/{payment}"))
}
