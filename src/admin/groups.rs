//! Endpoints for key groups of an account: create, limit, remove.

use std::{collections::BTreeMap, sync::Arc};

use tollgate_layers::{
    ceiling::Ceilings,
    key::GroupId,
    reserve::ledger::{BookError, GroupChange, GroupRecord, LedgerAdmin},
};

use super::{
    Admin, Answer, Right,
    accounts::account_id,
    answer::GroupAnswer,
    change::changes,
    fields::Fields,
    ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::api::{ceilings, fields};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts/{account}/groups" => list_groups;
    post "/admin/v1/accounts/{account}/groups" => create_group .needs(Right::Support);
    patch "/admin/v1/accounts/{account}/groups/{group}" => change_group .needs(Right::Support);
    delete "/admin/v1/accounts/{account}/groups/{group}" => remove_group .needs(Right::Support);
};

/// The fields of a group that can be changed.
fn change_fields() -> Vec<&'static str> {
    ["name"].into_iter().chain(ceilings::fields()).collect()
}

/// Returns the fields of a request for a new group.
fn new_fields() -> Vec<&'static str> {
    ["id"].into_iter().chain(change_fields()).collect()
}

impl Admin {
    async fn list_groups(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let groups = self.store.groups(&account).await;
        let groups = groups.or_refuse(format_args!("account {account}"))?;
        let groups: Vec<GroupAnswer<'_>> = groups.iter().map(GroupAnswer::from).collect();
        ok(&BTreeMap::from([("groups", groups)]))
    }

    async fn create_group(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = account_id(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &new_fields())?;
        let id: GroupId = fields.required("id", fields::id)?;
        let change = change(&mut fields)?;
        let record = GroupRecord {
            name: change.name.clone().unwrap_or_else(|| id.to_string()),
            id,
            removed: false,
        };
        let ceilings = change.ceilings(Ceilings::NONE);
        let made = self.store.create_group(&account, &record, ceilings).await;
        let subject = match made {
            Err(BookError::NotFound) => format!("account {account}"),
            _ => format!("group {} of account {account}", record.id),
        };
        let view = made.or_refuse_change(&subject)?;
        let mut unlimited = view.clone();
        unlimited.ceiling_rub = None;
        (unlimited.month.ceiling_rub, unlimited.day.ceiling_rub) = (None, None);
        let [before, after] = [&unlimited, &view].map(GroupAnswer::from);
        let limits = changes(&new_fields(), &before, &after);
        tracing::info!(
            target: "audit", who = who.name(), what = "group.create", account = %account, group = %record.id,
            name = record.name, limits
        );
        ok(&GroupAnswer::from(&view))
    }

    async fn change_group(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let named = [request.named(), request.second_named()].map(str::to_owned);
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &change_fields())?;
        let change = change(&mut fields)?;
        if change == GroupChange::default() {
            return Err(Refusal::nothing_to_change(&change_fields()));
        }
        self.write_group(who.name(), "group.change", &named, &change)
            .await
    }

    async fn remove_group(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let named = [request.named(), request.second_named()].map(str::to_owned);
        let change = GroupChange {
            remove: true,
            ..GroupChange::default()
        };
        let who = request.who();
        self.write_group(who.name(), "group.remove", &named, &change)
            .await
    }

    async fn write_group(
        &self,
        who: &str,
        what: &str,
        [account, group]: &[String; 2],
        change: &GroupChange,
    ) -> Result<Answer, Refusal> {
        let account = account_id(account)?;
        let none = || Refusal::NotFound(format!("no group {group} of account {account}"));
        let id: GroupId = group.parse().map_err(|_| none())?;
        let subject = format!("group {id} of account {account}");
        let before = self.store.groups(&account).await;
        let before = before.or_refuse_change(&subject)?;
        let before = before.into_iter().find(|known| known.record.id == id);
        let before = before.ok_or_else(none)?;
        if before.record.removed && !change.remove {
            return Err(Refusal::Conflict(format!(
                "group {id} was removed and cannot be restored; create another group"
            )));
        }
        let view = self.store.change_group(&account, &id, change).await;
        let view = view.or_refuse_change(&subject)?;
        let [was, is] = [&before, &view].map(GroupAnswer::from);
        let change = changes(&[&change_fields()[..], &["status"]].concat(), &was, &is);
        tracing::info!(target: "audit", who, what, account = %account, group = %id, change);
        ok(&GroupAnswer::from(&view))
    }
}

fn change(fields: &mut Fields) -> Result<GroupChange, Refusal> {
    let name = fields.optional("name", fields::line)?;
    let ceilings = ceilings::of_group(|field| fields.nullable(field, fields::ceiling))?;
    Ok(GroupChange { name, ..ceilings })
}
