//! Endpoints for the members of an account: the people who may sign in to its cabinet.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::Value;
use tollgate_layers::key::AccountId;

use super::{
    Admin, Answer, Right,
    accounts::{account_id, find_account},
    fields::Fields,
    now_ms, ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    members::{MEMBERS_MAX, Member, MemberRole, MembersError},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts/{account}/members" => list_members;
    post "/admin/v1/accounts/{account}/members" => put_member .needs(Right::Support);
    delete "/admin/v1/accounts/{account}/members/{member}" => remove_member .needs(Right::Support);
};

#[derive(Serialize)]
struct MemberAnswer<'a> {
    id: String,
    mail: &'a str,
    role: MemberRole,
    added_at: String,
}

impl<'a> From<&'a Member> for MemberAnswer<'a> {
    fn from(member: &'a Member) -> Self {
        Self {
            id: member.mail.person().to_string(),
            mail: member.mail.as_str(),
            role: member.role,
            added_at: rfc3339(member.added_ms),
        }
    }
}

impl Admin {
    async fn list_members(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = self.known_account(request.named()).await?;
        let members = self.members().list(&account).await;
        let members = members.or_refuse(format_args!("account {account}"))?;
        let members: Vec<_> = members.iter().map(MemberAnswer::from).collect();
        ok(&BTreeMap::from([("members", members)]))
    }

    async fn put_member(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = self.known_account(request.named()).await?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["mail", "role"])?;
        let member = Member {
            mail: fields.required("mail", parsed)?,
            role: fields.required("role", parsed)?,
            added_ms: now_ms(),
        };
        let put = self.members().put(&account, &member, false).await;
        put.map_err(|error| refusal(&error, &account))?;
        tracing::info!(
            target: "audit", who = who.name(), what = "member.put", account = %account, member = %member.mail.person(),
            mail = member.mail.as_str(), role = member.role.as_str()
        );
        ok(&MemberAnswer::from(&member))
    }

    async fn remove_member(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account = self.known_account(request.named()).await?;
        let (members, person) = (self.members(), request.second_named());
        let removed = members.remove(&account, person, false).await;
        let removed = removed.map_err(|error| refusal(&error, &account))?;
        tracing::info!(
            target: "audit", who = request.who().name(), what = "member.remove", account = %account,
            member = %removed.mail.person(), mail = removed.mail.as_str(), role = removed.role.as_str()
        );
        ok(&MemberAnswer::from(&removed))
    }

    async fn known_account(&self, id: &str) -> Result<AccountId, Refusal> {
        let account = account_id(id)?;
        find_account(&self.store, &account).await?;
        Ok(account)
    }
}

fn parsed<T: std::str::FromStr<Err = &'static str>>(value: &Value) -> Result<T, String> {
    let text = value.as_str().ok_or("must be a string")?;
    text.parse().map_err(str::to_owned)
}

fn refusal(error: &MembersError, account: &AccountId) -> Refusal {
    match error {
        MembersError::TooMany => Refusal::Conflict(format!(
            "account {account} already has {MEMBERS_MAX} members, or the person is a member of too many accounts; \
             remove a membership first"
        )),
        MembersError::Unknown => Refusal::NotFound(format!("no such member of account {account}")),
        MembersError::LastOwner => {
            Refusal::Conflict(format!("account {account} would have no owner left"))
        }
        MembersError::Ledger(error) => Refusal::of_ledger(error, &format!("account {account}")),
    }
}
