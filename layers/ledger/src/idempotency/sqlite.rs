//! Idempotency claims and stored responses in a SQLite file next to the ledger file. The file is not part of the books:
//! it may be deleted while no gateway runs.

use std::{path::Path, time::Duration};

use rusqlite::{OptionalExtension, Result, Transaction, params};
use uuid::Uuid;

use super::{
    AnswerStore, Bounds, Claim, Claimed, Digest, Earlier, Finished, Outcome, Stage, millis,
};
use crate::{
    BoxError, durable::file::integer, embedded::now_ms, number::RequestNumber,
    sqlite::side_file::SideFile,
};

/// Triggers maintain the sums of claims and bytes, so that every row is counted exactly once.
const SCHEMA: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE IF NOT EXISTS answers (
  account TEXT NOT NULL, id BLOB NOT NULL, fingerprint BLOB NOT NULL, number BLOB NOT NULL,
  state INTEGER NOT NULL, until_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, bytes INTEGER NOT NULL, answer BLOB,
  PRIMARY KEY (account, id)
) STRICT;
CREATE INDEX IF NOT EXISTS answers_expire ON answers (expires_ms);
CREATE TABLE IF NOT EXISTS sums (account TEXT PRIMARY KEY, calls INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT;
CREATE TRIGGER IF NOT EXISTS answers_made AFTER INSERT ON answers BEGIN
  INSERT INTO sums VALUES (new.account, 1, new.bytes), ('', 1, new.bytes)
    ON CONFLICT DO UPDATE SET calls = calls + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS answers_changed AFTER UPDATE OF bytes ON answers BEGIN
  UPDATE sums SET bytes = bytes + new.bytes - old.bytes WHERE account IN (new.account, '');
END;
CREATE TRIGGER IF NOT EXISTS answers_gone AFTER DELETE ON answers BEGIN
  UPDATE sums SET calls = calls - 1, bytes = bytes - old.bytes WHERE account IN (old.account, '');
  DELETE FROM sums WHERE account = old.account AND calls = 0;
END;
";
const RUNNING: u8 = 0;
const ANSWERED: u8 = 1;
const UNANSWERED: u8 = 2;
/// The largest number of expired rows that one claim deletes.
const SWEPT_MAX: u32 = 64;

/// A store of claims and responses in one SQLite file, which the first claim creates. Clones share it.
///
/// A tokio runtime is needed, because queries run on its blocking threads.
#[derive(Clone, Debug)]
pub struct SqliteAnswers {
    file: SideFile,
    bounds: Bounds,
}

impl SqliteAnswers {
    /// Creates a store in the file `path`.
    #[must_use]
    pub fn new(path: &Path, bounds: Bounds) -> Self {
        let file = SideFile::new(Some(path), SCHEMA);
        Self { file, bounds }
    }

    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Transaction<'_>, &Bounds, i64) -> Result<T> + Send + 'static,
    ) -> Result<T, BoxError> {
        let bounds = self.bounds;
        let step = move |step: &Transaction<'_>| ask(step, &bounds, integer(now_ms()));
        self.file.transact(step).await
    }
}

impl AnswerStore for SqliteAnswers {
    async fn claim(&self, claim: &Claim, from: Option<RequestNumber>) -> Result<Claimed, BoxError> {
        let claim = claim.clone();
        self.ask(move |step, bounds, now| claim_in(step, bounds, now, &claim, from))
            .await
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, BoxError> {
        let claim = claim.clone();
        let renewed = self.ask(move |step, _, now| {
            step.prepare_cached(
                "UPDATE answers SET until_ms = ?4, expires_ms = max(expires_ms, ?4)
                 WHERE account = ?1 AND id = ?2 AND number = ?3 AND state = 0",
            )?
            .execute(params![
                &*claim.account,
                claim.id.0,
                bytes_of(claim.number),
                now + integer(millis(claim.lease))
            ])
        });
        Ok(renewed.await? == 1)
    }

    async fn finish(&self, claim: &Claim, outcome: Outcome<'_>) -> Result<Finished, BoxError> {
        let claim = claim.clone();
        let (state, answer) = match outcome {
            Outcome::Answered(answer) => (ANSWERED, Some(answer.to_vec())),
            Outcome::Unanswered => (UNANSWERED, None),
            Outcome::Free => (RUNNING, None),
        };
        self.ask(move |step, bounds, _| finish_in(step, bounds, &claim, state, answer))
            .await
    }
}

fn claim_in(
    step: &Transaction<'_>,
    bounds: &Bounds,
    now: i64,
    claim: &Claim,
    from: Option<RequestNumber>,
) -> Result<Claimed> {
    step.prepare_cached(
        "DELETE FROM answers WHERE rowid IN (SELECT rowid FROM answers WHERE expires_ms <= ?1 LIMIT ?2)",
    )?
    .execute(params![now, SWEPT_MAX])?;
    let until = now + integer(millis(claim.lease));
    if let Some(from) = from {
        step.prepare_cached(
            "UPDATE answers SET number = ?4, until_ms = ?5, expires_ms = max(expires_ms, ?5)
             WHERE account = ?1 AND id = ?2 AND number = ?3 AND state = 0 AND until_ms <= ?6",
        )?
        .execute(params![
            &*claim.account,
            claim.id.0,
            bytes_of(from),
            bytes_of(claim.number),
            until,
            now
        ])?;
    }
    if let Some(earlier) = earlier_of(step, now, claim)? {
        let runs = matches!(earlier.stage, Stage::Running(_) | Stage::Abandoned);
        return Ok(if runs && earlier.number == claim.number {
            Claimed::Mine
        } else {
            Claimed::Earlier(earlier)
        });
    }
    let (calls, bytes) = sums(step, &claim.account)?;
    if calls >= bounds.account_calls_max || bytes >= bounds.account_bytes_max {
        return Ok(Claimed::Full);
    }
    // An expired row of the same idempotency key may not have been swept yet. It is deleted here to make room for the
    // new claim.
    step.prepare_cached("DELETE FROM answers WHERE account = ?1 AND id = ?2")?
        .execute(params![&*claim.account, claim.id.0])?;
    step.prepare_cached("INSERT INTO answers VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, 0, NULL)")?
        .execute(params![
            &*claim.account,
            claim.id.0,
            claim.fingerprint.0,
            bytes_of(claim.number),
            until,
            until.max(now + integer(millis(claim.stored)))
        ])?;
    Ok(Claimed::Mine)
}

fn earlier_of(step: &Transaction<'_>, now: i64, claim: &Claim) -> Result<Option<Earlier>> {
    step.prepare_cached(
        "SELECT fingerprint, number, state, until_ms, answer FROM answers
         WHERE account = ?1 AND id = ?2 AND expires_ms > ?3",
    )?
    .query_row(params![&*claim.account, claim.id.0, now], |row| {
        let (state, until): (u8, i64) = (row.get(2)?, row.get(3)?);
        Ok(Earlier {
            fingerprint: Digest(row.get(0)?),
            number: RequestNumber::from_uuid(Uuid::from_bytes(row.get(1)?)),
            stage: match state {
                ANSWERED => Stage::Answered(row.get(4)?),
                UNANSWERED => Stage::Unanswered,
                _ if until <= now => Stage::Abandoned,
                _ => Stage::Running(Duration::from_millis((until - now).unsigned_abs())),
            },
        })
    })
    .optional()
}

fn finish_in(
    step: &Transaction<'_>,
    bounds: &Bounds,
    claim: &Claim,
    mut state: u8,
    mut answer: Option<Vec<u8>>,
) -> Result<Finished> {
    let whose = params![&*claim.account, claim.id.0, bytes_of(claim.number)];
    let now: Option<u8> = step
        .prepare_cached("SELECT state FROM answers WHERE account = ?1 AND id = ?2 AND number = ?3")?
        .query_row(whose, |row| row.get(0))
        .optional()?;
    match now {
        None => return Ok(Finished::NotMine),
        Some(RUNNING) => {}
        Some(_) => return Ok(Finished::Kept),
    }
    if state == RUNNING {
        step.prepare_cached("DELETE FROM answers WHERE account = ?1 AND id = ?2 AND number = ?3")?
            .execute(whose)?;
        return Ok(Finished::Kept);
    }
    let bytes = answer.as_ref().map_or(0, |answer| answer.len() as u64);
    let beyond = sums(step, &claim.account)?.1 + bytes > bounds.account_bytes_max
        || sums(step, "")?.1 + bytes > bounds.bytes_max;
    if beyond {
        (state, answer) = (UNANSWERED, None);
    }
    step.prepare_cached(
        "UPDATE answers SET state = ?4, bytes = ?5, answer = ?6 WHERE account = ?1 AND id = ?2 AND number = ?3",
    )?
    .execute(params![
        &*claim.account,
        claim.id.0,
        bytes_of(claim.number),
        state,
        integer(answer.as_ref().map_or(0, |answer| answer.len() as u64)),
        answer
    ])?;
    Ok(if beyond {
        Finished::TooMuch
    } else {
        Finished::Kept
    })
}

/// Returns the number of claims and of bytes of an account, or of all accounts if the name is empty.
fn sums(step: &Transaction<'_>, account: &str) -> Result<(u64, u64)> {
    let found = step
        .prepare_cached("SELECT calls, bytes FROM sums WHERE account = ?1")?
        .query_row([account], |row| {
            let (calls, bytes): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok((calls.unsigned_abs(), bytes.unsigned_abs()))
        })
        .optional()?;
    Ok(found.unwrap_or_default())
}

fn bytes_of(number: RequestNumber) -> [u8; 16] {
    *number.uuid().as_bytes()
}
