//! The breaches that an audit has found. Each text begins with the name of the invariant.

use crate::account::AccountId;

/// The largest number of breaches that are listed per account. Further breaches are only counted.
pub(super) const BREACHES_MAX: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Breaches {
    listed: Vec<String>,
    more: usize,
}

impl Breaches {
    pub(super) fn push(&mut self, breach: String) {
        if self.listed.len() < BREACHES_MAX {
            self.listed.push(breach);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn push_once(&mut self, breach: String) {
        if !self.listed.contains(&breach) {
            self.push(breach);
        }
    }

    pub(super) fn listed(self, account: &AccountId) -> Vec<String> {
        let mut listed = self.listed;
        if self.more > 0 {
            listed.push(format!(
                "I1–I5 account {account}: {} more breaches are not listed",
                self.more
            ));
        }
        listed
    }
}
