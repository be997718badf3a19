//! The operators' pages, on the operators' listener: `/` and everything below `/console/`.
//!
//! The pages show the admin API's responses and make changes through the API. Each page calls the API inside this
//! process, in the name of the signed-in operator. The API refuses what that operator's role does not allow. Pages are
//! rendered on the server and need no script; only the overview has a script, which updates its numbers.

mod accounts;
mod api;
pub(crate) mod call;
pub(crate) mod calls;
mod changes;
mod configuration;
pub(crate) mod cookie;
mod events;
pub(crate) mod form;
mod history;
mod live;
mod oidc;
mod overview;
pub(crate) mod pages;
mod past_changes;
mod people;
pub(crate) mod plots;
mod prices;
mod russian;
mod russian_cabinet;
mod sessions;
pub(crate) mod shown;
pub(crate) mod sign_in;
pub(crate) mod statements;
pub(crate) mod texts;
mod usage;
mod views;
mod what_if;

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use secrecy::ExposeSecret;
use tollgate_layers::{
    body::{AnswerBody, full},
    respond::Language,
};
use tower::{Layer, Service};

use self::{
    api::{Api, ApiService},
    form::Form,
    sessions::{Session, digest},
    sign_in::SignIn,
    texts::{english, filled},
};
use crate::{
    admin::Refusal,
    catalog::snapshot::Live,
    config::AdminConfig,
    edge::{body_limit::UnreadBody, router::from_boxed, server::Seat},
    operators::Operator,
};

/// Content security policy that allows only the console's own styles, forms and script files and an inline empty icon.
/// A script that is injected into a page's text does not run.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// The style sheet that all pages of the gateway share, followed by the console's additions.
const STYLE: &str = concat!(
    include_str!("../endpoints/design.css"),
    include_str!("style.css")
);

pub(crate) type Answer = Response<AnswerBody>;

/// Layer that serves the console's paths and passes all other requests to the inner service.
#[derive(Clone)]
pub struct ConsoleLayer {
    sign_in: Arc<SignIn>,
    live: Arc<Live>,
}

impl ConsoleLayer {
    /// Creates a layer that accepts the holder of the admin key, the operators in the operators file, and the operators
    /// whom the OpenID provider authenticates. Prices are read from `live`.
    #[must_use]
    pub fn new(admin: &AdminConfig, live: Arc<Live>) -> Self {
        let key = digest(admin.key.expose_secret().as_bytes());
        let (operators, oidc) = (admin.operators_file.clone(), admin.oidc.clone());
        Self {
            sign_in: Arc::new(SignIn::new(key, operators, oidc)),
            live,
        }
    }
}

impl fmt::Debug for ConsoleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for ConsoleLayer
where
    S: Service<
            Request<UnreadBody>,
            Response = Answer,
            Error = Refusal,
            Future = BoxFuture<'static, Result<Answer, Refusal>>,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    type Service = Console;

    fn layer(&self, inner: S) -> Console {
        Console {
            inner: from_boxed(inner),
            layer: self.clone(),
        }
    }
}

/// The service of [`ConsoleLayer`].
#[derive(Clone, Debug)]
pub struct Console {
    inner: ApiService,
    layer: ConsoleLayer,
}

impl Service<Request<UnreadBody>> for Console {
    type Response = Answer;
    type Error = Refusal;
    type Future = BoxFuture<'static, Result<Answer, Refusal>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<UnreadBody>) -> Self::Future {
        let path = req.uri().path();
        if !matches!(path, "/" | "/console") && !path.starts_with("/console/") {
            return self.inner.call(req);
        }
        let this = self.clone();
        let (head, body) = req.into_parts();
        Box::pin(shown(head, POLICY, |head| this.answer(head, body)))
    }
}

impl Console {
    async fn answer(self, head: Parts, body: UnreadBody) -> Result<Answer, Refusal> {
        let posted = match head.method {
            Method::GET | Method::HEAD => false,
            Method::POST => true,
            _ => return Ok(method_refused()),
        };
        let path = head.uri.path();
        if let Some(file) = file(path).filter(|_| !posted) {
            return Ok(file);
        }
        if posted && !sign_in::is_from_here(&head.headers) {
            tracing::warn!(target: "audit", what = "console.foreign", path);
            return Ok(pages::message_page(
                StatusCode::FORBIDDEN,
                english("This form was sent from outside the console, so nothing was changed."),
            ));
        }
        let form = if posted {
            Form::parse(&String::from_utf8_lossy(&body.whole().await?))
        } else {
            Form::parse(head.uri.query().unwrap_or_default())
        };
        let sign_in = &self.layer.sign_in;
        if path == "/console/sign-in" {
            return Ok(if posted {
                sign_in.enter(&head, &form).await
            } else {
                sign_in.page_after(&form)
            });
        }
        if path == "/console/invitation" {
            return Ok(sign_in.invitation(&head, &form, posted).await);
        }
        if let Some(segment) = path.strip_prefix("/console/oidc")
            && !posted
            && let Some(answer) = sign_in.by_provider(segment, &head, &form).await
        {
            return Ok(answer);
        }
        self.answer_signed_in(&head, form, posted).await
    }

    /// Serves a page that only signed-in operators see.
    async fn answer_signed_in(
        self,
        head: &Parts,
        form: Form,
        posted: bool,
    ) -> Result<Answer, Refusal> {
        let (path, sign_in) = (head.uri.path(), self.layer.sign_in);
        let Some((token, session, operator)) = sign_in.who(&head.headers).await else {
            return Ok(see("/console/sign-in"));
        };
        if let Some(seat) = head.extensions.get::<Arc<Seat>>() {
            seat.sign_in();
        }
        if posted && !session.is_csrf(form.get("csrf")) {
            tracing::warn!(target: "audit", who = operator.name(), what = "console.forged", path);
            return Ok(pages::message_page(
                StatusCode::FORBIDDEN,
                english(
                    "This form belongs to another session, so nothing was changed. Reload the page.",
                ),
            ));
        }
        if path == "/console/sign-out" && posted {
            return Ok(sign_in.leave(head, &token, &session, !form.get("everywhere").is_empty()));
        }
        let api = Api::new(self.inner, operator.clone());
        if path == "/console/live" && !posted {
            return Ok(live::answer(api, move || sign_in.is_in(&token)));
        }
        let requested = Visit {
            api,
            origin: sign_in::origin(&head.headers),
            operator,
            session,
            live: self.layer.live,
            form,
            posted,
            language: texts::chosen(),
        };
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        requested.answer(&segments).await
    }
}

fn method_refused() -> Answer {
    let mut res = pages::message_page(
        StatusCode::METHOD_NOT_ALLOWED,
        english("This page accepts only GET and POST."),
    );
    let allow = HeaderValue::from_static("GET, HEAD, POST");
    res.headers_mut().insert(header::ALLOW, allow);
    res
}

/// Returns a file or a redirect that does not depend on the visitor.
fn file(path: &str) -> Option<Answer> {
    match path {
        "/console" | "/console/" => Some(see("/")),
        "/console/style.css" => Some(page(StatusCode::OK, "text/css; charset=utf-8", STYLE)),
        "/console/live.js" => {
            let kind = "text/javascript; charset=utf-8";
            Some(page(StatusCode::OK, kind, live::SCRIPT))
        }
        _ => None,
    }
}

/// A request of a signed-in operator: to view a page, or to post a form to it.
struct Visit {
    api: Api,
    /// The console's address, as the browser sees it.
    origin: String,
    operator: Operator,
    session: Session,
    live: Arc<Live>,
    /// The posted form, or the query.
    form: Form,
    posted: bool,
    language: Language,
}

impl Visit {
    /// Translates an English text into the visit's language, and replaces `{0}` and `{1}` by the values.
    fn fill(&self, text: &str, values: &[&str]) -> String {
        let values: Vec<&dyn fmt::Display> = values.iter().map(|it| it as _).collect();
        filled(text, self.language, &values)
    }
}

/// Shows a page in the language that the query names, or else in the language of the browser. The answer to HEAD has no
/// body. `policy` is the page's content security policy.
pub(crate) async fn shown<E, F: Future<Output = Result<Answer, E>>>(
    head: Parts,
    policy: &'static str,
    page: impl FnOnce(Parts) -> F,
) -> Result<Answer, E> {
    let is_head = head.method == Method::HEAD;
    let wanted = head.uri.query().map(Form::parse);
    let wanted = wanted.and_then(|form| texts::named(form.get("language")));
    let language = wanted.unwrap_or_else(|| texts::of_browser(&head.headers));
    let mut res = texts::LANGUAGE.scope(language, page(head)).await?;
    if wanted.is_some() {
        res = texts::with_cookie(res, language);
    }
    if is_head {
        *res.body_mut() = full(Bytes::new());
    }
    Ok(kept_to_itself(res, policy))
}

/// Adds the headers that isolate the pages from other sites and keep them out of caches.
fn kept_to_itself(mut res: Answer, policy: &'static str) -> Answer {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        res.headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    res
}

pub(crate) fn page(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Answer {
    let mut res = Response::new(full(text));
    *res.status_mut() = status;
    res.headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    res
}

/// Returns a file that the browser stores under this name.
pub(crate) fn download(kind: &'static str, content: impl Into<Bytes>, name: &str) -> Answer {
    let mut res = page(StatusCode::OK, kind, content);
    if let Ok(name) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        res.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    }
    res
}

/// Redirects the browser to another page with GET.
pub(crate) fn see(path: &str) -> Answer {
    let mut res = Response::new(full(Bytes::new()));
    *res.status_mut() = StatusCode::SEE_OTHER;
    let to = HeaderValue::from_str(path).expect("a page's path is a valid header value");
    res.headers_mut().insert(header::LOCATION, to);
    res
}
