//! What the ledger in Redis shows to an [audit](crate::audit): each account as it stands on the server, keys without
//! a record among it, and its journal with the index of receipts beside it.

use super::{
    RedisLedger,
    journal::{JournalRange, RawLine, line_of},
    names::{account_key, receipt_key, tombstone_key},
};
use crate::{
    account::AccountId,
    audit::{AccountAudit, Source, Standing},
    conn::{OPERATOR_TIMEOUT, RedisFault},
    contract::{BookError, Booked, JournalLine, JournalPage, JournalPart},
    number::RequestNumber,
};

/// How many holds are looked up at a call.
const HOLDS_AT_ONCE: usize = 500;

impl Source for RedisLedger {
    async fn accounts(&self) -> Result<Vec<AccountId>, BookError> {
        Ok(self.account_ids().await?)
    }

    async fn standing(&self, account: &AccountId) -> Result<Option<Standing>, BookError> {
        let Some(books) = self.stored_books(account).await? else {
            return Ok(None);
        };
        Ok(Some(Standing {
            audit: AccountAudit::new(books.snapshot_with_periods(account)?),
            keys: books.keys(),
            journal_end: books.journal_end,
        }))
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<(JournalPage, Vec<RequestNumber>), BookError> {
        let Some(stretch) = JournalRange::of(part)? else {
            return Ok(Default::default());
        };
        let raw = self.raw_lines(account, &stretch).await?;
        let lines = raw
            .iter()
            .map(|(place, fields)| line_of(account, place, fields))
            .collect::<Result<Vec<_>, _>>()?;
        let twice = self.settled_twice(account, &raw, &lines).await?;
        let next = stretch.next(&raw);
        Ok((JournalPage { lines, next }, twice))
    }

    async fn ended(
        &self,
        account: &AccountId,
        open: &[RequestNumber],
    ) -> Result<Option<RequestNumber>, BookError> {
        Ok(self.open_and_ended(account, open).await?)
    }
}

impl RedisLedger {
    /// A number leads to the last line that moved money for it: an earlier one has no place.
    async fn settled_twice(
        &self,
        account: &AccountId,
        raw: &[RawLine],
        lines: &[JournalLine],
    ) -> Result<Vec<RequestNumber>, RedisFault> {
        let settled: Vec<(&String, RequestNumber)> = raw
            .iter()
            .zip(lines)
            .filter_map(|((place, _), line)| match line {
                JournalLine::Call(receipt) if receipt.booked != Booked::Stale => {
                    Some((place, receipt.number))
                }
                _ => None,
            })
            .collect();
        if settled.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<String> = settled
            .iter()
            .map(|(_, number)| receipt_key(account, *number))
            .collect();
        let mut words = vec!["MGET"];
        words.extend(keys.iter().map(String::as_str));
        let places: Vec<Option<String>> = self.0.conn.command(&words, OPERATOR_TIMEOUT).await?;
        let twice = settled.into_iter().zip(places);
        Ok(twice
            .filter(|((place, _), last)| last.as_ref().is_some_and(|last| last != *place))
            .map(|((_, number), _)| number)
            .collect())
    }

    /// The first hold that is both. Each is looked at anew: it may have ended since.
    async fn open_and_ended(
        &self,
        id: &AccountId,
        open: &[RequestNumber],
    ) -> Result<Option<RequestNumber>, RedisFault> {
        for numbers in open.chunks(HOLDS_AT_ONCE) {
            let mut keys = vec![account_key(id, ""), account_key(id, ":e")];
            keys.extend(numbers.iter().map(|number| tombstone_key(id, *number)));
            let args: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            let both: Vec<String> = self
                .ask_patiently(&self.0.scripts.open_and_ended, &keys, &args)
                .await?;
            if let Some(number) = both.first() {
                let unexpected = || RedisFault::Unexpected(format!("hold {number:?} of {id}"));
                return Ok(Some(number.parse().map_err(|_| unexpected())?));
            }
        }
        Ok(None)
    }
}
