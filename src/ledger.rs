//! The ledger that the config names, behind one type.

use std::{
    error::Error,
    fmt, fs,
    future::{pending, ready},
    ops::Range,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tollgate_ledger::{
    BoxError,
    account::{AccountId, GroupId, KeyDigest, KeyId, KeyRecord, KeyStore},
    ceiling::Ceilings,
    conn::RedisFault,
    contract::{
        AccountBooks, AccountView, Audit, BookError, Entry, Feed, GroupChange, GroupRecord,
        GroupView, Hold, JournalLine, JournalPage, JournalPart, KeyChange, KeyView, Ledger,
        LedgerAdmin, LedgerError, Note, Receipt, Reserved, Settled, Settlement, TariffVersion,
        Telling,
    },
    happening,
    memory::MemoryLedger,
    number::RequestNumber,
    outbox::{
        Backlog, Outbox, OutboxSettings,
        sqlite::{LogError, SqliteLog},
    },
    redis::{LeaseCounts, LeaseSettings, LeaseView, RedisLedger, RedisSettings, Watch},
    rollup::{Change, Marks, Rolled, Roller, Rollup, RowId, Scope, StandingLines, Sums},
    settle::Event,
    sqlite::{OpenError, SqliteLedger},
};

use crate::config::{LedgerConfig, LedgerUrl, OutboxConfig};

/// One of the ledgers. Clones share it.
#[derive(Clone, Debug)]
pub enum AnyLedger {
    /// Nothing outlives the process.
    Memory(MemoryLedger),
    /// One file, one gateway.
    Sqlite(SqliteLedger),
    /// Many gateways; what it has still to be told is kept here.
    Redis(Outbox<RedisLedger, SqliteLog>),
}

impl AnyLedger {
    /// Opens the ledger that `ledger.url` names, and waits a while for a file that another process has, and for a
    /// Redis that loads its data. An SQLite file is read and checked on this thread: nothing is served yet.
    ///
    /// # Errors
    /// See [`OpenLedgerError`].
    pub async fn open(config: &LedgerConfig) -> Result<Self, OpenLedgerError> {
        match &config.url {
            LedgerUrl::Memory => Ok(Self::Memory(MemoryLedger::new())),
            LedgerUrl::Sqlite(path) => {
                let opened = patiently(config.open_wait, "ledger.url", || {
                    let is_new = !path.exists();
                    ready(SqliteLedger::open(path).map(|ledger| (ledger, is_new)))
                });
                let opened = opened.await.map_err(OpenLedgerError::Sqlite)?;
                let (ledger, is_new) = opened;
                if is_new {
                    warn_of_new(&path.display());
                }
                Ok(Self::Sqlite(ledger))
            }
            LedgerUrl::Redis(url) => {
                let OutboxConfig {
                    path,
                    calls_max,
                    age_max,
                } = &config.outbox;
                let opened = patiently(LOADING_WAIT, "ledger.url", || {
                    let settings = RedisSettings {
                        authorities: config.authorities.clone(),
                        ..RedisSettings::default()
                    };
                    RedisLedger::connect(url, settings)
                });
                let mut ledger = opened.await.map_err(OpenLedgerError::Redis)?;
                if !config.lease_max.is_zero() {
                    ledger = ledger.with_leases(LeaseSettings::new(config.lease_max, owner(path)));
                }
                for warning in ledger
                    .check_server()
                    .await
                    .map_err(OpenLedgerError::Redis)?
                {
                    tracing::warn!("ledger.url: {warning}");
                }
                if ledger.is_new() {
                    warn_of_new(&ledger.conn().address());
                }
                let log = patiently(config.open_wait, "ledger.outbox", || {
                    ready(SqliteLog::open_for(path, ledger.data_set()))
                });
                let log = log.await.map_err(OpenLedgerError::Outbox)?;
                let settings = OutboxSettings {
                    calls_max: *calls_max,
                    age_max: *age_max,
                    ..OutboxSettings::default()
                };
                Outbox::open(ledger, log, settings)
                    .await
                    .map(Self::Redis)
                    .map_err(OpenLedgerError::Unread)
            }
        }
    }

    /// Ends what an earlier process left unfinished.
    pub async fn recover(&self, report: &(dyn Fn(&Event<'_>) + Send + Sync)) {
        match self {
            // Done on opening, or nothing outlives the process.
            Self::Memory(_) | Self::Sqlite(_) => {}
            Self::Redis(outbox) => outbox.recover(report).await,
        }
    }

    /// Whether calls may be sold on this ledger. Where another server stands in the place of the one
    /// that was there, it is told again what it may have missed.
    ///
    /// # Errors
    /// Why not.
    pub async fn check(&self) -> Result<(), BoxError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Sqlite(ledger) => ledger.check(),
            Self::Redis(outbox) => {
                let confirmed = confirm_server(outbox).await;
                // What waits here tells more than why it waits.
                check_backlog(&outbox.backlog())?;
                confirmed
            }
        }
    }

    /// What waits on this machine for the ledger; `None` where nothing can.
    #[must_use]
    pub fn backlog(&self) -> Option<Backlog> {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => None,
            Self::Redis(outbox) => Some(outbox.backlog()),
        }
    }

    /// Whether this gateway holds money by itself.
    #[must_use]
    pub fn takes_leases(&self) -> bool {
        matches!(self, Self::Redis(outbox) if outbox.ledger().lease_counts().is_some())
    }

    /// Looks after what this gateway holds by itself. Does not end.
    pub async fn tend_leases(&self) {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => pending().await,
            Self::Redis(outbox) => outbox.ledger().tend_leases().await,
        }
    }

    /// Leases of an account, or of all, whichever gateway has them. The embedded ledgers have none.
    ///
    /// # Errors
    /// The ledger is out of reach, or has no such account.
    pub async fn leases(&self, account: Option<&AccountId>) -> Result<Vec<LeaseView>, BookError> {
        if let Some(account) = account {
            self.account(account).await?;
        }
        match (self, account) {
            (Self::Memory(_) | Self::Sqlite(_), _) => Ok(Vec::new()),
            (Self::Redis(outbox), Some(account)) => outbox.ledger().leases_of(account).await,
            (Self::Redis(outbox), None) => outbox.ledger().all_leases().await,
        }
    }

    /// What this gateway's leases have done; all zero where it has none.
    #[must_use]
    pub fn lease_counts(&self) -> LeaseCounts {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => LeaseCounts::default(),
            Self::Redis(outbox) => outbox.ledger().lease_counts().unwrap_or_default(),
        }
    }

    /// Adds up, again and again, what the journals have got. Does not end.
    pub async fn roll_up(&self) {
        if let Self::Memory(_) = self {
            pending::<()>().await;
        }
        let mut roller = Roller::default();
        let mut has_warned = false;
        loop {
            tokio::time::sleep(ROLL_UP_EVERY).await;
            match roller.round(self).await {
                Ok(0) => has_warned = false,
                Ok(lines) => {
                    has_warned = false;
                    tracing::debug!(lines, "rolled up");
                }
                // Reports read the journals meanwhile.
                Err(error) if !has_warned => {
                    has_warned = true;
                    tracing::warn!(
                        error = &error as &dyn Error,
                        "journals are not rolled up for now"
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Gives back what no call holds; nothing is held by this gateway itself from here on.
    pub async fn give_back(&self) {
        if let Self::Redis(outbox) = self
            && !outbox.ledger().give_back().await
        {
            tracing::warn!("some leases could not be given back: they end when their time is over");
        }
    }

    /// Writes what is queued and lets go of the file. Nothing may be asked of the store afterwards.
    /// Says whether what the ledger could not be told is kept on this machine.
    pub async fn close(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Sqlite(ledger) => {
                ledger.close().await;
                false
            }
            Self::Redis(outbox) => {
                let kept = outbox.sync().await;
                outbox.log().close().await;
                if let Err(error) = &kept {
                    tracing::error!(%error, "the outbox could not be written");
                }
                kept.is_ok()
            }
        }
    }
}

/// How often journals are rolled up.
const ROLL_UP_EVERY: Duration = Duration::from_secs(5);
/// Between two tries to open what may be had later.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long a Redis may load its data while a gateway starts.
const LOADING_WAIT: Duration = Duration::from_secs(600);

/// What this gateway is called where leases are listed: its machine, and its outbox there.
fn owner(outbox: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), outbox.display())
}

/// Why something cannot be opened.
trait Cause {
    /// What has to happen before it can be; `None` where that is not to be waited for.
    fn awaits(&self) -> Option<&'static str>;
}

impl Cause for OpenError {
    fn awaits(&self) -> Option<&'static str> {
        matches!(self, Self::InUse { .. }).then_some(LET_GO)
    }
}

impl Cause for LogError {
    fn awaits(&self) -> Option<&'static str> {
        matches!(self, Self::InUse { .. }).then_some(LET_GO)
    }
}

impl Cause for LedgerError {
    fn awaits(&self) -> Option<&'static str> {
        let Self::Unavailable(cause) = self else {
            return None;
        };
        let fault = cause.downcast_ref::<RedisFault>()?;
        fault.is_loading().then_some("Redis to load its data")
    }
}

const LET_GO: &str = "another process to let go of the file";

/// Opens something; while it may be had later, tries again for so long.
async fn patiently<T, E: Cause, F: Future<Output = Result<T, E>>>(
    patience: Duration,
    field: &str,
    mut open: impl FnMut() -> F,
) -> Result<T, E> {
    let until = Instant::now() + patience;
    let mut has_warned = false;
    loop {
        let opened = open().await;
        let awaited = opened.as_ref().err().and_then(E::awaits);
        let Some(awaited) = awaited.filter(|_| Instant::now() < until) else {
            return opened;
        };
        if !has_warned {
            let seconds_max = patience.as_secs();
            tracing::warn!(seconds_max, "{field}: waiting for {awaited}");
            has_warned = true;
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// A ledger that was emptied, or is another one, looks just so.
fn warn_of_new(address: &dyn fmt::Display) {
    tracing::warn!(
        place = %address,
        "the ledger is new and holds no account: if there should be some, stop and look for the old one"
    );
}

/// How long an answer of a server that has been replaced may be on its way.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Whether the ledger is the one that was there. Another server in its place gets the newest charges again.
async fn confirm_server(outbox: &Outbox<RedisLedger, SqliteLog>) -> Result<(), BoxError> {
    match outbox.ledger().watch().await? {
        Watch::Same if !outbox.replay_due() => outbox.confirmed(),
        Watch::Same => drop(outbox.replay().await?),
        Watch::Changed => {
            let mut booked = outbox.replay().await?;
            // The server that was there may have acknowledged some more until it was gone.
            tokio::time::sleep(LAST_WORDS).await;
            booked += outbox.replay().await?;
            outbox.ledger().known();
            tracing::warn!(booked, "another Redis server: newest charges told again");
        }
        Watch::Lost => {
            return Err(
                "the ledger's data set is gone, or another's: nothing is sold on it".into(),
            );
        }
    }
    Ok(())
}

/// Whether an outbox lets its node serve.
fn check_backlog(backlog: &Backlog) -> Result<(), BoxError> {
    let Backlog {
        calls,
        oldest,
        overdue,
        full,
        broken,
    } = backlog;
    if let Some(fault) = broken {
        return Err(format!("ledger.outbox: {fault}").into());
    }
    if *full {
        return Err(format!("ledger.outbox: full: {calls} entries wait for the ledger").into());
    }
    if *overdue {
        let seconds = oldest.unwrap_or_default().as_secs();
        return Err(format!("ledger.outbox: an entry has waited for {seconds} s").into());
    }
    Ok(())
}

/// Why the ledger that `ledger.url` names could not be opened. The URL may hold a password, so it is
/// not shown.
#[derive(Debug)]
pub enum OpenLedgerError {
    /// The file.
    Sqlite(OpenError),
    /// The server.
    Redis(LedgerError),
    /// The file of what the server has still to be told.
    Outbox(LogError),
    /// It could not be read.
    Unread(BoxError),
}

impl fmt::Display for OpenLedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => write!(f, "ledger.url: {error}"),
            Self::Outbox(error) => write!(f, "ledger.outbox: {error}"),
            Self::Unread(_) => f.write_str("ledger.outbox: the file cannot be read"),
            Self::Redis(_) => f.write_str("ledger.url: the Redis server cannot be used"),
        }
    }
}

impl Error for OpenLedgerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Its own words are shown already.
            Self::Sqlite(error) => error.source(),
            Self::Outbox(error) => error.source(),
            Self::Unread(error) => error.source(),
            Self::Redis(error) => Some(error),
        }
    }
}

/// The same call of [`LedgerAdmin`] on whichever ledger it is.
macro_rules! books {
    ($store:expr, $ledger:ident => $call:expr) => {
        match $store {
            AnyLedger::Memory($ledger) => $call,
            AnyLedger::Sqlite($ledger) => $call,
            AnyLedger::Redis(outbox) => {
                let $ledger = outbox.ledger();
                $call
            }
        }
    };
}

/// The same call of [`Ledger`]. The future of a server's answer is large, and would be moved wherever any
/// ledger is asked: so it is boxed.
macro_rules! ask {
    ($store:expr, $ledger:ident => $call:expr) => {
        match $store {
            AnyLedger::Memory($ledger) => $call,
            AnyLedger::Sqlite($ledger) => $call,
            AnyLedger::Redis($ledger) => Box::pin(async { $call }).await,
        }
    };
}

impl Ledger for AnyLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        ask!(self, ledger => ledger.reserve(hold).await)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        ask!(self, ledger => ledger.settle(settlement).await)
    }

    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        ask!(self, ledger => ledger.settle_all(settlements).await)
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.release(number, account, key).await)
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        ask!(self, ledger => ledger.extend(number, account, ttl).await)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.probe(account, key).await)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        ask!(self, ledger => ledger.expire().await)
    }

    async fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.checkpoint(running).await)
    }
}

impl LedgerAdmin for AnyLedger {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.create_account(id, name).await)
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.change_account(id, name, suspended).await)
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.account(id).await)
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        books!(self, ledger => ledger.accounts().await)
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.enter(account, entry).await)
    }

    async fn entry(&self, account: &AccountId, id: &str) -> Result<Option<Entry>, BookError> {
        books!(self, ledger => ledger.entry(account, id).await)
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        books!(self, ledger => ledger.create_key(record, ceilings).await)
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        books!(self, ledger => ledger.change_key(id, change).await)
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        books!(self, ledger => ledger.key(id).await)
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        books!(self, ledger => ledger.keys(account).await)
    }

    async fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> Result<GroupView, BookError> {
        books!(self, ledger => ledger.create_group(account, record, ceilings).await)
    }

    async fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> Result<GroupView, BookError> {
        books!(self, ledger => ledger.change_group(account, id, change).await)
    }

    async fn groups(&self, account: &AccountId) -> Result<Vec<GroupView>, BookError> {
        books!(self, ledger => ledger.groups(account).await)
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        books!(self, ledger => ledger.receipt(number).await)
    }

    async fn receipt_of(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> Result<Receipt, BookError> {
        books!(self, ledger => ledger.receipt_of(account, number).await)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        books!(self, ledger => ledger.journal(account, part).await)
    }

    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        books!(self, ledger => ledger.books(account).await)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        books!(self, ledger => ledger.tariff_version(fingerprint).await)
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        books!(self, ledger => ledger.audit().await)
    }
}

impl Feed for AnyLedger {
    async fn set_levels(
        &self,
        account: &AccountId,
        of: &happening::Watched,
        levels: happening::Levels,
    ) -> Result<(), BookError> {
        books!(self, ledger => ledger.set_levels(account, of, levels).await)
    }

    async fn levels(
        &self,
        account: &AccountId,
    ) -> Result<Vec<(happening::Watched, happening::Levels)>, BookError> {
        books!(self, ledger => ledger.levels(account).await)
    }

    async fn gather(&self) -> Result<u64, BookError> {
        books!(self, ledger => ledger.gather().await)
    }

    async fn events(&self, after: u64, limit: usize) -> Result<Vec<happening::Event>, BookError> {
        books!(self, ledger => ledger.events(after, limit).await)
    }

    async fn tell(&self, telling: &Telling) -> Result<bool, BookError> {
        books!(self, ledger => ledger.tell(telling).await)
    }

    async fn note(&self, name: &str) -> Result<Option<Note>, BookError> {
        books!(self, ledger => ledger.note(name).await)
    }

    async fn put_note(&self, name: &str, version: u64, text: &str) -> Result<(), BookError> {
        books!(self, ledger => ledger.put_note(name, version, text).await)
    }

    async fn notes(&self, begins: &str) -> Result<Vec<Note>, BookError> {
        books!(self, ledger => ledger.notes(begins).await)
    }

    async fn lease(&self, name: &str, owner: &str, ttl: Duration) -> Result<bool, BookError> {
        books!(self, ledger => ledger.lease(name, owner, ttl).await)
    }
}

impl Rollup for AnyLedger {
    async fn account_ids(&self) -> Result<Vec<AccountId>, BookError> {
        books!(self, ledger => Rollup::account_ids(ledger).await)
    }

    async fn journals(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> Result<Vec<Option<JournalPage>>, BookError> {
        books!(self, ledger => ledger.journals(parts).await)
    }

    async fn newest_ms(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> Result<Option<Vec<Option<u64>>>, BookError> {
        books!(self, ledger => ledger.newest_ms(parts).await)
    }

    async fn marks(&self) -> Result<Marks, BookError> {
        books!(self, ledger => ledger.marks().await)
    }

    async fn rolled(&self, parts: &[(Scope, Range<u64>)]) -> Result<Rolled, BookError> {
        books!(self, ledger => ledger.rolled(parts).await)
    }

    async fn oldest_sums_ms(&self, scope: &Scope) -> Result<Option<u64>, BookError> {
        books!(self, ledger => ledger.oldest_sums_ms(scope).await)
    }

    fn place_ms(&self, place: &str) -> u64 {
        books!(self, ledger => ledger.place_ms(place))
    }

    async fn sums_at(&self, ids: &[RowId]) -> Result<Vec<Option<Sums>>, BookError> {
        books!(self, ledger => ledger.sums_at(ids).await)
    }

    async fn standing_lines(
        &self,
        account: &AccountId,
        after: Option<&str>,
        before_ms: u64,
    ) -> Result<StandingLines, BookError> {
        books!(self, ledger => ledger.standing_lines(account, after, before_ms).await)
    }

    async fn entries(
        &self,
        account: &AccountId,
        end: &str,
    ) -> Result<Option<Vec<JournalLine>>, BookError> {
        books!(self, ledger => ledger.entries(account, end).await)
    }

    async fn change_sums(&self, change: &Change) -> Result<Option<u64>, BookError> {
        books!(self, ledger => ledger.change_sums(change).await)
    }

    async fn clear_sums(&self) -> Result<(), BookError> {
        books!(self, ledger => ledger.clear_sums().await)
    }
}

impl KeyStore for AnyLedger {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        books!(self, ledger => ledger.find_key(digest).await)
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        books!(self, ledger => ledger.find_key_now(digest))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use futures_util::FutureExt;
    use tollgate_layers::reserve::HoldMode;

    use super::*;

    fn file(path: PathBuf) -> LedgerConfig {
        LedgerConfig {
            url: LedgerUrl::Sqlite(path),
            authorities: None,
            hold: HoldMode::Usual,
            image_tokens: 1,
            document_tokens: 1,
            search_tokens: 1,
            hold_grace: Duration::from_secs(60),
            open_wait: Duration::ZERO,
            outbox: OutboxConfig {
                path: PathBuf::new(),
                calls_max: 1,
                age_max: Duration::from_secs(1),
            },
            lease_max: Duration::ZERO,
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_opened_names_the_setting() {
        let dir = tempfile::tempdir().unwrap();
        let url = file(dir.path().join("missing").join("ledger.db"));
        let error = AnyLedger::open(&url).await.unwrap_err();
        assert!(
            error.to_string().starts_with("ledger.url: cannot open"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_file_that_another_gateway_has_is_waited_for_as_long_as_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = file(dir.path().join("ledger.db"));
        let first = AnyLedger::open(&config).await.unwrap();
        let refused = AnyLedger::open(&config).await.unwrap_err();
        let in_use = |error: &OpenLedgerError| {
            matches!(error, OpenLedgerError::Sqlite(OpenError::InUse { .. }))
        };
        assert!(in_use(&refused), "{refused}");
        config.open_wait = Duration::from_millis(300);
        let refused = AnyLedger::open(&config).await.unwrap_err();
        assert!(in_use(&refused), "{refused}");
        config.open_wait = Duration::from_secs(60);
        let (second, ()) = tokio::join!(AnyLedger::open(&config), first.close().map(drop));
        second.unwrap();
    }

    #[tokio::test]
    async fn a_closed_file_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let url = file(dir.path().join("ledger.db"));
        let store = AnyLedger::open(&url).await.unwrap();
        let id: AccountId = "acme".parse().unwrap();
        store.create_account(&id, "Acme").await.unwrap();
        store.close().await;
        assert_eq!(
            AnyLedger::open(&url)
                .await
                .unwrap()
                .account(&id)
                .await
                .unwrap()
                .name,
            "Acme"
        );
    }
}
