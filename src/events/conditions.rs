//! Conditions that last for a while, such as an unavailable vendor. An event is emitted when the first gateway of a
//! ledger reports a condition, and another when no gateway reports it any more.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tollgate_ledger::{
    contract::{BookError, Feed, Telling},
    happening::Happening,
};

/// The prefix of the conditions' names in the ledger.
const NOTES: &str = "condition/";
/// How long a gateway's report is valid. A gateway that does not repeat its report in this time is considered gone.
const SEEN_FOR: Duration = Duration::from_secs(90);
/// The interval at which a gateway repeats its report.
const SAID_EVERY: Duration = Duration::from_secs(30);
/// The maximum number of tries if another gateway changes the same condition first.
const TRIES: usize = 5;

/// The gateways that report a condition, and until when (Unix ms) each report is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    by: BTreeMap<String, u64>,
}

/// The events that mark the begin and the end of a condition.
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

/// Records whether a gateway sees a condition, and emits an event if the condition begins or ends by this report.
pub(super) async fn say<L: Feed>(
    store: &L,
    word: &Word<'_>,
    told: &Told,
    now_ms: u64,
) -> Result<(), BookError> {
    let name = format!("{NOTES}{}", word.name);
    for _ in 0..TRIES {
        let note = store.note(&name).await?;
        let version = note.as_ref().map_or(0, |note| note.version);
        let before: Seen = note
            .and_then(|note| serde_json::from_str(&note.text).ok())
            .unwrap_or_default();
        let mut after = before.clone();
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
        if after == before {
            return Ok(());
        }
        let what = match (before.by.is_empty(), after.by.is_empty()) {
            (true, false) => Some(&told.begin),
            (false, true) => told.end.as_ref(),
            _ => None,
        };
        if let Some(what) = what {
            // The event is emitted before the change is recorded: if this gateway dies in between, the next gateway to
            // change this version emits the event again, and its `once` name makes that a no-op.
            let once = format!("{}:{}:{version}", what.kind(), word.name);
            tell(store, once, what).await?;
        }
        let text = serde_json::to_string(&after).expect("the document serializes to JSON");
        match store.put_note(&name, version, &text).await {
            Ok(()) => return Ok(()),
            Err(BookError::Exists) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the conditions that some gateway reports.
pub(super) async fn known<L: Feed>(store: &L) -> Result<Vec<String>, BookError> {
    let notes = store.notes(NOTES).await?;
    let seen = notes.into_iter().filter_map(|note| {
        let seen: Seen = serde_json::from_str(&note.text).ok()?;
        let name = note.name.strip_prefix(NOTES)?;
        (!seen.by.is_empty()).then(|| name.to_owned())
    });
    Ok(seen.collect())
}

async fn tell<L: Feed>(store: &L, once: String, what: &Happening) -> Result<(), BookError> {
    let telling = Telling {
        once,
        account: None,
        key: None,
        what: what.clone(),
    };
    store.tell(&telling).await.map(drop)
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
        let told = Told {
            begin: Happening::VendorOut { vendor: vendor() },
            end: Some(Happening::VendorBack { vendor: vendor() }),
        };
        let name = "vendor/v";
        let word = Word { name, owner, sees };
        say(store, &word, &told, now_ms).await.unwrap();
    }

    async fn told(store: &MemoryLedger) -> Vec<&'static str> {
        let events = store.events(0, 100).await.unwrap();
        events.iter().map(|event| event.what.kind()).collect()
    }

    #[tokio::test]
    async fn condition_seen_by_several_gateways_emits_one_begin_and_one_end() {
        let store = MemoryLedger::new();
        let owners = ["a", "b", "c"];
        says(&store, "a", false, 0).await;
        assert!(told(&store).await.is_empty());
        join_all(owners.map(|owner| says(&store, owner, true, 1))).await;
        join_all(owners.map(|owner| says(&store, owner, true, 60_000))).await;
        assert_eq!(told(&store).await, ["vendor_out"]);
        assert_eq!(known(&store).await.unwrap(), ["vendor/v"]);
        for owner in ["a", "b"] {
            says(&store, owner, false, 61_000).await;
        }
        assert_eq!(told(&store).await, ["vendor_out"]);
        says(&store, "c", false, 62_000).await;
        assert_eq!(told(&store).await, ["vendor_out", "vendor_back"]);
        assert!(known(&store).await.unwrap().is_empty());
        says(&store, "b", true, 63_000).await;
        assert_eq!(told(&store).await.len(), 3);
    }

    #[tokio::test]
    async fn outage_seen_by_a_dead_gateway_expires() {
        let store = MemoryLedger::new();
        says(&store, "killed", true, 0).await;
        says(&store, "other", false, 89_000).await;
        assert_eq!(told(&store).await, ["vendor_out"]);
        says(&store, "other", false, 91_000).await;
        assert_eq!(told(&store).await, ["vendor_out", "vendor_back"]);
    }
}
