//! The playground: a page on which a member sends a message to a model, and sees the price before and after.
//!
//! A playground call passes through the callers' layers from the key check on, so it is held, limited and charged like
//! any other call. Each member has a playground key, which is created at the first use. Receipts name this key, and
//! members can limit or disable it like other keys. No secret of this key is stored: instead, a request is
//! authenticated by its cabinet session.

use askama::Template;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, COOKIE},
};
use sha2::{Digest, Sha256};
use tollgate_layers::{
    Error,
    auth::SecretKey,
    body::AnswerBody,
    ceiling::Ceilings,
    error::{CustomError, Language},
    key::{KeyDigest, KeyId},
    model::ModelKind,
    reserve::ledger::{BookError, KeyView, LedgerAdmin},
};
use tower::ServiceExt;

use super::{Answer, Cabinet, FOREIGN, FORGED, NOT_ALLOWED, Visit, frame::Page, may};
use crate::{
    console::{
        pages::written,
        sign_in::is_from_here,
        texts::{self, english, translated},
    },
    edge::{router::BoxedService, server::RequestBody},
    endpoints::{handler::Handler, key_info::no_books},
    members::SignedIn,
    text::hex::hex,
};

/// The script of the page.
pub(super) const SCRIPT: &str = include_str!("playground.js");
/// The header in which the script sends the session's CSRF token.
const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");
/// The prefix of the ids of members' playground keys.
const MEMBERS: &str = "member-";

#[derive(Template)]
#[template(path = "cabinet_playground.html")]
struct PlaygroundHtml<'a> {
    page: Page<'a>,
    /// The id and the name of each model.
    models: Vec<(String, String)>,
}

impl Visit {
    pub(super) async fn playground_page(&self) -> Result<Answer, Error> {
        let (_, key) = self.cabinet.playground_key(&self.who).await?;
        let snapshot = self.cabinet.0.live.snapshot();
        let models = snapshot
            .listed(&self.who.session.account)
            .filter(|model| model.kind == ModelKind::Chat)
            .filter(|model| {
                let key = key.as_ref();
                key.is_none_or(|key| key.record.allows_model(model.id))
            })
            .map(|model| (model.id.to_owned(), model.display_name.to_owned()));
        let models = models.collect();
        let page = self.page(english("Playground"), english("Playground"), None);
        Ok(written(StatusCode::OK, &PlaygroundHtml { page, models }))
    }
}

impl Cabinet {
    /// Returns the id of the member's playground key in the session's account, and the key itself if it exists. If the
    /// last key was deleted, the id is that of the key to create next.
    async fn playground_key(&self, who: &SignedIn) -> Result<(KeyId, Option<KeyView>), Error> {
        let account = &who.session.account;
        let digest = Sha256::digest(account.as_bytes());
        let digits = hex(&digest[..8]);
        let person = who.mail.person();
        for number in 1..=u32::MAX {
            let id = format!("{person}-{digits}-{number}").parse::<KeyId>();
            let id = id.map_err(|error| Error::Internal(error.into()))?;
            match self.0.store.key(&id).await {
                Ok(key) if key.record.account != *account => {
                    let error = format!("key {id} belongs to another account");
                    return Err(Error::Internal(error.into()));
                }
                Ok(key) if key.record.is_deleted() => {}
                Ok(key) => return Ok((id, Some(key))),
                Err(BookError::NotFound) => return Ok((id, None)),
                Err(error) => return Err(no_books(error)),
            }
        }
        Err(Error::Overloaded)
    }

    /// Returns the digest of the member's playground key; creates the key if it does not exist.
    async fn playground_digest(&self, who: &SignedIn) -> Result<KeyDigest, Error> {
        let (id, key) = self.playground_key(who).await?;
        if let Some(key) = key {
            return Ok(key.record.digest);
        }
        let account = &who.session.account;
        let mut record = SecretKey::generate().record(id, account.clone());
        record.name = format!("playground {}", who.mail.as_str());
        // Log lines name a key by its prefix, so the prefix is the person's id.
        record.prefix = who.mail.person().to_string();
        let store = &self.0.store;
        match store.create_key(&record, Ceilings::NONE).await {
            Ok(_) => {
                let who = who.mail.as_str();
                tracing::info!(target: "audit", who, what = "key.create", account = %account, key = %record.id);
                Ok(record.digest)
            }
            // Another request of the member has just created the key.
            Err(BookError::Exists) => {
                let key = store.key(&record.id).await.map_err(no_books)?;
                Ok(key.record.digest)
            }
            Err(error) => Err(no_books(error)),
        }
    }

    /// Checks that the cabinet's script sent the request, in the session of a member who may use the playground.
    async fn caller(&self, headers: &HeaderMap) -> Result<SignedIn, Error> {
        let language = texts::of_browser(headers);
        let refused = |(status, code, text), who: &str| {
            tracing::warn!(target: "audit", who, what = code, path = "/cabinet/playground");
            Error::custom(Refusal {
                status,
                code,
                text,
                language,
            })
        };
        let forbidden = StatusCode::FORBIDDEN;
        if !is_from_here(headers) {
            return Err(refused((forbidden, "cabinet.foreign", FOREIGN), ""));
        }
        let Some((_, who)) = self.0.sign_in.who(headers).await? else {
            let text = english("Your session has ended. Sign in again.");
            let reason = (StatusCode::UNAUTHORIZED, "cabinet.signed_out", text);
            return Err(refused(reason, ""));
        };
        let token = headers.get(CSRF).and_then(|token| token.to_str().ok());
        if !who.session.is_csrf(token.unwrap_or_default()) {
            let reason = (forbidden, "cabinet.forged", FORGED);
            return Err(refused(reason, who.mail.as_str()));
        }
        if may(who.role, "playground", false) != Some(true) {
            let reason = (forbidden, "cabinet.refused", NOT_ALLOWED);
            return Err(refused(reason, who.mail.as_str()));
        }
        Ok(who)
    }
}

/// Returns whether a key is a member's playground key.
pub(super) fn is_playground(id: &KeyId) -> bool {
    id.starts_with(MEMBERS)
}

/// Sends the playground script's requests to a service that checks keys. The signed-in member's playground key is
/// presented in place of a secret.
#[derive(Clone)]
pub(crate) struct AsMember {
    cabinet: Cabinet,
    below: BoxedService<RequestBody>,
}

impl AsMember {
    /// Creates the service. `below` must read the presented key with [`presented_digest`].
    pub(crate) const fn new(cabinet: Cabinet, below: BoxedService<RequestBody>) -> Self {
        Self { cabinet, below }
    }
}

impl Handler<RequestBody> for AsMember {
    async fn handle(self, mut req: Request<RequestBody>) -> Result<Response<AnswerBody>, Error> {
        let who = self.cabinet.caller(req.headers()).await?;
        let digest = self.cabinet.playground_digest(&who).await?;
        let digest = HeaderValue::from_str(&digest.to_string());
        let digest = digest.map_err(|error| Error::Internal(error.into()))?;
        let headers = req.headers_mut();
        headers.remove(COOKIE);
        headers.remove(CSRF);
        headers.insert(AUTHORIZATION, digest);
        self.below.oneshot(req).await
    }
}

/// Takes the digest of the key that [`AsMember`] has put into the headers. Use it only in services below [`AsMember`],
/// which replaces any such header that the client sent.
pub(crate) fn presented_digest(headers: &mut HeaderMap) -> Result<KeyDigest, Error> {
    let digest = headers.remove(AUTHORIZATION).ok_or(Error::KeyMissing)?;
    let digest = digest.to_str().ok().and_then(|digest| digest.parse().ok());
    digest.ok_or(Error::KeyMalformed)
}

/// Turns a playground request into a call in the Chat Completions format.
pub(crate) fn as_chat<B>(mut req: Request<B>) -> Request<B> {
    *req.uri_mut() = Uri::from_static("/v1/chat/completions");
    req
}

/// The refusal of a request that the playground's script may not send, in the language of the page.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Refusal {
    status: StatusCode,
    code: &'static str,
    text: &'static str,
    language: Language,
}

impl CustomError for Refusal {
    fn status(&self) -> StatusCode {
        self.status
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            _ => "permission_error",
        }
    }

    fn code(&self) -> &'static str {
        self.code
    }

    fn text(&self, _: Language) -> String {
        translated(self.text, self.language).to_owned()
    }
}
