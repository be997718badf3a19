//! Conditions that last for a while, such as an unavailable vendor. An event is emitted when the first gateway of a
//! ledger reports a condition, and another event when no gateway reports the condition any more.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tollgate_ledger::{
    contract::{BookError, Documents, EventStore, OnceEvent, Update, Versioned},
    happening::Happening,
};

/// The prefix of the conditions' names in the ledger.
const PREFIX: &str = "condition/";
/// How long a gateway's report is valid. A gateway that does not repeat its report in this time is considered gone.
const SEEN_FOR: Duration = Duration::from_secs(90);
/// The interval at which a gateway repeats its report.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// The gateways that report a condition, and until when (Unix ms) each report is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    by: BTreeMap<String, u64>,
}

impl Seen {
    /// Returns the stored reports updated with this report, without expired reports.
    fn reported(&self, word: &Word<'_>, now_ms: u64) -> Self {
        let mut after = self.clone();
        after.by.retain(|_, until_ms| *until_ms > now_ms);
        if word.sees {
            let said_ms = now_ms + millis(SEEN_FOR);
            let until_ms = after.by.entry(word.owner.to_owned()).or_insert(said_ms);
            if *until_ms < said_ms - millis(SAID_EVERY) {
                *until_ms = said_ms;
            }
        } else {
            after.by.remove(word.owner);
        }
        after
    }
}

/// The events to emit when a condition begins and when it ends.
pub(super) struct Told {
    pub(super) begin: Happening,
    pub(super) end: Option<Happening>,
}

/// The report of one gateway about one condition.
pub(super) struct Word<'a> {
    pub(super) name: &'a str,
    pub(super) owner: &'a str,
    pub(super) sees: bool,
}

/// Records whether a gateway detects a condition, and emits an event if the condition begins or ends with this report.
pub(super) async fn say<L: EventStore + Documents>(
    store: &L,
    word: &Word<'_>,
    reported: &Told,
    now_ms: u64,
) -> Result<(), BookError> {
    let name = format!("{PREFIX}{}", word.name);
    let report = async |found: Versioned<Seen>| {
        let before = found.value.unwrap_or_default();
        let after = before.reported(word, now_ms);
        if after == before {
            return Ok(Update::Keep(()));
        }
        let what = match (before.by.is_empty(), after.by.is_empty()) {
            (true, false) => Some(&reported.begin),
            (false, true) => reported.end.as_ref(),
            _ => None,
        };
        if let Some(what) = what {
            // The event is emitted before the change is recorded: if this gateway dies in between, the next gateway
            // that changes this version emits the event again, and the ledger ignores it because of its `once` name.
            let event = OnceEvent {
                once: format!("{}:{}:{}", what.kind(), word.name, found.version),
                account: None,
                key: None,
                what: what.clone(),
            };
            store.emit_once(&event).await?;
        }
        Ok(Update::Write(after, ()))
    };
    store.update_async(&name, report).await
}

/// Returns the names of the conditions that at least one gateway reports.
pub(super) async fn known<L: Documents>(store: &L) -> Result<Vec<String>, BookError> {
    let found = store.documents(PREFIX).await?;
    let seen = found.into_iter().filter_map(|document| {
        let seen: Seen = document.parse().ok()?;
        let name = document.name.strip_prefix(PREFIX)?;
        (!seen.by.is_empty()).then(|| name.to_owned())
    });
    Ok(seen.collect())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tollgate_ledger::memory::MemoryLedger;

    use super::*;

    async fn says(store: &MemoryLedger, owner: &str, sees: bool, now_ms: u64) {
        let vendor = || "v".to_owned();
        let reported = Told {
            begin: Happening::VendorOut { vendor: vendor() },
            end: Some(Happening::VendorBack { vendor: vendor() }),
        };
        let name = "vendor/v";
        let word = Word { name, owner, sees };
        say(store, &word, &reported, now_ms).await.unwrap();
    }

    async fn reported(store: &MemoryLedger) -> Vec<&'static str> {
        let events = store.events(0, 100).await.unwrap();
        events.iter().map(|event| event.what.kind()).collect()
    }

    #[tokio::test]
    async fn condition_reported_by_several_gateways_emits_one_begin_and_one_end() {
        let store = MemoryLedger::new();
        let owners = ["a", "b", "c"];
        says(&store, "a", false, 0).await;
        assert!(reported(&store).await.is_empty());
        join_all(owners.map(|owner| says(&store, owner, true, 1))).await;
        join_all(owners.map(|owner| says(&store, owner, true, 60_000))).await;
        assert_eq!(reported(&store).await, ["vendor_out"]);
        assert_eq!(known(&store).await.unwrap(), ["vendor/v"]);
        for owner in ["a", "b"] {
            says(&store, owner, false, 61_000).await;
        }
        assert_eq!(reported(&store).await, ["vendor_out"]);
        says(&store, "c", false, 62_000).await;
        assert_eq!(reported(&store).await, ["vendor_out", "vendor_back"]);
        assert!(known(&store).await.unwrap().is_empty());
        says(&store, "b", true, 63_000).await;
        assert_eq!(reported(&store).await.len(), 3);
    }

    #[tokio::test]
    async fn outage_reported_by_a_dead_gateway_expires() {
        let store = MemoryLedger::new();
        says(&store, "killed", true, 0).await;
        says(&store, "other", false, 89_000).await;
        assert_eq!(reported(&store).await, ["vendor_out"]);
        says(&store, "other", false, 91_000).await;
        assert_eq!(reported(&store).await, ["vendor_out", "vendor_back"]);
    }
}
