//! Endpoints for accounts: open, rename, suspend; book payments and corrections.

use std::{collections::BTreeMap, sync::Arc};

use tollgate_layers::{
    key::AccountId,
    money::MicroRub,
    reserve::ledger::{AccountView, BookError, Entry, LedgerAdmin},
};

use super::{
    Admin, Answer, Operator, Right,
    answer::{AccountAnswer, EnteredAnswer},
    change::changes,
    fields::Fields,
    ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::fields::{self, either},
    ledger::AnyLedger,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts" => list_accounts;
    post "/admin/v1/accounts" => create_account .needs(Right::Support);
    get "/admin/v1/accounts/{account}" => show_account;
    patch "/admin/v1/accounts/{account}" => change_account .needs(Right::Support);
    post "/admin/v1/accounts/{account}/topups" => top_up .needs(Right::Money);
    post "/admin/v1/accounts/{account}/adjustments" => adjust .needs(Right::Money);
};

const CHANGE_FIELDS: &[&str] = &["name", "status"];
/// The words for an account's status, and whether the account is suspended.
const STATUSES: [(&str, bool); 2] = [("active", false), ("suspended", true)];

impl Admin {
    async fn list_accounts(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let accounts = self.store.accounts().await.or_refuse("accounts")?;
        ok(&BTreeMap::from([("accounts", accounts)]))
    }

    async fn create_account(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["id", "name"])?;
        let id: AccountId = fields.required("id", fields::id)?;
        let name = fields.optional("name", fields::line)?.unwrap_or_default();
        let created = self.store.create_account(&id, &name).await;
        let view = created.map_err(|error| match error {
            BookError::Exists => Refusal::Conflict(format!(
                "account {id} exists already, with another name. To rename it: tollgate account set {id} \
                 --name NAME. For a different account, choose another id"
            )),
            error => Refusal::of_change(&error, &format!("account {id}")),
        })?;
        tracing::info!(target: "audit", who = who.name(), what = "account.create", account = %id, name);
        ok(&view)
    }

    async fn show_account(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let id = account_id(request.named())?;
        let view = find_account(&self.store, &id).await?;
        let subject = format!("account {id}");
        let keys = self.store.keys(&id).await.or_refuse(&subject)?;
        let debt_rub = self.payments.debt_of(&id).await.or_refuse(&subject)?;
        ok(&AccountAnswer::new(&view, &keys, debt_rub))
    }

    async fn change_account(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let id = account_id(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, CHANGE_FIELDS)?;
        let name = fields.optional("name", fields::line)?;
        let suspended = fields.optional("status", either(STATUSES))?;
        if name.is_none() && suspended.is_none() {
            let problem = "nothing to change: send name or status";
            return Err(Refusal::invalid("", problem));
        }
        let before = find_account(&self.store, &id).await?;
        let store = &self.store;
        let view = store.change_account(&id, name.as_deref(), suspended).await;
        let view = view.or_refuse_change(format_args!("account {id}"))?;
        let change = changes(CHANGE_FIELDS, &before, &view);
        tracing::info!(target: "audit", who = who.name(), what = "account.change", account = %id, change);
        ok(&view)
    }

    async fn top_up(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["id", "amount_rub"])?;
        let id = fields.required("id", fields::words)?;
        let amount = fields.required("amount_rub", fields::amount)?;
        if amount <= MicroRub::ZERO {
            let problem =
                "must be more than 0; to reduce the balance, send a correction to …/adjustments";
            return Err(Refusal::invalid("amount_rub", problem));
        }
        let reason = None;
        let entry = Entry { id, amount, reason };
        self.enter(&who, &account, entry).await
    }

    async fn adjust(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["id", "amount_rub", "reason"])?;
        let id = fields.required("id", fields::words)?;
        let amount = fields.required("amount_rub", fields::amount)?;
        let reason = Some(fields.required("reason", fields::words)?);
        if amount == MicroRub::ZERO {
            return Err(Refusal::invalid("amount_rub", "must not be 0"));
        }
        let entry = Entry { id, amount, reason };
        self.enter(&who, &account, entry).await
    }

    async fn enter(
        &self,
        who: &Operator,
        account: &AccountId,
        entry: Entry,
    ) -> Result<Answer, Refusal> {
        let before = find_account(&self.store, account).await?;
        let known = self.store.entry(account, &entry.id).await;
        let subject = format!("account {account}");
        // Logged when the entry is booked, and again when the request is repeated: the process that booked the entry
        // may have ended before it wrote the log line.
        let log = |entry: &Entry, repeated: bool, balance: MicroRub| {
            let what = match entry.reason {
                Some(_) => "account.adjust",
                None => "account.topup",
            };
            tracing::info!(
                target: "audit", who = who.name(), what, account = %account, id = entry.id, amount_rub = %entry.amount,
                reason = entry.reason, repeated, balance_before_rub = %before.balance_rub, balance_rub = %balance
            );
        };
        if let Some(known) = known.or_refuse(&subject)? {
            is_the_same(account, &known, &entry)?;
            log(&entry, true, before.balance_rub);
            return ok(&EnteredAnswer::new(&before, true));
        }
        let view = self.store.enter(account, &entry).await;
        let view = view.map_err(|error| match error {
            BookError::Exists => booked_before(account, &entry.id, "amount"),
            error => Refusal::of_change(&error, &subject),
        })?;
        log(&entry, false, view.balance_rub);
        // Another request may have booked an entry under this id in the meantime.
        let booked = self.store.entry(account, &entry.id).await;
        if let Some(booked) = booked.or_refuse_change(&subject)? {
            is_the_same(account, &booked, &entry)?;
        }
        ok(&EnteredAnswer::new(&view, false))
    }
}

/// Checks that the entry that was booked under this id equals the requested entry.
fn is_the_same(account: &AccountId, booked: &Entry, request: &Entry) -> Result<(), Refusal> {
    let difference = match (&booked.reason, &request.reason) {
        _ if booked.amount != request.amount => "amount",
        (None, Some(_)) => "kind (payment)",
        (Some(_), None) => "kind (correction)",
        (booked, request) if booked != request => "reason",
        _ => return Ok(()),
    };
    Err(booked_before(account, &request.id, difference))
}

/// `difference` names the field in which the booked entry differs from the request: its amount, its kind (payment or
/// correction) or its reason.
fn booked_before(account: &AccountId, id: &str, difference: &str) -> Refusal {
    Refusal::Conflict(format!(
        "id: {id:?} was booked on account {account} before, with another {difference}. To repeat that booking, send the \
         same request; to book another entry, send a new id"
    ))
}

pub(super) fn account_id(text: &str) -> Result<AccountId, Refusal> {
    text.parse::<AccountId>()
        .map_err(|error| Refusal::NotFound(format!("no such account: {error}")))
}

/// Returns an account of the ledger.
pub(super) async fn find_account(
    store: &AnyLedger,
    id: &AccountId,
) -> Result<AccountView, Refusal> {
    let found = store.account(id).await;
    found.or_refuse(format_args!("account {id}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn account_status_is_the_word_active_or_suspended() {
        let suspended = either(STATUSES);
        assert_eq!(suspended(&json!("active")), Ok(false));
        assert_eq!(suspended(&json!("suspended")), Ok(true));
        assert!(suspended(&json!(true)).is_err());
    }
}
