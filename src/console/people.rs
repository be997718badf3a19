//! The page of operators, and the page on which an invited person becomes an operator.

use std::path::Path;

use askama::Template;
use http::{StatusCode, request::Parts};
use serde::Deserialize;
use serde_json::Value;
use tollgate_layers::facts::ClientAddr;

use super::{
    Answer, Visit,
    api::{Failed, Refused},
    form::Form,
    pages::{self, Frame, status_of, written},
    see,
    sessions::digest,
    sign_in::SignIn,
    texts::english,
};
use crate::{
    admin::Refusal,
    operators::{Named, Operators, PASSWORD_CHARS_MIN, Role},
    text::time::now_ms,
};

#[derive(Deserialize)]
struct Person {
    name: String,
    role: String,
    status: String,
    expires_at: Option<String>,
    token: Option<String>,
}

#[derive(Template)]
#[template(path = "operators.html")]
struct OperatorsHtml<'a> {
    page: Frame<'a>,
    people: Vec<Person>,
    /// The link of the invitation that was just created.
    link: Option<String>,
    /// The reason why there is no list of operators.
    note: Option<String>,
}

#[derive(Template)]
#[template(path = "invitation.html")]
struct InvitationHtml<'a> {
    page: Frame<'a>,
    token: &'a str,
    name: String,
    role: Role,
    least: usize,
}

impl Visit {
    /// Shows the operators. `invited` is the API's response if an invitation was just created.
    pub(super) async fn operators(
        &self,
        problem: Option<&Refused>,
        invited: Option<Value>,
    ) -> Result<Answer, Failed> {
        let (people, note) = match self.api.list("/admin/v1/operators").await? {
            Ok(operators) => (operators, None),
            // A gateway without a file of operators has only the admin key.
            Err(refused) if refused.status == StatusCode::CONFLICT => {
                (Vec::new(), Some(refused.text))
            }
            Err(refused) => return Err(refused.into()),
        };
        let invited = invited.map(serde_json::from_value::<Person>).transpose();
        let token = invited
            .map_err(Refusal::fault)?
            .and_then(|invited| invited.token);
        let link = token.map(|token| format!("{}/console/invitation?token={token}", self.origin));
        let page = self.frame("Operators", "Operators", problem);
        let html = OperatorsHtml {
            page,
            people,
            link,
            note,
        };
        Ok(written(status_of(problem), &html))
    }
}

impl SignIn {
    /// Shows an invitation to the person who has its link; or accepts it with the password that the person chose.
    pub(super) async fn invitation(&self, head: &Parts, form: &Form, posted: bool) -> Answer {
        let address = head.extensions.get().map(ClientAddr::block);
        if let Some(res) = self.too_often(address).await {
            return res;
        }
        let token = form.get("token");
        let operators = self.read().await.unwrap_or_default();
        let Some(invited) = operators.invited_by(token, now_ms()) else {
            self.guessed(address);
            return pages::message_page(
                StatusCode::NOT_FOUND,
                english(
                    "This invitation is not valid: it was used, has expired or was replaced. Ask for a new invitation.",
                ),
            );
        };
        let shown = |status, problem| {
            let page = InvitationHtml {
                page: Frame {
                    kept_query: format!("token={token}&"),
                    ..Frame::bare(english("Invitation"), problem)
                },
                token,
                name: invited.name.clone(),
                role: invited.role,
                least: PASSWORD_CHARS_MIN,
            };
            written(status, &page)
        };
        let password = form.exact("password");
        if !posted {
            return shown(StatusCode::OK, None);
        }
        if password.chars().count() < PASSWORD_CHARS_MIN {
            let problem = english("The password is too short.");
            return shown(StatusCode::UNPROCESSABLE_ENTITY, Some(problem));
        }
        let Some(proof) = self.accept(token, password).await else {
            let problem =
                english("The invitation was not accepted. Try again, or ask for a new invitation.");
            return shown(StatusCode::CONFLICT, Some(problem));
        };
        let name = &invited.name;
        tracing::info!(target: "audit", who = name, what = "operator.accept", role = invited.role.as_str());
        self.begin(head, name, proof, None, see("/"))
    }

    /// Turns an invitation into an operator with this password, and returns the digest that the session stores as proof
    /// of the password. `None` if the invitation is no longer open, or if the file cannot be written.
    async fn accept(&self, token: &str, password: &str) -> Option<[u8; 32]> {
        let _permit = self.tried.try_acquire().ok()?;
        let path = self.operators.clone()?;
        let (token, password) = (token.to_owned(), password.to_owned());
        let accepted = tokio::task::spawn_blocking(move || accepted(&path, &token, &password));
        accepted.await.ok()?
    }
}

fn accepted(path: &Path, token: &str, password: &str) -> Option<[u8; 32]> {
    let mut proof = None;
    let changed = Operators::change(path, |operators| {
        let invited = operators.invited_by(token, now_ms()).ok_or(())?;
        let named = Named::new(&invited.name, invited.role, password).map_err(drop)?;
        proof = Some(digest(named.password.as_bytes()));
        Ok::<_, ()>(operators.accepting(named))
    });
    match changed {
        Ok(Ok(())) => proof,
        Ok(Err(())) => None,
        Err(error) => {
            tracing::error!(%error, "an invitation cannot be accepted, because admin.operators_file cannot be changed");
            None
        }
    }
}
