//! Prints the progress of a long command on standard error. On a terminal, one line is overwritten; in a log, a new
//! line is written at intervals.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use tokio::time::Instant;

const ON_TERMINAL_EVERY: Duration = Duration::from_millis(500);
const IN_LOG_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    total: Option<u64>,
    begun: Instant,
    next: Instant,
    terminal: bool,
    shown: bool,
}

impl Progress {
    pub(super) fn new(what: &'static str, total: Option<u64>) -> Self {
        let terminal = io::stderr().is_terminal();
        let begun = Instant::now();
        Self {
            what,
            total,
            begun,
            next: begun + every(terminal),
            terminal,
            shown: false,
        }
    }

    /// Reports how many items are done; prints at most once per interval.
    pub(super) fn at(&mut self, done: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + every(self.terminal);
        self.shown = true;
        let text = reported(self.what, done, self.total, now - self.begun);
        if self.terminal {
            eprint!("\r\x1b[K{text}");
        } else {
            eprintln!("{text}");
        }
    }
}

/// Erases the progress line from the terminal.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

const fn every(terminal: bool) -> Duration {
    if terminal {
        ON_TERMINAL_EVERY
    } else {
        IN_LOG_EVERY
    }
}

fn reported(what: &str, done: u64, total: Option<u64>, took: Duration) -> String {
    let of = total.map_or_else(String::new, |total| format!(" of {total}"));
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
    format!(
        "{done}{of} {what}, {} a second",
        done.saturating_mul(1000) / ms
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_count_and_speed() {
        let took = Duration::from_secs(2);
        assert_eq!(
            reported("accounts", 500, Some(1000), took),
            "500 of 1000 accounts, 250 a second"
        );
        assert_eq!(
            reported("lines", 3, None, Duration::ZERO),
            "3 lines, 3000 a second"
        );
    }
}
