//! The audit of the ledger in Redis: each account's books at one moment, then its journal up to that
//! moment.

use futures_util::future::join_all;

use super::{
    RedisLedger, account_key,
    journal::{JournalRange, RawLine, line_of},
    receipt_key, tombstone_key,
};
use crate::{
    account::AccountId,
    audit::AccountAudit,
    conn::{OPERATOR_TIMEOUT, RedisFault},
    contract::{Audit, Booked, JournalLine},
    number::RequestNumber,
};

/// How many holds are looked up at a call.
const HOLDS_AT_ONCE: usize = 500;
/// How many accounts are audited at the same time: each keeps a page of its journal in memory.
const AUDITS_AT_ONCE: usize = 8;

impl RedisLedger {
    pub(super) async fn audit_all(&self) -> Result<Audit, RedisFault> {
        let mut audit = Audit::default();
        for ids in self.account_ids().await?.chunks(AUDITS_AT_ONCE) {
            for found in join_all(ids.iter().map(|id| self.audit_one(id))).await {
                let found = found?;
                audit.accounts += found.accounts;
                audit.keys += found.keys;
                audit.holds_open += found.holds_open;
                audit.breaches.extend(found.breaches);
            }
        }
        Ok(audit)
    }

    async fn audit_one(&self, id: &AccountId) -> Result<Audit, RedisFault> {
        let Some(books) = self.stored_books(id).await? else {
            return Ok(Audit::default());
        };
        let snapshot = books.snapshot(id)?;
        let open: Vec<RequestNumber> = snapshot.holds.iter().map(|hold| hold.number).collect();
        let mut audit = AccountAudit::new(snapshot);
        let mut stretch = JournalRange::until(&books.journal_end)?;
        loop {
            let lines = self.raw_lines(id, &stretch).await?;
            self.audit_lines(id, &lines, &mut audit).await?;
            match lines.last() {
                Some((place, _)) if lines.len() == stretch.limit => {
                    stretch.after = Some(place.parse()?);
                }
                _ => break,
            }
        }
        let mut breaches = audit.finish();
        breaches.extend(books.key_breaches()?);
        if let Some(number) = self.open_and_ended(id, &open).await? {
            let breach = format!("I5 account {id}: hold {number} is both open and ended");
            if !breaches.contains(&breach) {
                breaches.push(breach);
            }
        }
        Ok(Audit {
            accounts: 1,
            keys: books.keys() as u64,
            holds_open: open.len() as u64,
            breaches,
        })
    }

    async fn audit_lines(
        &self,
        id: &AccountId,
        lines: &[RawLine],
        audit: &mut AccountAudit,
    ) -> Result<(), RedisFault> {
        let mut settled = Vec::new();
        for (place, fields) in lines {
            let line = line_of(id, place, fields)?;
            audit.line(&line);
            if let JournalLine::Call(receipt) = line
                && receipt.booked != Booked::Stale
            {
                settled.push((place, receipt.number));
            }
        }
        if settled.is_empty() {
            return Ok(());
        }
        // A number leads to the last line that moved money for it: an earlier one has no place.
        let keys: Vec<String> = settled
            .iter()
            .map(|(_, number)| receipt_key(id, *number))
            .collect();
        let mut words = vec!["MGET"];
        words.extend(keys.iter().map(String::as_str));
        let places: Vec<Option<String>> = self.0.conn.command(&words, OPERATOR_TIMEOUT).await?;
        for ((place, number), last) in settled.into_iter().zip(places) {
            if last.is_some_and(|last| last != *place) {
                audit.settled_twice(number);
            }
        }
        Ok(())
    }

    /// The first hold that is both. Each is looked at anew: it may have ended since.
    async fn open_and_ended(
        &self,
        id: &AccountId,
        open: &[RequestNumber],
    ) -> Result<Option<String>, RedisFault> {
        for numbers in open.chunks(HOLDS_AT_ONCE) {
            let mut keys = vec![account_key(id, ""), account_key(id, ":e")];
            keys.extend(numbers.iter().map(|number| tombstone_key(id, *number)));
            let args: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            let both: Vec<String> = self
                .ask_patiently(&self.0.scripts.open_and_ended, &keys, &args)
                .await?;
            if let Some(number) = both.into_iter().next() {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}
