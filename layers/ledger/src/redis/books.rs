//! The operations of the Redis ledger that operators use.

use std::collections::HashMap;

use futures_util::future::join_all;

use super::{
    ACCOUNTS_AT_ONCE, NO_ARGS, RedisLedger, digits,
    journal::StreamId,
    lines::receipt_in_entry,
    names::{account_key, place_field, places_key, receipt_key, turns_key},
    retention_ms,
};
use crate::{
    account::{AccountId, GroupId, KeyId, KeyRecord},
    audit,
    ceiling::Ceilings,
    conn::{OPERATOR_TIMEOUT, RedisFault, Result},
    contract::{
        AccountBooks, AccountView, Audit, BookError, Entry, GroupChange, GroupRecord, GroupView,
        JournalPage, JournalPart, KeyChange, KeyView, LedgerAdmin, Receipt, TariffVersion,
        entry_of,
    },
    leases::RECALL_WAIT,
    money::MicroRub,
    number::RequestNumber,
    rollup::Rollup,
};

/// The largest number of accounts that one pipeline reads.
const VIEWS_AT_ONCE: usize = 256;
/// How often a key change is attempted while other changes of the same key come first.
const CHANGE_ATTEMPTS_MAX: usize = 16;

/// The reply of `account.lua`.
type AccountRow = (String, bool, i64, i64, i64, i64, u64);

fn account_keys(id: &AccountId) -> Vec<String> {
    Vec::from(["", ":k", ":x"].map(|part| account_key(id, part)))
}

fn view_of(id: &AccountId, row: AccountRow) -> AccountView {
    let (name, suspended, balance, held, loss, spent, holds_open) = row;
    let [balance_rub, held_rub, loss_rub, spent_rub] =
        [balance, held, loss, spent].map(MicroRub::new);
    AccountView {
        id: id.clone(),
        name,
        suspended,
        balance_rub,
        held_rub,
        free_rub: balance_rub.minus_or_zero(held_rub),
        spent_rub,
        loss_rub,
        holds_open,
    }
}

impl LedgerAdmin for RedisLedger {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        // The index of accounts is written first. An id in the index without an account is skipped, but an account that
        // is not in the index would never be found.
        let _: i64 = self
            .0
            .conn
            .command_durably(&["SADD", "tg:accounts", id], OPERATOR_TIMEOUT)
            .await?;
        let keys = [account_key(id, "")];
        let word: String = self
            .ask_durably(&self.0.scripts.create_account, &keys, &[name.to_owned()])
            .await?;
        done(&word)?;
        self.account(id).await
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        let mut args = Vec::new();
        if let Some(name) = name {
            args.extend(["name".to_owned(), name.to_owned()]);
        }
        if let Some(suspended) = suspended {
            args.extend(["s".to_owned(), u8::from(suspended).to_string()]);
        }
        let keys = [account_key(id, "")];
        let word: String = self
            .ask_durably(&self.0.scripts.change_account, &keys, &args)
            .await?;
        done(&word)?;
        if suspended == Some(true) {
            self.wait_for_leases(id).await?;
        }
        self.account(id).await
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        let keys = account_keys(id);
        let row: Option<AccountRow> = self
            .ask_patiently(&self.0.scripts.account, &keys, NO_ARGS)
            .await?;
        match row {
            Some(row) => Ok(view_of(id, row)),
            None => {
                self.missing_account().await?;
                Err(BookError::NotFound)
            }
        }
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        let (mut views, mut is_one_gone) = (Vec::new(), false);
        for ids in self.account_ids().await?.chunks(VIEWS_AT_ONCE) {
            let keys: Vec<Vec<String>> = ids.iter().map(account_keys).collect();
            let script = &self.0.scripts.account;
            let rows: Vec<Option<AccountRow>> =
                (self.0.conn.eval_each(script, &keys, OPERATOR_TIMEOUT)).await?;
            for (id, row) in ids.iter().zip(rows) {
                is_one_gone |= row.is_none();
                views.extend(row.map(|row| view_of(id, row)));
            }
        }
        if is_one_gone {
            self.missing_account().await?;
        }
        Ok(views)
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        let keys = ["", ":t", ":j", ":ev"].map(|part| account_key(account, part));
        let reason = entry.reason.clone().unwrap_or_default();
        let args = [
            entry.id.clone(),
            digits(entry.amount),
            reason,
            retention_ms(),
        ];
        let enter = &self.0.scripts.enter;
        let mut word: String = self.ask_durably(enter, &keys, &args).await?;
        // A correction that does not fit waits until gateways give leased money back.
        if word == "below_held" && self.recall_until_returned(account, RECALL_WAIT).await? {
            word = self.ask_durably(enter, &keys, &args).await?;
        }
        done(&word)?;
        self.0.noticed.note(account);
        self.account(account).await
    }

    async fn entry(&self, account: &AccountId, id: &str) -> Result<Option<Entry>, BookError> {
        let booked = account_key(account, ":t");
        let is_booked: bool = self.command(&["HEXISTS", &booked, id]).await?;
        if !is_booked {
            return Ok(None);
        }
        let end = StreamId::last_of(u64::MAX).to_string();
        match Rollup::entries(self, account, &end).await? {
            Some(lines) => Ok(lines.into_iter().find_map(|line| line.into_entry(id))),
            None => entry_of(self, account, id).await,
        }
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        self.account(&record.account).await?;
        if let Some(known) = self.stored_key(&record.id).await? {
            return self.created_before(known, record, ceilings).await;
        }
        self.claim(record).await?;
        let Ceilings { total, month, day } = ceilings;
        let set = [total, month, day].map(Some);
        match self.write_key("", record, set).await? {
            Some(version) => self.publish(record, version).await?,
            // Another process has just created the key.
            None => {
                let known = self.stored_key(&record.id).await?;
                let known = known.ok_or(BookError::Exists)?;
                return self.created_before(known, record, ceilings).await;
            }
        }
        self.key(&record.id).await
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        if change.group.is_some() {
            // Calls that ended before this change must be charged to the key's old group. So wait until the gateways
            // have reported the settlements of those calls.
            let known = self.stored_key(id).await?.ok_or(BookError::NotFound)?;
            self.wait_for_reported_ends(&known.view.record.account)
                .await?;
        }
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            let known = self.stored_key(id).await?.ok_or(BookError::NotFound)?;
            let mut record = known.view.record;
            change.clone().apply(&mut record);
            let set = [change.ceiling, change.ceiling_month, change.ceiling_day];
            if let Some(version) = self.write_key(&known.json, &record, set).await? {
                self.publish(&record, version).await?;
                let bound = change.group.is_some() || change.concurrency.is_some();
                if bound || change.status.is_some() || set.iter().any(Option::is_some) {
                    self.wait_for_leases(&record.account).await?;
                }
                return self.key(id).await;
            }
        }
        Err(RedisFault::Unexpected(format!(
            "other gateways changed key {id} during every attempt; try again"
        ))
        .into())
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        self.stored_key(id)
            .await?
            .map(|stored| stored.view)
            .ok_or(BookError::NotFound)
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        let stored = self.stored_keys(account, &[]).await?;
        let stored = stored.ok_or(BookError::NotFound)?;
        let mut views: Vec<KeyView> = stored.into_iter().map(|stored| stored.view).collect();
        views.sort_unstable_by(|a, b| a.record.id.cmp(&b.record.id));
        Ok(views)
    }

    async fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> Result<GroupView, BookError> {
        let Ceilings { total, month, day } = ceilings;
        let set = [total, month, day].map(Some);
        self.set_group(account, &record.id, "create", Some(&record.name), set)
            .await?;
        self.group(account, &record.id).await
    }

    async fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> Result<GroupView, BookError> {
        let set = [change.ceiling, change.ceiling_month, change.ceiling_day];
        let step = if change.remove { "remove" } else { "change" };
        self.set_group(account, id, step, change.name.as_deref(), set)
            .await?;
        if set.iter().any(Option::is_some) {
            self.wait_for_leases(account).await?;
        }
        self.group(account, id).await
    }

    async fn groups(&self, account: &AccountId) -> Result<Vec<GroupView>, BookError> {
        self.stored_groups(account).await
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        // A call's number contains its time but not its account. So the accounts that settled calls on that day are
        // searched first, and then all other accounts.
        let of_day = self.accounts_of_day(number).await?;
        if let Some(receipt) = self.receipt_among(&of_day, number).await? {
            return Ok(receipt);
        }
        let all = self.account_ids().await?;
        let found = self.receipt_among(&all, number).await?;
        found.ok_or(BookError::NotFound)
    }

    async fn receipt_of(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> Result<Receipt, BookError> {
        let found = self.receipt_in(account, number).await?;
        found.ok_or(BookError::NotFound)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        self.journal_page(account, part).await
    }

    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        let stored = self.stored_books(account).await?;
        Ok(stored.ok_or(BookError::NotFound)?.books(account)?)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        let keys = ["tg:sys".to_owned()];
        let (id, effective_from_ms): (u64, u64) = self
            .ask_patiently(&self.0.scripts.tariff, &keys, &[fingerprint.to_owned()])
            .await?;
        Ok(TariffVersion {
            id,
            effective_from_ms,
        })
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        audit::over(self).await
    }
}

impl RedisLedger {
    async fn receipt_among(
        &self,
        accounts: &[AccountId],
        number: RequestNumber,
    ) -> Result<Option<Receipt>> {
        for ids in accounts.chunks(ACCOUNTS_AT_ONCE) {
            for receipt in join_all(ids.iter().map(|id| self.receipt_in(id, number))).await {
                if let Some(receipt) = receipt? {
                    return Ok(Some(receipt));
                }
            }
        }
        Ok(None)
    }

    async fn receipt_in(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> Result<Option<Receipt>> {
        let keys = [
            account_key(account, ""),
            receipt_key(account, number),
            account_key(account, ":j"),
            places_key(account, number),
            turns_key(account, number),
        ];
        let entry: Option<HashMap<String, String>> = self
            .ask_patiently(&self.0.scripts.receipt, &keys, place_field(&number))
            .await?;
        match entry {
            Some(entry) => receipt_in_entry(account, number, &entry),
            None => Ok(None),
        }
    }
}

pub(super) fn done(word: &str) -> Result<(), BookError> {
    Err(match word {
        "ok" => return Ok(()),
        "not_found" => BookError::NotFound,
        "exists" => BookError::Exists,
        "no_group" => BookError::NoGroup,
        "in_use" => BookError::GroupInUse,
        "below_held" => BookError::BelowHeld,
        "above_max" => BookError::AboveMax,
        word => RedisFault::Unexpected(format!("answer {word:?}")).into(),
    })
}
