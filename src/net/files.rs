//! Divides the number of files that this process may open into shares: one per listener, one for connections to
//! vendors, and one for all other uses. Because of the shares, no listener can use up the files that another listener
//! or an accepted call needs.

use rustix::process::{Resource, getrlimit};

/// The number of open files to divide into shares if the process has no limit.
const UNLIMITED: usize = 1 << 20;

/// The number of open files for each kind of connection, and for all other uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Open files for callers' connections: all that the other shares leave.
    pub callers: usize,
    /// Open files for operators' connections.
    pub operators: usize,
    /// Open files for connections to vendors.
    pub vendors: usize,
    /// A tenth of the open files, for all other uses: the ledger, the outbox, rate sources, the log.
    pub own: usize,
}

impl Shares {
    /// Divides the limit on open files of this process. `vendors_max` is the maximum number of connections to all
    /// vendors together.
    #[must_use]
    pub fn of_process(vendors_max: usize) -> Self {
        Self::new(files_max(), vendors_max)
    }

    /// Divides `files` open files into shares. The share for vendors is `vendors_max`, but at most the callers' share,
    /// because a call needs one file for its caller and one for its vendor.
    #[must_use]
    pub fn new(files: usize, vendors_max: usize) -> Self {
        let own = (files / 10).max(32);
        let operators = (files / 32).clamp(8, 256);
        let rest = files.saturating_sub(own + operators);
        let vendors = vendors_max.min(rest / 2);
        Self {
            callers: (rest - vendors).max(1),
            operators,
            vendors,
            own,
        }
    }

    /// Logs a warning if the shares add up to more files than the process may open. In this case, some accepted calls
    /// could not connect to a vendor.
    pub fn warn_if_short(&self) {
        let files = files_max();
        let shares = [self.callers, self.operators, self.vendors, self.own].into_iter();
        let wanted = shares.fold(0, usize::saturating_add);
        if wanted > files {
            tracing::warn!(
                callers = self.callers,
                operators = self.operators,
                vendors = self.vendors,
                wanted,
                files,
                "the connections_max of callers, operators and vendors add up to more files than this process may \
                 open: raise its limit (ulimit -n, LimitNOFILE) or lower a connections_max"
            );
        }
    }
}

pub(crate) fn files_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(UNLIMITED, |files| {
        usize::try_from(files).unwrap_or(UNLIMITED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_limit_covers_all_its_shares_and_callers_get_no_fewer_files_than_vendors() {
        // The columns are `files`, `vendors_max`, and then the four shares.
        for (files, vendors_max, callers, operators, vendors, own) in [
            (1024, 0, 890, 32, 0, 102),
            (1024, 100, 790, 32, 100, 102),
            (1024, 2048, 445, 32, 445, 102),
            (65_536, 2048, 56_679, 256, 2048, 6553),
            (1 << 20, 5 * 1024, 938_343, 256, 5120, 104_857),
            (64, 1024, 12, 8, 12, 32),
        ] {
            let shares = Shares::new(files, vendors_max);
            let expected = Shares {
                callers,
                operators,
                vendors,
                own,
            };
            assert_eq!(shares, expected, "{files} {vendors_max}");
        }
        for files in 64..5000 {
            for vendors_max in [0, 1, 100, 1024, 100_000] {
                let Shares {
                    callers,
                    operators,
                    vendors,
                    own,
                } = Shares::new(files, vendors_max);
                let all = callers + operators + vendors + own;
                assert!(all <= files, "{files} {vendors_max}: {all}");
                assert!(callers >= vendors && callers > 0, "{files} {vendors_max}");
            }
        }
        // Even if the limit leaves no file for callers, one caller can connect.
        assert_eq!(Shares::new(0, 1).callers, 1);
    }

    #[test]
    fn open_file_limit_of_this_process_is_read() {
        assert!(files_max() > 64);
    }
}
