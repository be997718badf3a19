//! An index of the accounts that settled calls on each day. The receipt of a call is searched for in the accounts of
//! the call's day first, and only then in all accounts.
//!
//! The SET `tg:day:<YYYYMMDD>` is written after a settlement and not in the same atomic step. If an account is missing
//! from the SET, its receipts are still found by searching all accounts.

use quick_cache::sync::Cache;

use super::{RedisLedger, retention_ms};
use crate::{
    account::AccountId,
    calendar::{self, date_of_day},
    conn::{OPERATOR_TIMEOUT, RedisFault, Result},
    number::RequestNumber,
};

/// The largest number of index entries of which this gateway remembers that it has written them. An index entry is a
/// day and an account.
const NOTED_MAX: usize = 20_000;

/// The index entries that this gateway has written, so that it writes each entry only once.
pub(super) struct Days(Cache<(u64, AccountId), ()>);

impl Days {
    pub(super) fn new() -> Self {
        Self(Cache::new(NOTED_MAX))
    }
}

impl RedisLedger {
    /// Adds the account to the index of the call's day. Only the account's first call of a day sends a write to the
    /// server. An error of the server is ignored.
    pub(super) async fn note_day(&self, number: RequestNumber, account: &AccountId) {
        let Some(day) = day_of(number) else {
            return;
        };
        let noted = (day, account.clone());
        if self.0.days.0.get(&noted).is_some() {
            return;
        }
        let args = [account.to_string(), retention_ms()];
        let answer: Result<i64> = self
            .ask(&self.0.scripts.note_day, &[key_of(day)], &args)
            .await;
        if answer.is_ok() {
            self.0.days.0.insert(noted, ());
        }
    }

    /// Returns the accounts that settled calls on the day of this call: one of them probably has the call's receipt.
    pub(super) async fn accounts_of_day(&self, number: RequestNumber) -> Result<Vec<AccountId>> {
        match day_of(number) {
            Some(day) => self.ids_in(&key_of(day)).await,
            None => Ok(Vec::new()),
        }
    }

    /// Returns the account ids in a SET, sorted.
    pub(super) async fn ids_in(&self, key: &str) -> Result<Vec<AccountId>> {
        let conn = &self.0.conn;
        let ids: Vec<String> = conn.command(&["SMEMBERS", key], OPERATOR_TIMEOUT).await?;
        let mut ids = parsed(&ids)?;
        ids.sort_unstable();
        Ok(ids)
    }
}

pub(super) fn parsed(ids: &[String]) -> Result<Vec<AccountId>> {
    ids.iter()
        .map(|id| {
            id.parse::<AccountId>()
                .map_err(|error| RedisFault::Unexpected(format!("account {id:?}: {error}")))
        })
        .collect()
}

/// Returns the day on which the call began, in days since 1970. `None` if the call's number is not a UUIDv7.
pub(super) fn day_of(number: RequestNumber) -> Option<u64> {
    match number.unix_ms() {
        0 => None,
        ms => Some(calendar::day_of(ms)),
    }
}

/// Returns the name of the day's SET. It contains the date in readable form, for operators who inspect the server.
fn key_of(day: u64) -> String {
    let day = i64::try_from(day).expect("the number of days in 2⁶⁴ ms fits in an i64");
    let (year, month, day) = date_of_day(day);
    format!("tg:day:{year:04}{month:02}{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_key_of_a_day_contains_its_calendar_date() {
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
    fn request_number_without_a_time_belongs_to_no_day() {
        let number = RequestNumber::from_uuid(uuid::Uuid::from_u128(7));
        assert_eq!(day_of(number), None);
        assert!(day_of(RequestNumber::now_v7()).unwrap() > 20_000);
    }
}
