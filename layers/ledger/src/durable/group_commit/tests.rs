use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use rusqlite::ffi;

use super::*;

/// A queue whose changes are numbers. No number is due before a caller waits.
#[derive(Default)]
struct Numbers {
    waiting: Vec<u32>,
    recovered: bool,
}

impl WriteQueue for Numbers {
    type Batch = Vec<u32>;

    const THREAD: &'static str = "numbers-writer";
    const PACE: Pace = Pace {
        // The window is one hour, so that a test fails if it waits for the window.
        window: Duration::from_secs(3_600),
        enough: 3,
        queue_max: 4,
        retry: Duration::from_millis(1),
    };

    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn due(&self, _: Moment) -> Option<Moment> {
        None
    }

    fn take(&mut self, _: Option<Moment>) -> Vec<u32> {
        mem::take(&mut self.waiting)
    }

    fn size(batch: &Vec<u32>) -> usize {
        batch.len()
    }

    fn empty(batch: &mut Vec<u32>) {
        batch.clear();
    }

    fn reuse(&mut self, _: Vec<u32>) {}

    fn put_back(&mut self, mut batch: Vec<u32>, cause: &rusqlite::Error) -> bool {
        batch.append(&mut self.waiting);
        self.waiting = batch;
        cause.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
    }

    fn recovered(&mut self) {
        self.recovered = true;
    }

    fn explain(fault: &Fault) -> String {
        format!("{fault:?}")
    }

    fn report(_: &Incident<'_>) {}
}

fn error(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
}

type Batches = Arc<Mutex<Vec<Vec<u32>>>>;

/// Starts a writer that records its batches. `before` runs before each commit and can make it fail.
fn started(
    mut before: impl FnMut(&[u32]) -> rusqlite::Result<()> + Send + 'static,
) -> (GroupCommit<Numbers>, Batches) {
    let batches = Batches::default();
    let written = Arc::clone(&batches);
    let commit = move |_: &mut Connection, batch: &mut Vec<u32>, _: bool| {
        before(batch)?;
        written.lock().unwrap().push(batch.clone());
        Ok(())
    };
    let conn = Connection::open_in_memory().unwrap();
    let lock = tempfile::tempfile().unwrap();
    let writer = GroupCommit::start(Numbers::default(), conn, FileLock(lock), commit).unwrap();
    (writer, batches)
}

fn queue(writer: &GroupCommit<Numbers>, number: u32, urgency: Urgency) -> Committed {
    let mut state = writer.lock().unwrap();
    state.queue.waiting.push(number);
    let committed = state.wait();
    writer.submit(state, urgency);
    committed
}

#[tokio::test]
async fn full_batch_or_urgent_change_commits_everything_queued() {
    let (writer, batches) = started(|_| Ok(()));
    let mut last = None;
    for number in [1, 2, 3] {
        last = Some(queue(&writer, number, Urgency::Batch));
    }
    writer.committed(last.unwrap()).await.unwrap();
    let gathered = queue(&writer, 4, Urgency::Batch);
    let hurried = queue(&writer, 5, Urgency::Immediate);
    writer.committed(hurried).await.unwrap();
    writer.committed(gathered).await.unwrap();
    assert_eq!(*batches.lock().unwrap(), [vec![1, 2, 3], vec![4, 5]]);
}

#[tokio::test]
async fn closed_writer_writes_its_queue_and_refuses_later_changes() {
    let (writer, batches) = started(|_| Ok(()));
    let queued = queue(&writer, 1, Urgency::Batch);
    let first = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&first);
    writer
        .close(move || done.store(true, Ordering::Relaxed))
        .await;
    assert!(first.load(Ordering::Relaxed));
    writer.committed(queued).await.unwrap();
    assert_eq!(*batches.lock().unwrap(), [vec![1]]);
    let refused = writer.lock().unwrap().takes_more().unwrap_err();
    assert_eq!(refused.to_string(), "Closed");
}

#[tokio::test]
async fn batch_that_was_put_back_after_an_error_is_written_before_later_changes() {
    let (failed, failures) = mpsc::sync_channel(2);
    let full = Arc::new(AtomicBool::new(true));
    let disk = Arc::clone(&full);
    let (writer, batches) = started(move |batch| {
        if disk.load(Ordering::Relaxed) {
            let _ = failed.try_send(batch.to_vec());
            return Err(error(ffi::SQLITE_FULL));
        }
        Ok(())
    });
    let lost = queue(&writer, 1, Urgency::Immediate);
    // The waiting caller gets an error, but the commit is retried.
    assert!(writer.committed(lost).await.is_err());
    assert!(matches!(writer.fault(), Some(Fault::Passing(_))));
    writer.lock().unwrap().takes_more().unwrap();
    for _ in 0..2 {
        assert_eq!(failures.recv().unwrap(), [1]);
    }
    full.store(false, Ordering::Relaxed);
    let mut number = 1;
    loop {
        number += 1;
        let next = queue(&writer, number, Urgency::Immediate);
        if writer.committed(next).await.is_ok() {
            break;
        }
    }
    assert!(writer.fault().is_none());
    assert!(writer.lock().unwrap().queue.recovered);
    let written = batches.lock().unwrap().concat();
    assert_eq!(written, (1..=number).collect::<Vec<_>>());
}

#[tokio::test]
async fn writer_refuses_changes_after_a_permanent_disk_error() {
    for panics in [false, true] {
        let (writer, batches) = started(move |_| {
            assert!(!panics, "the test panics");
            Err(error(ffi::SQLITE_CORRUPT))
        });
        let lost = queue(&writer, 1, Urgency::Immediate);
        let cause = writer.committed(lost).await.unwrap_err().to_string();
        assert!(
            cause.starts_with(if panics { "Stopped" } else { "Broken" }),
            "{cause}"
        );
        writer.close(|| {}).await;
        assert!(writer.lock().unwrap().takes_more().is_err());
        assert_eq!(batches.lock().unwrap().len(), 0);
    }
}

#[test]
fn queue_at_its_limit_refuses_changes() {
    let writer = GroupCommit::without_thread(Numbers::default());
    for number in 0..4 {
        assert!(!writer.lock().unwrap().is_full(), "{number}");
        drop(queue(&writer, number, Urgency::Batch));
    }
    assert!(writer.lock().unwrap().is_full());
}
