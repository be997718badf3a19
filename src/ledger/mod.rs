//! Opens and maintains the configured ledger. [`AnyLedger`] hides which kind of ledger it is.

mod forward;
pub(crate) mod latest;
pub(crate) mod side;

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

use crate::config::{LedgerConfig, LedgerUrl};

/// One of the kinds of ledgers that `ledger.url` can name. Clones share the ledger.
#[derive(Clone, Debug)]
pub enum AnyLedger {
    /// A ledger in memory. Its data is lost when the process ends.
    Memory(MemoryLedger),
    /// A ledger in one SQLite file. Only one gateway can use it.
    Sqlite(SqliteLedger),
    /// A ledger in Redis, which many gateways can share. Each gateway has an outbox: a file on its own disk with the
    /// charges that Redis has not acknowledged.
    Redis(Outbox<RedisLedger, SqliteLog>),
}

impl AnyLedger {
    /// Opens the ledger that `ledger.url` names. If another process has the file open, or if the Redis server is still
    /// loading its data, waits for a limited time. An SQLite file is read and checked on the calling thread, which is
    /// acceptable because no request is served yet.
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
                let (ledger, is_new) = opened.await.map_err(OpenLedgerError::Sqlite)?;
                if is_new {
                    warn_of_new(&path.display());
                }
                Ok(Self::Sqlite(ledger))
            }
            LedgerUrl::Redis(url) => {
                let path = &config.outbox.path;
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
                let warnings = ledger.check_server().await;
                for warning in warnings.map_err(OpenLedgerError::Redis)? {
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
                    calls_max: config.outbox.calls_max,
                    age_max: config.outbox.age_max,
                    ..OutboxSettings::default()
                };
                let opened = Outbox::open(ledger, log, settings).await;
                opened.map(Self::Redis).map_err(OpenLedgerError::Unread)
            }
        }
    }

    /// Settles the calls that an earlier process left unfinished, and gives back that process's leases to the ledger.
    pub async fn recover(&self, report: &(dyn Fn(&Event<'_>) + Send + Sync)) {
        // The other ledgers need no recovery: SQLite recovers when the file is opened, and a ledger in memory ends with
        // its process.
        if let Some(outbox) = self.outbox() {
            outbox.recover(report).await;
            give_back_left(outbox.ledger()).await;
        }
    }

    /// Checks whether calls may be sold on this ledger. If another Redis server has replaced the earlier server, sends
    /// again the charges that the new server may have missed.
    ///
    /// # Errors
    /// The reason why no calls may be sold.
    pub async fn check(&self) -> Result<(), BoxError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Sqlite(ledger) => ledger.check(),
            Self::Redis(outbox) => {
                let confirmed = confirm_server(outbox).await;
                // The outbox's backlog is checked first, because an error about the backlog describes the problem
                // better than an error of the ledger.
                check_backlog(&outbox.backlog())?;
                confirmed
            }
        }
    }

    /// Returns how many charges wait in this machine's outbox to be sent to the ledger; `None` if the ledger has no
    /// outbox.
    #[must_use]
    pub fn backlog(&self) -> Option<Backlog> {
        self.outbox().map(Outbox::backlog)
    }

    /// Returns the counters of this gateway's leases; `None` if this gateway grants no holds from leases.
    fn counts(&self) -> Option<LeaseCounts> {
        self.outbox()?.ledger().lease_counts()
    }

    fn outbox(&self) -> Option<&Outbox<RedisLedger, SqliteLog>> {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => None,
            Self::Redis(outbox) => Some(outbox),
        }
    }

    /// Returns whether this gateway grants holds from leases.
    #[must_use]
    pub fn takes_leases(&self) -> bool {
        self.counts().is_some()
    }

    /// Renews this gateway's leases, and gives back leases that are not needed. Never completes.
    pub async fn tend_leases(&self) {
        match self.outbox() {
            None => pending().await,
            Some(outbox) => outbox.ledger().tend_leases().await,
        }
    }

    /// Returns the leases of one account, or of all accounts, held by any gateway. Empty for a ledger in memory or in
    /// SQLite, which has no leases.
    ///
    /// # Errors
    /// An error if the ledger is unreachable, or if the account does not exist.
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

    /// Returns the counters of this gateway's leases; all are zero if it takes no leases.
    #[must_use]
    pub fn lease_counts(&self) -> LeaseCounts {
        self.counts().unwrap_or_default()
    }

    /// Periodically adds new journal lines to the sums of the roll-up. Never completes.
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
                // Until the roll-up works again, reports read the journals instead of the sums.
                Err(error) if !has_warned => {
                    has_warned = true;
                    tracing::warn!(
                        error = &error as &dyn Error,
                        "the roll-up of journals failed: reports read the journals until it works again"
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Gives back to the ledger the leased money that no call holds. After this, every hold is requested from the
    /// ledger.
    pub async fn give_back(&self) {
        if let Self::Redis(outbox) = self
            && !outbox.ledger().give_back().await
        {
            tracing::warn!("some leases could not be returned to the ledger; they will expire");
        }
    }

    /// Writes queued changes and closes the ledger's file. The ledger must not be used afterwards. Returns whether this
    /// machine's outbox still has charges that the ledger has not acknowledged.
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
                    tracing::error!(%error, "the outbox file could not be written");
                }
                stored.is_ok()
            }
        }
    }
}

/// Gives back to the ledger the leases of an earlier process. Called after the recovery, when all charges against these
/// leases are in the ledger.
async fn give_back_left(ledger: &RedisLedger) {
    loop {
        match ledger.give_back_left(LEFT_FOR).await {
            Ok(0) => return,
            Ok(leases) => {
                return tracing::info!(
                    leases,
                    "returned the leases of an earlier process to the ledger"
                );
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn Error,
                    "could not return the leases of an earlier process to the ledger"
                );
                tokio::time::sleep(LEFT_FOR).await;
            }
        }
    }
}

/// The interval at which new journal lines are added to the sums of the roll-up.
const ROLL_UP_EVERY: Duration = Duration::from_secs(5);
/// The pause before a ledger that is not available yet is opened again.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// The maximum time for which a starting gateway waits for a Redis server that is loading its data.
const LOADING_WAIT: Duration = Duration::from_secs(600);

/// Returns the name of this gateway in lists of leases: the name of its machine, and the path of its outbox on this
/// machine.
fn owner(outbox: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), outbox.display())
}

/// The reason why the ledger or its outbox could not be opened.
trait Cause {
    /// The text that is logged while waiting for another attempt, for example "waiting for Redis to load its data".
    /// `None` if another attempt is useless.
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
        let is_loading = cause.downcast_ref::<RedisFault>()?.is_loading();
        is_loading.then_some("waiting for Redis to load its data")
    }
}

const LET_GO: &str = "waiting for another process to release the file";

/// Opens a ledger or an outbox. If it is not available yet, tries again for at most `patience`.
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
            tracing::warn!(seconds_max, "{field}: {awaited}");
            has_warned = true;
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Warns that the ledger is new, because a ledger that has lost its data, or was opened by mistake, looks new, too.
fn warn_of_new(address: &dyn fmt::Display) {
    tracing::warn!(
        place = %address,
        "the ledger is new and has no accounts: if it should have accounts, stop the gateway and check ledger.url"
    );
}

/// How long a Redis server that was replaced may still acknowledge charges.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Checks that the ledger still has the same data set. If another Redis server has replaced the earlier server, sends
/// the newest charges again.
async fn confirm_server(outbox: &Outbox<RedisLedger, SqliteLog>) -> Result<(), BoxError> {
    match outbox.ledger().watch().await? {
        Watch::Same if !outbox.replay_due() => outbox.confirmed(),
        Watch::Same => drop(outbox.replay().await?),
        Watch::Changed => {
            let mut booked = outbox.replay().await?;
            // The old server may have acknowledged charges until it stopped, so the newest charges are sent again only
            // after this pause.
            tokio::time::sleep(LAST_WORDS).await;
            booked += outbox.replay().await?;
            outbox.ledger().known();
            tracing::warn!(
                booked,
                "Redis was replaced or restarted: the newest charges were sent again"
            );
        }
        Watch::Lost => {
            return Err(
                "the ledger's data set is missing or belongs to another ledger: no call is admitted".into(),
            );
        }
    }
    Ok(())
}

/// Returns an error if this node must not serve because of its outbox: it has too many charges, or a charge that has
/// waited too long.
fn check_backlog(backlog: &Backlog) -> Result<(), BoxError> {
    let problem = if let Some(fault) = &backlog.broken {
        fault.to_string()
    } else if backlog.full {
        let calls = backlog.calls;
        format!("the outbox is full: {calls} entries wait for the ledger")
    } else if backlog.overdue {
        let seconds = backlog.oldest.unwrap_or_default().as_secs();
        format!("an entry has waited {seconds} s for Redis")
    } else {
        return Ok(());
    };
    Err(format!("ledger.outbox: {problem}").into())
}

/// The reason why the ledger that `ledger.url` names could not be opened. The messages never contain the URL, which may
/// contain a password.
#[derive(Debug)]
pub enum OpenLedgerError {
    /// The SQLite file of the ledger could not be opened.
    Sqlite(OpenError),
    /// The Redis server could not be used.
    Redis(LedgerError),
    /// The outbox file could not be opened.
    Outbox(LogError),
    /// The outbox file could not be read.
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
            // The text of this variant already includes the text of its error. So the next cause in the chain is the
            // source of that error.
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
    use crate::config::OutboxConfig;

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
            refused_calls: None,
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
    async fn gateway_waits_for_a_ledger_file_in_use_only_for_the_configured_time() {
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
