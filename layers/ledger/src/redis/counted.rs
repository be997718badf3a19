//! Sums up the calls of a journal. Reads only the fields of each call that the sums need, without copying them.

use std::{borrow::Cow, collections::HashMap};

use serde::Deserialize;
use tokio::task::yield_now;

use super::{
    RedisLedger, booked_of,
    journal::{ENTRIES_FIRST, JournalCursor, JournalRange, RolledPlace, StreamId, entries_next},
    lines::{CALLS, TurnLine, line_of},
};
use crate::{
    account::AccountId,
    conn::RedisFault,
    contract::Booked,
    endpoint::{self, Endpoint},
    money::MicroRub,
    rollup::{Counted, UnrolledLines},
    timeline::{self, Timeline},
    usage::{End, Usage},
};

/// The fields of an [`Item`](crate::contract::Item) in JSON that sums need. Its prices, the largest part, are skipped.
#[derive(Deserialize)]
struct CountedItem<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    vendor: Cow<'a, str>,
    usage: Usage,
    estimated: bool,
    #[serde(default)]
    vendor_cost_rub: Option<MicroRub>,
    #[serde(default)]
    bounded_loss_rub: Option<MicroRub>,
    end: End,
    #[serde(default, deserialize_with = "endpoint::stored")]
    endpoint: Option<Endpoint>,
    #[serde(rename = "times", default, deserialize_with = "timeline::stored")]
    timeline: Option<Timeline>,
}

/// The number of lines that are summed up before other tasks on the same thread may run. This takes a fraction of a
/// millisecond.
const LINES_WITHOUT_A_BREAK: usize = 256;

impl RedisLedger {
    /// Sums up the calls of a range, oldest first, until at least as many lines are read as the range allows; the last
    /// entry is read whole. `rolled` is the position up to which the stored sums already contain the journal.
    pub(super) async fn counted_lines(
        &self,
        account: &AccountId,
        mut stretch: JournalRange,
        mut rolled: Option<RolledPlace>,
    ) -> Result<UnrolledLines, RedisFault> {
        let mut unrolled = UnrolledLines::default();
        let mut count = ENTRIES_FIRST;
        let mut without_a_break = 0;
        loop {
            let requested = count.min(stretch.limit - unrolled.lines);
            let entries = self.entries(account, &stretch, requested).await?;
            let before = unrolled.lines;
            for (place, fields) in &entries {
                let entry: StreamId = place.parse()?;
                let read = stretch.read_of(entry);
                let lines = unrolled.lines;
                let at_ms = count_entry(account, place, fields, read, &mut unrolled)?;
                without_a_break += unrolled.lines - lines;
                if without_a_break >= LINES_WITHOUT_A_BREAK {
                    without_a_break = 0;
                    yield_now().await;
                }
                rolled = Some(RolledPlace::with(rolled, place, at_ms)?);
                unrolled.place = rolled.map(|rolled| rolled.to_string());
                stretch.after = Some(JournalCursor {
                    place: entry,
                    read: None,
                });
            }
            unrolled.more = unrolled.lines >= stretch.limit;
            if entries.len() < requested || unrolled.more {
                return Ok(unrolled);
            }
            count = entries_next(count, entries.len(), unrolled.lines - before);
        }
    }
}

/// Adds the lines of an entry after its first `read` lines. Returns the time of the entry.
fn count_entry(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
    read: usize,
    unrolled: &mut UnrolledLines,
) -> Result<u64, RedisFault> {
    let unexpected = |name: &str| {
        RedisFault::Unexpected(format!(
            "journal of {account} at {place}: field {name} is missing or invalid"
        ))
    };
    let field = |name: &str| fields.get(name).ok_or_else(|| unexpected(name));
    let at_ms = field("at")?.parse().map_err(|_| unexpected("at"))?;
    let mut count = |booked, [charged_rub, loss_rub]: [MicroRub; 2], item: &str| {
        unrolled.lines += 1;
        if booked == Booked::Stale {
            return Ok(());
        }
        let item: CountedItem<'_> = serde_json::from_str(item).map_err(|_| unexpected("item"))?;
        let call = Counted {
            at_ms,
            key: field("key")?,
            group: fields.get("group").map(String::as_str),
            model: &item.model,
            vendor: &item.vendor,
            endpoint: item.endpoint,
            end: item.end,
            estimated: item.estimated,
            usage: item.usage,
            charged_rub,
            loss_rub: Counted::loss(loss_rub, item.bounded_loss_rub),
            vendor_cost_rub: item.vendor_cost_rub,
            took_ms: Counted::took(item.timeline.as_ref()),
        };
        unrolled.calls.add(&call).map_err(|_| unexpected("key"))
    };
    match field("kind")?.as_str() {
        CALLS => {
            let lines = TurnLine::of_entry(fields, read).ok_or_else(|| unexpected(CALLS))?;
            for line in lines {
                let line = line.ok_or_else(|| unexpected(CALLS))?;
                let [_, _, charged, loss] = line.amounts;
                count(line.booked, [charged, loss], &line.item)?;
            }
        }
        _ if read > 0 => {}
        "call" => {
            let amount = |name: &str| {
                let parsed = field(name)?.parse();
                parsed.map(MicroRub::new).map_err(|_| unexpected(name))
            };
            let amounts = [amount("charged")?, amount("loss")?];
            count(booked_of(field("booked")?)?, amounts, field("item")?)?;
        }
        _ => {
            let line = line_of(account, place, fields)?;
            unrolled.lines += 1;
            unrolled.entries.push((place.to_owned(), line));
        }
    }
    Ok(at_ms)
}
