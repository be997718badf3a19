//! The ledger in memory: for tests, benches and a first try. Nothing outlives the process.
//!
//! What it does under its lock is `state`, which the SQLite store shares: the two differ in durability
//! alone.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    book::Hashing,
    contract::{
        AccountBooks, AccountView, Audit, BookError, Booked, Entry, Hold, JOURNAL_LINES_MAX,
        JournalLine, JournalPage, JournalPart, KeyChange, KeyView, Ledger, LedgerAdmin,
        LedgerError, Receipt, Reserved, Settled, Settlement, TariffVersion,
    },
    embedded::{EXPIRE_MAX, Journaled, Record, State, Torn, UnknownNumber, first_result, now_ms},
};
use crate::{
    BoxError,
    account::{AccountId, KeyDigest, KeyId, KeyRecord, KeyStore},
    ceiling::Ceilings,
    number::RequestNumber,
};

/// How many receipts are kept; the oldest is forgotten first.
pub const RECEIPTS_MAX: usize = 100_000;

/// A ledger without a file or a server. Clones share one book.
#[derive(Clone, Default)]
pub struct MemoryLedger {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    state: State,
    journal: Journal,
}

impl MemoryLedger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn charge(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let mut inner = self.for_call()?;
        let Inner { state, journal } = &mut *inner;
        let now = now_ms();
        let (settled, record) = match state.settle(settlement, now) {
            Ok(booked) => booked,
            Err(UnknownNumber) => match journal.receipt(settlement.number) {
                Some(first) if first.booked != Booked::Stale => return Ok(first_result(first)),
                _ => state.settle_unknown(settlement, now),
            },
        };
        if let Some(Record::Settled { receipt, .. }) = record {
            journal.call(receipt);
        }
        Ok(settled)
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
        self.charge(settlement)
    }

    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        settlements.iter().map(|call| self.charge(call)).collect()
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
            .probe(account, key, now_ms())
            .map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        Ok(self.for_call()?.state.book.expire(EXPIRE_MAX, now_ms()))
    }
}

impl LedgerAdmin for MemoryLedger {
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
        let mut inner = self.for_books()?;
        let Inner { state, journal } = &mut *inner;
        let known = state
            .book
            .account(account)
            .is_some_and(|account| account.has_entry(&entry.id));
        let (view, record) = state.enter(account, entry, now_ms())?;
        if let (false, Some(Record::Entry { at_ms, .. })) = (known, record) {
            let Entry { id, amount, reason } = entry.clone();
            let line = JournalLine::Entry {
                id,
                at_ms,
                account: account.clone(),
                amount_rub: amount,
                reason,
            };
            journal.add(account, line);
        }
        Ok(view)
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        self.for_books()?
            .state
            .create_key(record, ceilings, now_ms())
            .map(answer)
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        self.for_books()?
            .state
            .change_key(id, change, now_ms())
            .map(answer)
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        self.for_books()?.state.key(id, now_ms())
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        self.for_books()?.state.keys_of(account, now_ms())
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        self.for_books()?
            .journal
            .receipt(number)
            .cloned()
            .ok_or(BookError::NotFound)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        let inner = self.for_books()?;
        inner.state.account(account)?;
        inner.journal.page(account, part)
    }

    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        self.for_books()?.books(account)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        Ok(answer(
            self.for_books()?
                .state
                .tariff_version(fingerprint, now_ms()),
        ))
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        let inner = self.for_books()?;
        let Inner { state, journal } = &*inner;
        let mut audit = Audit::default();
        for (id, account) in state.book.accounts() {
            let mut found = account.audit(id, !journal.has_forgotten);
            for line in journal.lines.get(id).into_iter().flatten() {
                found.line(line.1);
            }
            audit.add(account.keys().len(), account.holds_open(), found.finish());
        }
        Ok(audit)
    }
}

impl KeyStore for MemoryLedger {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        let inner = self.inner.lock().map_err(|_| Torn)?;
        Ok(inner.state.find_key(digest))
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        let inner = self.inner.lock().map_err(|_| BoxError::from(Torn));
        Some(inner.map(|inner| inner.state.find_key(digest)))
    }
}

fn answer<T>((answer, _): Journaled<T>) -> T {
    answer
}

impl Inner {
    fn books(&mut self, account: &AccountId) -> Result<AccountBooks, BookError> {
        let books = self.state.books(account, now_ms())?;
        Ok(AccountBooks {
            // More exact than a time.
            journal_end: self.journal.last.to_string(),
            journal_complete: !self.journal.has_forgotten,
            ..books
        })
    }
}

/// All entries, and the newest receipts.
#[derive(Debug, Default)]
struct Journal {
    lines: HashMap<AccountId, BTreeMap<JournalCursor, JournalLine>, Hashing>,
    calls: HashMap<RequestNumber, (AccountId, JournalCursor), Hashing>,
    calls_by_age: VecDeque<RequestNumber>,
    last: JournalCursor,
    has_forgotten: bool,
}

/// A line's place: lines are counted, over all accounts.
type JournalCursor = u64;

impl Journal {
    fn receipt(&self, number: RequestNumber) -> Option<&Receipt> {
        let (account, place) = self.calls.get(&number)?;
        match self.lines.get(account)?.get(place)? {
            JournalLine::Call(receipt) => Some(receipt),
            JournalLine::Entry { .. } => None,
        }
    }

    fn call(&mut self, receipt: Receipt) {
        let number = receipt.number;
        match self.receipt(number) {
            None => self.calls_by_age.push_back(number),
            // A dispute moved nothing: what is booked later takes its place.
            Some(first) if first.booked == Booked::Stale && receipt.booked != Booked::Stale => {
                self.forget(number);
            }
            Some(_) => return,
        }
        let account = receipt.account.clone();
        let place = self.add(&account, JournalLine::Call(receipt));
        self.calls.insert(number, (account, place));
        if self.calls_by_age.len() > RECEIPTS_MAX
            && let Some(oldest) = self.calls_by_age.pop_front()
        {
            self.forget(oldest);
            self.has_forgotten = true;
        }
    }

    fn add(&mut self, account: &AccountId, line: JournalLine) -> JournalCursor {
        self.last += 1;
        self.lines
            .entry(account.clone())
            .or_default()
            .insert(self.last, line);
        self.last
    }

    fn forget(&mut self, number: RequestNumber) {
        if let Some((account, place)) = self.calls.remove(&number)
            && let Some(lines) = self.lines.get_mut(&account)
        {
            lines.remove(&place);
        }
    }

    fn page(&self, account: &AccountId, part: &JournalPart<'_>) -> Result<JournalPage, BookError> {
        let after = part.after.map_or(Ok(0), place)?;
        let end = part.end.map_or(Ok(JournalCursor::MAX), place)?;
        let Some(lines) = self.lines.get(account).filter(|_| after < end) else {
            return Ok(JournalPage::default());
        };
        let limit = part.limit.clamp(1, JOURNAL_LINES_MAX);
        let times = part.since_ms..part.until_ms;
        let page: Vec<(&JournalCursor, &JournalLine)> = lines
            .range((Bound::Excluded(after), Bound::Included(end)))
            .filter(|(_, line)| times.contains(&line.at_ms()))
            .take(limit)
            .collect();
        let next = match page.last() {
            Some((place, _)) if page.len() == limit => Some(place.to_string()),
            _ => None,
        };
        Ok(JournalPage {
            lines: page.into_iter().map(|(_, line)| line.clone()).collect(),
            next,
        })
    }
}

fn place(text: &str) -> Result<JournalCursor, BookError> {
    text.parse()
        .map_err(|_| BookError::Unavailable(format!("{text:?} is no place in a journal").into()))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        account::KeyStatus,
        book::Account,
        contract::{Item, Refusal},
        money::MicroRub,
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
            requests_per_minute: None,
            tokens_per_minute: None,
            expires_at_ms: None,
            created_at_ms: 0,
            changed_at_ms: 0,
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
                usage: Usage {
                    input: 1,
                    cached_input: 2,
                    cache_write: 3,
                    output: 4,
                },
                ..Item::new("m", "v", End::Finished)
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
        ledger
            .create_key(&record("k1", 1), Ceilings::NONE)
            .await
            .unwrap();
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
                .create_key(&record("k1", 1), Ceilings::NONE)
                .await
                .unwrap()
                .record,
            record("k1", 1)
        );

        let refusals = [
            ledger.create_account(&account(), "Other").await.map(drop),
            ledger.enter(&account(), &topup("t1", 999)).await.map(drop),
            ledger
                .create_key(&record("k1", 2), Ceilings::NONE)
                .await
                .map(drop),
            ledger
                .create_key(&record("k1", 1), Ceilings::total(MicroRub::new(5)))
                .await
                .map(drop),
            ledger
                .create_key(&record("k2", 1), Ceilings::NONE)
                .await
                .map(drop),
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
            ledger.create_key(&stray, Ceilings::NONE).await,
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
        state
            .create_key(&record("k1", 1), Ceilings::NONE, 0)
            .unwrap();
        let (_, record) = state.settle_unknown(&settlement(0, 0, true), 0);
        let Some(Record::Settled { receipt, .. }) = record else {
            panic!("no receipt")
        };

        let mut journal = Journal::default();
        let numbered = |number| RequestNumber::from_uuid(Uuid::from_u128(number));
        for number in 0..=RECEIPTS_MAX as u128 {
            assert!(!journal.has_forgotten);
            journal.call(Receipt {
                number: numbered(number),
                ..receipt.clone()
            });
        }
        assert!(journal.has_forgotten);
        assert_eq!(journal.calls.len(), RECEIPTS_MAX);
        assert_eq!(journal.lines[&account()].len(), RECEIPTS_MAX);
        assert!(journal.receipt(numbered(0)).is_none() && journal.receipt(numbered(1)).is_some());
    }

    #[tokio::test]
    async fn the_audit_reads_the_journal_too() {
        let ledger = funded().await;
        ledger.reserve(&hold(1, 100)).await.unwrap();
        ledger.settle(&settlement(1, 70, true)).await.unwrap();
        let sound = ledger.audit().await.unwrap();
        assert_eq!(sound.breaches, Vec::<String>::new());

        let forgotten = hold(1, 100).number;
        ledger.inner.lock().unwrap().journal.forget(forgotten);
        assert_eq!(
            ledger.audit().await.unwrap().breaches,
            ["I3 key k1: used 70, but its receipts sum to 0 µ₽"]
        );
    }
}
