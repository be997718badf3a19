//! Writes records to the file. Records that arrived together are written in one transaction.
//!
//! A charge writes a receipt, and new totals for its account and key. Totals are absolute values and not differences,
//! so after several charges only the last totals matter. They are written once per account and key: before the next
//! record of another kind, and at the end of the batch.

use std::{collections::BTreeMap, sync::Arc};

use rusqlite::{CachedStatement, Connection, Result, params};
use uuid::fmt::Hyphenated;

use super::{events, rollup};
use crate::{
    account::{AccountId, GroupId, KeyId, KeyRecord},
    book::Millis,
    ceiling::Ceilings,
    contract::{Entry, Item, Receipt, TariffVersion},
    durable::{
        crash_log,
        file::{in_one_commit, integer, number_text, one, to_json},
    },
    embedded::{GroupRow, Record, SettledCall, Used},
    endpoint::Endpoint,
    money::MicroRub,
    price::Price,
    usage::StoppedBy,
};

/// Inserts a receipt. If the receipt of the call exists, it is kept, unless it is disputed: a disputed receipt moved no
/// money, so the new receipt replaces it.
const RECEIPT: &str = "
INSERT INTO receipts (number, at_ms, account, key, model, vendor, input, cached_input, cache_write,
    output, held, cost, charged, loss, ended, booked, estimated, price, bounded, session,
    classes, unpriced, vendor_cost, endpoint, timeline, key_group, vendor_usage, bounded_loss,
    held_max, held_at_end, stopped_by)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31)
ON CONFLICT (number) DO UPDATE SET
    at_ms = excluded.at_ms, account = excluded.account, key = excluded.key,
    model = excluded.model, vendor = excluded.vendor, input = excluded.input,
    cached_input = excluded.cached_input, cache_write = excluded.cache_write,
    output = excluded.output, held = excluded.held, cost = excluded.cost,
    charged = excluded.charged, loss = excluded.loss, ended = excluded.ended,
    booked = excluded.booked, estimated = excluded.estimated, price = excluded.price,
    bounded = excluded.bounded, session = excluded.session, classes = excluded.classes,
    unpriced = excluded.unpriced, vendor_cost = excluded.vendor_cost,
    endpoint = excluded.endpoint, timeline = excluded.timeline,
    key_group = excluded.key_group, vendor_usage = excluded.vendor_usage,
    bounded_loss = excluded.bounded_loss, held_max = excluded.held_max,
    held_at_end = excluded.held_at_end, stopped_by = excluded.stopped_by
WHERE receipts.booked = 'stale' AND excluded.booked <> 'stale'";

/// The largest number of prices whose stored text is cached for one batch.
const PRICES_MAX: usize = 16;

/// Commits records in their order: either all of them or none.
pub(super) fn commit<'a>(
    conn: &mut Connection,
    records: impl Iterator<Item = &'a Record>,
) -> Result<()> {
    let mut records = records.peekable();
    if records.peek().is_none() {
        return Ok(());
    }
    in_one_commit(conn, |conn| write(conn, records))
}

/// Writes records in their order. A transaction must be open.
pub(super) fn write<'a>(
    conn: &Connection,
    records: impl Iterator<Item = &'a Record>,
) -> Result<()> {
    let mut batch = Batch {
        conn,
        receipts: Receipts::new(conn)?,
        totals: Totals::default(),
    };
    for record in records {
        batch.write(record)?;
    }
    batch.totals.write(conn)
}

struct Batch<'a, 'conn> {
    conn: &'conn Connection,
    receipts: Receipts<'conn>,
    totals: Totals<'a>,
}

impl<'a> Batch<'a, '_> {
    fn write(&mut self, record: &'a Record) -> Result<()> {
        let conn = self.conn;
        if !matches!(record, Record::Settled(_)) {
            self.totals.write(conn)?;
        }
        match record {
            Record::Settled(settled) => self.settle(settled),
            Record::Account {
                id,
                name,
                suspended,
            } => write_account(conn, id, name, *suspended),
            Record::Entry {
                account,
                entry,
                at_ms,
                balance,
                events,
            } => {
                events::write(conn, events, None)?;
                write_entry(conn, account, entry, *at_ms, *balance)
            }
            Record::Key {
                record,
                ceilings,
                groups,
            } => {
                write_key(conn, record, *ceilings)?;
                (groups.iter()).try_for_each(|group| write_group(conn, &record.account, group))
            }
            Record::Group { account, group } => write_group(conn, account, group),
            Record::Noted(running) => crash_log::note(conn, running),
            Record::Forgotten(number) => crash_log::forget(conn, *number),
            Record::Tariff(version, fingerprint) => write_tariff(conn, *version, fingerprint),
            Record::EmittedOnce { event, once } => {
                events::write(conn, std::slice::from_ref(event), Some(once))
            }
            Record::Levels(account, of, levels) => events::write_levels(conn, account, of, *levels),
            Record::Document(document) => events::write_document(conn, document),
            Record::Summed { change, version } => rollup::write(conn, change, *version),
            Record::SumsCleared { version } => rollup::clear(conn, *version),
        }
    }

    fn settle(&mut self, settled: &'a SettledCall) -> Result<()> {
        let (receipt, account) = (&settled.receipt, &settled.receipt.account);
        self.receipts.write(receipt)?;
        events::write(self.conn, &settled.events, None)?;
        if settled.noted {
            crash_log::forget(self.conn, receipt.number)?;
        }
        let totals = &mut self.totals;
        (totals.accounts).insert(account, (settled.balance, settled.loss));
        (totals.keys).extend(settled.used.map(|used| (&receipt.key, used)));
        let group = settled.group.as_ref();
        (totals.groups).extend(group.map(|(group, used)| ((account, group), *used)));
        Ok(())
    }
}

fn write_account(conn: &Connection, id: &AccountId, name: &str, suspended: bool) -> Result<()> {
    let sql = "INSERT INTO accounts (id, name, suspended, balance, loss) VALUES (?1, ?2, ?3, 0, 0)
               ON CONFLICT (id) DO UPDATE SET name = excluded.name, suspended = excluded.suspended";
    let row = params![&**id, name, suspended];
    one(conn.prepare_cached(sql)?.execute(row)?)
}

fn write_entry(
    conn: &Connection,
    account: &AccountId,
    entry: &Entry,
    at_ms: Millis,
    balance: MicroRub,
) -> Result<()> {
    let reason = entry.reason.as_deref();
    insert_entry(conn, account, &entry.id, entry.amount, reason, at_ms)?;
    let sql = "UPDATE accounts SET balance = ?2 WHERE id = ?1";
    let row = params![&**account, balance.micro()];
    one(conn.prepare_cached(sql)?.execute(row)?)
}

/// Writes an entry without changing its account. An entry whose id is stored already is left out.
pub(super) fn insert_entry(
    conn: &Connection,
    account: &AccountId,
    id: &str,
    amount: MicroRub,
    reason: Option<&str>,
    at_ms: Millis,
) -> Result<()> {
    let sql = "INSERT INTO entries (account, id, amount, reason, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT (account, id) DO NOTHING";
    let row = params![&**account, id, amount.micro(), reason, integer(at_ms)];
    conn.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Writes a key. Fails if the key's account does not exist, because then no row is written.
fn write_key(conn: &Connection, record: &KeyRecord, ceilings: Ceilings) -> Result<()> {
    let sql =
        "INSERT INTO keys (id, account, digest, ceiling, ceiling_month, ceiling_day, used, record)
               SELECT ?1, ?2, ?3, ?4, ?5, ?6, 0, ?7 FROM accounts WHERE id = ?2
               ON CONFLICT (id) DO UPDATE SET
                   ceiling = excluded.ceiling, ceiling_month = excluded.ceiling_month,
                   ceiling_day = excluded.ceiling_day, record = excluded.record";
    let row = params![
        &*record.id,
        &*record.account,
        record.digest.to_string(),
        ceilings.total.map(MicroRub::micro),
        ceilings.month.map(MicroRub::micro),
        ceilings.day.map(MicroRub::micro),
        to_json(record)?
    ];
    one(conn.prepare_cached(sql)?.execute(row)?)
}

/// Writes the new values of a group.
pub(super) fn write_group(conn: &Connection, account: &AccountId, group: &GroupRow) -> Result<()> {
    let sql = "INSERT INTO groups (account, id, name, removed, ceiling, ceiling_month, ceiling_day, carried, used,
                   month, month_before, day, day_before)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
               ON CONFLICT (account, id) DO UPDATE SET
                   name = excluded.name, removed = excluded.removed, ceiling = excluded.ceiling,
                   ceiling_month = excluded.ceiling_month, ceiling_day = excluded.ceiling_day,
                   carried = excluded.carried, used = excluded.used, month = excluded.month,
                   month_before = excluded.month_before, day = excluded.day, day_before = excluded.day_before";
    let Used { in_all, month, day } = group.used;
    let row = params![
        &**account,
        &*group.id,
        group.name,
        group.removed,
        group.ceilings.total.map(MicroRub::micro),
        group.ceilings.month.map(MicroRub::micro),
        group.ceilings.day.map(MicroRub::micro),
        group.carried.micro(),
        in_all.micro(),
        integer(month.index),
        month.before.micro(),
        integer(day.index),
        day.before.micro(),
    ];
    one(conn.prepare_cached(sql)?.execute(row)?)
}

pub(super) fn write_tariff(
    conn: &Connection,
    version: TariffVersion,
    fingerprint: &str,
) -> Result<()> {
    let sql = "INSERT INTO tariff (id, effective_from_ms, fingerprint) VALUES (?1, ?2, ?3)";
    let row = params![
        integer(version.id),
        integer(version.effective_from_ms),
        fingerprint
    ];
    one(conn.prepare_cached(sql)?.execute(row)?)
}

/// Writes the receipts of one batch.
pub(super) struct Receipts<'conn> {
    insert: CachedStatement<'conn>,
    /// The stored text of recently written prices. Calls of the same model share a price.
    prices: Vec<(Arc<Price>, String)>,
}

impl<'conn> Receipts<'conn> {
    pub(super) fn new(conn: &'conn Connection) -> Result<Self> {
        Ok(Self {
            insert: conn.prepare_cached(RECEIPT)?,
            prices: Vec::new(),
        })
    }

    pub(super) fn write(&mut self, receipt: &Receipt) -> Result<()> {
        let Item {
            model,
            vendor,
            usage,
            price,
            estimated,
            bounded,
            unpriced,
            vendor_cost_rub,
            vendor_usage,
            bounded_loss_rub,
            held_max_rub,
            held_at_end_rub,
            stopped_by,
            end,
            session,
            endpoint,
            timeline,
        } = &receipt.item;
        let classes = (!usage.classes.is_empty()).then(|| to_json(&usage.classes));
        let price = price
            .as_ref()
            .map(|price| price_text(&mut self.prices, price));
        self.insert.execute(params![
            number_text(receipt.number, &mut [0; Hyphenated::LENGTH]),
            integer(receipt.at_ms),
            &*receipt.account,
            &*receipt.key,
            model,
            vendor,
            integer(usage.input),
            integer(usage.cached_input),
            integer(usage.cache_write),
            integer(usage.output),
            receipt.held_rub.micro(),
            receipt.cost_rub.micro(),
            receipt.charged_rub.micro(),
            receipt.loss_rub.micro(),
            end.as_str(),
            receipt.booked.as_str(),
            estimated,
            price.transpose()?,
            bounded,
            session.as_deref(),
            classes.transpose()?,
            unpriced,
            vendor_cost_rub.map(MicroRub::micro),
            endpoint.map(Endpoint::as_str),
            timeline.as_ref().map(ToString::to_string),
            receipt.group.as_deref(),
            vendor_usage.as_ref().map(to_json).transpose()?,
            bounded_loss_rub.map(MicroRub::micro),
            held_max_rub.map(MicroRub::micro),
            held_at_end_rub.map(MicroRub::micro),
            stopped_by.map(StoppedBy::as_str),
        ])?;
        Ok(())
    }
}

fn price_text<'a>(known: &'a mut Vec<(Arc<Price>, String)>, price: &Arc<Price>) -> Result<&'a str> {
    let place = match known
        .iter()
        .position(|(known, _)| Arc::ptr_eq(known, price))
    {
        Some(place) => place,
        None => {
            let text = to_json(price)?;
            if known.len() >= PRICES_MAX {
                known.clear();
            }
            known.push((Arc::clone(price), text));
            known.len() - 1
        }
    };
    Ok(known[place].1.as_str())
}

/// Totals of accounts, keys and groups that are not written to the file yet.
#[derive(Default)]
struct Totals<'a> {
    /// The balance and the loss of each account.
    accounts: BTreeMap<&'a AccountId, (MicroRub, MicroRub)>,
    keys: BTreeMap<&'a KeyId, Used>,
    groups: BTreeMap<(&'a AccountId, &'a GroupId), Used>,
}

impl Totals<'_> {
    /// Writes the totals. Fails if a charged account does not exist; this check replaces a foreign key check for each
    /// receipt.
    fn write(&mut self, conn: &Connection) -> Result<()> {
        if !self.accounts.is_empty() {
            let sql = "UPDATE accounts SET balance = ?2, loss = ?3 WHERE id = ?1";
            let mut update = conn.prepare_cached(sql)?;
            while let Some((id, (balance, loss))) = self.accounts.pop_first() {
                one(update.execute(params![&**id, balance.micro(), loss.micro()])?)?;
            }
        }
        if !self.keys.is_empty() {
            let sql = "UPDATE keys SET used = ?2, month = ?3, month_before = ?4, day = ?5, day_before = ?6
                       WHERE id = ?1";
            let mut update = conn.prepare_cached(sql)?;
            while let Some((id, used)) = self.keys.pop_first() {
                let row = params![
                    &**id,
                    used.in_all.micro(),
                    integer(used.month.index),
                    used.month.before.micro(),
                    integer(used.day.index),
                    used.day.before.micro()
                ];
                one(update.execute(row)?)?;
            }
        }
        if !self.groups.is_empty() {
            let sql = "UPDATE groups SET used = ?3, month = ?4, month_before = ?5, day = ?6, day_before = ?7
                       WHERE account = ?1 AND id = ?2";
            let mut update = conn.prepare_cached(sql)?;
            while let Some(((account, id), used)) = self.groups.pop_first() {
                let row = params![
                    &**account,
                    &**id,
                    used.in_all.micro(),
                    integer(used.month.index),
                    used.month.before.micro(),
                    integer(used.day.index),
                    used.day.before.micro()
                ];
                one(update.execute(row)?)?;
            }
        }
        Ok(())
    }
}
