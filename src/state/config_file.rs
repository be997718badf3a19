//! The configuration file of this process, and a way to request that it is applied.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// How long a request to apply the file waits until the file is applied.
const APPLY_TIME_MAX: Duration = Duration::from_secs(10);

/// The file with which this process was started.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: Option<PathBuf>,
    requests: mpsc::Sender<oneshot::Sender<bool>>,
}

/// Receives requests to apply the file. The response to a request is whether the file's content is in force.
pub type ReloadRequests = mpsc::Receiver<oneshot::Sender<bool>>;

impl ConfigFile {
    /// Creates the handle of a configuration file. `path` is `None` if the configuration is not from a file.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> (Self, ReloadRequests) {
        let (requests, received) = mpsc::channel(1);
        (Self { path, requests }, received)
    }

    /// Returns the path of the configuration file; `None` if the configuration is not from a file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Applies the file now, and returns whether its content is in force. Returns false if the process is busy or does
    /// not reload files. If the process was only busy, its next check of the files applies the file.
    pub async fn apply(&self) -> bool {
        let (done, applied) = oneshot::channel();
        let requested = async {
            self.requests.send(done).await.ok()?;
            applied.await.ok()
        };
        matches!(timeout(APPLY_TIME_MAX, requested).await, Ok(Some(true)))
    }
}
