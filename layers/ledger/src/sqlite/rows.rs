//! Parses rows of the ledger file.

use std::str::FromStr;

use rusqlite::{Connection, OptionalExtension, Result, Row};
use serde::{
    Deserialize,
    de::{DeserializeOwned, value::BorrowedStrDeserializer},
};

use crate::{
    BoxError,
    ceiling::Period,
    contract::{Booked, Item, Receipt},
    durable::file::{from_json, parsed, unreadable},
    money::MicroRub,
    number::RequestNumber,
    rollup::{Counted, Tally},
    timeline::Timeline,
    usage::{StoppedBy, Usage},
};

pub(super) use crate::durable::file::{count, integer, one};

/// The columns of a receipt, in the order in which [`read_receipt`] expects them.
pub(super) const RECEIPT: &str = "number, at_ms, account, key, model, vendor, input, cached_input, cache_write, \
    output, held, cost, charged, loss, ended, booked, estimated, price, bounded, session, classes, unpriced, \
    vendor_cost, endpoint, timeline, key_group, vendor_usage, bounded_loss, held_max, held_at_end, stopped_by";

/// The columns of a receipt that sums need, in the order in which [`count_receipt`] expects them.
pub(super) const COUNTED: &str = "at_ms, key, key_group, model, vendor, endpoint, ended, estimated, input, cached_input, \
    cache_write, output, classes, charged, loss, vendor_cost, timeline, booked, bounded_loss";
/// The number of columns in [`COUNTED`].
pub(super) const COUNTED_COLUMNS: usize = 19;

pub(super) fn receipt(conn: &Connection, number: RequestNumber) -> Result<Option<Receipt>> {
    let sql = format!("SELECT {RECEIPT} FROM receipts WHERE number = ?1");
    conn.prepare_cached(&sql)?
        .query_row([number.to_string()], read_receipt)
        .optional()
}

pub(super) fn read_receipt(row: &Row<'_>) -> Result<Receipt> {
    Ok(Receipt {
        number: parsed(row, 0)?,
        at_ms: count(row, 1)?,
        account: parsed(row, 2)?,
        key: parsed(row, 3)?,
        group: if_valid(row, 25)?,
        held_rub: amount(row, 10)?,
        cost_rub: amount(row, 11)?,
        charged_rub: amount(row, 12)?,
        loss_rub: amount(row, 13)?,
        booked: from_word(row, 15)?,
        item: Item {
            model: row.get(4)?,
            vendor: row.get(5)?,
            usage: Usage {
                input: count(row, 6)?,
                cached_input: count(row, 7)?,
                cache_write: count(row, 8)?,
                output: count(row, 9)?,
                classes: optional_json(row, 20)?.unwrap_or_default(),
            },
            price: optional_json(row, 17)?,
            estimated: row.get(16)?,
            bounded: row.get(18)?,
            unpriced: row.get(21)?,
            vendor_cost_rub: optional_amount(row, 22)?,
            vendor_usage: optional_json(row, 26)?,
            bounded_loss_rub: optional_amount(row, 27)?,
            held_max_rub: optional_amount(row, 28)?,
            held_at_end_rub: optional_amount(row, 29)?,
            stopped_by: row
                .get_ref(30)?
                .as_str_or_null()?
                .and_then(StoppedBy::from_word),
            end: from_word(row, 14)?,
            session: if_valid(row, 19)?,
            endpoint: if_valid(row, 23)?,
            timeline: if_valid(row, 24)?,
        },
    })
}

/// Adds a receipt to the sums without copying its fields. A receipt that moved no money is skipped.
pub(super) fn count_receipt(row: &Row<'_>, tally: &mut Tally) -> Result<()> {
    let text = |index: usize| row.get_ref(index)?.as_str().map_err(rusqlite::Error::from);
    if from_word::<Booked>(row, 17)? == Booked::Stale {
        return Ok(());
    }
    let timeline: Option<Timeline> = if_valid(row, 16)?;
    let call = Counted {
        at_ms: count(row, 0)?,
        key: text(1)?,
        group: row.get_ref(2)?.as_str_or_null()?,
        model: text(3)?,
        vendor: text(4)?,
        endpoint: if_valid(row, 5)?,
        end: from_word(row, 6)?,
        estimated: row.get(7)?,
        usage: Usage {
            input: count(row, 8)?,
            cached_input: count(row, 9)?,
            cache_write: count(row, 10)?,
            output: count(row, 11)?,
            classes: optional_json(row, 12)?.unwrap_or_default(),
        },
        charged_rub: amount(row, 13)?,
        loss_rub: Counted::loss(amount(row, 14)?, optional_amount(row, 18)?),
        vendor_cost_rub: optional_amount(row, 15)?,
        took_ms: Counted::took(timeline.as_ref()),
    };
    tally
        .add(&call)
        .map_err(|error| unreadable(1, error.into()))
}

pub(super) fn amount(row: &Row<'_>, index: usize) -> Result<MicroRub> {
    let stored: i64 = row.get(index)?;
    let amount = MicroRub::new(stored);
    if amount.micro() == stored {
        Ok(amount)
    } else {
        Err(rusqlite::Error::IntegralValueOutOfRange(index, stored))
    }
}

pub(super) fn optional_amount(row: &Row<'_>, index: usize) -> Result<Option<MicroRub>> {
    let stored: Option<i64> = row.get(index)?;
    stored.map(|_| amount(row, index)).transpose()
}

/// Reads a month or a day from two columns, which are NULL until the first charge.
pub(super) fn period(row: &Row<'_>, index: usize) -> Result<Period> {
    let Some(before) = optional_amount(row, index + 1)? else {
        return Ok(Period::default());
    };
    Ok(Period {
        index: count(row, index)?,
        before,
    })
}

pub(super) fn optional_json<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> Result<Option<T>> {
    let text = row.get_ref(index)?.as_str_or_null()?;
    text.map(|_| from_json(row, index)).transpose()
}

pub(super) fn optional_parsed<T>(row: &Row<'_>, index: usize) -> Result<Option<T>>
where
    T: FromStr,
    T::Err: Into<BoxError>,
{
    let text = row.get_ref(index)?.as_str_or_null()?;
    text.map(|_| parsed(row, index)).transpose()
}

/// Parses a text, and ignores an invalid one: the charge exists, so its receipt must stay readable.
fn if_valid<T: FromStr>(row: &Row<'_>, index: usize) -> Result<Option<T>> {
    let text = row.get_ref(index)?.as_str_or_null()?;
    Ok(text.and_then(|text| text.parse().ok()))
}

pub(super) fn from_word<'a, T: Deserialize<'a>>(row: &'a Row<'_>, index: usize) -> Result<T> {
    let word: BorrowedStrDeserializer<'a, serde::de::value::Error> =
        BorrowedStrDeserializer::new(row.get_ref(index)?.as_str()?);
    T::deserialize(word).map_err(|error| unreadable(index, error.into()))
}
