//! Compares the roll-up's sums with the journals from which they were computed.

use std::collections::BTreeMap;

use super::{DAY_MS, KEPT_MS, Rolled, Rollup, Scope, Sums, Words, now_ms, sums::counted};
use crate::{
    account::AccountId,
    calendar::date_of_day,
    contract::{BookError, JournalLine, JournalPages, Receipt},
};

/// How often the reading of all accounts is attempted, if the sums change during the check.
const TRIES: usize = 3;
/// The largest number of differences that are listed.
const NAMED_MAX: usize = 100;

/// Sums by day and by the fields of [`Words`].
type Table = BTreeMap<(u64, Words), Sums>;

/// Returns the differences between the sums and the journals. Each text begins with `U1`.
///
/// # Errors
/// A [`BookError`] if the ledger does not respond.
pub async fn check<L: Rollup + ?Sized>(ledger: &L) -> Result<Vec<String>, BookError> {
    let mut found = Vec::new();
    for account in ledger.account_ids().await? {
        if let Err(error) = check_account(ledger, &account, &mut found).await
            && !matches!(error, BookError::NotFound)
        {
            return Err(error);
        }
    }
    for _ in 0..TRIES {
        let before = ledger.marks().await?.version;
        let over_all = check_all(ledger).await?;
        if ledger.marks().await?.version == before {
            found.extend(over_all);
            break;
        }
    }
    found.truncate(NAMED_MAX);
    Ok(found)
}

async fn check_account<L: Rollup + ?Sized>(
    ledger: &L,
    id: &AccountId,
    found: &mut Vec<String>,
) -> Result<(), BookError> {
    let scope = Scope::Account(id.clone());
    // The sums are read before the books, so the books include at least every line that is in the sums.
    let Rolled { rows, places, .. } = ledger.rolled(&[(scope.clone(), 0..u64::MAX)]).await?;
    if rows.is_empty() && places.is_empty() {
        return Ok(());
    }
    let books = ledger.books(id).await?;
    let mut reported = Table::new();
    for (at_ms, words, sums) in rows {
        reported.entry((at_ms, words)).or_default().add(&sums);
    }
    let add = |table: &mut Table, receipt: &Receipt| {
        let at_ms = receipt.at_ms - receipt.at_ms % DAY_MS;
        let row = table.entry((at_ms, Words::from_receipt(receipt, &scope)));
        row.or_default().add(&Sums::from_receipt(receipt));
    };
    let mut pages = JournalPages::up_to(&books);
    pages.after = places.get(id).cloned();
    while let Some(lines) = pages.next(ledger).await? {
        (lines.iter().filter_map(counted)).for_each(|receipt| add(&mut reported, receipt));
    }
    let stored = ledger.entries(id, &books.journal_end).await?;
    let (mut entries, mut journal, mut first_ms) = (Vec::new(), Table::new(), u64::MAX);
    let mut pages = JournalPages::up_to(&books);
    while let Some(lines) = pages.next(ledger).await? {
        for receipt in lines.iter().filter_map(counted) {
            first_ms = first_ms.min(receipt.at_ms);
            add(&mut journal, receipt);
        }
        entries.extend(lines.into_iter().filter(is_entry));
    }
    // The sums may include lines that the journal has already dropped, so only days after these lines are compared.
    let since_ms = match books.journal_complete {
        true => 0,
        false => first_ms.saturating_add(DAY_MS),
    };
    if let Some(mut stored) = stored {
        stored.retain(|line| line.at_ms() >= since_ms);
        entries.retain(|line| line.at_ms() >= since_ms);
        if stored != entries {
            found.push(format!(
                "U1 account {id}: the {} payments and corrections stored next to the sums differ from the {} in the \
                 journal",
                stored.len(),
                entries.len()
            ));
        }
    }
    let name = format!("account {id}");
    let agree = Sums::agree_with;
    compare(&name, &reported, &journal, since_ms, agree, found);
    Ok(())
}

const fn is_entry(line: &JournalLine) -> bool {
    matches!(line, JournalLine::Entry { .. })
}

/// Compares the stored sums over all accounts with the total of the sums of each account.
async fn check_all<L: Rollup + ?Sized>(ledger: &L) -> Result<Vec<String>, BookError> {
    let mut accounts = Table::new();
    for id in ledger.account_ids().await? {
        let rolled = ledger.rolled(&[(Scope::Account(id), 0..u64::MAX)]).await?;
        add_all(&mut accounts, &Scope::Days, rolled.rows);
    }
    let mut found = Vec::new();
    let since_ms = now_ms().saturating_sub(KEPT_MS);
    // Durations are not compared, because sums of an earlier version lack them.
    let agree = Sums::same_but_for_times;
    for (scope, name) in [
        (Scope::Days, "all accounts by day"),
        (Scope::Hours, "all accounts by hour"),
    ] {
        let mut reported = Table::new();
        let rolled = ledger.rolled(&[(scope, 0..u64::MAX)]).await?;
        add_all(&mut reported, &Scope::Days, rolled.rows);
        compare(name, &reported, &accounts, since_ms, agree, &mut found);
    }
    let rolled = ledger.rolled(&[(Scope::Months, 0..u64::MAX)]).await?;
    let (mut reported, mut by_month) = (Table::new(), Table::new());
    accounts.retain(|(at_ms, _), _| *at_ms < rolled.months_end_ms);
    let of_days = accounts.into_iter();
    let of_days = of_days.map(|((at_ms, words), sums)| (at_ms, words, sums));
    add_all(&mut by_month, &Scope::Months, of_days);
    add_all(&mut reported, &Scope::Months, rolled.rows);
    compare(
        "all accounts in the month that begins",
        &reported,
        &by_month,
        since_ms,
        agree,
        &mut found,
    );
    Ok(found)
}

fn add_all(table: &mut Table, step: &Scope, rows: impl IntoIterator<Item = (u64, Words, Sums)>) {
    for (at_ms, words, sums) in rows {
        let words = Words {
            key: None,
            group: None,
            ..words
        };
        let row = table.entry((step.begin_ms(at_ms), words));
        row.or_default().add(&sums);
    }
}

fn compare(
    name: &str,
    reported: &Table,
    journal: &Table,
    since_ms: u64,
    agree: fn(&Sums, &Sums) -> bool,
    found: &mut Vec<String>,
) {
    let none = Sums::default();
    let mut places: Vec<&(u64, Words)> = reported.keys().chain(journal.keys()).collect();
    places.sort_unstable();
    places.dedup();
    for place in places.into_iter().filter(|(at_ms, _)| *at_ms >= since_ms) {
        let sums = reported.get(place).unwrap_or(&none);
        let receipts = journal.get(place).unwrap_or(&none);
        if !agree(sums, receipts) {
            let (at_ms, words) = place;
            let day = i64::try_from(at_ms / DAY_MS).unwrap_or_default();
            let (year, month, day) = date_of_day(day);
            found.push(format!(
                "U1 sums of {name} on {year:04}-{month:02}-{day:02}, model {}: {} calls for {} µ₽, but \
                 receipts of {} calls for {} µ₽",
                words.model, sums.calls, sums.charged_micro, receipts.calls, receipts.charged_micro
            ));
        }
    }
}
