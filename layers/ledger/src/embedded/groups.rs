//! Groups of keys in the embedded stores.

use super::{GroupRow, Journaled, Record, State, Used};
use crate::{
    account::{AccountId, GroupId, KeyRecord},
    book::{Account, Millis},
    ceiling::Ceilings,
    contract::{BookError, GroupChange, GroupRecord, GroupView},
};

impl GroupRow {
    pub(super) fn for_group(account: &Account, id: &GroupId) -> Option<Self> {
        let group = account.group(id)?;
        Some(Self {
            id: id.clone(),
            name: group.name.clone(),
            removed: group.removed,
            ceilings: group.money.ceilings,
            carried: group.carried,
            used: Used::from_money(&group.money),
        })
    }
}

impl State {
    pub(crate) fn create_group(
        &mut self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
        now: Millis,
    ) -> Result<Journaled<GroupView>, BookError> {
        let book = self.book.account_mut(account).ok_or(BookError::NotFound)?;
        match book.group(&record.id) {
            Some(known) => {
                let same = known.name == record.name && known.money.ceilings == ceilings;
                if known.removed || !same {
                    return Err(BookError::Exists);
                }
            }
            None => book.set_group(&record.id, &record.name, ceilings, false),
        }
        self.changed_group(account, &record.id, now)
    }

    pub(crate) fn change_group(
        &mut self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
        now: Millis,
    ) -> Result<Journaled<GroupView>, BookError> {
        let in_use = || {
            let company = self.companies.get(account)?;
            let mut keys = company.keys.iter().filter_map(|key| self.keys.get(key));
            keys.find(|key| key.group.as_ref() == Some(id) && !key.is_deleted())
        };
        if change.remove && in_use().is_some() {
            return Err(BookError::GroupInUse);
        }
        let book = self.book.account_mut(account).ok_or(BookError::NotFound)?;
        let known = book.group(id).ok_or(BookError::NotFound)?;
        let mut record = GroupRecord {
            id: id.clone(),
            name: known.name.clone(),
            removed: known.removed,
        };
        change.apply(&mut record);
        let ceilings = change.ceilings(known.money.ceilings);
        book.set_group(id, &record.name, ceilings, record.removed);
        self.changed_group(account, id, now)
    }

    fn changed_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        now: Millis,
    ) -> Result<Journaled<GroupView>, BookError> {
        let book = self.book.account(account).ok_or(BookError::NotFound)?;
        let view = book.group_view(id, now).ok_or(BookError::NotFound)?;
        let record = GroupRow::for_group(book, id).map(|group| Record::Group {
            account: account.clone(),
            group,
        });
        Ok((view, record))
    }

    pub(crate) fn groups_of(
        &self,
        account: &AccountId,
        now: Millis,
    ) -> Result<Vec<GroupView>, BookError> {
        let book = self.book.account(account).ok_or(BookError::NotFound)?;
        let ids = book.groups().map(|(id, _)| id);
        Ok(ids.filter_map(|id| book.group_view(id, now)).collect())
    }

    /// Moves a key into the group that its record names.
    pub(super) fn bind(&mut self, record: &KeyRecord) -> Result<(), BookError> {
        let account = self.book.account_mut(&record.account);
        let account = account.ok_or(BookError::NotFound)?;
        Ok(account.bind(&record.id, record.group.as_ref(), record.concurrency)?)
    }

    /// Fails unless the group exists and keys may join it.
    pub(super) fn has_group(
        &self,
        account: &AccountId,
        group: Option<&GroupId>,
    ) -> Result<(), BookError> {
        let Some(group) = group else { return Ok(()) };
        let account = self.book.account(account).ok_or(BookError::NotFound)?;
        let there = account.group(group).filter(|group| !group.removed);
        there.map(|_| ()).ok_or(BookError::NoGroup)
    }
}
