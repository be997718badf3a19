//! Endpoints for automatic top-ups: the rules by which accounts are topped up by saved cards.

use std::{collections::BTreeMap, sync::Arc};

use tollgate_layers::key::AccountId;

use super::{
    Admin, Answer, Right,
    accounts::account_id,
    fields::Fields,
    ok,
    payments::{email, not_made, refusal},
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::fields,
    payments::{AutoShown, IntentId, NewAutoTopup, PaymentError},
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/auto_topups" => list_auto_topups;
    get "/admin/v1/accounts/{account}/auto_topup" => show_auto_topup;
    put "/admin/v1/accounts/{account}/auto_topup" => set_auto_topup .needs(Right::Money);
    delete "/admin/v1/accounts/{account}/auto_topup" => remove_auto_topup .needs(Right::Money);
    post "/admin/v1/accounts/{account}/auto_topup/resume" => resume_auto_topup .needs(Right::Money);
};

const FIELDS: &[&str] = &[
    "id",
    "below_rub",
    "amount_rub",
    "month_max_rub",
    "provider",
    "email",
];

impl Admin {
    async fn list_auto_topups(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let rules = self.payments.autos().await;
        let rules = rules.map_err(|error| refusal(error, None))?;
        ok(&BTreeMap::from([("auto_topups", rules)]))
    }

    async fn show_auto_topup(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let rule = self.payments.auto_of(&account).await;
        ok(&rule.map_err(|error| refusal(error, Some(&account)))?)
    }

    async fn set_auto_topup(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, FIELDS)?;
        let rule_wanted = NewAutoTopup {
            id: fields
                .optional("id", fields::id::<IntentId>)?
                .unwrap_or_default(),
            account: account.clone(),
            below: fields.required("below_rub", fields::amount)?,
            amount: fields.required("amount_rub", fields::amount)?,
            month_max: fields.required("month_max_rub", fields::amount)?,
            provider: fields.optional("provider", fields::words)?,
            email: fields.optional("email", email)?,
            by: who.name().to_owned(),
        };
        let id = rule_wanted.id;
        let (below_rub, amount_rub, month_max_rub) =
            (rule_wanted.below, rule_wanted.amount, rule_wanted.month_max);
        let rule = self.payments.set_auto(rule_wanted).await;
        let rule = rule.map_err(|error| not_made(error, id, &account))?;
        tracing::info!(
            target: "audit", who = who.name(), what = "account.auto_topup", account = %account, %below_rub, %amount_rub,
            %month_max_rub
        );
        ok(&rule)
    }

    async fn remove_auto_topup(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let rule = self.payments.remove_auto(&account).await;
        changed(rule, who.name(), "account.auto_topup_remove", &account)
    }

    async fn resume_auto_topup(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let rule = self.payments.resume_auto(&account).await;
        changed(rule, who.name(), "account.auto_topup_resume", &account)
    }
}

fn changed(
    rule: Result<AutoShown, PaymentError>,
    who: &str,
    what: &'static str,
    account: &AccountId,
) -> Result<Answer, Refusal> {
    let rule = rule.map_err(|error| refusal(error, Some(account)))?;
    tracing::info!(target: "audit", who, what, account = %account);
    ok(&rule)
}
