//! Endpoints for alert levels. When an account's balance, or the amount left under the ceilings of a key or a group,
//! falls to an alert level, the gateway emits an event.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::json;
use tollgate_layers::{
    key::{AccountId, GroupId},
    reserve::ledger::LedgerAdmin,
};
use tollgate_ledger::{
    contract::EventStore,
    happening::{LEVELS_MAX, Levels, Watched},
};

use super::{
    Admin, Answer, Right,
    accounts::account_id,
    fields::Fields,
    keys::{find_key, key_id},
    ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::api::fields;

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts/{account}/alerts" => show_alerts;
    put "/admin/v1/accounts/{account}/alerts" => set_alerts .needs(Right::Support);
    get "/admin/v1/keys/{key}/alerts" => show_key_alerts;
    put "/admin/v1/keys/{key}/alerts" => set_key_alerts .needs(Right::Support);
    get "/admin/v1/accounts/{account}/groups/{group}/alerts" => show_group_alerts;
    put "/admin/v1/accounts/{account}/groups/{group}/alerts" => set_group_alerts .needs(Right::Support);
};

const FIELDS: &[&str] = &["levels_rub"];

/// The alert levels of an account, and those of each of its keys and groups that has alert levels.
#[derive(Serialize)]
struct AlertsAnswer<'a> {
    account: &'a AccountId,
    levels_rub: Levels,
    keys: BTreeMap<&'a str, Levels>,
    groups: BTreeMap<&'a str, Levels>,
}

impl Admin {
    async fn show_alerts(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        self.alerts_of(&account_id(request.named())?).await
    }

    async fn alerts_of(&self, account: &AccountId) -> Result<Answer, Refusal> {
        let read = self.store.levels(account).await;
        let read = read.or_refuse(format_args!("account {account}"))?;
        let mut answer = AlertsAnswer {
            account,
            levels_rub: Levels::NONE,
            keys: BTreeMap::new(),
            groups: BTreeMap::new(),
        };
        for (of, levels) in &read {
            match of {
                Watched::Balance => answer.levels_rub = *levels,
                Watched::Key(id) => {
                    answer.keys.insert(id, *levels);
                }
                Watched::Group(id) => {
                    answer.groups.insert(id, *levels);
                }
            }
        }
        ok(&answer)
    }

    async fn set_alerts(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let levels = levels(&request.body().await?)?;
        let store = &self.store;
        let set = store.set_levels(&account, &Watched::Balance, levels).await;
        set.or_refuse_change(format_args!("account {account}"))?;
        tracing::info!(target: "audit", who = who.name(), what = "account.alerts", account = %account, levels = shown(&levels));
        self.alerts_of(&account).await
    }

    async fn show_key_alerts(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let key = key_id(request.named())?;
        let account = find_key(&self.store, &key).await?.record.account;
        let all = self.store.levels(&account).await;
        let all = all.or_refuse(format_args!("key {key}"))?;
        let levels_rub = levels_of(&all, &Watched::Key(key.clone()));
        ok(&json!({ "account": account, "key": key, "levels_rub": levels_rub }))
    }

    async fn set_key_alerts(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let key = key_id(request.named())?;
        let who = request.who();
        let levels_rub = levels(&request.body().await?)?;
        let subject = format!("key {key}");
        let found = self.store.key(&key).await;
        let account = found.or_refuse_change(&subject)?.record.account;
        let watched = Watched::Key(key.clone());
        let set = self.store.set_levels(&account, &watched, levels_rub).await;
        set.or_refuse_change(&subject)?;
        tracing::info!(target: "audit", who = who.name(), what = "key.alerts", key = %key, levels = shown(&levels_rub));
        ok(&json!({ "account": account, "key": key, "levels_rub": levels_rub }))
    }

    async fn show_group_alerts(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let (account, group) = group_named(&request)?;
        let subject = format!("group {group} of account {account}");
        let groups = self.store.groups(&account).await.or_refuse(&subject)?;
        if groups.iter().all(|known| known.record.id != group) {
            return Err(Refusal::NotFound(format!("no {subject}")));
        }
        let all = self.store.levels(&account).await.or_refuse(&subject)?;
        let levels_rub = levels_of(&all, &Watched::Group(group.clone()));
        ok(&json!({ "account": account, "group": group, "levels_rub": levels_rub }))
    }

    async fn set_group_alerts(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let (account, group) = group_named(&request)?;
        let who = request.who();
        let levels_rub = levels(&request.body().await?)?;
        let of = Watched::Group(group.clone());
        let set = self.store.set_levels(&account, &of, levels_rub).await;
        set.or_refuse_change(format_args!("group {group} of account {account}"))?;
        tracing::info!(target: "audit", who = who.name(), what = "group.alerts", account = %account, group = %group, levels = shown(&levels_rub));
        ok(&json!({ "account": account, "group": group, "levels_rub": levels_rub }))
    }
}

fn group_named(request: &AdminRequest) -> Result<(AccountId, GroupId), Refusal> {
    let account = account_id(request.named())?;
    let group = request.second_named();
    let none = |_| Refusal::NotFound(format!("no group {group} of account {account}"));
    let group = group.parse().map_err(none)?;
    Ok((account, group))
}

fn levels_of(all: &[(Watched, Levels)], of: &Watched) -> Levels {
    let found = all.iter().find(|(watched, _)| watched == of);
    found.map_or(Levels::NONE, |(_, levels)| *levels)
}

fn levels(body: &[u8]) -> Result<Levels, Refusal> {
    let mut fields = Fields::parse(body, FIELDS)?;
    let amounts = fields.list("levels_rub", fields::amount)?;
    let Some(amounts) = amounts else {
        let problem = "required; send an empty list to turn alerts off";
        return Err(Refusal::invalid("levels_rub", problem));
    };
    Levels::new(&amounts).map_err(|_| {
        let problem = format!("must be at most {LEVELS_MAX} amounts, all different and above 0");
        Refusal::invalid("levels_rub", problem)
    })
}

fn shown(levels: &Levels) -> String {
    let levels: Vec<String> = levels.iter().map(|level| level.to_string()).collect();
    levels.join(", ")
}
