//! The ledger that the configuration names, behind one type.

mod forward;
pub(crate) mod latest;

use std::{
    error::Error,
    fmt, fs,
    future::{pending, ready},
    path::Path,
    time::Duration,
};

use tokio::time::Instant;
use tollgate_ledger::{
    BoxError,
    account::AccountId,
    conn::RedisFault,
    contract::{BookError, LedgerAdmin, LedgerError},
    memory::MemoryLedger,
    outbox::{
        Backlog, Outbox, OutboxSettings,
        sqlite::{LogError, SqliteLog},
    },
    redis::{LEFT_FOR, LeaseCounts, LeaseSettings, LeaseView, RedisLedger, RedisSettings, Watch},
    rollup::Roller,
    settle::Event,
    sqlite::{OpenError, SqliteLedger},
};

use crate::config::{LedgerConfig, LedgerUrl, OutboxConfig};

/// One of the ledgers that a configuration can name. Clones share it.
#[derive(Clone, Debug)]
pub enum AnyLedger {
    /// A ledger in memory, which ends with the process.
    Memory(MemoryLedger),
    /// A ledger in one SQLite file, for one gateway.
    Sqlite(SqliteLedger),
    /// A Redis server, for many gateways; each has an outbox on its own disk for charges that Redis has not
    /// acknowledged.
    Redis(Outbox<RedisLedger, SqliteLog>),
}

impl AnyLedger {
    /// Opens the ledger that `ledger.url` names. Waits a while for a file that another process has open, and for a
    /// Redis server that is loading its data. An SQLite file is read and checked on this thread, because no request is
    /// served yet.
    ///
    /// # Errors
    /// [`OpenLedgerError`] if the ledger or its outbox cannot be opened.
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
                if config.has_leases() {
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

    /// Ends the calls that an earlier process left unfinished, and returns its leases.
    pub async fn recover(&self, report: &(dyn Fn(&Event<'_>) + Send + Sync)) {
        match self {
            // No work is needed: SQLite recovers when it is opened, and a ledger in memory ends with its process.
            Self::Memory(_) | Self::Sqlite(_) => {}
            Self::Redis(outbox) => {
                outbox.recover(report).await;
                give_back_left(outbox.ledger()).await;
            }
        }
    }

    /// Checks whether calls may be sold on this ledger. If another server has replaced the earlier server, charges that
    /// the new server may have missed are sent to it again.
    ///
    /// # Errors
    /// An error with the reason why calls must not be sold.
    pub async fn check(&self) -> Result<(), BoxError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Sqlite(ledger) => ledger.check(),
            Self::Redis(outbox) => {
                let confirmed = confirm_server(outbox).await;
                // The outbox's backlog is checked first, because an error about it describes the problem better than
                // the ledger's own error.
                check_backlog(&outbox.backlog())?;
                confirmed
            }
        }
    }

    /// Returns the charges that this machine still has to send to the ledger; `None` for a ledger without an outbox.
    #[must_use]
    pub fn backlog(&self) -> Option<Backlog> {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => None,
            Self::Redis(outbox) => Some(outbox.backlog()),
        }
    }

    /// Returns whether this gateway grants holds from leases.
    #[must_use]
    pub fn takes_leases(&self) -> bool {
        matches!(self, Self::Redis(outbox) if outbox.ledger().lease_counts().is_some())
    }

    /// Renews and returns this gateway's leases. Never returns.
    pub async fn tend_leases(&self) {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => pending().await,
            Self::Redis(outbox) => outbox.ledger().tend_leases().await,
        }
    }

    /// Returns the leases of an account, or of all accounts, on all gateways. The embedded ledgers have no leases.
    ///
    /// # Errors
    /// An error if the ledger is out of reach, or has no such account.
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

    /// Returns counters of this gateway's leases; all zero if it takes no leases.
    #[must_use]
    pub fn lease_counts(&self) -> LeaseCounts {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => LeaseCounts::default(),
            Self::Redis(outbox) => outbox.ledger().lease_counts().unwrap_or_default(),
        }
    }

    /// Periodically adds new journal lines to the rolled-up sums. Never returns.
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
                // Until the roll-up works again, reports read the journals instead.
                Err(error) if !has_warned => {
                    has_warned = true;
                    tracing::warn!(
                        error = &error as &dyn Error,
                        "journals cannot be rolled up at present"
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Returns to the ledger the leased money that no call holds. From then on this gateway grants no hold without the
    /// ledger.
    pub async fn give_back(&self) {
        if let Self::Redis(outbox) = self
            && !outbox.ledger().give_back().await
        {
            tracing::warn!("some leases could not be returned; they will expire");
        }
    }

    /// Writes queued changes and closes the file. The store must not be used afterwards. Returns whether charges that
    /// the ledger has not acknowledged are kept on this machine.
    pub async fn close(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Sqlite(ledger) => {
                ledger.close().await;
                false
            }
            Self::Redis(outbox) => {
                let stored = outbox.sync().await;
                outbox.log().close().await;
                if let Err(error) = &stored {
                    tracing::error!(%error, "the outbox could not be written");
                }
                stored.is_ok()
            }
        }
    }
}

/// Returns to the ledger the leases of an earlier process. Called after recovery, so all charges against them are in
/// the ledger.
async fn give_back_left(ledger: &RedisLedger) {
    loop {
        match ledger.give_back_left(LEFT_FOR).await {
            Ok(0) => return,
            Ok(leases) => {
                tracing::info!(leases, "leases of an earlier process were returned");
                return;
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn Error,
                    "leases of an earlier process are not returned yet"
                );
                tokio::time::sleep(LEFT_FOR).await;
            }
        }
    }
}

/// The interval at which journals are rolled up.
const ROLL_UP_EVERY: Duration = Duration::from_secs(5);
/// Pause between two attempts to open a ledger that is not available yet.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// The time for which a gateway that starts waits for a Redis server that is loading its data.
const LOADING_WAIT: Duration = Duration::from_secs(600);

/// Returns the name of this gateway in lists of leases: its machine, and the path of its outbox there.
fn owner(outbox: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), outbox.display())
}

/// The reason why a ledger or an outbox cannot be opened.
trait Cause {
    /// The condition to wait for before another attempt; `None` if waiting is useless.
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

const LET_GO: &str = "another process to release the file";

/// Opens a ledger or an outbox. If it may be available later, tries again for at most `patience`.
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

/// Warns that the ledger is new: a ledger that was emptied, or the wrong ledger, looks like a new ledger.
fn warn_of_new(address: &dyn fmt::Display) {
    tracing::warn!(
        place = %address,
        "the ledger is new and has no accounts: if it should have some, stop and check which ledger is configured"
    );
}

/// The time for which a Redis server that was replaced may still acknowledge charges.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Checks that the ledger has the same data as before. If another server has replaced it, the newest charges are sent
/// again.
async fn confirm_server(outbox: &Outbox<RedisLedger, SqliteLog>) -> Result<(), BoxError> {
    match outbox.ledger().watch().await? {
        Watch::Same if !outbox.replay_due() => outbox.confirmed(),
        Watch::Same => drop(outbox.replay().await?),
        Watch::Changed => {
            let mut booked = outbox.replay().await?;
            // The old server may have acknowledged further charges until it stopped. So the charges are sent again only
            // after a pause.
            tokio::time::sleep(LAST_WORDS).await;
            booked += outbox.replay().await?;
            outbox.ledger().known();
            tracing::warn!(booked, "another Redis server: newest charges sent again");
        }
        Watch::Lost => {
            return Err(
                "the ledger's data set is missing or belongs to another ledger: no call is admitted".into(),
            );
        }
    }
    Ok(())
}

/// Returns an error if the outbox has too many charges, or a charge that is too old, for this node to serve.
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

/// The reason why the ledger that `ledger.url` names could not be opened. The URL may contain a password, so it is not
/// shown.
#[derive(Debug)]
pub enum OpenLedgerError {
    /// The SQLite file cannot be opened.
    Sqlite(OpenError),
    /// The Redis server cannot be used.
    Redis(LedgerError),
    /// The outbox file cannot be opened.
    Outbox(LogError),
    /// The outbox file cannot be read.
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
            // The text of this variant already contains the error's text, so the next cause is the error's own source.
            Self::Sqlite(error) => error.source(),
            Self::Outbox(error) => error.source(),
            Self::Unread(error) => error.source(),
            Self::Redis(error) => Some(error),
        }
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
            hold_conversations_max: 0,
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
    async fn error_about_a_ledger_file_that_cannot_be_opened_names_the_setting() {
        let dir = tempfile::tempdir().unwrap();
        let url = file(dir.path().join("missing").join("ledger.db"));
        let error = AnyLedger::open(&url).await.unwrap_err();
        assert!(
            error.to_string().starts_with("ledger.url: cannot open"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn ledger_file_in_use_is_waited_for_as_long_as_configured() {
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
    async fn closed_ledger_file_can_be_opened_again() {
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
