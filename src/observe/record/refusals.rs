//! Bounds the log lines of refused requests: in each interval, the first refusals of an address block, account and
//! cause have a line each, and one line counts all further refusals.

use std::{
    collections::HashMap,
    mem,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};
use tollgate_ledger::account::AccountId;

/// The interval over which refusals are counted.
const INTERVAL: Duration = Duration::from_secs(10);

/// The maximum lines per address block, account and cause in an interval.
const LINES_MAX: u64 = 10;

/// The maximum rows of an interval. Further refusals are counted by cause only.
const ROWS_MAX: usize = 1024;

/// The address, account and cause by which refusals are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// The client's address block; `None` if it is unknown, or if the table is full.
    pub(crate) address: Option<IpAddr>,
    /// The account, if the API key is known.
    pub(crate) account: Option<AccountId>,
    /// The code of the refusal.
    pub(crate) cause: &'static str,
}

/// Decides which refusals have a log line, and logs the counts of the others. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusalLines(Arc<Mutex<Interval>>);

#[derive(Debug, Default)]
struct Interval {
    began: Option<Instant>,
    rows: HashMap<Source, u64>,
    /// Whether a task waits for the end of the interval.
    is_awaited: bool,
}

impl RefusalLines {
    /// Counts a refusal. Returns whether the refusal has a log line of its own.
    pub(crate) fn admit(&self, source: Source) -> bool {
        // The ended interval is dropped after the lock is released, because its `Drop` logs the counts.
        let _ended = self.end_if_over();
        let mut interval = lock(&self.0);
        interval.began.get_or_insert_with(Instant::now);
        let is_new = !interval.rows.contains_key(&source);
        let row = match source {
            Source { cause, .. } if is_new && interval.rows.len() >= ROWS_MAX => Source {
                address: None,
                account: None,
                cause,
            },
            source => source,
        };
        let count = interval.rows.entry(row).or_default();
        *count += 1;
        let has_line = *count <= LINES_MAX;
        if !has_line && !mem::replace(&mut interval.is_awaited, true) {
            self.await_end();
        }
        has_line
    }

    /// Takes the counts of the interval, if its time is over.
    fn end_if_over(&self) -> Option<Interval> {
        let mut interval = lock(&self.0);
        let is_over = interval
            .began
            .is_some_and(|began| began.elapsed() >= INTERVAL);
        is_over.then(|| mem::take(&mut *interval))
    }

    /// Ends the interval when its time is over, even if no further request arrives.
    fn await_end(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let interval = Arc::downgrade(&self.0);
        runtime.spawn(async move {
            tokio::time::sleep(INTERVAL).await;
            if let Some(interval) = interval.upgrade() {
                Self(interval).end_if_over();
            }
        });
    }
}

/// Logs the counts, at the end of an interval and when the process stops.
impl Drop for Interval {
    fn drop(&mut self) {
        for (
            Source {
                address,
                account,
                cause,
            },
            count,
        ) in self.rows.drain()
        {
            if let Some(more) = count.checked_sub(LINES_MAX).filter(|more| *more > 0) {
                tracing::info!(
                    target: "refusals",
                    address = address.map(tracing::field::display),
                    account = account.as_deref(),
                    code = cause,
                    count = more,
                    seconds = INTERVAL.as_secs(),
                    "further refusals without log lines of their own"
                );
            }
        }
    }
}

fn lock(interval: &Mutex<Interval>) -> MutexGuard<'_, Interval> {
    interval.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing::subscriber::with_default;

    use super::*;

    fn source(address: u32, cause: &'static str) -> Source {
        Source {
            address: Some(IpAddr::V4(address.into())),
            account: None,
            cause,
        }
    }

    /// Returns the lines that are logged while `run` runs.
    fn lines(run: impl FnOnce()) -> Vec<String> {
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Written {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let out = written.clone();
        let log = tracing_subscriber::fmt()
            .json()
            .with_writer(move || out.clone());
        with_default(log.finish(), run);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn first_refusals_of_a_source_have_log_lines_and_later_refusals_are_counted() {
        let refusals = RefusalLines::default();
        let admitted = |address, cause| {
            (0..1000)
                .filter(|_| refusals.admit(source(address, cause)))
                .count()
        };
        assert_eq!(admitted(1, "path_not_found"), 10);
        assert_eq!(admitted(1, "invalid_api_key"), 10, "another cause");
        assert_eq!(admitted(2, "path_not_found"), 10, "another address");
        tokio::time::advance(INTERVAL).await;
        let counted = lines(|| assert!(refusals.admit(source(1, "path_not_found"))));
        assert_eq!(counted.len(), 3, "{counted:?}");
        assert!(
            counted.iter().all(|line| line.contains("\"count\":990")),
            "{counted:?}"
        );
        assert_eq!(
            lines(|| drop(refusals)),
            [""; 0],
            "one refusal has its line"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_counts_are_logged_even_if_no_further_request_arrives() {
        let refusals = RefusalLines::default();
        for _ in 0..1000 {
            let _ = refusals.admit(source(1, "path_not_found"));
        }
        tokio::time::sleep(INTERVAL + Duration::from_millis(1)).await;
        assert!(lock(&refusals.0).rows.is_empty());
    }

    #[test]
    fn refusals_from_ever_new_addresses_use_bounded_memory_and_log_lines() {
        let refusals = RefusalLines::default();
        let lines =
            (0..100_000).filter(|address| refusals.admit(source(*address, "path_not_found")));
        assert_eq!(lines.count(), ROWS_MAX + LINES_MAX as usize);
        assert_eq!(lock(&refusals.0).rows.len(), ROWS_MAX + 1);
    }
}
