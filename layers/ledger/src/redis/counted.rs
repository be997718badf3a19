//! Sums over the calls of a journal. Reads from each call only the fields that the sums need, without copying them.

use std::{borrow::Cow, collections::HashMap, fmt};

use serde::Deserialize;
use tokio::task::yield_now;

use super::{
    RedisLedger,
    journal::{ENTRIES_FIRST, JournalRange, RolledPlace, StreamId, entries_next},
    lines::{CALLS, EntryFields, TurnLine, in_journal, line_of},
};
use crate::{
    account::AccountId,
    conn::Result,
    contract::{Booked, if_valid},
    endpoint::Endpoint,
    money::MicroRub,
    rollup::{Counted, UnrolledLines},
    timeline::Timeline,
    usage::{End, Usage},
};

/// The fields that sums need of an [`Item`](crate::contract::Item) in JSON. The prices, which are most of its text, are
/// skipped.
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
    #[serde(default, deserialize_with = "if_valid")]
    endpoint: Option<Endpoint>,
    #[serde(rename = "times", default, deserialize_with = "if_valid")]
    timeline: Option<Timeline>,
}

/// The number of lines that are added before other tasks of the thread may run. Adding them takes a fraction of a
/// millisecond.
const LINES_WITHOUT_A_BREAK: usize = 256;

impl RedisLedger {
    /// Sums the calls of a range, oldest first, until at least as many lines are read as the range's limit. The last
    /// journal entry is read to its end. `rolled` is the position up to which the stored sums already contain the
    /// journal.
    pub(super) async fn counted_lines(
        &self,
        account: &AccountId,
        mut stretch: JournalRange,
        mut rolled: Option<RolledPlace>,
    ) -> Result<UnrolledLines> {
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
                stretch.after = Some(entry.into());
            }
            unrolled.more = unrolled.lines >= stretch.limit;
            if entries.len() < requested || unrolled.more {
                return Ok(unrolled);
            }
            count = entries_next(count, entries.len(), unrolled.lines - before);
        }
    }
}

/// Adds the lines of a journal entry, except its first `read` lines. Returns the time of the entry.
fn count_entry(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
    read: usize,
    unrolled: &mut UnrolledLines,
) -> Result<u64> {
    let entry = EntryFields::new(fields, in_journal(account, place));
    let at_ms = entry.parsed("at")?;
    match entry.text("kind")? {
        CALLS => {
            let lines = TurnLine::of_entry(fields, read).ok_or_else(|| entry.unexpected(CALLS))?;
            for line in lines {
                let line = line.ok_or_else(|| entry.unexpected(CALLS))?;
                let [_, _, charged, loss] = line.amounts;
                count_call(
                    &entry,
                    at_ms,
                    line.booked,
                    [charged, loss],
                    &line.item,
                    unrolled,
                )?;
            }
        }
        _ if read > 0 => {}
        "call" => {
            let amounts = [entry.amount("charged")?, entry.amount("loss")?];
            let item = entry.text("item")?;
            count_call(&entry, at_ms, entry.booked()?, amounts, item, unrolled)?;
        }
        _ => {
            let line = line_of(account, place, fields)?;
            unrolled.lines += 1;
            unrolled.entries.push((place.to_owned(), line));
        }
    }
    Ok(at_ms)
}

/// Adds one call of a journal entry, unless it moved no money. `item` is JSON.
fn count_call<P: fmt::Display>(
    entry: &EntryFields<'_, P>,
    at_ms: u64,
    booked: Booked,
    [charged_rub, loss_rub]: [MicroRub; 2],
    item: &str,
    unrolled: &mut UnrolledLines,
) -> Result<()> {
    unrolled.lines += 1;
    if booked == Booked::Stale {
        return Ok(());
    }
    let item: CountedItem<'_> = serde_json::from_str(item).map_err(|_| entry.unexpected("item"))?;
    let call = Counted {
        at_ms,
        key: entry.text("key")?,
        group: entry.get("group"),
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
    (unrolled.calls.add(&call)).map_err(|_| entry.unexpected("key"))
}
