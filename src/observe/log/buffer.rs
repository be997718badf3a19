//! Lines on their way out. Who logs puts a line into memory and goes on; one thread writes what has
//! gathered. A process that is killed loses what was logged in the last [`Bounds::gather`].
//!
//! Not `tracing_appender::non_blocking`: a write for each line where this makes one for some hundred, and half as much
//! CPU again (5000 lines a second into a pipe: 2.5 to 3.1 µs a line of the process, here 1.7 to 2.0). Lossy, it drops
//! lines at once where this waits for room; otherwise a log that nobody reads stops the gateway. Its count of lost
//! lines is nowhere in the log, its guard waits a second at most, and what is logged later is not written.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::json::Stamp;

/// So much is written without waiting for more.
const GATHERED_BYTES_ENOUGH: usize = 64 << 10;

/// How long the end of the process waits for a standard error that nobody reads.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// What lines may wait for, and how many of them.
#[derive(Clone, Copy)]
struct Bounds {
    /// The longest that a line waits for others.
    gather: Duration,
    /// From here on who logs waits for room. As much again may be on its way out.
    bytes_max: usize,
    /// The longest that they do so: a log that nobody reads must not stop the gateway.
    room: Duration,
}

const USUAL: Bounds = Bounds {
    gather: Duration::from_millis(20),
    bytes_max: 4 << 20,
    room: Duration::from_secs(1),
};

/// Where lines go. Clones share it.
#[derive(Clone)]
pub(super) struct Lines(Arc<Shared>);

/// Writes what waits when it is dropped; later lines are written at once.
#[must_use = "what was logged last is written when this is dropped"]
pub struct Flush(Arc<Shared>);

/// Starts the thread that writes to `out`.
///
/// # Panics
/// There can be no further thread.
pub(super) fn start(out: impl Write + Send + 'static) -> (Lines, Flush) {
    start_with(USUAL, out)
}

fn start_with(bounds: Bounds, out: impl Write + Send + 'static) -> (Lines, Flush) {
    let shared = Arc::new(Shared {
        bounds,
        state: Mutex::default(),
        out: Mutex::new(Box::new(out)),
        wake: Condvar::new(),
        room: Condvar::new(),
        ended: Condvar::new(),
    });
    let writing = Arc::clone(&shared);
    thread::Builder::new()
        .name("log".into())
        .spawn(move || writing.run())
        .expect("the system has a thread for the log");
    (Lines(Arc::clone(&shared)), Flush(shared))
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Entry<'a>;

    fn make_writer(&'a self) -> Entry<'a> {
        Entry {
            shared: &self.0,
            urgent: false,
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Entry<'a> {
        Entry {
            shared: &self.0,
            urgent: *metadata.level() <= Level::WARN,
        }
    }
}

/// Takes one line, whole.
pub(super) struct Entry<'a> {
    shared: &'a Shared,
    urgent: bool,
}

impl Write for Entry<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.shared.push(line, self.urgent);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        self.0.wake.notify_one();
        self.0.room.notify_all();
        let ended = self
            .0
            .ended
            .wait_timeout_while(state, FLUSH_TIMEOUT, |state| !state.ended);
        drop(ended);
    }
}

impl fmt::Debug for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flush").finish_non_exhaustive()
    }
}

struct Shared {
    bounds: Bounds,
    state: Mutex<State>,
    out: Mutex<Box<dyn Write + Send>>,
    /// The thread may have something to write.
    wake: Condvar,
    /// It has taken what filled the buffer.
    room: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<u8>,
    /// One of them must not wait.
    urgent: bool,
    /// Somebody has waited for room in vain: nobody else does until there is some.
    stuck: bool,
    /// Lines that were not written, since that was last said.
    lost: usize,
    closed: bool,
    ended: bool,
}

impl Shared {
    fn push(&self, line: &[u8], urgent: bool) {
        let mut state = self.lock();
        if self.is_full(&state) && !state.stuck {
            let waits = |state: &mut State| self.is_full(state) && !state.closed;
            (state, _) = self
                .room
                .wait_timeout_while(state, self.bounds.room, waits)
                .unwrap_or_else(PoisonError::into_inner);
            state.stuck = self.is_full(&state);
        }
        if state.closed {
            drop(state);
            self.write(line);
            return;
        }
        if self.is_full(&state) {
            state.lost += 1;
            return;
        }
        let (first, gathering) = (state.lines.is_empty(), self.waits_for_more(&state));
        state.lines.extend_from_slice(line);
        state.urgent |= urgent;
        // A wake is a system call: only where the thread would sleep on.
        let wakes = first || (gathering && !self.waits_for_more(&state));
        drop(state);
        if wakes {
            self.wake.notify_one();
        }
    }

    fn run(&self) {
        let mut batch = Vec::new();
        while self.next(&mut batch) {
            // What it panics over is printed, and without this thread the log would end.
            let written = catch_unwind(AssertUnwindSafe(|| self.write(&batch)));
            let lost = written.unwrap_or_else(|_| lines_in(&batch));
            batch.clear();
            batch.shrink_to(2 * GATHERED_BYTES_ENOUGH);
            if lost > 0 {
                self.lock().lost += lost;
            }
        }
        self.lock().ended = true;
        self.ended.notify_all();
    }

    /// Takes what has gathered into an empty `batch`. Whether there is anything, or will be.
    fn next(&self, batch: &mut Vec<u8>) -> bool {
        let state = self
            .wake
            .wait_while(self.lock(), |state| state.lines.is_empty() && !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        let (mut state, _) = self
            .wake
            .wait_timeout_while(state, self.bounds.gather, |state| {
                self.waits_for_more(state)
            })
            .unwrap_or_else(PoisonError::into_inner);
        let was_full = self.is_full(&state);
        mem::swap(batch, &mut state.lines);
        state.urgent = false;
        state.stuck = false;
        let lost = mem::take(&mut state.lost);
        drop(state);
        if was_full {
            self.room.notify_all();
        }
        if batch.is_empty() {
            return false;
        }
        if lost > 0 {
            push_lost(batch, lost);
        }
        true
    }

    /// Writes it all. How many lines could not be.
    fn write(&self, mut bytes: &[u8]) -> usize {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        while !bytes.is_empty() {
            match out.write(bytes) {
                Ok(0) => break,
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Whoever has the other end may have asked not to be waited for.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(self.bounds.gather);
                }
                Err(_) => break,
            }
        }
        lines_in(bytes)
    }

    fn is_full(&self, state: &State) -> bool {
        state.lines.len() >= self.bounds.bytes_max
    }

    fn waits_for_more(&self, state: &State) -> bool {
        state.lines.len() < GATHERED_BYTES_ENOUGH && !state.urgent && !state.closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lines_in(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Written here: whoever logs in this thread would wait for itself.
fn push_lost(lines: &mut Vec<u8>, lost: usize) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut stamp = String::new();
    Stamp::default().write(&mut stamp, now.unwrap_or_default());
    let line = format!(
        "{{\"timestamp\":\"{stamp}\",\"level\":\"ERROR\",\
         \"message\":\"lines of the log are lost: they were not taken in time\",\
         \"lines\":{lost},\"target\":\"crate::observe::log\"}}\n"
    );
    lines.extend_from_slice(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use serde_json::Value;
    use tracing::subscriber::with_default;

    use super::{super::json::JsonLines, *};

    const PATIENCE: Duration = Duration::from_secs(10);
    const NEVER: Duration = Duration::from_secs(3600);

    /// Tells each write, and is answered how it ends: well, once nobody answers any more.
    struct Out {
        writes: SyncSender<Vec<u8>>,
        answers: Receiver<io::Result<()>>,
    }

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes.send(bytes.to_vec()).unwrap();
            self.answers.recv().unwrap_or(Ok(()))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A log whose writes are told, and end as they are answered.
    struct Log {
        lines: Lines,
        flush: Flush,
        written: Receiver<Vec<u8>>,
        answer: SyncSender<io::Result<()>>,
    }

    impl Log {
        fn start(bounds: Bounds) -> Self {
            let (writes, written) = sync_channel(100_000);
            let (answer, answers) = sync_channel(10);
            let (lines, flush) = start_with(bounds, Out { writes, answers });
            Self {
                lines,
                flush,
                written,
                answer,
            }
        }

        fn push(&self, line: &str) {
            push(&self.lines, line);
        }

        fn push_urgently(&self, line: &str) {
            self.lines.0.push(line.as_bytes(), true);
        }

        /// What is written next.
        fn next(&self) -> String {
            let bytes = self.written.recv_timeout(PATIENCE).unwrap();
            String::from_utf8(bytes).unwrap()
        }

        /// Lets all writes end well, ends, and gives what was not looked at.
        fn end(self) -> Vec<String> {
            drop(self.answer);
            drop(self.flush);
            let rest = self.written.try_iter();
            rest.map(|bytes| String::from_utf8(bytes).unwrap())
                .collect()
        }
    }

    fn push(lines: &Lines, line: &str) {
        lines.make_writer().write_all(line.as_bytes()).unwrap();
    }

    fn lost(line: &str) -> u64 {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["level"], "ERROR");
        line["lines"].as_u64().unwrap()
    }

    #[test]
    fn lines_of_many_threads_stay_whole_and_in_their_order() {
        const THREADS: usize = 8;
        const LINES: usize = 2000;
        let log = Log::start(USUAL);
        drop(log.answer);
        let lines = &log.lines;
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for nth in 0..LINES {
                        let padding = "x".repeat(nth % 300);
                        push(lines, &format!("{thread} {nth} {padding}\n"));
                    }
                });
            }
        });
        drop(log.flush);
        let writes: Vec<Vec<u8>> = log.written.try_iter().collect();
        assert!(writes.len() < THREADS * LINES, "{}", writes.len());
        let mut next = [0; THREADS];
        for line in String::from_utf8(writes.concat()).unwrap().lines() {
            let mut words = line.split(' ');
            let mut number = || words.next().unwrap().parse::<usize>().unwrap();
            let (thread, nth) = (number(), number());
            assert_eq!(nth, next[thread]);
            assert_eq!(words.next().unwrap().len(), nth % 300);
            next[thread] += 1;
        }
        assert_eq!(next, [LINES; THREADS]);
    }

    #[test]
    fn a_line_goes_out_by_itself() {
        let log = Log::start(USUAL);
        log.push("alone\n");
        assert_eq!(log.next(), "alone\n");
        assert_eq!(log.end(), [""; 0]);
    }

    #[test]
    fn what_warns_does_not_wait_and_takes_along_what_came_before() {
        let log = Log::start(Bounds {
            gather: NEVER,
            ..USUAL
        });
        drop(log.answer);
        let subscriber = tracing_subscriber::fmt()
            .json()
            .event_format(JsonLines::default())
            .with_writer(log.lines.clone())
            .finish();
        let next = || {
            let bytes = log.written.recv_timeout(PATIENCE).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        with_default(subscriber, || {
            tracing::info!("first");
            assert!(log.written.try_recv().is_err());
            tracing::warn!("second");
            let notice = next();
            assert!(
                notice.contains("first") && notice.contains("second"),
                "{notice}"
            );
            tracing::error!("third");
            assert!(next().contains("third"));
        });
    }

    #[test]
    fn much_does_not_wait() {
        let log = Log::start(Bounds {
            gather: NEVER,
            ..USUAL
        });
        log.push("little\n");
        let much = format!("{}\n", "x".repeat(GATHERED_BYTES_ENOUGH));
        log.push(&much);
        assert_eq!(log.next(), format!("little\n{much}"));
        assert_eq!(log.end(), [""; 0]);
    }

    #[test]
    fn what_waits_is_written_at_the_end_and_what_comes_later_at_once() {
        let log = Log::start(Bounds {
            gather: NEVER,
            ..USUAL
        });
        log.push("waits\n");
        drop(log.answer);
        drop(log.flush);
        assert_eq!(log.written.try_recv().unwrap(), b"waits\n");
        push(&log.lines, "late\n");
        assert_eq!(log.written.try_recv().unwrap(), b"late\n");
    }

    #[test]
    fn who_finds_no_room_waits_for_it() {
        let log = Log::start(Bounds {
            bytes_max: 5,
            room: NEVER,
            ..USUAL
        });
        log.push_urgently("first\n");
        assert_eq!(log.next(), "first\n");
        log.push("second\n");
        thread::scope(|scope| {
            let lines = &log.lines;
            let waiting = scope.spawn(move || push(lines, "third\n"));
            log.answer.send(Ok(())).unwrap();
            waiting.join().unwrap();
        });
        assert_eq!(log.end().concat(), "second\nthird\n");
    }

    #[test]
    fn a_log_that_nobody_reads_stops_nobody_and_says_what_is_lost() {
        let log = Log::start(Bounds {
            bytes_max: 5,
            room: Duration::from_millis(1),
            ..USUAL
        });
        log.push_urgently("first\n");
        assert_eq!(log.next(), "first\n");
        log.push("second\n");
        log.push("third\n");
        assert!(log.lines.0.lock().stuck);
        log.push("fourth\n");
        let rest = log.end().concat();
        let (second, notice) = rest.split_once('\n').unwrap();
        assert_eq!(second, "second");
        assert_eq!(lost(notice), 2);
    }

    /// Tells each write, and panics over the first.
    struct Brittle {
        writes: SyncSender<Vec<u8>>,
        whole: bool,
    }

    impl Write for Brittle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes.send(bytes.to_vec()).unwrap();
            assert!(mem::replace(&mut self.whole, true), "a panic of the test's");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_write_that_panics_costs_its_own_lines_and_the_next_ones_say_how_many() {
        let (writes, written) = sync_channel(10);
        let whole = false;
        let (lines, flush) = start_with(USUAL, Brittle { writes, whole });
        lines.0.push(b"first\nsecond\n", true);
        assert_eq!(written.recv_timeout(PATIENCE).unwrap(), b"first\nsecond\n");
        push(&lines, "third\n");
        let next = String::from_utf8(written.recv_timeout(PATIENCE).unwrap()).unwrap();
        let (third, notice) = next.split_once('\n').unwrap();
        assert_eq!(third, "third");
        assert_eq!(lost(notice), 2);
        drop(flush);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let log = Log::start(USUAL);
        log.push_urgently("first\nsecond\n");
        assert_eq!(log.next(), "first\nsecond\n");
        log.answer.send(Err(ErrorKind::StorageFull.into())).unwrap();
        log.answer.send(Err(ErrorKind::WouldBlock.into())).unwrap();
        log.push("third\n");
        let tried = log.next();
        let (third, notice) = tried.split_once('\n').unwrap();
        assert_eq!(third, "third");
        assert_eq!(lost(notice), 2);
        // Tried again.
        assert_eq!(log.end(), [tried]);
    }
}
