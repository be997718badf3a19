//! A SQLite file next to the ledger file, for data that is not part of the books.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, Result, Transaction, TransactionBehavior};

use crate::BoxError;

/// A SQLite file, which the first transaction creates, or a database in memory. Clones share it.
#[derive(Clone)]
pub(crate) struct SideFile(Arc<Inner>);

struct Inner {
    path: Option<PathBuf>,
    schema: &'static str,
    conn: Mutex<Option<Connection>>,
}

impl SideFile {
    /// Sets the path of the file, and the SQL that creates its tables. Without a path, the database is in memory.
    pub(crate) fn new(path: Option<&Path>, schema: &'static str) -> Self {
        Self(Arc::new(Inner {
            path: path.map(Path::to_owned),
            schema,
            conn: Mutex::default(),
        }))
    }

    /// Runs a transaction on one of tokio's blocking threads.
    pub(crate) async fn transact<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T, BoxError> {
        let inner = Arc::clone(&self.0);
        let requested = tokio::task::spawn_blocking(move || -> Result<T, BoxError> {
            let mut conn = inner.conn.lock().unwrap_or_else(PoisonError::into_inner);
            let conn = match &mut *conn {
                Some(conn) => conn,
                none => none.insert(inner.open()?),
            };
            let step = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let answer = run(&step)?;
            step.commit()?;
            Ok(answer)
        });
        requested.await?
    }
}

impl fmt::Debug for SideFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SideFile").field(&self.0.path).finish()
    }
}

impl Inner {
    fn open(&self) -> Result<Connection> {
        let conn = match &self.path {
            None => Connection::open_in_memory()?,
            Some(path) => {
                // The file is created here with restricted permissions, because SQLite would create a file that all
                // users can read. If this fails, SQLite reports the reason.
                #[cfg(unix)]
                {
                    use std::os::unix::fs::OpenOptionsExt;
                    let mut options = std::fs::OpenOptions::new();
                    let made = options.write(true).create(true).truncate(false).mode(0o600);
                    drop(made.open(path));
                }
                Connection::open(path)?
            }
        };
        conn.busy_timeout(Duration::from_secs(5))?;
        conn.execute_batch(self.schema)?;
        Ok(conn)
    }
}
