//! The filter of a receiver or reader of events, and the form in which events are shown.

use serde::Serialize;
use tollgate_layers::key::AccountId;
use tollgate_ledger::happening::Event;

use crate::text::time::rfc3339;

/// Selects events by account and kind. An empty list selects all accounts or kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) accounts: Vec<AccountId>,
    /// Names of kinds, as [`Happening::kind`](tollgate_ledger::happening::Happening::kind) returns them.
    pub(crate) kinds: Vec<&'static str>,
}

impl Filter {
    pub(crate) fn takes_all(&self) -> bool {
        self.accounts.is_empty() && self.kinds.is_empty()
    }

    /// Returns whether the filter selects the event. If accounts are listed, an event without an account is not
    /// selected.
    pub(crate) fn takes(&self, event: &Event) -> bool {
        let of_account = |event: &Event| {
            let account = event.account.as_ref();
            account.is_some_and(|account| self.accounts.contains(account))
        };
        (self.accounts.is_empty() || of_account(event))
            && (self.kinds.is_empty() || self.kinds.contains(&event.what.kind()))
    }
}

/// An event in the form in which the API returns it and receivers get it. In addition to the event's own fields, it has
/// the time as text.
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
    use tollgate_ledger::happening::Happening;

    use super::*;
    use crate::config::kind;

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
    fn event_filter_passes_only_named_accounts_and_kinds() {
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
