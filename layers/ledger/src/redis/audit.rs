//! The audit's view of a Redis ledger. It reads each account as stored on the server, including money of keys without a
//! record, and the account's journal with the index of receipts.

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
    audit::{AccountAudit, AccountState, Source},
    conn::{RedisFault, Result},
    contract::{BookError, Booked, JournalLine, JournalPage, JournalPart},
    number::RequestNumber,
};

/// The largest number of holds that one script looks up.
const HOLDS_AT_ONCE: usize = 500;

impl Source for RedisLedger {
    async fn accounts(&self) -> Result<Vec<AccountId>, BookError> {
        Ok(self.account_ids().await?)
    }

    async fn account_state(&self, account: &AccountId) -> Result<Option<AccountState>, BookError> {
        let Some(books) = self.stored_books(account).await? else {
            return Ok(None);
        };
        let mut audit = AccountAudit::new(books.snapshot_with_periods(account)?);
        if let Some(lost) = books.lines_lost().filter(|lost| *lost > 0) {
            audit.lines_lost(lost);
        }
        if let Some(before_ms) = books.dropped_early_ms() {
            audit.dropped_early(before_ms);
        }
        Ok(Some(AccountState {
            audit,
            keys: books.keys(),
            journal_end: books.journal_end,
        }))
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<(JournalPage, Vec<RequestNumber>), BookError> {
        let Some(stretch) = JournalRange::for_part(part)? else {
            return Ok(Default::default());
        };
        let (placed, next) = self.placed_lines(account, stretch).await?;
        let twice = self.settled_twice(account, &placed).await?;
        let lines = placed.into_iter().map(|placed| placed.line).collect();
        Ok((JournalPage { lines, next }, twice))
    }

    /// The server reads each hold again, because the hold may have ended meanwhile.
    async fn ended(
        &self,
        account: &AccountId,
        open: &[RequestNumber],
    ) -> Result<Option<RequestNumber>, BookError> {
        for numbers in open.chunks(HOLDS_AT_ONCE) {
            let mut keys = vec![account_key(account, ""), account_key(account, ":e")];
            keys.extend(numbers.iter().map(|number| tombstone_key(account, *number)));
            let args: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            let script = &self.0.scripts.open_and_ended;
            let both: Vec<String> = self.ask_patiently(script, &keys, &args).await?;
            if let Some(number) = both.first() {
                let unexpected = || RedisFault::Unexpected(format!("hold {number:?} of {account}"));
                return Ok(Some(number.parse().map_err(|_| unexpected())?));
            }
        }
        Ok(None)
    }
}

impl RedisLedger {
    /// Returns the calls of these journal lines that moved money more than once. The index of receipts contains the
    /// position of a call's last line that moved money. If a line is at another position, its call therefore has a
    /// later line.
    async fn settled_twice(
        &self,
        account: &AccountId,
        placed: &[Placed],
    ) -> Result<Vec<RequestNumber>> {
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
        let apart = self.single_places(account, &of_turns).await?;
        let turns = self.turns_with(account, &of_turns).await?;
        for (number, apart) in of_turns.iter().zip(apart) {
            // If one lease turn charged a call twice, both lines have the same position.
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
    ) -> Result<Vec<Option<String>>> {
        if settled.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = settled.iter().map(|(_, number)| *number);
        let keys: Vec<String> = numbers.map(|number| receipt_key(account, number)).collect();
        let mut words = vec!["MGET"];
        words.extend(keys.iter().map(String::as_str));
        self.command(&words).await
    }

    /// Returns, for each of these calls, the positions of the lease turns that charged it as part of a batch.
    async fn turns_with(
        &self,
        account: &AccountId,
        settled: &[(&Placed, RequestNumber)],
    ) -> Result<HashMap<RequestNumber, Vec<String>>> {
        let mut requested: HashMap<String, HashMap<&[u8], RequestNumber>> = HashMap::new();
        for (_, number) in settled {
            let of_hash = requested.entry(turns_key(account, *number)).or_default();
            of_hash.insert(place_field(number), *number);
        }
        let mut found: HashMap<RequestNumber, Vec<String>> = HashMap::new();
        for (hash, requested) in &requested {
            let turns: Vec<(String, Vec<u8>)> = self.command(&["HGETALL", hash]).await?;
            for (field, numbers) in &turns {
                let place = field.rsplit(':').next().unwrap_or_default();
                for number in numbers
                    .chunks(NUMBER_BYTES)
                    .filter_map(|rest| requested.get(rest))
                {
                    found.entry(*number).or_default().push(place.to_owned());
                }
            }
        }
        Ok(found)
    }

    /// Returns, for each of these calls, the position of the lease turn that charged it individually. The text is empty
    /// if no turn charged it individually.
    async fn single_places(
        &self,
        account: &AccountId,
        settled: &[(&Placed, RequestNumber)],
    ) -> Result<Vec<String>> {
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
        self.ask_patiently(places, &keys, args).await
    }
}

/// Returns the call of a line if the index contains another position for this call.
fn elsewhere(
    (placed, number): &(&Placed, RequestNumber),
    last: Option<&str>,
) -> Option<RequestNumber> {
    last.is_some_and(|last| last != placed.place)
        .then_some(*number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        conn::OPERATOR_TIMEOUT,
        contract::LedgerAdmin,
        embedded::now_ms,
        redis::{RECEIPT_MS, scripts::with_clock, test_server::Server},
        testing::given::acme,
    };

    const DAY_MS: u64 = 24 * 3_600_000;
    const ENTER: &str = include_str!("scripts/enter.lua");

    /// A ledger with one account whose entries have times that the test sets.
    struct Aged {
        server: Server,
        ledger: RedisLedger,
        entries: u64,
    }

    impl Aged {
        async fn start() -> Self {
            let server = Server::start().await;
            let ledger = server.ledger().await;
            ledger.create_account(&acme(), "Acme").await.unwrap();
            Self {
                server,
                ledger,
                entries: 0,
            }
        }

        async fn enter(&mut self, at_ms: u64) {
            self.entries += 1;
            let keys = ["", ":t", ":j", ":ev"].map(|part| account_key(&acme(), part));
            let args = [
                format!("p{}", self.entries),
                "1".to_owned(),
                String::new(),
                RECEIPT_MS.to_string(),
                (at_ms * 1000).to_string(),
            ];
            let script = with_clock(&self.server.conn, ENTER);
            let conn = &self.server.conn;
            let word: String = conn
                .eval(&script, &keys, &args, OPERATOR_TIMEOUT)
                .await
                .unwrap();
            assert_eq!(word, "ok");
        }

        async fn lines(&self) -> u64 {
            self.server.ask(&["XLEN", "tg:{acme}:j"]).await
        }

        async fn breaches(&self) -> Vec<String> {
            self.ledger.audit().await.unwrap().breaches
        }
    }

    #[tokio::test]
    async fn audit_finds_three_days_of_journal_lines_that_were_dropped_after_a_clock_jump() {
        let mut aged = Aged::start().await;
        let now = now_ms();
        for line in 0..900 {
            aged.enter(now - 399 * DAY_MS + line * 399 * DAY_MS / 900)
                .await;
        }
        aged.enter(now + 405 * DAY_MS).await;
        assert_eq!(
            aged.lines().await,
            901,
            "a node of the stream is more than three days"
        );
        assert_eq!(aged.breaches().await, [""; 0]);
        for call in 1..60 {
            aged.enter(now + 405 * DAY_MS + call).await;
        }
        // The 900 lines cover 399 days. The lines of the last 180 days, about 406 lines, must be kept.
        let left = aged.lines().await;
        assert!((500..960).contains(&left), "{left}");
        let breaches = aged.breaches().await;
        assert!(
            breaches[0].contains("were dropped too early"),
            "{breaches:?}"
        );
        assert_eq!(breaches.len(), 1, "{breaches:?}");
        // After the clock is correct again, no further line is dropped.
        for call in 0..10 {
            aged.enter(now + call).await;
        }
        assert_eq!(aged.lines().await, left + 10);
    }

    #[tokio::test]
    async fn audit_distinguishes_lost_journal_lines_from_lines_dropped_for_their_age() {
        let mut aged = Aged::start().await;
        let now = now_ms();
        for line in 0..=700 {
            aged.enter(now - (700 - line) * DAY_MS).await;
        }
        let left = aged.lines().await;
        assert!((400..600).contains(&left), "{left}");
        assert_eq!(aged.breaches().await, [""; 0]);
        let youngest: Vec<(String, HashMap<String, String>)> = aged
            .server
            .ask(&["XREVRANGE", "tg:{acme}:j", "+", "-", "COUNT", "2"])
            .await;
        for (lost, (place, _)) in (1..).zip(&youngest) {
            let _: i64 = aged.server.ask(&["XDEL", "tg:{acme}:j", place]).await;
            let breaches = aged.breaches().await;
            let words = format!("I3 account acme: {lost} lines of its journal are lost");
            assert!(breaches[0].starts_with(&words), "{breaches:?}");
        }
    }
}
