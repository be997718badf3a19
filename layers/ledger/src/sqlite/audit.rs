//! The audit's view of a ledger file: its accounts, keys and entries, and then each receipt once, in storage order.
//!
//! A file is checked before it is served, so the check must be fast even with millions of receipts. SQL only reads the
//! rows: sums per account and key in SQL would sort all receipts, which is slower than adding them up here. The cost of
//! each call is computed again only in an audit that an operator requests.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::{Connection, Result, Row};

use super::rows::{amount, count, from_word, optional_json, optional_parsed};
use crate::{
    BoxError,
    account::KeyId,
    audit::{AccountAudit, CallMoney, GroupSnapshot, KeySnapshot, Snapshot},
    durable::file::{each_row, from_json, parsed, unreadable},
    money::MicroRub,
    price::Price,
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
pub(super) fn breaches(conn: &Connection, occasion: CheckPoint) -> Result<Vec<String>> {
    let mut strays = Strays::default();
    let mut books = accounts(conn, occasion)?;
    add_keys(conn, &mut books, &mut strays)?;
    add_groups(conn, &mut books, &mut strays)?;
    let entries = ("SELECT account, amount FROM entries", 0, "entries");
    each_of_accounts(conn, entries, &mut books, &mut strays, |books, row| {
        books.entered += micro(row, 1)?;
        Ok(())
    })?;
    let mut judged: HashMap<String, Judged> = books
        .into_iter()
        .map(|(id, books)| (id, Judged::from(books)))
        .collect();
    // There is one row for every call ever made, so the work per row must be small.
    let receipts = "SELECT number, account, key, booked, cost, charged, loss FROM receipts";
    let receipts = (receipts, 1, "receipts");
    each_of_accounts(conn, receipts, &mut judged, &mut strays, Judged::receipt)?;
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

fn accounts(conn: &Connection, occasion: CheckPoint) -> Result<HashMap<String, Books>> {
    let forgotten: HashSet<String> = conn
        .prepare("SELECT account FROM forgotten")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_>>()?;
    let mut accounts = HashMap::new();
    each_row(conn, "SELECT id, balance, loss FROM accounts", |row| {
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
        let entered = 0;
        accounts.insert(id, Books { snapshot, entered });
        Ok(())
    })?;
    Ok(accounts)
}

/// Calls `add` with each row of a table and its account, whose id is in the column `account_at`.
fn each_of_accounts<T>(
    conn: &Connection,
    (sql, account_at, what): (&str, usize, &str),
    accounts: &mut HashMap<String, T>,
    strays: &mut Strays,
    mut add: impl FnMut(&mut T, &Row<'_>) -> Result<()>,
) -> Result<()> {
    each_row(conn, sql, |row| {
        let account = text(row, account_at)?;
        match accounts.get_mut(account) {
            Some(account) => add(account, row)?,
            None => strays.add(account, what),
        }
        Ok(())
    })
}

fn add_keys(
    conn: &Connection,
    books: &mut HashMap<String, Books>,
    strays: &mut Strays,
) -> Result<()> {
    let sql = "SELECT account, id, used, max(coalesce(month_before, 0), coalesce(day_before, 0)), record ->> 'group'
         FROM keys";
    each_of_accounts(conn, (sql, 0, "keys"), books, strays, |books, row| {
        books.snapshot.keys.push(KeySnapshot {
            id: parsed(row, 1)?,
            spent_rub: amount(row, 2)?,
            held_rub: MicroRub::ZERO,
            before_rub: Some(amount(row, 3)?),
            group: optional_parsed(row, 4)?,
            calls: None,
        });
        Ok(())
    })
}

fn add_groups(
    conn: &Connection,
    books: &mut HashMap<String, Books>,
    strays: &mut Strays,
) -> Result<()> {
    let sql = "SELECT account, id, used, max(month_before, day_before), carried FROM groups";
    each_of_accounts(conn, (sql, 0, "groups"), books, strays, |books, row| {
        books.snapshot.groups.push(GroupSnapshot {
            id: parsed(row, 1)?,
            spent_rub: amount(row, 2)?,
            held_rub: MicroRub::ZERO,
            carried_rub: amount(row, 4)?,
            before_rub: Some(amount(row, 3)?),
        });
        Ok(())
    })
}

/// Computes the cost again for each receipt that has prices. Receipts without an account were reported before.
fn compute_costs(conn: &Connection, accounts: &mut HashMap<String, Judged>) -> Result<()> {
    let sql = "SELECT number, account, key, cost, input, cached_input, cache_write, output, price, classes
         FROM receipts WHERE price IS NOT NULL";
    let mut prices = Prices::default();
    each_row(conn, sql, |row| {
        let Some(account) = accounts.get_mut(text(row, 1)?) else {
            return Ok(());
        };
        let cost = amount(row, 3)?;
        let fits = priced_usage(row, &mut prices);
        let fits = fits.map(|(price, usage)| price.comes_to(cost, &usage));
        let (number, key) = match fits {
            Ok(Ok(())) => return Ok(()),
            _ => (parsed(row, 0)?, parsed(row, 2)?),
        };
        match fits {
            Ok(Err(misfit)) => account.audit.call_misfits(number, &key, cost, misfit),
            _ => account.audit.unreadable_price(number, &key),
        }
        Ok(())
    })
}

fn priced_usage<'a>(row: &Row<'_>, prices: &'a mut Prices) -> Result<(&'a Price, Usage)> {
    let usage = Usage {
        input: count(row, 4)?,
        cached_input: count(row, 5)?,
        cache_write: count(row, 6)?,
        output: count(row, 7)?,
        classes: optional_json(row, 9)?.unwrap_or_default(),
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
    fn price_in(&mut self, row: &Row<'_>, index: usize) -> Result<&Price> {
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
    fn receipt(&mut self, row: &Row<'_>) -> Result<()> {
        let money = CallMoney {
            booked: from_word(row, 3)?,
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

    fn finish(mut self) -> Result<Vec<String>> {
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

fn text<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a str> {
    let text = row.get_ref(index)?.as_str();
    text.map_err(|error| unreadable(index, error.into()))
}

fn micro(row: &Row<'_>, index: usize) -> Result<i128> {
    Ok(i128::from(row.get::<_, i64>(index)?))
}
