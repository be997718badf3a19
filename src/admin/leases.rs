//! Endpoints for leases: the money of a key that each gateway has reserved for its own holds.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::redis::LeaseView,
};

use super::{
    Admin, Answer, ok,
    query::{self, Query},
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::text::time::rfc3339;

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/leases" => list_leases .with_query();
};

impl Admin {
    async fn list_leases(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let mut query = Query::parse(request.query(), &["account"])?;
        let account: Option<AccountId> = query.optional("account", query::id)?;
        let views = self.store.leases(account.as_ref()).await;
        let what = account.map_or("the leases".to_owned(), |id| format!("account {id}"));
        let mut views = views.or_refuse(what)?;
        views.sort_unstable_by(|a, b| {
            (&a.account, &a.key, a.number).cmp(&(&b.account, &b.key, b.number))
        });
        let leases: Vec<LeaseAnswer<'_>> = views.iter().map(LeaseAnswer::from).collect();
        ok(&BTreeMap::from([("leases", leases)]))
    }
}

#[derive(Serialize)]
struct LeaseAnswer<'a> {
    account: &'a AccountId,
    key: &'a KeyId,
    number: RequestNumber,
    owner: &'a str,
    held_rub: MicroRub,
    calls_rub: Option<MicroRub>,
    since: String,
    grants_until: Option<String>,
    ends_at: String,
}

impl<'a> From<&'a LeaseView> for LeaseAnswer<'a> {
    fn from(view: &'a LeaseView) -> Self {
        Self {
            account: &view.account,
            key: &view.key,
            number: view.number,
            owner: &view.owner,
            held_rub: view.held_rub,
            calls_rub: view.calls_rub,
            since: rfc3339(view.since_ms),
            grants_until: (view.grants_until_ms > 0).then(|| rfc3339(view.grants_until_ms)),
            ends_at: rfc3339(view.due_ms),
        }
    }
}
