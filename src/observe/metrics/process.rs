//! Statistics of this process from the Linux kernel, under the names that all Prometheus clients use.

use std::{fs, path::Path};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

use super::parts::Parts;
use crate::net::files::files_max;

/// `USER_HZ`, the unit of CPU time in `/proc`: hundredths of a second, whatever the kernel's own tick is.
const TICKS_PER_SECOND: u32 = 100;

#[derive(Debug, Default)]
pub(super) struct Process {
    cpu: Counter<f64, Parts<TICKS_PER_SECOND>>,
    resident: Gauge,
    open_files: Gauge,
    files_max: Gauge,
}

impl Process {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let process = Self::default();
        series! { registry, process:
            cpu "process_cpu_seconds" "CPU time, in user and kernel mode";
            resident "process_resident_memory_bytes" "Resident memory";
            open_files "process_open_fds" "Open file descriptors, including sockets";
            files_max "process_max_fds" "Maximum number of open files";
        }
        process
    }

    /// Reads the statistics. A value that cannot be read keeps its last known value.
    pub(super) fn read(&self) {
        if let Some(ticks) = read("stat").as_deref().and_then(cpu_ticks) {
            self.cpu.inner().set(ticks);
        }
        if let Some(bytes) = read("status").as_deref().and_then(resident_bytes) {
            self.resident.set(bytes);
        }
        if let Some(count) = open_files() {
            self.open_files.set(count);
        }
        self.files_max
            .set(i64::try_from(files_max()).unwrap_or(i64::MAX));
    }
}

fn read(name: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/self").join(name)).ok()
}

/// Returns the CPU time of the process, in ticks: fields 14 and 15 of `/proc/self/stat`, see proc(5). Field 2 may
/// contain spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: i64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

fn open_files() -> Option<i64> {
    let folder = Path::new("/proc/self/fd");
    // Since Linux 6.2, the size of this directory is the number of open files, so a long directory need not be read.
    let count = match fs::metadata(folder).ok()?.len() {
        // One of the open files is the directory itself, which is being read.
        0 => fs::read_dir(folder).ok()?.count().saturating_sub(1) as u64,
        count => count,
    };
    i64::try_from(count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_statistics_are_parsed() {
        let stat =
            "7 (a (b) c) S 1 7 7 0 -1 4194560 900 0 3 0 250 31 0 0 20 0 9 0 100 1 2 3 4 5 6 7";
        assert_eq!(cpu_ticks(stat), Some(281));
        let status = "Name:\ttollgate\nVmPeak:\t  900 kB\nVmRSS:\t   12 kB\n";
        assert_eq!(resident_bytes(status), Some(12 * 1024));
        for broken in ["", "7 (a) S", "7 (a) S 1 7 7 0 -1 4194560 900 0 3 0 x y"] {
            assert_eq!(cpu_ticks(broken), None, "{broken}");
            assert_eq!(resident_bytes(broken), None, "{broken}");
        }
    }

    #[test]
    fn statistics_of_this_process_are_read() {
        let process = Process::default();
        process.read();
        assert!(process.resident.get() > 1024 * 1024);
        assert!(process.open_files.get() >= 3);
        assert!(process.files_max.get() >= process.open_files.get());
    }
}
