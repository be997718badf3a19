//! Writes an account to a ledger that is being filled: first its journal, page by page, and then its sums and keys.

use std::collections::HashMap;

use super::{CopyError, Target};
use crate::{
    audit::{AccountAudit, Snapshot},
    contract::{AccountBooks, BookError, JournalLine},
    money::MicroRub,
};

/// An account whose journal is being written. Every line that is written is also audited.
pub(super) struct Restore<'a, T> {
    to: &'a mut T,
    books: &'a AccountBooks,
    audit: AccountAudit,
    entries: HashMap<String, MicroRub>,
    lines: u64,
}

/// An account whose journal was written completely and agrees with its books.
pub(super) struct RestoredJournal<'a, T> {
    to: &'a mut T,
    books: &'a AccountBooks,
    entries: HashMap<String, MicroRub>,
    lines: u64,
}

impl<'a, T: Target> Restore<'a, T> {
    pub(super) fn begin(to: &'a mut T, books: &'a AccountBooks) -> Self {
        Self {
            to,
            books,
            audit: AccountAudit::new(Snapshot::from(books)),
            entries: HashMap::new(),
            lines: 0,
        }
    }

    /// Writes lines of an account's journal, oldest first.
    pub(super) async fn lines(&mut self, lines: &[JournalLine]) -> Result<(), BookError> {
        for line in lines {
            self.audit.line(line);
            if let JournalLine::Entry { id, amount_rub, .. } = line {
                self.entries.insert(id.clone(), *amount_rub);
            }
        }
        self.lines += lines.len() as u64;
        let forgotten = !self.books.journal_complete;
        self.to.lines(&self.books.view.id, lines, forgotten).await
    }

    /// Completes the journal. Fails if the audit has found breaches; the account itself is then not written.
    pub(super) fn journal_done(self) -> Result<RestoredJournal<'a, T>, CopyError> {
        let breaches = self.audit.finish();
        if !breaches.is_empty() {
            return Err(CopyError::Breach(breaches));
        }
        Ok(RestoredJournal {
            to: self.to,
            books: self.books,
            entries: self.entries,
            lines: self.lines,
        })
    }
}

impl<T: Target> RestoredJournal<'_, T> {
    /// Adds entries that the source's journal has dropped.
    pub(super) fn add_entries(&mut self, entries: HashMap<String, MicroRub>) {
        self.entries.extend(entries);
    }

    /// Writes the account with its keys. Returns how many journal lines it has.
    pub(super) async fn finish(self) -> Result<u64, BookError> {
        self.to.account(self.books, &self.entries).await?;
        Ok(self.lines)
    }
}
