//! An index of the accounts that settled calls on a day. With it, the receipt of a call is first searched for in those
//! accounts, not in all accounts.
//!
//! `tg:day:<YYYYMMDD>` is a SET that is written after a settlement, not as a part of it. If an account is missing from
//! the SET, its receipts are found by searching all accounts.

use quick_cache::sync::Cache;

use super::{RedisLedger, retention_ms};
use crate::{
    account::AccountId,
    calendar::{self, date_of_day},
    conn::{OPERATOR_TIMEOUT, RedisFault},
    number::RequestNumber,
};

/// The largest number of index entries (a day and an account) for which this gateway remembers that it has written
/// them.
const NOTED_MAX: usize = 20_000;

/// Index entries that this gateway has written, so that it writes each entry once.
pub(super) struct Days(Cache<(u64, AccountId), ()>);

impl Days {
    pub(super) fn new() -> Self {
        Self(Cache::new(NOTED_MAX))
    }
}

impl RedisLedger {
    /// Adds the account to the index of the call's day. Only the account's first call of a day writes to the server. An
    /// error of the server is ignored.
    pub(super) async fn note_day(&self, number: RequestNumber, account: &AccountId) {
        let Some(day) = day_of(number) else {
            return;
        };
        let noted = (day, account.clone());
        if self.0.days.0.get(&noted).is_some() {
            return;
        }
        let args = [account.to_string(), retention_ms()];
        let answer: Result<i64, RedisFault> = self
            .ask(&self.0.scripts.note_day, &[key_of(day)], &args)
            .await;
        if answer.is_ok() {
            self.0.days.0.insert(noted, ());
        }
    }

    /// Returns the accounts that most likely have the receipt of a call: those that settled calls of its day.
    pub(super) async fn accounts_of_day(
        &self,
        number: RequestNumber,
    ) -> Result<Vec<AccountId>, RedisFault> {
        match day_of(number) {
            Some(day) => self.ids_in(&key_of(day)).await,
            None => Ok(Vec::new()),
        }
    }

    /// Returns the account ids of a SET, sorted.
    pub(super) async fn ids_in(&self, key: &str) -> Result<Vec<AccountId>, RedisFault> {
        let conn = &self.0.conn;
        let ids: Vec<String> = conn.command(&["SMEMBERS", key], OPERATOR_TIMEOUT).await?;
        let mut ids = parsed(&ids)?;
        ids.sort_unstable();
        Ok(ids)
    }
}

/// Parses account ids from a SET.
pub(super) fn parsed(ids: &[String]) -> Result<Vec<AccountId>, RedisFault> {
    ids.iter()
        .map(|id| {
            id.parse::<AccountId>()
                .map_err(|error| RedisFault::Unexpected(format!("account {id:?}: {error}")))
        })
        .collect()
}

/// Returns the day on which the call began, in days since 1970; `None` if its number is not a UUIDv7.
pub(super) fn day_of(number: RequestNumber) -> Option<u64> {
    match number.unix_ms() {
        0 => None,
        ms => Some(calendar::day_of(ms)),
    }
}

/// The name of the day's SET. It contains the date in readable form, for operators who inspect the server.
fn key_of(day: u64) -> String {
    let day = i64::try_from(day).expect("the days of 2⁶⁴ ms fit in an i64");
    let (year, month, day) = date_of_day(day);
    format!("tg:day:{year:04}{month:02}{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_keys_of_days_follow_the_calendar() {
        for (unix_seconds, key) in [
            (0, "tg:day:19700101"),
            (951_782_400, "tg:day:20000229"),
            (951_868_800, "tg:day:20000301"),
            (1_709_164_800, "tg:day:20240229"),
            (1_735_689_599, "tg:day:20241231"),
            (1_735_689_600, "tg:day:20250101"),
            (4_107_542_400, "tg:day:21000301"),
        ] {
            assert_eq!(key_of(calendar::day_of(unix_seconds * 1000)), key);
        }
    }

    #[test]
    fn request_number_has_a_day_only_if_it_contains_a_time() {
        let number = RequestNumber::from_uuid(uuid::Uuid::from_u128(7));
        assert_eq!(day_of(number), None);
        assert!(day_of(RequestNumber::now_v7()).unwrap() > 20_000);
    }
}
