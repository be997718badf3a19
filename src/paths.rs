//! Paths and methods to services. Routes match exactly; anything else is refused before a body is
//! read.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use tollgate_layers::{
    Error,
    body::{AnswerBody, boxed},
};
use tower::{Service, ServiceExt};

use crate::{openapi, page};

/// The services behind the paths, as one type. Clones share the service, which is cloned for the call alone: a
/// boxed one would be cloned, with all that stands below it, by each layer above.
pub struct Branch<B>(Arc<dyn Answers<B>>);

type Answering = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Error>> + Send>>;

/// A service that is asked through a shared reference.
trait Answers<B>: Send + Sync {
    fn answer(&self, req: Request<B>) -> Answering;
}

impl<S, B> Answers<B> for S
where
    S: Service<Request<B>, Response = Response<AnswerBody>, Error = Error>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    fn answer(&self, req: Request<B>) -> Answering {
        let mut service = self.clone();
        // None of ours ever makes a caller wait. So the layers take the request now, and what they make of it
        // is boxed, not they and the request beside them.
        match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => Box::pin(service.call(req)),
            Poll::Ready(Err(error)) => Box::pin(async { Err(error) }),
            Poll::Pending => Box::pin(service.oneshot(req)),
        }
    }
}

/// Boxes the service of a path, and the bodies of its answers.
pub fn branch<S, B, A>(service: S) -> Branch<B>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error = Error> + Send + 'static,
    B: Send + 'static,
{
    joint(service.map_response(|res: Response<A>| res.map(boxed)))
}

/// Boxes a service on the way, whose answers have boxed bodies already.
pub fn joint<S, B>(service: S) -> Branch<B>
where
    S: Service<Request<B>, Response = Response<AnswerBody>, Error = Error>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    Branch(Arc::new(service))
}

impl<B> Clone for Branch<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> fmt::Debug for Branch<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Branch")
    }
}

impl<B> Service<Request<B>> for Branch<B> {
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = Answering;

    /// The service is made ready when it is called.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Answering {
        self.0.answer(req)
    }
}

/// Sends each request to the service of its path.
#[derive(Debug)]
pub struct Paths<B> {
    shared: Arc<Shared<B>>,
}

#[derive(Debug)]
struct Shared<B> {
    names: Names,
    branches: Branches<B>,
}

/// A service for each kind of path.
#[derive(Debug)]
pub struct Branches<B> {
    /// Calls of a model.
    pub inference: Branch<B>,
    /// Counting of tokens.
    pub count: Branch<B>,
    /// What a call would hold.
    pub estimate: Branch<B>,
    /// What a key may know of itself.
    pub own: Branch<B>,
    /// What a key's calls cost.
    pub receipts: Branch<B>,
    /// The public price list.
    pub catalog: Branch<B>,
    /// The same, for people.
    pub page: Branch<B>,
    /// What all of it looks like.
    pub openapi: Branch<B>,
}

impl<B> Paths<B> {
    /// `service` is the path segment that names the service.
    #[must_use]
    pub fn new(service: &str, branches: Branches<B>) -> Self {
        let names = Names::new(service);
        Self {
            shared: Arc::new(Shared { names, branches }),
        }
    }
}

impl<B> Clone for Paths<B> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

#[derive(Debug)]
struct Names {
    catalog: String,
    key: String,
    estimate: String,
    /// Up to the number.
    receipts: String,
}

enum Place {
    Inference,
    Count,
    Estimate,
    Own,
    Receipts,
    Catalog,
    Root,
    OpenApi,
}

impl Names {
    fn new(service: &str) -> Self {
        Self {
            catalog: format!("/v1/{service}/models"),
            key: format!("/v1/{service}/key"),
            estimate: format!("/v1/{service}/estimate"),
            receipts: format!("/v1/{service}/receipts/"),
        }
    }

    fn find(&self, method: &Method, path: &str) -> Result<Place, Error> {
        const GET: &[Method] = &[Method::GET];
        const GET_HEAD: &[Method] = &[Method::GET, Method::HEAD];
        const POST: &[Method] = &[Method::POST];
        let (place, methods, allow) = match path {
            "/v1/chat/completions" | "/v1/messages" => (Place::Inference, POST, "POST"),
            "/v1/messages/count_tokens" => (Place::Count, POST, "POST"),
            "/v1/models" => (Place::Own, GET, "GET"),
            "/" => (Place::Root, GET_HEAD, "GET, HEAD"),
            openapi::PATH => (Place::OpenApi, GET_HEAD, "GET, HEAD"),
            path if path == self.catalog => (Place::Catalog, GET_HEAD, "GET, HEAD"),
            path if path == self.key => (Place::Own, GET, "GET"),
            path if path == self.estimate => (Place::Estimate, POST, "POST"),
            path if self.is_receipt(path) => (Place::Receipts, GET, "GET"),
            _ => return Err(Error::PathUnknown),
        };
        if methods.contains(method) {
            Ok(place)
        } else {
            Err(Error::MethodNotAllowed { allow })
        }
    }

    fn is_receipt(&self, path: &str) -> bool {
        path.strip_prefix(&self.receipts)
            .is_some_and(|number| !number.is_empty() && !number.contains('/'))
    }
}

impl<B> Service<Request<B>> for Paths<B> {
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = Answering;

    /// Each service is made ready when its path is known.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Answering {
        let Shared { names, branches } = &*self.shared;
        let branch = match names.find(req.method(), req.uri().path()) {
            Err(error) => return Box::pin(async { Err(error) }),
            Ok(Place::Root) if page::is_asked_for(req.headers()) => &branches.page,
            // Tools look whether somebody is there.
            Ok(Place::Root) => return Box::pin(async { Ok(page::nothing()) }),
            Ok(Place::Inference) => &branches.inference,
            Ok(Place::Count) => &branches.count,
            Ok(Place::Estimate) => &branches.estimate,
            Ok(Place::Own) => &branches.own,
            Ok(Place::Receipts) => &branches.receipts,
            Ok(Place::Catalog) => &branches.catalog,
            Ok(Place::OpenApi) => &branches.openapi,
        };
        branch.0.answer(req)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_exactly() {
        let names = Names::new("tollgate");
        let found = |method: Method, path: &str| match names.find(&method, path) {
            Ok(Place::Inference) => "inference",
            Ok(Place::Count) => "count",
            Ok(Place::Estimate) => "estimate",
            Ok(Place::Own) => "own",
            Ok(Place::Receipts) => "receipts",
            Ok(Place::Catalog) => "catalog",
            Ok(Place::Root) => "root",
            Ok(Place::OpenApi) => "openapi",
            Err(Error::MethodNotAllowed { allow }) => allow,
            Err(_) => "unknown",
        };
        for (method, path, place) in [
            (Method::POST, "/v1/chat/completions", "inference"),
            (Method::POST, "/v1/messages", "inference"),
            (Method::POST, "/v1/messages/count_tokens", "count"),
            (Method::GET, "/v1/messages", "POST"),
            (Method::GET, "/v1/tollgate/models", "catalog"),
            (Method::HEAD, "/v1/tollgate/models", "catalog"),
            (Method::POST, "/v1/tollgate/models", "GET, HEAD"),
            (Method::GET, "/v1/models", "own"),
            (Method::GET, "/v1/tollgate/key", "own"),
            (Method::POST, "/v1/tollgate/estimate", "estimate"),
            (Method::GET, "/v1/tollgate/estimate", "POST"),
            (Method::GET, "/v1/tollgate/receipts/n", "receipts"),
            (Method::POST, "/v1/tollgate/receipts/n", "GET"),
            (Method::GET, "/v1/tollgate/receipts", "unknown"),
            (Method::GET, "/v1/tollgate/receipts/", "unknown"),
            (Method::GET, "/v1/tollgate/receipts/n/n", "unknown"),
            (Method::HEAD, "/", "root"),
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
