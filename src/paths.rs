//! Paths and methods to services. Routes match exactly; anything else is refused before a body is
//! read.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use tollgate_layers::{
    Error,
    body::{AnswerBody, boxed, full},
    call::Format,
};
use tower::{Service, ServiceExt};

/// Sends each request to the service of its path.
#[derive(Clone, Debug)]
pub struct Paths<I, O, C> {
    names: Arc<Names>,
    inference: I,
    own: O,
    catalog: C,
}

#[derive(Debug)]
struct Names {
    catalog: String,
    key: String,
}

impl<I, O, C> Paths<I, O, C> {
    /// `service` is the path segment that names the service.
    pub fn new(service: &str, inference: I, own: O, catalog: C) -> Self {
        let names = Names {
            catalog: format!("/v1/{service}/models"),
            key: format!("/v1/{service}/key"),
        };
        Self {
            names: Arc::new(names),
            inference,
            own,
            catalog,
        }
    }
}

enum Place {
    Inference,
    Own,
    Catalog,
    Root,
}

impl Names {
    fn find(&self, method: &Method, path: &str) -> Result<Place, Error> {
        const GET: &[Method] = &[Method::GET];
        const GET_HEAD: &[Method] = &[Method::GET, Method::HEAD];
        const POST: &[Method] = &[Method::POST];
        let (place, methods, allow) = match path {
            path if Format::of_path(path).is_some() => (Place::Inference, POST, "POST"),
            "/v1/models" => (Place::Own, GET, "GET"),
            "/" => (Place::Root, GET_HEAD, "GET, HEAD"),
            path if path == self.catalog => (Place::Catalog, GET_HEAD, "GET, HEAD"),
            path if path == self.key => (Place::Own, GET, "GET"),
            _ => return Err(Error::PathUnknown),
        };
        if methods.contains(method) {
            Ok(place)
        } else {
            Err(Error::MethodNotAllowed { allow })
        }
    }
}

impl<I, O, C, B, A> Service<Request<B>> for Paths<I, O, C>
where
    I: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + 'static,
    I::Future: Send,
    A: Body<Data = Bytes, Error = Error> + Send + 'static,
    O: Service<Request<B>, Response = Response<AnswerBody>, Error = Error> + Clone + Send + 'static,
    O::Future: Send,
    C: Service<Request<B>, Response = Response<AnswerBody>, Error = Error> + Clone + Send + 'static,
    C::Future: Send,
    B: Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    /// Each service is made ready when its path is known.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        match self.names.find(req.method(), req.uri().path()) {
            Err(error) => Box::pin(async { Err(error) }),
            Ok(Place::Inference) => {
                let inference = self.inference.clone();
                Box::pin(async move { Ok(inference.oneshot(req).await?.map(boxed)) })
            }
            Ok(Place::Own) => Box::pin(self.own.clone().oneshot(req)),
            Ok(Place::Catalog) => Box::pin(self.catalog.clone().oneshot(req)),
            // Tools look whether somebody is there.
            Ok(Place::Root) => Box::pin(async { Ok(Response::new(full(Bytes::new()))) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_exactly() {
        let names = Paths::new("tollgate", (), (), ()).names;
        let found = |method: Method, path: &str| match names.find(&method, path) {
            Ok(Place::Inference) => "inference",
            Ok(Place::Own) => "own",
            Ok(Place::Catalog) => "catalog",
            Ok(Place::Root) => "root",
            Err(Error::MethodNotAllowed { allow }) => allow,
            Err(_) => "unknown",
        };
        for (method, path, place) in [
            (Method::POST, "/v1/chat/completions", "inference"),
            (Method::POST, "/v1/messages", "inference"),
            (Method::GET, "/v1/messages", "POST"),
            (Method::GET, "/v1/tollgate/models", "catalog"),
            (Method::HEAD, "/v1/tollgate/models", "catalog"),
            (Method::POST, "/v1/tollgate/models", "GET, HEAD"),
            (Method::GET, "/v1/models", "own"),
            (Method::GET, "/v1/tollgate/key", "own"),
            (Method::HEAD, "/", "root"),
            (Method::POST, "/v1/messages/", "unknown"),
            (Method::POST, "/V1/messages", "unknown"),
            (Method::POST, "//v1/messages", "unknown"),
            (Method::GET, "/v1/other/models", "unknown"),
        ] {
            assert_eq!(found(method.clone(), path), place, "{method} {path}");
        }
    }
}
