//! Endpoints for named operators: list, invite, remove.

use std::{path::PathBuf, sync::Arc};

use serde::Serialize;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tollgate_layers::error::BoxError;

use super::{
    Admin, Answer, Right, Role,
    fields::Fields,
    now_ms, ok,
    refusal::Refusal,
    route::{AdminRequest, Route},
};
use crate::{
    api::fields::{id, words},
    operators::{Invitation, Operators},
    text::percent,
};

pub(super) const ROUTES: &[Route] = &[
    Route::get("/admin/v1/operators", |admin, _| {
        Box::pin(admin.list_operators())
    }),
    Route::post("/admin/v1/operators", |admin, request| {
        Box::pin(admin.invite_operator(request))
    })
    .needs(Right::Everything),
    Route::delete("/admin/v1/operators/{operator}", |admin, request| {
        Box::pin(admin.remove_operator(request))
    })
    .needs(Right::Everything),
];

#[derive(Serialize)]
struct OperatorsAnswer {
    operators: Vec<OperatorAnswer>,
}

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
            status: if one.is_open(now_ms()) {
                "invited"
            } else {
                "expired"
            },
            expires_at: Some(one.expires_at.clone()),
            token,
        }
    }
}

impl Admin {
    async fn list_operators(self: Arc<Self>) -> Result<Answer, Refusal> {
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
        ok(&OperatorsAnswer {
            operators: named.chain(invited).collect(),
        })
    }

    async fn invite_operator(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let path = self.operators_file()?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["name", "role"])?;
        let name = fields.required("name", words)?;
        let role: Role = fields.required("role", |value: &Value| id(value))?;
        let made = Invitation::new(&name, role, now_ms());
        let (invitation, token) =
            made.map_err(|problem| Refusal::invalid("name", problem.to_string()))?;
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
