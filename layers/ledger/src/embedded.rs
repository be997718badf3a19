//! The state of the embedded stores (memory and SQLite): the book with all money, and the directory with names and
//! keys. Its methods change the state under the store's lock. Each of them returns the record that a durable store must
//! write before it answers.

pub(super) mod admin;
mod events;
mod groups;
mod record;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    book::{Account, Book, Hashing, KeyBook, Millis, millis},
    contract::{
        AccountBooks, AccountView, BookError, Booked, Entry, KeyChange, KeyView, OpenHold, Receipt,
        Settled, Settlement, TariffVersion,
    },
};
use crate::{
    account::{AccountId, GroupId, KeyDigest, KeyId, KeyRecord},
    ceiling::Ceilings,
    money::MicroRub,
    number::RequestNumber,
};

pub(super) use self::record::{GroupRow, Journaled, Record, SettledCall, Used};

/// How many expired holds of an account one sweep ends at most. It is limited because the sweep keeps the lock.
pub(super) const EXPIRE_MAX: usize = 256;

/// When a store is opened, a stored time of the last journal line is ignored if it is ahead of the clock by more than
/// this.
#[cfg(feature = "sqlite")]
const CLOCK_AHEAD_MAX_MS: Millis = 24 * 3_600_000;

/// The lock is poisoned: a panic may have left a change half made. The store then moves no money, because its books may
/// be inconsistent.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the ledger failed during a change; no call is served until the gateway is restarted")]
pub(super) struct Torn;

/// Returns the clock of the embedded stores: Unix time in milliseconds.
pub(super) fn now_ms() -> Millis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    millis(since_epoch.unwrap_or_default())
}

/// Returns the result of an earlier settlement whose tombstone has expired, from the receipt of the call.
pub(super) fn first_result(receipt: &Receipt) -> Settled {
    Settled {
        booked: receipt.booked,
        charged: receipt.charged_rub,
        loss: receipt.loss_rub,
        repeated: true,
    }
}

/// The error for a call that is unknown to the book: it was never held, or its tombstone has expired.
#[derive(Debug)]
pub(super) struct UnknownNumber;

/// All data except the receipts: the book (money, holds, ceilings) and the directory (names, keys).
#[derive(Debug, Default)]
pub(super) struct State {
    /// Stores use the book directly for commands that change nothing durable.
    pub(super) book: Book,
    companies: BTreeMap<AccountId, AccountInfo>,
    keys: HashMap<KeyId, Arc<KeyRecord>, Hashing>,
    by_digest: HashMap<KeyDigest, Arc<KeyRecord>, Hashing>,
    pub(super) tariff: Option<(TariffVersion, String)>,
    /// Accounts whose journals had already lost their oldest lines when the accounts were copied into this store.
    pub(super) forgotten: HashSet<AccountId>,
    /// In-flight calls that have a checkpoint in the store.
    noted: HashSet<RequestNumber, Hashing>,
    /// The latest time of any journal line.
    newest: Millis,
    feed: events::EventState,
    /// The version of the stored roll-up sums.
    #[cfg(feature = "sqlite")]
    pub(super) sums_version: u64,
}

#[derive(Debug)]
struct AccountInfo {
    name: String,
    keys: BTreeSet<KeyId>,
}

impl State {
    /// Charges a call that has a hold in the book. Fails if the call is unknown to the book.
    pub(super) fn settle(
        &mut self,
        call: &Settlement,
        now: Millis,
    ) -> Result<Journaled<Settled>, UnknownNumber> {
        // If `fresh` is false, the book moves no money for an unknown call. The store can then search for the call's
        // receipt before it charges the call, which has no hold.
        let (account, key, cost) = (&call.account, &call.key, call.cost);
        let settled = (self.book).settle(call.number, account, key, cost, false, now);
        if settled.booked == Booked::Stale {
            Err(UnknownNumber)
        } else {
            Ok(self.journaled(call, settled, now))
        }
    }

    /// Charges a call that has neither a hold nor a receipt.
    pub(super) fn settle_unknown(&mut self, call: &Settlement, now: Millis) -> Journaled<Settled> {
        let (account, key, cost) = (&call.account, &call.key, call.cost);
        let settled = (self.book).settle(call.number, account, key, cost, call.fresh, now);
        self.journaled(call, settled, now)
    }

    fn journaled(
        &mut self,
        call: &Settlement,
        settled: Settled,
        now: Millis,
    ) -> Journaled<Settled> {
        let at_ms = self.journal_time(now);
        let account = match self.book.account_mut(&call.account) {
            Some(account) if !settled.repeated => account,
            // No money has moved, so there is nothing to store.
            _ => return (settled, None),
        };
        let used = account.key(&call.key).map(Used::from_money);
        let group = account.group_of(&call.key).filter(|_| settled.moved());
        let group = group.and_then(|id| {
            let group = account.group(id)?;
            Some((id.clone(), Used::from_money(&group.money)))
        });
        let receipt = Receipt {
            number: call.number,
            at_ms,
            account: call.account.clone(),
            key: call.key.clone(),
            group: group.as_ref().map(|(id, _)| id.clone()),
            held_rub: call.held,
            cost_rub: call.cost,
            charged_rub: settled.charged,
            loss_rub: settled.loss,
            booked: settled.booked,
            item: call.item.clone(),
        };
        let record = SettledCall {
            receipt,
            balance: account.balance,
            loss: account.loss,
            used,
            group,
            noted: self.noted.remove(&call.number),
            events: (self.feed).events_of(&call.account, account.happened(), at_ms),
        };
        (settled, Some(Record::Settled(record)))
    }

    /// Writes roll-up sums, unless the stored sums were changed since they were read. Returns their new version.
    #[cfg(feature = "sqlite")]
    pub(super) fn change_sums(&mut self, change: &crate::rollup::Change) -> Journaled<Option<u64>> {
        if change.version != self.sums_version {
            return (None, None);
        }
        self.sums_version += 1;
        let record = Record::Summed {
            change: change.clone(),
            version: self.sums_version,
        };
        (Some(self.sums_version), Some(record))
    }

    /// Deletes all roll-up sums.
    #[cfg(feature = "sqlite")]
    pub(super) const fn clear_sums(&mut self) -> Journaled<()> {
        self.sums_version += 1;
        let version = self.sums_version;
        ((), Some(Record::SumsCleared { version }))
    }

    /// Records checkpoints: what in-flight calls have cost so far.
    #[cfg(feature = "sqlite")]
    pub(super) fn note(&mut self, running: &[Settlement]) -> Journaled<()> {
        self.noted.extend(running.iter().map(|call| call.number));
        ((), Some(Record::Noted(running.to_vec())))
    }

    /// Ends a hold without a charge. Returns whether the call has a checkpoint that must be deleted; most calls have
    /// none.
    #[cfg(feature = "sqlite")]
    pub(super) fn release(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        now: Millis,
    ) -> bool {
        self.book.release(number, account, now);
        self.noted.contains(&number)
    }

    /// Deletes the checkpoint of a call that has ended without a charge.
    #[cfg(feature = "sqlite")]
    pub(super) fn forget(&mut self, number: RequestNumber) -> Journaled<()> {
        let noted = self.noted.remove(&number);
        ((), noted.then_some(Record::Forgotten(number)))
    }

    /// Returns the time for a call's journal line that is written now. It is never earlier than the time of an earlier
    /// line, even if the clock was set back, so that sorting lines by time keeps their order.
    fn journal_time(&mut self, now: Millis) -> Millis {
        self.newest = self.newest.max(now);
        self.newest
    }

    /// Returns the time for an entry's journal line that is written now. No earlier line has the same millisecond:
    /// within a millisecond, a journal sorts entries before calls, and entries by their ids, so the order of writing
    /// would be lost.
    fn entry_time(&mut self, now: Millis) -> Millis {
        self.newest = now.max(self.newest.saturating_add(1));
        self.newest
    }

    pub(super) fn create_account(
        &mut self,
        id: &AccountId,
        name: &str,
    ) -> Result<Journaled<AccountView>, BookError> {
        match self.companies.get(id) {
            Some(company) if company.name != name => return Err(BookError::Exists),
            Some(_) => {}
            None => self.put_account(id.clone(), name.to_owned(), Account::default()),
        }
        self.changed_account(id)
    }

    pub(super) fn change_account(
        &mut self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<Journaled<AccountView>, BookError> {
        let company = self.companies.get_mut(id).ok_or(BookError::NotFound)?;
        let account = self.book.account_mut(id).ok_or(BookError::NotFound)?;
        if let Some(name) = name {
            name.clone_into(&mut company.name);
        }
        if let Some(suspended) = suspended {
            account.suspended = suspended;
        }
        self.changed_account(id)
    }

    fn changed_account(&self, id: &AccountId) -> Result<Journaled<AccountView>, BookError> {
        let view = self.account(id)?;
        let record = Record::Account {
            id: id.clone(),
            name: view.name.clone(),
            suspended: view.suspended,
        };
        Ok((view, Some(record)))
    }

    pub(super) fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        let company = self.companies.get(id).ok_or(BookError::NotFound)?;
        let account = self.book.account(id).ok_or(BookError::NotFound)?;
        Ok(AccountView {
            id: id.clone(),
            name: company.name.clone(),
            suspended: account.suspended,
            balance_rub: account.balance,
            held_rub: account.held,
            free_rub: account.balance.minus_or_zero(account.held),
            spent_rub: account.spent(),
            loss_rub: account.loss,
            holds_open: account.holds_open() as u64,
        })
    }

    pub(super) fn accounts(&self) -> Vec<AccountView> {
        let ids = self.companies.keys();
        ids.filter_map(|id| self.account(id).ok()).collect()
    }

    pub(super) fn enter(
        &mut self,
        account: &AccountId,
        entry: &Entry,
        now: Millis,
    ) -> Result<Journaled<AccountView>, BookError> {
        let known = (self.book.account(account)).is_some_and(|known| known.has_entry(&entry.id));
        self.book.enter(account, entry)?;
        let view = self.account(account)?;
        if known {
            return Ok((view, None));
        }
        let at_ms = self.entry_time(now);
        let events = self.take_events(account, at_ms);
        let (account, entry) = (account.clone(), entry.clone());
        let record = Record::Entry {
            account,
            entry,
            at_ms,
            balance: view.balance_rub,
            events,
        };
        Ok((view, Some(record)))
    }

    pub(super) fn create_key(
        &mut self,
        record: &KeyRecord,
        ceilings: Ceilings,
        now: Millis,
    ) -> Result<Journaled<KeyView>, BookError> {
        if !self.companies.contains_key(&record.account) {
            return Err(BookError::NotFound);
        }
        match self.keys.get(&record.id) {
            Some(known) => {
                let same_ceilings = self
                    .money_of(known)
                    .is_some_and(|(_, money)| money.ceilings == ceilings);
                if **known != *record || !same_ceilings {
                    return Err(BookError::Exists);
                }
            }
            None if self.by_digest.contains_key(&record.digest) => return Err(BookError::Exists),
            None => {
                self.has_group(&record.account, record.group.as_ref())?;
                self.put_key(Arc::new(record.clone()), ceilings);
                self.bind(record)?;
            }
        }
        self.changed_key(&record.id, now, None)
    }

    pub(super) fn change_key(
        &mut self,
        id: &KeyId,
        change: &KeyChange,
        now: Millis,
    ) -> Result<Journaled<KeyView>, BookError> {
        let known = self.keys.get(id).ok_or(BookError::NotFound)?;
        let (_, money) = self.money_of(known).ok_or(BookError::NotFound)?;
        let ceilings = change.ceilings(money.ceilings);
        let left = known.group.clone();
        let mut record = KeyRecord::clone(known);
        change.clone().apply(&mut record);
        if record.group != left {
            self.has_group(&record.account, record.group.as_ref())?;
        }
        self.put_key(Arc::new(record.clone()), ceilings);
        self.bind(&record)?;
        let left = left.filter(|left| Some(left) != record.group.as_ref());
        self.changed_key(id, now, left.as_ref())
    }

    fn changed_key(
        &self,
        id: &KeyId,
        now: Millis,
        left: Option<&GroupId>,
    ) -> Result<Journaled<KeyView>, BookError> {
        let view = self.key(id, now)?;
        let record = self.keys.get(id).ok_or(BookError::NotFound)?;
        let (account, money) = self.money_of(record).ok_or(BookError::NotFound)?;
        let groups = record.group.iter().chain(left);
        let record = Record::Key {
            record: Arc::clone(record),
            ceilings: money.ceilings,
            groups: groups
                .filter_map(|group| GroupRow::for_group(account, group))
                .collect(),
        };
        Ok((view, Some(record)))
    }

    pub(super) fn key(&self, id: &KeyId, now: Millis) -> Result<KeyView, BookError> {
        let record = self.keys.get(id).ok_or(BookError::NotFound)?;
        let (account, money) = self.money_of(record).ok_or(BookError::NotFound)?;
        let free = account.balance.minus_or_zero(account.held);
        let view = money.view(KeyRecord::clone(record), free, now);
        let group = account.group_of(id).and_then(|group| account.group(group));
        Ok(match group {
            None => view,
            Some(group) => group.bounds(view, now),
        })
    }

    pub(super) fn keys_of(
        &self,
        account: &AccountId,
        now: Millis,
    ) -> Result<Vec<KeyView>, BookError> {
        let company = self.companies.get(account).ok_or(BookError::NotFound)?;
        let ids = company.keys.iter();
        Ok(ids.filter_map(|id| self.key(id, now).ok()).collect())
    }

    /// Returns an account with its keys and holds. `journal_end` is not earlier than the last journal line, and every
    /// line that is written later has a later time.
    pub(super) fn books(&mut self, id: &AccountId, now: Millis) -> Result<AccountBooks, BookError> {
        let view = self.account(id)?;
        let keys = self.keys_of(id, now)?;
        let end = self.journal_time(now);
        self.newest = end.saturating_add(1);
        let account = self.book.account(id).ok_or(BookError::NotFound)?;
        let mut holds: Vec<OpenHold> = account
            .holds()
            .map(|(number, key, held_rub, due)| OpenHold {
                number,
                key: key.clone(),
                held_rub,
                due_ms: Some(due),
            })
            .collect();
        holds.sort_unstable_by_key(|hold| hold.number);
        Ok(AccountBooks {
            view,
            entered_rub: MicroRub::of_sum(account.entered()),
            keys,
            groups: self.groups_of(id, now)?,
            holds,
            journal_end: end.to_string(),
            journal_complete: !self.forgotten.contains(id),
        })
    }

    pub(super) fn find_key(&self, digest: &KeyDigest) -> Option<Arc<KeyRecord>> {
        self.by_digest.get(digest).cloned()
    }

    pub(super) fn tariff_version(
        &mut self,
        fingerprint: &str,
        now: Millis,
    ) -> Journaled<TariffVersion> {
        let id = match &self.tariff {
            Some((version, known)) if known == fingerprint => return (*version, None),
            Some((version, _)) => version.id + 1,
            None => 1,
        };
        let version = TariffVersion {
            id,
            effective_from_ms: now,
        };
        let fingerprint = fingerprint.to_owned();
        self.tariff = Some((version, fingerprint.clone()));
        (version, Some(Record::Tariff(version, fingerprint)))
    }

    /// Adds an account that was read from a store's file.
    pub(super) fn put_account(&mut self, id: AccountId, name: String, account: Account) {
        self.book.restore(&id, account);
        let keys = BTreeSet::new();
        self.companies.insert(id, AccountInfo { name, keys });
    }

    /// Adds a key that was read from a store's file. Its account must have been added first.
    #[cfg(feature = "sqlite")]
    pub(super) fn restore_key(&mut self, record: KeyRecord, money: KeyBook) {
        let money = KeyBook {
            enabled: record.may_hold(),
            concurrency: record.concurrency,
            ..money
        };
        let record = Arc::new(record);
        self.put_key(Arc::clone(&record), money.ceilings);
        if let Some(account) = self.book.account_mut(&record.account) {
            account.restore_key(record.id.clone(), money);
            if let Some(group) = &record.group {
                account.restore_member(&record.id, group);
            }
        }
    }

    /// Sets the time of the newest journal line, as read from a store's file. A time far ahead of the clock is ignored,
    /// because the clock that wrote it was wrong.
    #[cfg(feature = "sqlite")]
    pub(super) fn restore_newest(&mut self, at_ms: Millis, now: Millis) {
        if at_ms <= now.saturating_add(CLOCK_AHEAD_MAX_MS) {
            self.newest = at_ms;
        }
    }

    /// Adds or replaces a key. A deleted key stays in all tables: a caller must learn that the key was deleted, and not
    /// that it is unknown.
    fn put_key(&mut self, record: Arc<KeyRecord>, ceilings: Ceilings) {
        if let Some(account) = self.book.account_mut(&record.account) {
            account.set_key(&record.id, ceilings, record.may_hold());
        }
        if let Some(company) = self.companies.get_mut(&record.account) {
            company.keys.insert(record.id.clone());
        }
        self.by_digest.insert(record.digest, Arc::clone(&record));
        self.keys.insert(record.id.clone(), record);
    }

    fn money_of(&self, record: &KeyRecord) -> Option<(&Account, &KeyBook)> {
        let account = self.book.account(&record.account)?;
        Some((account, account.key(&record.id)?))
    }
}
