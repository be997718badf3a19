//! The ledger's events on their way out: read as they come ([`Tail`]) by whoever asks, and sent to receivers, by a task for
//! each ([`Dispatcher`]). Nothing here is on a call's way.

pub(crate) mod address;
mod conditions;
mod delivery;
mod dispatcher;
mod mail;
mod receiver;
mod standing;
mod tail;
mod telegram;
mod watch;
mod webhook;
mod words;

use serde::Serialize;
use tollgate_layers::key::AccountId;
use tollgate_ledger::happening::{Event, Happening};

pub(crate) use self::{
    dispatcher::{Dispatcher, Replayed},
    receiver::Receiver,
    standing::Standing,
    tail::{Page, Tail},
    watch::Watcher,
};
use crate::text::time::rfc3339;

/// Which events somebody wants. Nothing named: all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) accounts: Vec<AccountId>,
    /// Words of [`Happening::kind`].
    pub(crate) kinds: Vec<&'static str>,
}

impl Filter {
    pub(crate) fn takes_all(&self) -> bool {
        self.accounts.is_empty() && self.kinds.is_empty()
    }

    /// Where accounts are named, what is nobody's is not wanted.
    pub(crate) fn takes(&self, event: &Event) -> bool {
        let of_account = |event: &Event| {
            let account = event.account.as_ref();
            account.is_some_and(|account| self.accounts.contains(account))
        };
        (self.accounts.is_empty() || of_account(event))
            && (self.kinds.is_empty() || self.kinds.contains(&event.what.kind()))
    }
}

/// The kind that a word names.
///
/// # Errors
/// There is none: which there are.
pub(crate) fn kind(word: &str) -> Result<&'static str, String> {
    let known = Happening::KINDS.iter().find(|known| **known == word);
    known
        .copied()
        .ok_or_else(|| format!("must be of {}", Happening::KINDS.join(", ")))
}

/// An event as it is shown and sent: with its time as text, too.
#[derive(Debug, Serialize)]
pub(crate) struct Shown<'a> {
    at: String,
    #[serde(flatten)]
    event: &'a Event,
}

impl<'a> From<&'a Event> for Shown<'a> {
    fn from(event: &'a Event) -> Self {
        Self {
            at: rfc3339(event.at_ms),
            event,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(account: Option<&str>, what: Happening) -> Event {
        Event {
            number: 1,
            at_ms: 0,
            account: account.map(|id| id.parse().unwrap()),
            key: None,
            what,
        }
    }

    #[test]
    fn what_is_not_named_is_not_taken() {
        let stale = event(None, Happening::RateStale { since_ms: 1 });
        let expiring = event(Some("acme"), Happening::KeyExpiring { expires_at_ms: 1 });
        let filter = |accounts: &[&str], kinds: &[&str]| Filter {
            accounts: accounts.iter().map(|id| id.parse().unwrap()).collect(),
            kinds: kinds.iter().map(|word| kind(word).unwrap()).collect(),
        };
        for (accounts, kinds, takes) in [
            (&[][..], &[][..], [true, true]),
            (&["acme"], &[], [false, true]),
            (&["other"], &[], [false, false]),
            (&[], &["rate_stale"], [true, false]),
            (&["acme"], &["rate_stale", "key_expiring"], [false, true]),
        ] {
            let filter = filter(accounts, kinds);
            let taken = [&stale, &expiring].map(|event| filter.takes(event));
            assert_eq!(taken, takes, "{accounts:?} {kinds:?}");
        }
        assert!(kind("unknown").unwrap_err().contains("balance_low"));
    }
}
