//! The audit's view of a ledger file: its accounts, keys and entries, and then each receipt once, in storage order.
//!
//! A file is checked before it is served, so the check must be fast even with millions of receipts. SQL only reads the
//! rows: sums per account and key in SQL would sort all receipts, which is slower than adding them up here. The cost of
//! each call is computed again only in an audit that an operator requests.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::{Connection, Row, types::ValueRef};
use serde::{
    Deserialize,
    de::value::{Error as WordError, StrDeserializer},
};

use super::rows::{amount, count};
use crate::{
    BoxError,
    account::KeyId,
    audit::{AccountAudit, CallMoney, GroupSnapshot, KeySnapshot, Snapshot},
    contract::Booked,
    durable::file::{from_json, parsed, unreadable},
    money::MicroRub,
    price::{Counts, Price},
    usage::Usage,
};

/// The largest number of breaches that are listed for a file.
const BREACHES_MAX: usize = 100;

/// When a file is checked, which decides how strict the check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckPoint {
    /// The file is being opened. Only faults with which a gateway could not continue are breaches. Missing receipts are
    /// no breach: a later version may delete old receipts, while the totals still include their charges.
    Opening,
    /// The file is being audited. Every receipt must exist, unless the account was copied from a ledger that had
    /// already dropped its oldest receipts. The cost in each receipt must follow from its usage and prices.
    Audit,
}

/// Returns the breaches of the invariants in the file. Each text begins with the invariant's name. A transaction must
/// be open, so that everything is read at one moment.
pub(super) fn breaches(conn: &Connection, occasion: CheckPoint) -> rusqlite::Result<Vec<String>> {
    let mut strays = Strays::default();
    let mut books = accounts(conn, occasion)?;
    add_keys(conn, &mut books, &mut strays)?;
    add_groups(conn, &mut books, &mut strays)?;
    add_entries(conn, &mut books, &mut strays)?;
    let mut judged: HashMap<String, Judged> = books
        .into_iter()
        .map(|(id, books)| (id, Judged::from(books)))
        .collect();
    add_receipts(conn, &mut judged, &mut strays)?;
    if occasion == CheckPoint::Audit {
        compute_costs(conn, &mut judged)?;
    }

    let mut judged: Vec<(String, Judged)> = judged.into_iter().collect();
    judged.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let mut breaches = Vec::new();
    for (_, account) in judged {
        breaches.extend(account.finish()?);
    }
    breaches.extend(strays.0);
    breaches.truncate(BREACHES_MAX);
    Ok(breaches)
}

/// An account's books, and the sum of its payments and corrections.
struct Books {
    snapshot: Snapshot,
    entered: i128,
}

fn accounts(conn: &Connection, occasion: CheckPoint) -> rusqlite::Result<HashMap<String, Books>> {
    let forgotten: HashSet<String> = conn
        .prepare("SELECT account FROM forgotten")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut accounts = HashMap::new();
    let mut select = conn.prepare("SELECT id, balance, loss FROM accounts")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        let snapshot = Snapshot {
            id: parsed(row, 0)?,
            balance_rub: amount(row, 1)?,
            loss_rub: amount(row, 2)?,
            // A SQLite ledger keeps holds only in memory, so the file contains no holds.
            held_rub: MicroRub::ZERO,
            holds: Vec::new(),
            // The file does not store these sums; they are computed from its rows.
            spent_rub: MicroRub::ZERO,
            entered_rub: MicroRub::ZERO,
            keys: Vec::new(),
            groups: Vec::new(),
            journal_complete: occasion == CheckPoint::Audit && !forgotten.contains(&id),
        };
        accounts.insert(
            id,
            Books {
                snapshot,
                entered: 0,
            },
        );
    }
    Ok(accounts)
}

fn add_keys(
    conn: &Connection,
    books: &mut HashMap<String, Books>,
    strays: &mut Strays,
) -> rusqlite::Result<()> {
    let mut select = conn.prepare(
        "SELECT account, id, used, max(coalesce(month_before, 0), coalesce(day_before, 0)), record ->> 'group'
         FROM keys",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let account = text(row, 0)?;
        match books.get_mut(account) {
            Some(books) => books.snapshot.keys.push(KeySnapshot {
                id: parsed(row, 1)?,
                spent_rub: amount(row, 2)?,
                held_rub: MicroRub::ZERO,
                before_rub: Some(amount(row, 3)?),
                group: match row.get_ref(4)? {
                    ValueRef::Null => None,
                    _ => Some(parsed(row, 4)?),
                },
                calls: None,
            }),
            None => strays.add(account, "keys"),
        }
    }
    Ok(())
}

fn add_groups(
    conn: &Connection,
    books: &mut HashMap<String, Books>,
    strays: &mut Strays,
) -> rusqlite::Result<()> {
    let mut select = conn
        .prepare("SELECT account, id, used, max(month_before, day_before), carried FROM groups")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let account = text(row, 0)?;
        match books.get_mut(account) {
            Some(books) => books.snapshot.groups.push(GroupSnapshot {
                id: parsed(row, 1)?,
                spent_rub: amount(row, 2)?,
                held_rub: MicroRub::ZERO,
                carried_rub: amount(row, 4)?,
                before_rub: Some(amount(row, 3)?),
            }),
            None => strays.add(account, "groups"),
        }
    }
    Ok(())
}

fn add_entries(
    conn: &Connection,
    books: &mut HashMap<String, Books>,
    strays: &mut Strays,
) -> rusqlite::Result<()> {
    let mut select = conn.prepare("SELECT account, amount FROM entries")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let account = text(row, 0)?;
        match books.get_mut(account) {
            Some(books) => books.entered += micro(row, 1)?,
            None => strays.add(account, "entries"),
        }
    }
    Ok(())
}

/// Reads all receipts. There is one row for every call ever made, so the work per row must be small.
fn add_receipts(
    conn: &Connection,
    accounts: &mut HashMap<String, Judged>,
    strays: &mut Strays,
) -> rusqlite::Result<()> {
    let mut select =
        conn.prepare("SELECT number, account, key, booked, cost, charged, loss FROM receipts")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let account = text(row, 1)?;
        match accounts.get_mut(account) {
            Some(account) => account.receipt(row)?,
            None => strays.add(account, "receipts"),
        }
    }
    Ok(())
}

/// Computes the cost again for each receipt that has prices. Receipts without an account were reported before.
fn compute_costs(
    conn: &Connection,
    accounts: &mut HashMap<String, Judged>,
) -> rusqlite::Result<()> {
    let mut select = conn.prepare(
        "SELECT number, account, key, cost, input, cached_input, cache_write, output, price, classes
         FROM receipts WHERE price IS NOT NULL",
    )?;
    let mut rows = select.query([])?;
    let mut prices = Prices::default();
    while let Some(row) = rows.next()? {
        let Some(account) = accounts.get_mut(text(row, 1)?) else {
            continue;
        };
        let cost = amount(row, 3)?;
        let fits = priced_usage(row, &mut prices);
        let fits = fits.map(|(price, usage)| price.comes_to(cost, &usage));
        let (number, key) = match fits {
            Ok(Ok(())) => continue,
            _ => (parsed(row, 0)?, parsed(row, 2)?),
        };
        match fits {
            Ok(Err(misfit)) => account.audit.call_misfits(number, &key, cost, misfit),
            _ => account.audit.unreadable_price(number, &key),
        }
    }
    Ok(())
}

fn priced_usage<'a>(row: &Row<'_>, prices: &'a mut Prices) -> rusqlite::Result<(&'a Price, Usage)> {
    let classes = match row.get_ref(9)? {
        ValueRef::Null => Counts::default(),
        _ => from_json(row, 9)?,
    };
    let usage = Usage {
        input: count(row, 4)?,
        cached_input: count(row, 5)?,
        cache_write: count(row, 6)?,
        output: count(row, 7)?,
        classes,
    };
    Ok((prices.price_in(row, 8)?, usage))
}

/// Parsed prices, by their stored text. Most calls share a few prices, and parsing a price takes longer than computing
/// a cost.
#[derive(Default)]
struct Prices(HashMap<String, Price>);

/// The largest number of parsed prices that are kept. Each new exchange rate adds prices.
const PRICES_MAX: usize = 1_000;

impl Prices {
    fn price_in(&mut self, row: &Row<'_>, index: usize) -> rusqlite::Result<&Price> {
        let json = text(row, index)?;
        if !self.0.contains_key(json) {
            let price = from_json(row, index)?;
            if self.0.len() >= PRICES_MAX {
                self.0.clear();
            }
            self.0.insert(json.to_owned(), price);
        }
        Ok(&self.0[json])
    }
}

/// The account that is being checked, with the sums of its receipts that were read so far.
struct Judged {
    audit: AccountAudit,
    /// The sums of charges and losses, by key. Only receipts with consistent amounts are included.
    sums: HashMap<String, (i128, i128)>,
}

impl From<Books> for Judged {
    fn from(books: Books) -> Self {
        let Books { snapshot, entered } = books;
        let used = snapshot.keys.iter();
        let used = used.map(|key| i128::from(key.spent_rub.micro())).sum();
        let mut audit = AccountAudit::new(Snapshot {
            spent_rub: MicroRub::of_sum(used),
            entered_rub: MicroRub::of_sum(entered),
            ..snapshot
        });
        audit.entered_in_all(entered);
        Self {
            audit,
            sums: HashMap::new(),
        }
    }
}

impl Judged {
    fn receipt(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let money = CallMoney {
            booked: booked(row, 3)?,
            cost: micro(row, 4)?,
            charged: micro(row, 5)?,
            loss: micro(row, 6)?,
        };
        if !money.adds_up() {
            let (number, key) = (parsed(row, 0)?, parsed(row, 2)?);
            self.audit.call_money(number, &key, &money);
        } else if money.moved() {
            let key = text(row, 2)?;
            let (charged, lost) = match self.sums.get_mut(key) {
                Some(sums) => sums,
                None => self.sums.entry(key.to_owned()).or_default(),
            };
            *charged += money.charged;
            *lost += money.loss;
        }
        Ok(())
    }

    fn finish(mut self) -> rusqlite::Result<Vec<String>> {
        for (key, (charged, lost)) in self.sums {
            let key: KeyId = key
                .parse()
                .map_err(|error| unreadable(2, BoxError::from(error)))?;
            self.audit.charged_in_all(&key, charged, lost);
        }
        Ok(self.audit.finish())
    }
}

/// The breaches found in rows whose account does not exist; at most [`BREACHES_MAX`].
#[derive(Default)]
struct Strays(BTreeSet<String>);

impl Strays {
    fn add(&mut self, account: &str, what: &str) {
        if self.0.len() < BREACHES_MAX {
            let stray = format!("I3 account {account}: {what} exist, but the account does not");
            self.0.insert(stray);
        }
    }
}

fn text<'a>(row: &'a Row<'_>, index: usize) -> rusqlite::Result<&'a str> {
    let text = row.get_ref(index)?.as_str();
    text.map_err(|error| unreadable(index, error.into()))
}

fn micro(row: &Row<'_>, index: usize) -> rusqlite::Result<i128> {
    Ok(i128::from(row.get::<_, i64>(index)?))
}

fn booked(row: &Row<'_>, index: usize) -> rusqlite::Result<Booked> {
    let word = StrDeserializer::<WordError>::new(text(row, index)?);
    Booked::deserialize(word).map_err(|error| unreadable(index, error.into()))
}
