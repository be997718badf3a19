//! Fills a ledger file with a copy of another ledger. The file gets its final name only when the copy is complete.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, Result, Transaction, params};

use super::{
    SqliteLedger,
    batch::{Receipts, insert_entry, write_group, write_tariff},
    events,
    file::{self, LEDGER, OpenError},
    rows::{self, integer, one},
};
use crate::{
    BoxError,
    account::AccountId,
    contract::{AccountBooks, BookError, Document, JournalLine, KeyView, TariffVersion},
    durable::file::{FileLock, to_json},
    embedded::{GroupRow, Used},
    happening::{Event, Levels, Watched},
    money::MicroRub,
    transfer::{Source, Target},
};

/// A ledger file that is being filled. It is named `<path>.copy` until it is published. If an interrupted copy has left
/// a file with this name, that file is deleted first. Writing a copy blocks the thread.
#[derive(Debug)]
pub struct SqliteCopy {
    path: PathBuf,
    part: PathBuf,
    /// The connection and the lock, until the copy is published. The lock is dropped last.
    open: Option<(Connection, FileLock)>,
}

impl SqliteCopy {
    /// Creates the file next to its final path.
    ///
    /// # Errors
    /// An error if the final path exists already, or if the file cannot be created.
    pub fn begin(path: &Path) -> Result<Self, BoxError> {
        if path.try_exists()? {
            let text = format!(
                "{} exists already: name a new file, or move the existing file away",
                path.display()
            );
            return Err(text.into());
        }
        let file = LEDGER.open(&beside(path, ".copy"));
        let file = file.map_err(OpenError::from)?;
        let (part, conn, lock) = (file.path, file.conn, file.lock);
        // No gateway opens the file before it is complete, so an incomplete copy need not survive a power cut.
        conn.execute_batch("PRAGMA synchronous = OFF;")?;
        file::add_what_came_later(&conn)?;
        conn.execute_batch(
            "BEGIN; DELETE FROM running; DELETE FROM forgotten; DELETE FROM receipts; DELETE FROM entries;
             DELETE FROM keys; DELETE FROM accounts; DELETE FROM tariff; DELETE FROM events; DELETE FROM levels;
             DELETE FROM group_levels;
             DELETE FROM notes; DELETE FROM groups; DELETE FROM sums; DELETE FROM sums_places; COMMIT;",
        )?;
        Ok(Self {
            path: path.to_owned(),
            part,
            open: Some((conn, lock)),
        })
    }

    fn write(
        &mut self,
        write: impl FnOnce(&Transaction<'_>) -> Result<()>,
    ) -> Result<(), BookError> {
        let (conn, _) = self.open.as_mut().ok_or_else(filled_already)?;
        let batch = conn.transaction().map_err(unavailable)?;
        write(&batch).map_err(unavailable)?;
        batch.commit().map_err(unavailable)
    }
}

impl Target for SqliteCopy {
    type Ledger = SqliteLedger;

    /// The file was created empty, so it has no accounts yet.
    async fn has(&mut self, _: &AccountBooks) -> Result<bool, BookError> {
        Ok(false)
    }

    async fn lines(
        &mut self,
        account: &AccountId,
        lines: &[JournalLine],
        forgotten: bool,
    ) -> Result<(), BookError> {
        self.write(|batch| {
            if forgotten {
                let sql =
                    "INSERT INTO forgotten (account) VALUES (?1) ON CONFLICT (account) DO NOTHING";
                batch.prepare_cached(sql)?.execute([&**account])?;
            }
            let mut receipts = Receipts::new(batch)?;
            lines.iter().try_for_each(|line| match line {
                JournalLine::Call(receipt) => receipts.write(receipt),
                JournalLine::Entry {
                    id,
                    at_ms,
                    amount_rub,
                    reason,
                    ..
                } => {
                    // The journal contains two entries with the same id, which is a breach. The copy reports the breach
                    // when it compares the sums.
                    insert_entry(batch, account, id, *amount_rub, reason.as_deref(), *at_ms)
                }
            })
        })
    }

    async fn account(
        &mut self,
        books: &AccountBooks,
        entries: &HashMap<String, MicroRub>,
    ) -> Result<(), BookError> {
        self.write(|batch| {
            let view = &books.view;
            let sql = "INSERT INTO accounts (id, name, suspended, balance, loss) VALUES (?1, ?2, ?3, ?4, ?5)";
            let row = params![
                &*view.id,
                view.name,
                view.suspended,
                view.balance_rub.micro(),
                view.loss_rub.micro()
            ];
            one(batch.prepare_cached(sql)?.execute(row)?)?;
            books.keys.iter().try_for_each(|key| write_key(batch, key))?;
            for group in &books.groups {
                let (month, day) = group.periods();
                let row = GroupRow {
                    id: group.record.id.clone(),
                    name: group.record.name.clone(),
                    removed: group.record.removed,
                    ceilings: group.ceilings(),
                    carried: group.carried_rub,
                    used: Used {
                        in_all: group.spent_rub,
                        month,
                        day,
                    },
                };
                write_group(batch, &view.id, &row)?;
            }
            // The journal has dropped these entries. Their times are unknown, but their ids must not be used again.
            let mut entries = entries.iter();
            entries.try_for_each(|(id, amount)| insert_entry(batch, &view.id, id, *amount, None, 0))
        })
    }

    async fn tariff(&mut self, version: TariffVersion, fingerprint: &str) -> Result<(), BookError> {
        self.write(|batch| write_tariff(batch, version, fingerprint))
    }

    async fn levels(
        &mut self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> Result<(), BookError> {
        self.write(|batch| events::write_levels(batch, account, of, levels))
    }

    async fn events(&mut self, events: &[Event]) -> Result<(), BookError> {
        self.write(|batch| events::write(batch, events, None))
    }

    async fn document(&mut self, document: &Document) -> Result<(), BookError> {
        self.write(|batch| events::write_document(batch, document))
    }

    async fn filled(&mut self) -> Result<SqliteLedger, BookError> {
        let (conn, lock) = self.open.take().ok_or_else(filled_already)?;
        let strays: i64 = conn
            .query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| {
                row.get(0)
            })
            .map_err(unavailable)?;
        if strays > 0 {
            return Err(unavailable(format!(
                "{strays} rows belong to accounts that do not exist"
            )));
        }
        // With this setting, the checkpoint below syncs to the disk everything that was written before.
        conn.execute_batch("PRAGMA synchronous = FULL;")
            .map_err(unavailable)?;
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(unavailable)?;
        conn.close().map_err(|(_, error)| unavailable(error))?;
        let synced = File::open(&self.part).and_then(|file| file.sync_all());
        synced.map_err(unavailable)?;
        drop(lock);
        SqliteLedger::open(&self.part).map_err(unavailable)
    }

    async fn publish(self, ledger: SqliteLedger) -> Result<(), BookError> {
        ledger.close().await;
        drop(ledger);
        let named = || {
            if self.path.try_exists()? {
                return Err(std::io::Error::other(format!(
                    "{} was created during the copy, so the copy keeps the name {}",
                    self.path.display(),
                    self.part.display()
                )));
            }
            fs::rename(&self.part, &self.path)?;
            fs::remove_file(beside(&self.part, ".lock"))?;
            let folder = self.path.parent().filter(|folder| *folder != Path::new(""));
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        named().map_err(unavailable)
    }
}

impl Source for SqliteLedger {
    async fn entries(&self, account: &AccountId) -> Result<HashMap<String, MicroRub>, BookError> {
        let account = account.clone();
        let read = self.read(move |conn| {
            conn.prepare("SELECT id, amount FROM entries WHERE account = ?1")?
                .query_map([&*account], |row| Ok((row.get(0)?, rows::amount(row, 1)?)))?
                .collect()
        });
        Ok(read.await?)
    }

    /// There are no unsettled calls: calls that were in flight when an earlier process died were charged when the file
    /// was opened.
    async fn unsettled(&self, _: &AccountId) -> Result<u64, BookError> {
        Ok(0)
    }

    async fn tariff(&self) -> Result<Option<(TariffVersion, String)>, BookError> {
        self.look(|state| state.tariff.clone())
    }
}

fn write_key(batch: &Connection, key: &KeyView) -> Result<()> {
    let sql = "INSERT INTO keys (id, account, digest, ceiling, used, record,
                   ceiling_month, ceiling_day, month, month_before, day, day_before)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    let record = &key.record;
    let (month, day) = key.periods();
    let row = params![
        &*record.id,
        &*record.account,
        record.digest.to_string(),
        key.ceiling_rub.map(MicroRub::micro),
        key.spent_rub.micro(),
        to_json(record)?,
        key.month.ceiling_rub.map(MicroRub::micro),
        key.day.ceiling_rub.map(MicroRub::micro),
        integer(month.index),
        month.before.micro(),
        integer(day.index),
        day.before.micro(),
    ];
    one(batch.prepare_cached(sql)?.execute(row)?)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

fn unavailable(error: impl Into<BoxError>) -> BookError {
    BookError::Unavailable(error.into())
}

fn filled_already() -> BookError {
    unavailable("the copy is complete and cannot be written to any more")
}
