//! Divides the files that this process may open into shares: one for each listener, one for vendors, and one for all
//! other uses. So no listener uses up the files that another listener or an accepted call needs.

use rustix::process::{Resource, getrlimit};

/// The number of files that is assumed if the process has no limit.
const UNLIMITED: usize = 1 << 20;

/// The number of files for each kind of connection, and for everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The share of callers' connections: all that the other shares leave.
    pub callers: usize,
    /// The share of operators' connections.
    pub operators: usize,
    /// The share of connections to vendors.
    pub vendors: usize,
    /// A tenth of the files, for everything else: the ledger, the outbox, rate sources, the log.
    pub own: usize,
}

impl Shares {
    /// Returns the shares of this process' files, with vendors that may have `vendors_max` connections.
    #[must_use]
    pub fn of_process(vendors_max: usize) -> Self {
        Self::of(files_max(), vendors_max)
    }

    /// Creates the shares of `files`. Vendors get `vendors_max`, but at most as many as callers: a call needs one file
    /// on each side.
    #[must_use]
    pub fn of(files: usize, vendors_max: usize) -> Self {
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

    /// Warns if the shares add up to more files than the process may open: then some accepted calls could not connect
    /// to a vendor.
    pub fn warn_if_short(&self) {
        let files = files_max();
        let wanted = [self.callers, self.operators, self.vendors, self.own]
            .into_iter()
            .fold(0, usize::saturating_add);
        if wanted > files {
            tracing::warn!(
                callers = self.callers,
                operators = self.operators,
                vendors = self.vendors,
                wanted,
                files,
                "connections_max of callers, operators and vendors are more than the files that this process may \
                 open: raise its limit (ulimit -n, LimitNOFILE) or lower them"
            );
        }
    }
}

/// Returns how many files this process may open.
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
    fn open_file_shares_fit_the_limit_and_callers_get_the_largest() {
        // The columns are `files`, `vendors_max`, and then each share.
        for (files, vendors_max, callers, operators, vendors, own) in [
            (1024, 0, 890, 32, 0, 102),
            (1024, 100, 790, 32, 100, 102),
            (1024, 2048, 445, 32, 445, 102),
            (65_536, 2048, 56_679, 256, 2048, 6553),
            (1 << 20, 5 * 1024, 938_343, 256, 5120, 104_857),
            (64, 1024, 12, 8, 12, 32),
        ] {
            let shares = Shares::of(files, vendors_max);
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
                } = Shares::of(files, vendors_max);
                let all = callers + operators + vendors + own;
                assert!(all <= files, "{files} {vendors_max}: {all}");
                assert!(callers >= vendors && callers > 0, "{files} {vendors_max}");
            }
        }
        // Even if no file is left to share, one caller can connect.
        assert_eq!(Shares::of(0, 1).callers, 1);
    }

    #[test]
    fn limit_of_open_files_of_this_process_is_read() {
        assert!(files_max() > 64);
    }
}
