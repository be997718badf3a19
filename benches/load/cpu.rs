//! Reads the CPU time of processes, in user and system mode together, from the kernel.

use std::{fs, io, time::Duration};

/// The processes whose CPU time is attributed to one target.
#[derive(Clone, Debug)]
pub(crate) struct Processes(Vec<u32>);

impl Processes {
    pub(crate) fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self(pids.into_iter().collect())
    }

    /// Returns the CPU time that these processes have used since their start.
    pub(crate) fn used(&self) -> io::Result<Duration> {
        self.0.iter().map(|pid| used(*pid)).sum()
    }
}

/// Returns the CPU time of a process, from `schedstat`, which counts nanoseconds for each thread. `stat` is too coarse:
/// it counts hundredths of a second, and 500 calls take only about three of these. The threads of a measured process do
/// not end during a measurement, so `schedstat` counts all of them.
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

/// Returns the sum of `utime` and `stime` of proc_pid_stat(5), for a kernel without `schedstat`.
fn used_by_stat(pid: u32) -> io::Result<Duration> {
    /// The kernel's clock ticks per second (`USER_HZ`), which are the same on every architecture that we build for.
    const TICKS_A_SECOND: u64 = 100;
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses. The name may itself contain spaces and parentheses.
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
