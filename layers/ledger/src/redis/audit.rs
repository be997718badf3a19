//! What the ledger in Redis shows to an [audit](crate::audit): each account as it stands on the server, keys without
//! a record among it, and its journal with the index of receipts beside it.

use std::collections::{HashMap, HashSet};

use super::{
    RedisLedger,
    journal::{JournalRange, Placed},
    names::{
        NUMBER_BYTES, account_key, place_field, places_key, receipt_key, tombstone_key, turns_key,
    },
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
        let (placed, next) = self.placed_lines(account, stretch).await?;
        let twice = self.settled_twice(account, &placed).await?;
        let lines = placed.into_iter().map(|placed| placed.line).collect();
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
        placed: &[Placed],
    ) -> Result<Vec<RequestNumber>, RedisFault> {
        let settled = placed.iter().filter_map(|placed| match &placed.line {
            JournalLine::Call(receipt) if receipt.booked != Booked::Stale => {
                Some((placed, receipt.number))
            }
            _ => None,
        });
        let (of_turns, alone): (Vec<_>, Vec<_>) = settled.partition(|(placed, _)| placed.of_turn);
        let mut twice = Vec::new();
        let mut seen = HashSet::new();
        for (number, last) in alone.iter().zip(self.places_alone(account, &alone).await?) {
            twice.extend(elsewhere(number, last.as_deref()));
        }
        let apart = self.places_apart(account, &of_turns).await?;
        let turns = self.turns_with(account, &of_turns).await?;
        for (number, apart) in of_turns.iter().zip(apart) {
            // A turn that charged a call twice has both in one place.
            let again = (!seen.insert((&number.0.place, number.1))).then_some(number.1);
            let turns = turns.get(&number.1).map_or(&[][..], Vec::as_slice);
            let several = (turns.len() > 1).then_some(number.1);
            let apart = Some(apart).filter(|apart| !apart.is_empty());
            let last = turns.first().or(apart.as_ref());
            let found = again.or(several);
            twice.extend(found.or(elsewhere(number, last.map(String::as_str))));
        }
        Ok(twice)
    }

    async fn places_alone(
        &self,
        account: &AccountId,
        settled: &[(&Placed, RequestNumber)],
    ) -> Result<Vec<Option<String>>, RedisFault> {
        if settled.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = settled.iter().map(|(_, number)| *number);
        let keys: Vec<String> = numbers.map(|number| receipt_key(account, number)).collect();
        let mut words = vec!["MGET"];
        words.extend(keys.iter().map(String::as_str));
        self.0.conn.command(&words, OPERATOR_TIMEOUT).await
    }

    /// The turns that have told these numbers among others, by their places.
    async fn turns_with(
        &self,
        account: &AccountId,
        settled: &[(&Placed, RequestNumber)],
    ) -> Result<HashMap<RequestNumber, Vec<String>>, RedisFault> {
        let mut asked: HashMap<String, HashMap<&[u8], RequestNumber>> = HashMap::new();
        for (_, number) in settled {
            let of_hash = asked.entry(turns_key(account, *number)).or_default();
            of_hash.insert(place_field(number), *number);
        }
        let mut found: HashMap<RequestNumber, Vec<String>> = HashMap::new();
        for (hash, asked) in &asked {
            let turns: Vec<(String, Vec<u8>)> = self
                .0
                .conn
                .command(&["HGETALL", hash], OPERATOR_TIMEOUT)
                .await?;
            for (field, numbers) in &turns {
                let place = field.rsplit(':').next().unwrap_or_default();
                for number in numbers
                    .chunks(NUMBER_BYTES)
                    .filter_map(|rest| asked.get(rest))
                {
                    found.entry(*number).or_default().push(place.to_owned());
                }
            }
        }
        Ok(found)
    }

    /// Where those of them stand that a turn has told by themselves, or empty texts.
    async fn places_apart(
        &self,
        account: &AccountId,
        settled: &[(&Placed, RequestNumber)],
    ) -> Result<Vec<String>, RedisFault> {
        if settled.is_empty() {
            return Ok(Vec::new());
        }
        let mut keys = vec![account_key(account, "")];
        let mut args = Vec::with_capacity(2 * settled.len());
        for (_, number) in settled {
            let hash = places_key(account, *number);
            let known = keys.iter().position(|key| *key == hash);
            let nth = known.unwrap_or_else(|| {
                keys.push(hash);
                keys.len() - 1
            });
            args.push(nth.to_string().into_bytes());
            args.push(place_field(number).to_vec());
        }
        let places = &self.0.scripts.places;
        self.0
            .conn
            .eval(places, &keys, args, OPERATOR_TIMEOUT)
            .await
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

/// The number, if its last place is another one.
fn elsewhere(
    (placed, number): &(&Placed, RequestNumber),
    last: Option<&str>,
) -> Option<RequestNumber> {
    last.is_some_and(|last| last != placed.place)
        .then_some(*number)
}
