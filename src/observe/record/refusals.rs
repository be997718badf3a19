//! Bounds the number of log lines about refused requests. In each interval, the first refusals with the same address
//! block, account and cause each get a log line. One further line has the number of all later refusals.

use std::{collections::HashMap, mem, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{runtime::Handle, time::Instant};
use tollgate_ledger::account::AccountId;

/// The length of an interval in which refusals are counted together.
const INTERVAL: Duration = Duration::from_secs(10);

/// The maximum number of log lines per address block, account and cause in an interval.
const LINES_MAX: u64 = 10;

/// The maximum number of combinations of address block, account and cause that are counted in an interval. Further
/// refusals are counted by cause only.
const ROWS_MAX: usize = 1024;

/// The criteria by which refusals are counted: address block, account and cause.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// The client's address block; `None` if it is unknown, or if the table of the interval is full.
    pub(crate) address: Option<IpAddr>,
    /// The account, if the request had a valid key.
    pub(crate) account: Option<AccountId>,
    /// The code of the refusal.
    pub(crate) cause: &'static str,
}

/// Decides which refusals get a log line of their own, and logs the number of all other refusals. Clones share the
/// counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusalLines(Arc<Mutex<Interval>>);

#[derive(Debug, Default)]
struct Interval {
    began: Option<Instant>,
    rows: HashMap<Source, u64>,
    /// Whether a task is waiting for the end of this interval.
    is_awaited: bool,
}

impl RefusalLines {
    /// Counts a refusal. Returns whether it gets a log line.
    pub(crate) fn admit(&self, source: Source) -> bool {
        // The ended interval is dropped after the lock has been released, because dropping it logs the counts.
        let _ended = self.end_if_over();
        let mut interval = self.0.lock();
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

    /// Takes the counts of the interval, if the interval is over.
    fn end_if_over(&self) -> Option<Interval> {
        let mut interval = self.0.lock();
        let is_over = (interval.began).is_some_and(|began| began.elapsed() >= INTERVAL);
        is_over.then(|| mem::take(&mut *interval))
    }

    /// Starts a task that ends the interval when its time is over, even if no further request arrives.
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

/// Logs the counts when an interval ends and when the process stops.
impl Drop for Interval {
    fn drop(&mut self) {
        for (source, count) in self.rows.drain() {
            if let Some(more) = count.checked_sub(LINES_MAX).filter(|more| *more > 0) {
                tracing::info!(
                    target: "refusals",
                    address = source.address.map(tracing::field::display),
                    account = source.account.as_deref(),
                    code = source.cause,
                    count = more,
                    seconds = INTERVAL.as_secs(),
                    "further refusals were counted, but not logged one by one"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;

    use super::*;
    use crate::observe::testing::Written;

    fn source(address: u32, cause: &'static str) -> Source {
        Source {
            address: Some(IpAddr::V4(address.into())),
            account: None,
            cause,
        }
    }

    /// Returns the lines that `run` logs.
    fn lines(run: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let log = tracing_subscriber::fmt().json();
        with_default(log.with_writer(written.writer()).finish(), run);
        written.text().lines().map(str::to_owned).collect()
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
        assert!(refusals.0.lock().rows.is_empty());
    }

    #[test]
    fn refusals_from_many_addresses_use_bounded_memory_and_a_bounded_number_of_log_lines() {
        let refusals = RefusalLines::default();
        let lines =
            (0..100_000).filter(|address| refusals.admit(source(*address, "path_not_found")));
        assert_eq!(lines.count(), ROWS_MAX + LINES_MAX as usize);
        assert_eq!(refusals.0.lock().rows.len(), ROWS_MAX + 1);
    }
}
