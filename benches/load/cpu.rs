//! CPU time of processes, user and system together, as the kernel counts it.

use std::{fs, io, time::Duration};

/// The processes whose work counts for one target.
#[derive(Clone, Debug)]
pub(crate) struct Processes(Vec<u32>);

impl Processes {
    pub(crate) fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self(pids.into_iter().collect())
    }

    /// The CPU time that these processes have used since their start.
    pub(crate) fn used(&self) -> io::Result<Duration> {
        self.0.iter().map(|pid| used(*pid)).sum()
    }
}

/// `schedstat` counts nanoseconds per thread; `stat` counts hundredths of a second, and a second of 500 calls takes
/// only about three of them. No thread of a measured process ends during the measurement, so none is missed.
fn used(pid: u32) -> io::Result<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
            return used_by_stat(pid);
        };
        nanos += number(text.split(' ').next())?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// For kernels without `schedstat`: `utime` and `stime` of proc_pid_stat(5).
fn used_by_stat(pid: u32) -> io::Result<Duration> {
    /// `USER_HZ`, the same on every architecture that we build for.
    const TICKS_A_SECOND: u64 = 100;
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses. It may contain spaces and parentheses.
    let behind_name = text.rsplit(')').next().unwrap_or_default();
    let mut fields = behind_name.split_ascii_whitespace().skip(11);
    let ticks = number(fields.next())? + number(fields.next())?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_A_SECOND))
}

fn number(field: Option<&str>) -> io::Result<u64> {
    field
        .and_then(|field| field.trim().parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}
