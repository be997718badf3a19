//! Issues the statement of an account's month. With the first statement of a closed month, stores the month's record.

use tollgate_layers::{
    key::AccountId,
    reserve::ledger::{BookError, LedgerAdmin},
    respond::Language,
};
use tollgate_ledger::statement::{Statement, StatementError};

use super::{About, ClosedStatement, Document, Month};
use crate::{config::SellerConfig, ledger::AnyLedger, text::time::now_ms};

/// The maximum number of attempts to store a closed month. An attempt fails if another gateway stores the month at the
/// same time.
const TRIES_MAX: usize = 3;

/// The reason why no statement was issued.
#[derive(Debug)]
pub(crate) enum IssueError {
    Ledger(BookError),
    /// The journal does not yield the month's sums. The second value is the hash of the stored statement, if there is
    /// one.
    Sums(StatementError, Option<String>),
    NotBegun,
    /// The journal no longer yields the statement that was issued with this hash.
    Changed(String),
    /// Other gateways stored and deleted the month's record at the same time.
    Busy,
}

impl From<BookError> for IssueError {
    fn from(error: BookError) -> Self {
        Self::Ledger(error)
    }
}

/// Returns the statement and its language. The statement of a closed month keeps the content and the language of its
/// first issue.
///
/// # Errors
/// An error if the month has not begun, if the ledger cannot be read or written, or if the journal does not yield the
/// month's sums, or no longer yields the statement that was issued before.
pub(crate) async fn issue(
    store: &AnyLedger,
    seller: Option<&SellerConfig>,
    language: Language,
    account: &AccountId,
    month: Month,
) -> Result<(Document, Language), IssueError> {
    for _ in 0..TRIES_MAX {
        let view = store.account(account).await?;
        let closed = ClosedStatement::find(store, account, month).await?;
        let seller = match &closed {
            Some(closed) => closed.seller(),
            None => seller.cloned(),
        };
        let offset = seller.as_ref().map(|seller| seller.utc_offset_minutes);
        let (time, now_ms) = (month.time(offset.unwrap_or(0)), now_ms());
        if closed.is_none() && time.start > now_ms {
            return Err(IssueError::NotBegun);
        }
        let read = Statement::read(store, account, time).await;
        let statement = read.map_err(|error| match error {
            StatementError::Ledger(error) => IssueError::Ledger(error),
            error => {
                let stored = closed.as_ref().map(|closed| closed.sha256.clone());
                IssueError::Sums(error, stored)
            }
        })?;
        if let Some(closed) = closed {
            let again = closed.again(account, month, statement);
            let changed = || IssueError::Changed(closed.sha256.clone());
            return Ok((again.ok_or_else(changed)?, closed.language()));
        }
        let about = About {
            account,
            name: &view.name,
            month,
            seller: seller.as_ref(),
            now_ms,
        };
        let document = Document::new(&about, statement);
        if !document.closed {
            return Ok((document, language));
        }
        let closed = ClosedStatement::new(&document, &about, language);
        if closed.keep(store, account, month).await? {
            return Ok((document, language));
        }
    }
    Err(IssueError::Busy)
}
