//! Paths and methods to services. Routes match exactly; anything else is refused before a body is
//! read.

use std::{
    fmt,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::Body;
use tollgate_layers::{
    Error,
    body::{self, AnswerBody, full},
    in_flight,
};
use tower::{Service, ServiceExt};

use crate::endpoints::{openapi, page, payments, usage_page};

/// The services of a place in the stack, as one type. Clones share the service: a boxed one would be cloned, with
/// all that stands below it, by each layer above.
pub struct Branch<B, A = AnswerBody>(Arc<dyn Answers<B, A>>);

/// Where Claude Code opens its connection, before it has anything to ask.
pub(crate) const HELLO: &str = "/api/hello";

/// The body of a path's answer: `in_flight` stands on top of nearly all.
type PathBody = in_flight::ResponseBody<AnswerBody>;

type Answering<A> = BoxFuture<'static, Result<Response<A>, Error>>;

/// A service that is asked through a shared reference.
trait Answers<B, A>: Send + Sync {
    fn answer(&self, req: Request<B>) -> Answering<A>;
}

/// A clone for each call would change each count in it twice, and all threads share those.
struct Shared<S, F> {
    /// Lent to one call at a time, while it makes its future.
    lent: Mutex<S>,
    /// Cloned where that one is lent, or was left by a panic.
    spare: S,
    boxes: F,
}

impl<S, F, B, A> Answers<B, A> for Shared<S, F>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    F: Fn(S::Future) -> Answering<A> + Send + Sync,
    B: Send + 'static,
    A: 'static,
{
    fn answer(&self, req: Request<B>) -> Answering<A> {
        let (mut lent, mut clone) = (self.lent.try_lock(), None);
        let service = match &mut lent {
            Ok(service) => &mut **service,
            Err(_) => clone.insert(self.spare.clone()),
        };
        // None of ours ever makes a caller wait. So the layers take the request now, and what they make of it
        // is boxed, not they and the request beside them.
        match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => (self.boxes)(service.call(req)),
            Poll::Ready(Err(error)) => Box::pin(async { Err(error) }),
            Poll::Pending => Box::pin(self.spare.clone().oneshot(req)),
        }
    }
}

/// Boxes a service on the way, and the bodies of its answers.
pub fn boxed_with_body<S, B, A>(service: S) -> Branch<B>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error = Error> + Send + 'static,
    B: Send + 'static,
{
    boxed(service.map_response(|res: Response<A>| res.map(body::boxed)))
}

/// Boxes a service.
pub fn boxed<S, B, A>(service: S) -> Branch<B, A>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    A: 'static,
{
    shared::<S, B, A, _>(service, |future: S::Future| -> Answering<A> {
        Box::pin(future)
    })
}

/// Boxes a service whose futures are boxed already.
pub fn from_boxed<S, B, A>(service: S) -> Branch<B, A>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error, Future = Answering<A>>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Send + 'static,
    A: 'static,
{
    shared::<S, B, A, _>(service, |future| future)
}

fn shared<S, B, A, F>(service: S, boxes: F) -> Branch<B, A>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    F: Fn(S::Future) -> Answering<A> + Send + Sync + 'static,
    B: Send + 'static,
    A: 'static,
{
    Branch(Arc::new(Shared {
        lent: Mutex::new(service.clone()),
        spare: service,
        boxes,
    }))
}

impl<B, A> Clone for Branch<B, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B, A> fmt::Debug for Branch<B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Branch")
    }
}

impl<B, A> Service<Request<B>> for Branch<B, A> {
    type Response = Response<A>;
    type Error = Error;
    type Future = Answering<A>;

    /// The service is made ready when it is called.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Answering<A> {
        self.0.answer(req)
    }
}

/// Sends each request to the service of its path.
#[derive(Debug)]
pub struct Paths<B> {
    inner: Arc<Inner<B>>,
}

#[derive(Debug)]
struct Inner<B> {
    names: Names,
    branches: Branches<B>,
}

/// A service for each kind of path.
#[derive(Debug)]
pub struct Branches<B> {
    /// Calls of a model.
    pub inference: Branch<B, PathBody>,
    /// Counting of tokens.
    pub count: Branch<B, PathBody>,
    /// What a call would hold.
    pub estimate: Branch<B, PathBody>,
    /// What a key may know of itself.
    pub key_info: Branch<B, PathBody>,
    /// What a key's calls cost.
    pub receipts: Branch<B, PathBody>,
    /// The same, added up.
    pub spending: Branch<B, PathBody>,
    /// Payments, for the holder of a key.
    pub payments: Branch<B, PathBody>,
    /// The same, for providers.
    pub notifications: Branch<B, PathBody>,
    /// An account's keys, for their owner.
    pub own_keys: Branch<B, PathBody>,
    /// These, for people.
    pub usage_page: Branch<B, PathBody>,
    /// The public price list.
    pub catalog: Branch<B, PathBody>,
    /// The same, for people.
    pub page: Branch<B, PathBody>,
    /// Ready-made set-up of clients.
    pub connect: Branch<B, PathBody>,
    /// What all of it looks like.
    pub openapi: Branch<B, PathBody>,
}

impl<B> Paths<B> {
    /// `service` is the path segment that names the service.
    #[must_use]
    pub fn new(service: &str, branches: Branches<B>) -> Self {
        let names = Names::new(service);
        Self {
            inner: Arc::new(Inner { names, branches }),
        }
    }
}

impl<B> Clone for Paths<B> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

/// The paths that are named after the service.
#[derive(Debug)]
pub(super) struct Names {
    catalog: String,
    key: String,
    estimate: String,
    receipts: String,
    spending: String,
    payments: String,
    auto_topup: String,
    keys: String,
    connect: String,
}

enum Endpoint {
    Inference,
    Count,
    Estimate,
    KeyInfo,
    Receipts,
    Spending,
    Payments,
    Notifications,
    OwnKeys,
    UsagePage,
    Catalog,
    Connect,
    Root,
    Hello,
    OpenApi,
}

impl Names {
    pub(super) fn new(service: &str) -> Self {
        Self {
            catalog: format!("/v1/{service}/models"),
            key: format!("/v1/{service}/key"),
            estimate: format!("/v1/{service}/estimate"),
            receipts: format!("/v1/{service}/receipts"),
            spending: format!("/v1/{service}/usage"),
            payments: format!("/v1/{service}/payments"),
            auto_topup: format!("/v1/{service}/payments/auto"),
            keys: format!("/v1/{service}/keys"),
            connect: format!("/v1/{service}/connect"),
        }
    }

    fn find(&self, method: &Method, path: &str) -> Result<Endpoint, Error> {
        const GET: &[Method] = &[Method::GET];
        const GET_HEAD: &[Method] = &[Method::GET, Method::HEAD];
        const POST: &[Method] = &[Method::POST];
        const GET_POST: &[Method] = &[Method::GET, Method::POST];
        const RULE: &[Method] = &[Method::GET, Method::PUT, Method::DELETE];
        const KEY: &[Method] = &[Method::GET, Method::PATCH, Method::DELETE];
        let (endpoint, methods, allow) = match path {
            "/v1/chat/completions" | "/v1/messages" | "/v1/responses" | "/v1/embeddings" => {
                (Endpoint::Inference, POST, "POST")
            }
            "/v1/messages/count_tokens" => (Endpoint::Count, POST, "POST"),
            "/v1/models" => (Endpoint::KeyInfo, GET, "GET"),
            "/" => (Endpoint::Root, GET_HEAD, "GET, HEAD"),
            HELLO => (Endpoint::Hello, GET_HEAD, "GET, HEAD"),
            openapi::PATH => (Endpoint::OpenApi, GET_HEAD, "GET, HEAD"),
            path if is_model(path) => (Endpoint::KeyInfo, GET, "GET"),
            path if path == self.catalog => (Endpoint::Catalog, GET_HEAD, "GET, HEAD"),
            path if self.is_connect(path) => (Endpoint::Connect, GET_HEAD, "GET, HEAD"),
            path if path == self.key => (Endpoint::KeyInfo, GET, "GET"),
            path if path == self.estimate => (Endpoint::Estimate, POST, "POST"),
            path if self.is_receipt(path) => (Endpoint::Receipts, GET, "GET"),
            path if path == self.keys => (Endpoint::OwnKeys, GET_POST, "GET, POST"),
            path if is_or_has_one(&self.keys, path) => {
                (Endpoint::OwnKeys, KEY, "GET, PATCH, DELETE")
            }
            path if path == self.spending => (Endpoint::Spending, GET, "GET"),
            path if path == self.payments => (Endpoint::Payments, GET_POST, "GET, POST"),
            path if path == self.auto_topup => (Endpoint::Payments, RULE, "GET, PUT, DELETE"),
            path if is_notification(path) => (Endpoint::Notifications, POST, "POST"),
            path if usage_page::is_of_it(path) => (Endpoint::UsagePage, GET_HEAD, "GET, HEAD"),
            _ => return Err(Error::PathUnknown),
        };
        if methods.contains(method) {
            Ok(endpoint)
        } else {
            Err(Error::MethodNotAllowed { allow })
        }
    }

    /// Whether programs of anybody may read what is there.
    pub(super) fn is_public(&self, path: &str) -> bool {
        path == self.catalog || path == openapi::PATH || self.is_connect(path)
    }

    /// The latest, or a call's.
    fn is_receipt(&self, path: &str) -> bool {
        is_or_has_one(&self.receipts, path)
    }

    /// All of it, or one client's.
    fn is_connect(&self, path: &str) -> bool {
        is_or_has_one(&self.connect, path)
    }
}

/// Whether a path is this one, or has one segment more.
pub(crate) fn is_or_has_one(whole: &str, path: &str) -> bool {
    let Some(rest) = path.strip_prefix(whole) else {
        return false;
    };
    let name = rest.strip_prefix('/');
    rest.is_empty() || name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

/// Where a provider tells of payments.
fn is_notification(path: &str) -> bool {
    path.strip_prefix(payments::NOTIFICATIONS)
        .is_some_and(|provider| !provider.is_empty() && !provider.contains('/'))
}

/// A model's name may have slashes in it.
fn is_model(path: &str) -> bool {
    path.strip_prefix("/v1/models/")
        .is_some_and(|id| !id.is_empty())
}

impl<B> Service<Request<B>> for Paths<B> {
    type Response = Response<PathBody>;
    type Error = Error;
    type Future = Answering<PathBody>;

    /// Each service is made ready when its path is known.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Answering<PathBody> {
        let Inner { names, branches } = &*self.inner;
        let branch = match names.find(req.method(), req.uri().path()) {
            Err(error) => return Box::pin(async { Err(error) }),
            Ok(Endpoint::Root) if page::is_asked_for(req.headers()) => &branches.page,
            // Tools look whether somebody is there.
            Ok(Endpoint::Root) => {
                return Box::pin(async { Ok(page::nothing().map(PathBody::without_permit)) });
            }
            Ok(Endpoint::Hello) => {
                let nothing = Response::new(full(Bytes::new()));
                return Box::pin(async { Ok(nothing.map(PathBody::without_permit)) });
            }
            Ok(Endpoint::Inference) => &branches.inference,
            Ok(Endpoint::Count) => &branches.count,
            Ok(Endpoint::Estimate) => &branches.estimate,
            Ok(Endpoint::KeyInfo) => &branches.key_info,
            Ok(Endpoint::Receipts) => &branches.receipts,
            Ok(Endpoint::OwnKeys) => &branches.own_keys,
            Ok(Endpoint::Spending) => &branches.spending,
            Ok(Endpoint::Payments) => &branches.payments,
            Ok(Endpoint::Notifications) => &branches.notifications,
            Ok(Endpoint::UsagePage) => &branches.usage_page,
            Ok(Endpoint::Catalog) => &branches.catalog,
            Ok(Endpoint::Connect) => &branches.connect,
            Ok(Endpoint::OpenApi) => &branches.openapi,
        };
        branch.0.answer(req)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::OnceLock,
    };

    use tollgate_layers::body::full;
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn a_service_that_has_panicked_answers_the_next_request() {
        let branch: Branch<bool> = boxed(service_fn(|req: Request<bool>| {
            assert!(req.into_body(), "in the call");
            ready(Ok::<_, Error>(Response::new(full("an answer"))))
        }));
        let ask = |well| branch.0.answer(Request::new(well));
        ask(true).await.unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| ask(false))).is_err());
        ask(true).await.unwrap();
    }

    #[tokio::test]
    async fn a_service_that_is_lent_is_not_waited_for() {
        static SERVICE: OnceLock<Branch<u8>> = OnceLock::new();
        let within = |req: Request<u8>| -> Answering<AnswerBody> {
            match req.into_body() {
                0 => Box::pin(ready(Ok(Response::new(full("an answer"))))),
                n => SERVICE.get().unwrap().0.answer(Request::new(n - 1)),
            }
        };
        let service = SERVICE.get_or_init(|| from_boxed(service_fn(within)));
        service.0.answer(Request::new(2)).await.unwrap();
    }

    #[test]
    fn paths_match_exactly() {
        let names = Names::new("tollgate");
        let found = |method: Method, path: &str| match names.find(&method, path) {
            Ok(Endpoint::Inference) => "inference",
            Ok(Endpoint::Count) => "count",
            Ok(Endpoint::Estimate) => "estimate",
            Ok(Endpoint::KeyInfo) => "key_info",
            Ok(Endpoint::Receipts) => "receipts",
            Ok(Endpoint::Spending) => "spending",
            Ok(Endpoint::Payments) => "payments",
            Ok(Endpoint::Notifications) => "notifications",
            Ok(Endpoint::OwnKeys) => "own_keys",
            Ok(Endpoint::UsagePage) => "usage_page",
            Ok(Endpoint::Catalog) => "catalog",
            Ok(Endpoint::Root) => "root",
            Ok(Endpoint::Hello) => "hello",
            Ok(Endpoint::Connect) => "connect",
            Ok(Endpoint::OpenApi) => "openapi",
            Err(Error::MethodNotAllowed { allow }) => allow,
            Err(_) => "unknown",
        };
        for (method, path, place) in [
            (Method::POST, "/v1/chat/completions", "inference"),
            (Method::POST, "/v1/messages", "inference"),
            (Method::POST, "/v1/embeddings", "inference"),
            (Method::GET, "/v1/embeddings", "POST"),
            (Method::POST, "/v1/messages/count_tokens", "count"),
            (Method::GET, "/v1/messages", "POST"),
            (Method::GET, "/v1/tollgate/models", "catalog"),
            (Method::HEAD, "/v1/tollgate/models", "catalog"),
            (Method::POST, "/v1/tollgate/models", "GET, HEAD"),
            (Method::GET, "/v1/models", "key_info"),
            (Method::GET, "/v1/models/m", "key_info"),
            (Method::GET, "/v1/models/a/b%2Fc", "key_info"),
            (Method::HEAD, "/v1/models/m", "GET"),
            (Method::GET, "/v1/models/", "unknown"),
            (Method::GET, "/v1/modelsm", "unknown"),
            (Method::GET, "/v1/tollgate/key", "key_info"),
            (Method::POST, "/v1/tollgate/estimate", "estimate"),
            (Method::GET, "/v1/tollgate/estimate", "POST"),
            (Method::GET, "/v1/tollgate/receipts/n", "receipts"),
            (Method::POST, "/v1/tollgate/receipts/n", "GET"),
            (Method::GET, "/v1/tollgate/receipts", "receipts"),
            (Method::GET, "/v1/tollgate/usage", "spending"),
            (Method::GET, "/v1/tollgate/usage/", "unknown"),
            (Method::GET, "/v1/tollgate/payments", "payments"),
            (Method::POST, "/v1/tollgate/payments", "payments"),
            (Method::HEAD, "/v1/tollgate/payments", "GET, POST"),
            (Method::PUT, "/v1/tollgate/payments/auto", "payments"),
            (
                Method::POST,
                "/v1/tollgate/payments/auto",
                "GET, PUT, DELETE",
            ),
            (Method::GET, "/v1/tollgate/payments/x", "unknown"),
            (Method::POST, "/payments/yookassa", "notifications"),
            (Method::GET, "/payments/yookassa", "POST"),
            (Method::POST, "/payments/", "unknown"),
            (Method::POST, "/payments/yookassa/x", "unknown"),
            (Method::POST, "/v1/tollgate/keys", "own_keys"),
            (Method::DELETE, "/v1/tollgate/keys", "GET, POST"),
            (Method::PATCH, "/v1/tollgate/keys/k", "own_keys"),
            (Method::POST, "/v1/tollgate/keys/k", "GET, PATCH, DELETE"),
            (Method::GET, "/v1/tollgate/keys/k/k", "unknown"),
            (Method::GET, "/usage", "usage_page"),
            (Method::HEAD, "/usage/page.js", "usage_page"),
            (Method::POST, "/usage", "GET, HEAD"),
            (Method::GET, "/usage/", "unknown"),
            (Method::GET, "/usage/page.js/x", "unknown"),
            (Method::GET, "/v1/tollgate/receipts/", "unknown"),
            (Method::GET, "/v1/tollgate/receipts/n/n", "unknown"),
            (Method::GET, "/v1/tollgate/connect", "connect"),
            (Method::HEAD, "/v1/tollgate/connect/zed", "connect"),
            (Method::POST, "/v1/tollgate/connect/zed", "GET, HEAD"),
            (Method::GET, "/v1/tollgate/connect/", "unknown"),
            (Method::GET, "/v1/tollgate/connect/zed/", "unknown"),
            (Method::GET, "/v1/tollgate/connected", "unknown"),
            (Method::HEAD, "/", "root"),
            (Method::HEAD, "/api/hello", "hello"),
            (Method::GET, "/api/hello", "hello"),
            (Method::POST, "/api/hello", "GET, HEAD"),
            (Method::GET, "/api/hello/", "unknown"),
            (Method::GET, "/openapi.yaml", "openapi"),
            (Method::POST, "/openapi.yaml", "GET, HEAD"),
            (Method::POST, "/v1/messages/", "unknown"),
            (Method::POST, "/V1/messages", "unknown"),
            (Method::POST, "//v1/messages", "unknown"),
            (Method::GET, "/v1/other/models", "unknown"),
        ] {
            assert_eq!(found(method.clone(), path), place, "{method} {path}");
        }
    }
}
