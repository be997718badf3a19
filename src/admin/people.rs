//! Endpoints for named operators: list, invite, remove.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::Serialize;
use tokio::task::spawn_blocking;
use tollgate_layers::error::BoxError;

use super::{
    Admin, Answer, Right, Role,
    fields::Fields,
    now_ms, ok,
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::fields::{id, words},
    operators::{Invitation, Operators},
    text::percent,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/operators" => list_operators;
    post "/admin/v1/operators" => invite_operator .needs(Right::Everything);
    delete "/admin/v1/operators/{operator}" => remove_operator .needs(Right::Everything);
};

#[derive(Serialize)]
struct OperatorAnswer {
    name: String,
    role: &'static str,
    /// The operator's status: `active`, `invited` or `expired`.
    status: &'static str,
    /// The time at which the invitation expires.
    expires_at: Option<String>,
    /// The token in the invitation's link; present only in the response to the request that created the invitation.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl OperatorAnswer {
    fn invited(one: &Invitation, token: Option<String>) -> Self {
        Self {
            name: one.name.clone(),
            role: one.role.as_str(),
            status: match one.is_open(now_ms()) {
                true => "invited",
                false => "expired",
            },
            expires_at: Some(one.expires_at.clone()),
            token,
        }
    }
}

impl Admin {
    async fn list_operators(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let path = self.operators_file()?;
        let read = spawn_blocking(move || Operators::read(&path)).await;
        let operators = read
            .map_err(Refusal::fault)?
            .map_err(|error| unusable(&error))?;
        let named = operators.iter().map(|one| OperatorAnswer {
            name: one.name.clone(),
            role: one.role.as_str(),
            status: "active",
            expires_at: None,
            token: None,
        });
        let invited = operators.invitations().iter();
        let invited = invited.map(|one| OperatorAnswer::invited(one, None));
        let operators: Vec<_> = named.chain(invited).collect();
        ok(&BTreeMap::from([("operators", operators)]))
    }

    async fn invite_operator(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let path = self.operators_file()?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["name", "role"])?;
        let name = fields.required("name", words)?;
        let role: Role = fields.required("role", id)?;
        let made = Invitation::new(&name, role, now_ms());
        let made = made.map_err(|problem| Refusal::invalid("name", problem.to_string()));
        let (invitation, token) = made?;
        let added = invitation.clone();
        changed(path, move |operators| {
            let operators = operators.inviting(added, now_ms());
            operators.map_err(Refusal::Conflict)
        })
        .await?;
        tracing::info!(target: "audit", who = who.name(), what = "operator.invite", name, role = role.as_str());
        ok(&OperatorAnswer::invited(&invitation, Some(token)))
    }

    async fn remove_operator(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let path = self.operators_file()?;
        let name = percent::decoded(request.named()).unwrap_or_default();
        let removed = name.clone();
        changed(path, move |operators| {
            let left = operators.without(&removed);
            left.ok_or_else(|| Refusal::NotFound(format!("no operator {removed:?}")))
        })
        .await?;
        tracing::info!(target: "audit", who = request.who().name(), what = "operator.remove", name);
        ok(&serde_json::json!({ "name": name }))
    }

    fn operators_file(&self) -> Result<PathBuf, Refusal> {
        self.operators_file.clone().ok_or_else(|| {
            Refusal::Conflict(
                "this gateway has no operators file: name one in admin.operators_file and restart the gateway".into(),
            )
        })
    }
}

async fn changed(
    path: PathBuf,
    change: impl FnOnce(Operators) -> Result<Operators, Refusal> + Send + 'static,
) -> Result<(), Refusal> {
    let changed = spawn_blocking(move || Operators::change(&path, change)).await;
    changed
        .map_err(Refusal::fault)?
        .map_err(|error| unusable(&error))?
}

fn unusable(error: &BoxError) -> Refusal {
    Refusal::Conflict(format!(
        "this gateway cannot change admin.operators_file: {error}. Give the gateway's user write access to the folder, \
         or use `tollgate operator`"
    ))
}
