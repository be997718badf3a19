//! Groups of keys in the Redis ledger.

use std::str::FromStr;

use super::{
    NO_ARGS, RedisLedger,
    books::done,
    ceiling_words,
    keys::{CeilingsSet, money_of},
    names::account_key,
};
use crate::{
    account::{AccountId, GroupId},
    book::GroupBook,
    conn::{RedisFault, Result},
    contract::{BookError, GroupRecord, GroupView},
    money::MicroRub,
};

/// A group as scripts return it: its id, its name, its carried amount, and its money fields in the order of
/// `money.lua`.
pub(super) type GroupRow = (String, String, i64, Vec<Option<String>>);

impl RedisLedger {
    pub(super) async fn set_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        step: &str,
        name: Option<&str>,
        ceilings: CeilingsSet,
    ) -> Result<(), BookError> {
        let keys = ["", ":k"].map(|part| account_key(account, part));
        let [total, month, day] = ceiling_words(ceilings);
        let args = [
            id.to_string(),
            step.to_owned(),
            u8::from(name.is_some()).to_string(),
            name.unwrap_or_default().to_owned(),
            total,
            month,
            day,
        ];
        let word: String = self
            .ask_durably(&self.0.scripts.set_group, &keys, &args)
            .await?;
        done(&word)
    }

    pub(super) async fn group(
        &self,
        account: &AccountId,
        id: &GroupId,
    ) -> Result<GroupView, BookError> {
        let groups = self.stored_groups(account).await?;
        let found = groups.into_iter().find(|group| group.record.id == *id);
        found.ok_or(BookError::NotFound)
    }

    pub(super) async fn stored_groups(
        &self,
        account: &AccountId,
    ) -> Result<Vec<GroupView>, BookError> {
        let keys = [account_key(account, "")];
        let reply: Option<(i64, i64, u64, Vec<GroupRow>)> = self
            .ask_patiently(&self.0.scripts.groups, &keys, NO_ARGS)
            .await?;
        let (balance, held, now, rows) = reply.ok_or(BookError::NotFound)?;
        let free = MicroRub::new(balance).minus_or_zero(MicroRub::new(held));
        Ok(views(rows, free, now)?)
    }
}

/// Returns the views of groups at the time `now`, sorted by id. `account_free` is the free money of their account.
pub(super) fn views(
    rows: Vec<GroupRow>,
    account_free: MicroRub,
    now: u64,
) -> Result<Vec<GroupView>> {
    let view = |(id, name, carried, fields): GroupRow| {
        let unexpected = |_| RedisFault::Unexpected(format!("group {id:?}"));
        let record = GroupRecord {
            id: GroupId::from_str(&id).map_err(unexpected)?,
            name,
            removed: fields
                .first()
                .is_some_and(|state| state.as_deref() == Some("0")),
        };
        let group = GroupBook {
            money: money_of(&format!("group {id}"), fields)?,
            carried: MicroRub::new(carried),
            ..GroupBook::default()
        };
        Ok(group.view(record, account_free, now))
    };
    let mut views = rows.into_iter().map(view).collect::<Result<Vec<_>>>()?;
    views.sort_unstable_by(|a, b| a.record.id.cmp(&b.record.id));
    Ok(views)
}
