//! Conditions that last for a while, such as an unavailable vendor. When the first gateway of a ledger reports a
//! condition, an event is emitted. When no gateway reports the condition any more, a second event is emitted.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tollgate_ledger::{
    contract::{BookError, Documents, EventStore, OnceEvent, Update, Versioned},
    happening::Happening,
};

use crate::text::time::millis;

/// Name prefix of the ledger documents that store conditions.
const PREFIX: &str = "condition/";
/// How long a gateway's report of a condition is valid. If the gateway does not repeat the report in this time, the
/// report no longer counts.
const VALID_FOR: Duration = Duration::from_secs(90);
/// How often a gateway repeats its report of a condition.
const REPEAT_EVERY: Duration = Duration::from_secs(30);

/// The gateways that report a condition, each with the Unix time (ms) until which its report is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Reports {
    by: BTreeMap<String, u64>,
}

impl Reports {
    /// Returns the reports with the new report included, and without expired reports.
    fn updated(&self, report: &Report<'_>, now_ms: u64) -> Self {
        let mut after = self.clone();
        after.by.retain(|_, until_ms| *until_ms > now_ms);
        if report.is_true {
            let valid_until_ms = now_ms + millis(VALID_FOR);
            let until_ms = after.by.entry(report.owner.to_owned());
            let until_ms = until_ms.or_insert(valid_until_ms);
            if *until_ms < valid_until_ms - millis(REPEAT_EVERY) {
                *until_ms = valid_until_ms;
            }
        } else {
            after.by.remove(report.owner);
        }
        after
    }
}

/// The two events of a condition: one is emitted when the condition begins, the other when it ends.
pub(super) struct Events {
    pub(super) begin: Happening,
    pub(super) end: Option<Happening>,
}

/// A gateway's report whether a condition is true at this gateway.
pub(super) struct Report<'a> {
    pub(super) name: &'a str,
    pub(super) owner: &'a str,
    pub(super) is_true: bool,
}

/// Records a gateway's report. If the condition begins or ends with this report, emits the matching event.
pub(super) async fn report<L: EventStore + Documents>(
    store: &L,
    report: &Report<'_>,
    events: &Events,
    now_ms: u64,
) -> Result<(), BookError> {
    let name = format!("{PREFIX}{}", report.name);
    let update = async |found: Versioned<Reports>| {
        let before = found.value.unwrap_or_default();
        let after = before.updated(report, now_ms);
        if after == before {
            return Ok(Update::Keep(()));
        }
        let what = match (before.by.is_empty(), after.by.is_empty()) {
            (true, false) => Some(&events.begin),
            (false, true) => events.end.as_ref(),
            _ => None,
        };
        if let Some(what) = what {
            // The event is emitted before the change is recorded. If this gateway dies in between, the next gateway
            // that changes this version of the document emits the event again. The ledger ignores the second event,
            // because it has the same `once` name.
            let event = OnceEvent {
                once: format!("{}:{}:{}", what.kind(), report.name, found.version),
                account: None,
                key: None,
                what: what.clone(),
            };
            store.emit_once(&event).await?;
        }
        Ok(Update::Write(after, ()))
    };
    store.update_async(&name, update).await
}

/// Returns the names of the conditions that at least one gateway reports.
pub(super) async fn known<L: Documents>(store: &L) -> Result<Vec<String>, BookError> {
    let found = store.documents(PREFIX).await?;
    let names = found.into_iter().filter_map(|document| {
        let reports: Reports = document.parse().ok()?;
        let name = document.name.strip_prefix(PREFIX)?;
        (!reports.by.is_empty()).then(|| name.to_owned())
    });
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tollgate_ledger::memory::MemoryLedger;

    use super::*;

    async fn says(store: &MemoryLedger, owner: &str, is_true: bool, now_ms: u64) {
        let vendor = || "v".to_owned();
        let events = Events {
            begin: Happening::VendorOut { vendor: vendor() },
            end: Some(Happening::VendorBack { vendor: vendor() }),
        };
        let name = "vendor/v";
        let report = Report {
            name,
            owner,
            is_true,
        };
        super::report(store, &report, &events, now_ms)
            .await
            .unwrap();
    }

    async fn reported(store: &MemoryLedger) -> Vec<&'static str> {
        let events = store.events(0, 100).await.unwrap();
        events.iter().map(|event| event.what.kind()).collect()
    }

    #[tokio::test]
    async fn condition_reported_by_several_gateways_emits_one_start_event_and_one_end_event() {
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
