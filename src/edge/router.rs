//! Sends requests to the services of their routes; any other request is refused before its body is read. A service is
//! boxed once, when the stack is built.

use std::{
    fmt,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use tollgate_layers::{
    Error,
    body::{self, AnswerBody},
    in_flight,
};
use tower::{Service, ServiceExt};

use super::{
    cors::{self, Preflight},
    routes::{Route, Routes},
};

/// A service at some position of the stack, boxed so that services of different types have one type. Clones share the
/// service: otherwise each layer above would clone it together with everything below it.
pub(crate) struct BoxedService<B, A = AnswerBody, E = Error>(Arc<dyn Answers<B, A, E>>);

/// The body of an answer to a caller: `in_flight` is the outermost layer of nearly all paths.
pub(crate) type PathBody = in_flight::ResponseBody<AnswerBody>;

pub(crate) type Answering<A, E> = BoxFuture<'static, Result<Response<A>, E>>;

/// A service that is called through a shared reference.
trait Answers<B, A, E>: Send + Sync {
    fn answer(&self, req: Request<B>) -> Answering<A, E>;
}

/// A service that all threads share. A clone per call would change every reference count in the service twice, and the
/// threads would compete for these counts.
struct Shared<S, F> {
    /// The service, lent to one call at a time while that call creates its future.
    lent: Mutex<S>,
    /// Cloned for a call if `lent` is in use, or was poisoned by a panic.
    spare: S,
    boxes: F,
}

impl<S, F, B, A, E> Answers<B, A, E> for Shared<S, F>
where
    S: Service<Request<B>, Response = Response<A>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    F: Fn(S::Future) -> Answering<A, E> + Send + Sync,
    B: Send + 'static,
    A: 'static,
    E: Send + 'static,
{
    fn answer(&self, req: Request<B>) -> Answering<A, E> {
        let (mut lent, mut clone) = (self.lent.try_lock(), None);
        let service = match &mut lent {
            Ok(service) => &mut **service,
            Err(_) => clone.insert(self.spare.clone()),
        };
        // No layer below makes a caller wait for readiness, so the service takes the request immediately. Only the
        // resulting future is boxed, not the layers and the request.
        match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => (self.boxes)(service.call(req)),
            Poll::Ready(Err(error)) => Box::pin(async { Err(error) }),
            Poll::Pending => Box::pin(self.spare.clone().oneshot(req)),
        }
    }
}

/// Boxes a service inside the stack, and the bodies of its answers.
pub(crate) fn boxed_with_body<S, B, A>(service: S) -> BoxedService<B>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error = Error> + Send + 'static,
    B: Send + 'static,
{
    boxed(service.map_response(|res: Response<A>| res.map(body::boxed)))
}

/// Boxes a service and its futures.
pub(crate) fn boxed<S, B, A, E>(service: S) -> BoxedService<B, A, E>
where
    S: Service<Request<B>, Response = Response<A>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    A: 'static,
    E: Send + 'static,
{
    shared::<S, B, A, E, _>(service, |future: S::Future| -> Answering<A, E> {
        Box::pin(future)
    })
}

/// Boxes a service whose futures are boxed already.
pub(crate) fn from_boxed<S, B, A, E>(service: S) -> BoxedService<B, A, E>
where
    S: Service<Request<B>, Response = Response<A>, Error = E, Future = Answering<A, E>>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Send + 'static,
    A: 'static,
    E: Send + 'static,
{
    shared::<S, B, A, E, _>(service, |future| future)
}

fn shared<S, B, A, E, F>(service: S, boxes: F) -> BoxedService<B, A, E>
where
    S: Service<Request<B>, Response = Response<A>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    F: Fn(S::Future) -> Answering<A, E> + Send + Sync + 'static,
    B: Send + 'static,
    A: 'static,
    E: Send + 'static,
{
    BoxedService(Arc::new(Shared {
        lent: Mutex::new(service.clone()),
        spare: service,
        boxes,
    }))
}

impl<B, A, E> Clone for BoxedService<B, A, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B, A, E> fmt::Debug for BoxedService<B, A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxedService")
    }
}

impl<B, A, E> Service<Request<B>> for BoxedService<B, A, E> {
    type Response = Response<A>;
    type Error = E;
    type Future = Answering<A, E>;

    /// Always ready: the boxed service is polled for readiness when it is called.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Answering<A, E> {
        self.0.answer(req)
    }
}

/// Sends each request to the service of its path's route.
#[derive(Debug)]
pub(crate) struct Router<B>(Arc<Inner<B>>);

#[derive(Debug)]
struct Inner<B> {
    routes: Routes,
    /// The services, indexed by the route.
    services: [BoxedService<B, PathBody>; Route::ALL.len()],
}

impl<B> Router<B> {
    /// Creates a router with the service that `service_of` returns for each route.
    pub(crate) fn new(
        routes: Routes,
        service_of: impl Fn(Route) -> BoxedService<B, PathBody>,
    ) -> Self {
        let services = Route::ALL.map(service_of);
        Self(Arc::new(Inner { routes, services }))
    }
}

impl<B> Clone for Router<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Service<Request<B>> for Router<B> {
    type Response = Response<PathBody>;
    type Error = Error;
    type Future = Answering<PathBody, Error>;

    /// Always ready: the service of a request's path is polled for readiness when the path is known.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        let Inner { routes, services } = &*self.0;
        let Some(found) = routes.matched(req.uri().path()) else {
            return Box::pin(async { Err(Error::PathUnknown) });
        };
        let route = found.route;
        if !route.takes(req.method()) {
            let allow = route.methods();
            if req.extensions().get::<Preflight>().is_some() {
                let res = cors::preflight(allow, req.headers());
                return Box::pin(async { Ok(res.map(PathBody::without_permit)) });
            }
            return Box::pin(async { Err(Error::MethodNotAllowed { allow }) });
        }
        if !route.is_of_calls() {
            req.extensions_mut().insert(found);
        }
        services[route as usize].0.answer(req)
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
    async fn service_that_panicked_answers_the_next_request() {
        let branch: BoxedService<bool> = boxed(service_fn(|req: Request<bool>| {
            assert!(req.into_body(), "in the call");
            ready(Ok::<_, Error>(Response::new(full("an answer"))))
        }));
        let ask = |well| branch.0.answer(Request::new(well));
        ask(true).await.unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| ask(false))).is_err());
        ask(true).await.unwrap();
    }

    #[tokio::test]
    async fn boxed_service_can_call_itself_recursively() {
        static SERVICE: OnceLock<BoxedService<u8>> = OnceLock::new();
        let within = |req: Request<u8>| -> Answering<AnswerBody, Error> {
            match req.into_body() {
                0 => Box::pin(ready(Ok(Response::new(full("an answer"))))),
                n => SERVICE.get().unwrap().0.answer(Request::new(n - 1)),
            }
        };
        let service = SERVICE.get_or_init(|| from_boxed(service_fn(within)));
        service.0.answer(Request::new(2)).await.unwrap();
    }
}
