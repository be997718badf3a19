//! The ledger in memory: for tests, benches and a first try. Nothing outlives the process.
//!
//! What it does under its lock, `State`, is also the working half of the SQLite store; the two
//! differ in durability alone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque, hash_map},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    book::{Account, Book, KeyBook, Millis},
    ledger::{
        AccountView, Audit, BookError, Booked, Bookkeeping, Entry, Hold, KeyChange, KeyView,
        Ledger, LedgerError, Receipt, Reserved, Settled, Settlement, TariffVersion,
    },
};
use crate::{
    error::BoxError,
    facts::RequestNumber,
    key::{AccountId, KeyDigest, KeyId, KeyRecord, KeyStatus, KeyStore},
    money::MicroRub,
};

/// How many receipts are kept; the oldest is forgotten first.
pub const RECEIPTS_MAX: usize = 100_000;

/// How many due holds of each account one EXPIRE ends, so that the lock is not kept for long.
pub(super) const EXPIRE_MAX: usize = 256;

/// A ledger without a file or a server. Clones share one book.
#[derive(Clone, Default)]
pub struct MemoryLedger {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    state: State,
    receipts: Receipts,
}

impl MemoryLedger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn for_call(&self) -> Result<MutexGuard<'_, Inner>, LedgerError> {
        self.inner
            .lock()
            .map_err(|_| LedgerError::Unavailable(Torn.into()))
    }

    fn for_books(&self) -> Result<MutexGuard<'_, Inner>, BookError> {
        self.inner
            .lock()
            .map_err(|_| BookError::Unavailable(Torn.into()))
    }
}

impl fmt::Debug for MemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLedger").finish_non_exhaustive()
    }
}

impl Ledger for MemoryLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.for_call()?
            .state
            .book
            .reserve(hold, now_ms())
            .map_err(LedgerError::Refused)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let mut inner = self.for_call()?;
        let Inner { state, receipts } = &mut *inner;
        let now = now_ms();
        let (settled, record) = match state.settle(settlement, now) {
            Ok(booked) => booked,
            Err(UnknownNumber) => match receipts.by_number.get(&settlement.number) {
                Some(first) if first.booked != Booked::Stale => return Ok(first_result(first)),
                _ => state.settle_unknown(settlement, now),
            },
        };
        if let Some(Record::Settled { receipt, .. }) = record {
            receipts.keep(receipt);
        }
        Ok(settled)
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        _key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.for_call()?
            .state
            .book
            .release(number, account, now_ms());
        Ok(())
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        Ok(self
            .for_call()?
            .state
            .book
            .extend(number, account, ttl, now_ms()))
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.for_call()?
            .state
            .book
            .probe(account, key)
            .map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        Ok(self.for_call()?.state.book.expire(EXPIRE_MAX, now_ms()))
    }
}

impl Bookkeeping for MemoryLedger {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        self.for_books()?.state.create_account(id, name).map(answer)
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        self.for_books()?
            .state
            .change_account(id, name, suspended)
            .map(answer)
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        self.for_books()?.state.account(id)
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        Ok(self.for_books()?.state.accounts())
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        self.for_books()?
            .state
            .enter(account, entry, now_ms())
            .map(answer)
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceiling: Option<MicroRub>,
    ) -> Result<KeyView, BookError> {
        self.for_books()?
            .state
            .create_key(record, ceiling)
            .map(answer)
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        self.for_books()?.state.change_key(id, change).map(answer)
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        self.for_books()?.state.key(id)
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        self.for_books()?.state.keys_of(account)
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        self.for_books()?
            .receipts
            .by_number
            .get(&number)
            .cloned()
            .ok_or(BookError::NotFound)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        Ok(answer(
            self.for_books()?
                .state
                .tariff_version(fingerprint, now_ms()),
        ))
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        Ok(self.for_books()?.state.book.audit())
    }
}

impl KeyStore for MemoryLedger {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        let inner = self.inner.lock().map_err(|_| Torn)?;
        Ok(inner.state.find_key(digest))
    }
}

/// A panic under the lock may have left half a step in the book: money is not moved on a guess.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the ledger failed in the middle of a step; nothing more is served until a restart")]
pub(super) struct Torn;

/// The time of the embedded stores.
pub(super) fn now_ms() -> Millis {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// What a repeat of a settlement is answered once its tombstone is gone.
pub(super) fn first_result(receipt: &Receipt) -> Settled {
    let Receipt {
        booked,
        charged_rub: charged,
        loss_rub: loss,
        ..
    } = *receipt;
    Settled {
        booked,
        charged,
        loss,
        repeated: true,
    }
}

/// An answer, and what a durable store must write down before it is given.
pub(super) type Journaled<T> = (T, Option<Record>);

fn answer<T>((answer, _): Journaled<T>) -> T {
    answer
}

/// A change as a durable store writes it down. Amounts are what they came to, not by how much they
/// moved, so a record written twice, in order, changes nothing.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "sqlite"),
    allow(dead_code, reason = "read by the durable store")
)]
pub(super) enum Record {
    Account {
        id: AccountId,
        name: String,
        suspended: bool,
    },
    Entry {
        account: AccountId,
        entry: Entry,
        at_ms: Millis,
        balance: MicroRub,
    },
    Key {
        record: Arc<KeyRecord>,
        ceiling: Option<MicroRub>,
    },
    Settled {
        receipt: Receipt,
        balance: MicroRub,
        loss: MicroRub,
        used: Option<MicroRub>,
    },
    Tariff {
        version: TariffVersion,
        fingerprint: String,
    },
}

/// The book knows nothing of this number now: it never did, or it has forgotten.
#[derive(Debug)]
pub(super) struct UnknownNumber;

/// Everything but the receipts: the book (money, holds, ceilings) and the directory (names, keys).
#[derive(Debug, Default)]
pub(super) struct State {
    /// For the commands that leave nothing to write down.
    pub(super) book: Book,
    companies: BTreeMap<AccountId, Company>,
    keys: HashMap<KeyId, Arc<KeyRecord>>,
    by_digest: HashMap<KeyDigest, Arc<KeyRecord>>,
    tariff: Option<(TariffVersion, String)>,
}

#[derive(Debug)]
struct Company {
    name: String,
    keys: BTreeSet<KeyId>,
}

impl State {
    /// Charges a call whose number the book knows.
    pub(super) fn settle(
        &mut self,
        call: &Settlement,
        now: Millis,
    ) -> Result<Journaled<Settled>, UnknownNumber> {
        // Asked as if stale, the book moves nothing for a number that it does not know. That leaves
        // the store time to look for a receipt before the charge is forced.
        let settled =
            self.book
                .settle(call.number, &call.account, &call.key, call.cost, false, now);
        if settled.booked == Booked::Stale {
            Err(UnknownNumber)
        } else {
            Ok(self.journaled(call, settled, now))
        }
    }

    /// Charges a call whose number neither the book nor a receipt knows.
    pub(super) fn settle_unknown(&mut self, call: &Settlement, now: Millis) -> Journaled<Settled> {
        let settled = self.book.settle(
            call.number,
            &call.account,
            &call.key,
            call.cost,
            call.fresh,
            now,
        );
        self.journaled(call, settled, now)
    }

    fn journaled(&self, call: &Settlement, settled: Settled, now: Millis) -> Journaled<Settled> {
        let account = match self.book.account(&call.account) {
            Some(account) if !settled.repeated => account,
            // Nothing has moved.
            _ => return (settled, None),
        };
        let receipt = Receipt {
            number: call.number,
            at_ms: now,
            account: call.account.clone(),
            key: call.key.clone(),
            held_rub: call.held,
            cost_rub: call.cost,
            charged_rub: settled.charged,
            loss_rub: settled.loss,
            booked: settled.booked,
            item: call.item.clone(),
        };
        let used = account.key(&call.key).map(|key| key.used);
        let record = Record::Settled {
            receipt,
            balance: account.balance,
            loss: account.loss,
            used,
        };
        (settled, Some(record))
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
        self.account_view(id).ok_or(BookError::NotFound)
    }

    pub(super) fn accounts(&self) -> Vec<AccountView> {
        self.companies
            .keys()
            .filter_map(|id| self.account_view(id))
            .collect()
    }

    pub(super) fn enter(
        &mut self,
        account: &AccountId,
        entry: &Entry,
        now: Millis,
    ) -> Result<Journaled<AccountView>, BookError> {
        self.book.enter(account, entry)?;
        let view = self.account(account)?;
        let (account, entry) = (account.clone(), entry.clone());
        let record = Record::Entry {
            account,
            entry,
            at_ms: now,
            balance: view.balance_rub,
        };
        Ok((view, Some(record)))
    }

    pub(super) fn create_key(
        &mut self,
        record: &KeyRecord,
        ceiling: Option<MicroRub>,
    ) -> Result<Journaled<KeyView>, BookError> {
        if !self.companies.contains_key(&record.account) {
            return Err(BookError::NotFound);
        }
        match self.keys.get(&record.id) {
            Some(known) => {
                let same_ceiling = self
                    .money_of(known)
                    .is_some_and(|(_, money)| money.ceiling == ceiling);
                if **known != *record || !same_ceiling {
                    return Err(BookError::Exists);
                }
            }
            None if self.by_digest.contains_key(&record.digest) => return Err(BookError::Exists),
            None => self.put_key(Arc::new(record.clone()), ceiling),
        }
        self.changed_key(&record.id)
    }

    pub(super) fn change_key(
        &mut self,
        id: &KeyId,
        change: &KeyChange,
    ) -> Result<Journaled<KeyView>, BookError> {
        let known = self.keys.get(id).ok_or(BookError::NotFound)?;
        let (_, money) = self.money_of(known).ok_or(BookError::NotFound)?;
        let ceiling = change.ceiling.unwrap_or(money.ceiling);
        let mut record = KeyRecord::clone(known);
        change.clone().apply(&mut record);
        self.put_key(Arc::new(record), ceiling);
        self.changed_key(id)
    }

    fn changed_key(&self, id: &KeyId) -> Result<Journaled<KeyView>, BookError> {
        let view = self.key(id)?;
        let record = self.keys.get(id).ok_or(BookError::NotFound)?;
        let record = Record::Key {
            record: Arc::clone(record),
            ceiling: view.ceiling_rub,
        };
        Ok((view, Some(record)))
    }

    pub(super) fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        self.key_view(id).ok_or(BookError::NotFound)
    }

    pub(super) fn keys_of(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        let company = self.companies.get(account).ok_or(BookError::NotFound)?;
        Ok(company
            .keys
            .iter()
            .filter_map(|id| self.key_view(id))
            .collect())
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
        self.tariff = Some((version, fingerprint.to_owned()));
        (
            version,
            Some(Record::Tariff {
                version,
                fingerprint: fingerprint.to_owned(),
            }),
        )
    }

    /// Takes in an account as a store remembers it.
    pub(super) fn put_account(&mut self, id: AccountId, name: String, account: Account) {
        self.book.restore(id.clone(), account);
        self.companies.insert(
            id,
            Company {
                name,
                keys: BTreeSet::new(),
            },
        );
    }

    /// Takes in a key as a store remembers it; its account must be there.
    #[cfg(feature = "sqlite")]
    pub(super) fn restore_key(
        &mut self,
        record: KeyRecord,
        ceiling: Option<MicroRub>,
        used: MicroRub,
    ) {
        let money = KeyBook {
            enabled: record.status == KeyStatus::Active,
            ceiling,
            used,
            held: MicroRub::ZERO,
        };
        let record = Arc::new(record);
        self.put_key(Arc::clone(&record), ceiling);
        if let Some(account) = self.book.account_mut(&record.account) {
            account.restore_key(record.id.clone(), money);
        }
    }

    /// Takes in the version in force as a store remembers it.
    #[cfg(feature = "sqlite")]
    pub(super) fn restore_tariff(&mut self, version: TariffVersion, fingerprint: String) {
        self.tariff = Some((version, fingerprint));
    }

    /// A deleted key stays in every table, so that whoever shows it is told so.
    fn put_key(&mut self, record: Arc<KeyRecord>, ceiling: Option<MicroRub>) {
        if let Some(account) = self.book.account_mut(&record.account) {
            account.set_key(&record.id, ceiling, record.status == KeyStatus::Active);
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

    fn account_view(&self, id: &AccountId) -> Option<AccountView> {
        let (company, account) = (self.companies.get(id)?, self.book.account(id)?);
        Some(AccountView {
            id: id.clone(),
            name: company.name.clone(),
            suspended: account.suspended,
            balance_rub: account.balance,
            held_rub: account.held,
            free_rub: account.balance.minus_or_zero(account.held),
            spent_rub: account.spent(),
            loss_rub: account.loss,
        })
    }

    fn key_view(&self, id: &KeyId) -> Option<KeyView> {
        let record = self.keys.get(id)?;
        let (account, money) = self.money_of(record)?;
        Some(KeyView {
            record: KeyRecord::clone(record),
            ceiling_rub: money.ceiling,
            spent_rub: money.used,
            held_rub: money.held,
            free_rub: account.free(id),
        })
    }
}

/// The newest receipts.
#[derive(Debug, Default)]
struct Receipts {
    by_number: HashMap<RequestNumber, Receipt>,
    by_age: VecDeque<RequestNumber>,
}

impl Receipts {
    fn keep(&mut self, receipt: Receipt) {
        let number = receipt.number;
        match self.by_number.entry(number) {
            hash_map::Entry::Vacant(place) => {
                place.insert(receipt);
            }
            // A dispute moved nothing: what is booked later takes its place.
            hash_map::Entry::Occupied(mut place) => {
                if place.get().booked == Booked::Stale && receipt.booked != Booked::Stale {
                    place.insert(receipt);
                }
                return;
            }
        }
        self.by_age.push_back(number);
        if self.by_age.len() > RECEIPTS_MAX
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.by_number.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        reserve::ledger::{Item, Refusal},
        usage::{End, Usage},
    };

    fn account() -> AccountId {
        "acme".parse().unwrap()
    }

    fn record(id: &str, digest: u8) -> KeyRecord {
        KeyRecord {
            id: id.parse().unwrap(),
            account: account(),
            digest: KeyDigest::new([digest; 32]),
            prefix: "tg-AbC123…".into(),
            name: "laptop".into(),
            status: KeyStatus::Active,
            models: Vec::new(),
            addresses: Vec::new(),
            requests_per_second: None,
            expires_at_ms: None,
            created_at_ms: 0,
        }
    }

    fn hold(number: u128, want: i64) -> Hold {
        Hold {
            number: RequestNumber::from_uuid(Uuid::from_u128(number)),
            account: account(),
            key: "k1".parse().unwrap(),
            want: MicroRub::new(want),
            least: MicroRub::new(want),
            ttl: Duration::from_secs(60),
        }
    }

    fn settlement(number: u128, cost: i64, fresh: bool) -> Settlement {
        Settlement {
            number: RequestNumber::from_uuid(Uuid::from_u128(number)),
            account: account(),
            key: "k1".parse().unwrap(),
            held: MicroRub::new(100),
            cost: MicroRub::new(cost),
            fresh,
            item: Item {
                model: "m".into(),
                vendor: "v".into(),
                usage: Usage {
                    input: 1,
                    cached_input: 2,
                    cache_write: 3,
                    output: 4,
                },
                price: None,
                estimated: false,
                end: End::Finished,
            },
        }
    }

    fn topup(id: &str, micro: i64) -> Entry {
        Entry {
            id: id.into(),
            amount: MicroRub::new(micro),
            reason: None,
        }
    }

    async fn funded() -> MemoryLedger {
        let ledger = MemoryLedger::new();
        ledger.create_account(&account(), "Acme").await.unwrap();
        ledger.create_key(&record("k1", 1), None).await.unwrap();
        ledger.enter(&account(), &topup("t1", 1_000)).await.unwrap();
        ledger
    }

    #[tokio::test]
    async fn the_same_again_changes_nothing_and_other_contents_are_refused() {
        let ledger = funded().await;
        let before = ledger.account(&account()).await.unwrap();
        assert_eq!(
            ledger.create_account(&account(), "Acme").await.unwrap(),
            before
        );
        assert_eq!(
            ledger.enter(&account(), &topup("t1", 1_000)).await.unwrap(),
            before
        );
        assert_eq!(
            ledger
                .create_key(&record("k1", 1), None)
                .await
                .unwrap()
                .record,
            record("k1", 1)
        );

        let refusals = [
            ledger.create_account(&account(), "Other").await.map(drop),
            ledger.enter(&account(), &topup("t1", 999)).await.map(drop),
            ledger.create_key(&record("k1", 2), None).await.map(drop),
            ledger
                .create_key(&record("k1", 1), Some(MicroRub::new(5)))
                .await
                .map(drop),
            ledger.create_key(&record("k2", 1), None).await.map(drop),
        ];
        for (index, refusal) in refusals.into_iter().enumerate() {
            assert!(
                matches!(refusal, Err(BookError::Exists)),
                "{index}: {refusal:?}"
            );
        }
        let stray = KeyRecord {
            account: "nobody".parse().unwrap(),
            ..record("k3", 3)
        };
        assert!(matches!(
            ledger.create_key(&stray, None).await,
            Err(BookError::NotFound)
        ));
    }

    #[tokio::test]
    async fn a_settled_call_leaves_a_receipt_and_is_charged_once() {
        let ledger = funded().await;
        ledger.reserve(&hold(1, 100)).await.unwrap();
        let first = ledger.settle(&settlement(1, 70, true)).await.unwrap();
        let again = ledger.settle(&settlement(1, 70, true)).await.unwrap();
        assert_eq!(
            (first.booked, first.charged, first.repeated),
            (Booked::Held, MicroRub::new(70), false)
        );
        assert_eq!(
            again,
            Settled {
                repeated: true,
                ..first
            }
        );

        let receipt = ledger.receipt(hold(1, 100).number).await.unwrap();
        assert_eq!(
            (receipt.charged_rub, receipt.held_rub),
            (MicroRub::new(70), MicroRub::new(100))
        );
        let view = ledger.account(&account()).await.unwrap();
        assert_eq!(
            (view.balance_rub, view.held_rub, view.spent_rub),
            (MicroRub::new(930), MicroRub::ZERO, first.charged)
        );
        assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_number_never_held_is_forced_while_fresh_and_disputed_once_stale() {
        let ledger = funded().await;
        let forced = ledger.settle(&settlement(1, 70, true)).await.unwrap();
        assert_eq!(
            (forced.booked, forced.charged),
            (Booked::Forced, MicroRub::new(70))
        );
        for _ in 0..2 {
            let stale = ledger.settle(&settlement(2, 70, false)).await.unwrap();
            assert_eq!(
                (stale.booked, stale.charged, stale.repeated),
                (Booked::Stale, MicroRub::ZERO, false)
            );
        }
        assert_eq!(
            ledger.receipt(hold(2, 0).number).await.unwrap().booked,
            Booked::Stale
        );
    }

    #[tokio::test]
    async fn a_deleted_key_is_still_found_and_holds_nothing() {
        let ledger = funded().await;
        let change = |status| KeyChange {
            status: Some(status),
            ..KeyChange::default()
        };
        let id: KeyId = "k1".parse().unwrap();
        ledger
            .change_key(&id, &change(KeyStatus::Deleted))
            .await
            .unwrap();
        ledger
            .change_key(&id, &change(KeyStatus::Active))
            .await
            .unwrap();

        let found = ledger
            .find_key(&KeyDigest::new([1; 32]))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.status, KeyStatus::Deleted);
        let refused = ledger.reserve(&hold(1, 100)).await;
        assert!(
            matches!(refused, Err(LedgerError::Refused(Refusal::Disabled))),
            "{refused:?}"
        );
        assert_eq!(ledger.keys(&account()).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn the_tariff_version_grows_with_each_change() {
        let ledger = MemoryLedger::new();
        for (fingerprint, id) in [("a", 1), ("a", 1), ("b", 2), ("a", 3)] {
            assert_eq!(
                ledger.tariff_version(fingerprint).await.unwrap().id,
                id,
                "{fingerprint}"
            );
        }
    }

    #[test]
    fn the_oldest_receipt_is_forgotten_first() {
        let mut state = State::default();
        state.put_account(account(), "Acme".into(), Account::default());
        state.create_key(&record("k1", 1), None).unwrap();
        let (_, record) = state.settle_unknown(&settlement(0, 0, true), 0);
        let Some(Record::Settled { receipt, .. }) = record else {
            panic!("no receipt")
        };

        let mut receipts = Receipts::default();
        let numbered = |number| RequestNumber::from_uuid(Uuid::from_u128(number));
        for number in 0..=RECEIPTS_MAX as u128 {
            receipts.keep(Receipt {
                number: numbered(number),
                ..receipt.clone()
            });
        }
        assert_eq!(receipts.by_number.len(), RECEIPTS_MAX);
        assert!(
            !receipts.by_number.contains_key(&numbered(0))
                && receipts.by_number.contains_key(&numbered(1))
        );
    }
}
