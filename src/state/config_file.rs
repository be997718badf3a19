//! The configuration file of this process, and requests to apply it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// How long a request waits for the file to be applied.
const APPLY_TIME_MAX: Duration = Duration::from_secs(10);

/// The file that this process was started with.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: Option<PathBuf>,
    requests: mpsc::Sender<oneshot::Sender<bool>>,
}

/// Requests to apply the file. The answer to each request is whether the file's content is in force.
pub type ReloadRequests = mpsc::Receiver<oneshot::Sender<bool>>;

impl ConfigFile {
    /// Creates the handle of a file. `None` means that the configuration is not from a file.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> (Self, ReloadRequests) {
        let (requests, received) = mpsc::channel(1);
        (Self { path, requests }, received)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Requests that the file is applied now, and returns whether its content is in force. Returns false if the process
    /// is busy or applies no files; then the next check of the files applies the file.
    pub async fn apply(&self) -> bool {
        let (done, applied) = oneshot::channel();
        let requested = async {
            self.requests.send(done).await.ok()?;
            applied.await.ok()
        };
        matches!(timeout(APPLY_TIME_MAX, requested).await, Ok(Some(true)))
    }
}
