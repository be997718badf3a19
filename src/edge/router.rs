//! Sends each request to the service of its route. A request for an unknown path or with a wrong method is refused
//! before its body is read. Each service is boxed once, when the stack is built.

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

/// A service of the stack, boxed so that services of different types have the same type. Clones share the service.
/// Without sharing, each layer above would clone the service together with everything below it.
pub(crate) struct BoxedService<B, A = AnswerBody, E = Error>(Arc<dyn SharedService<B, A, E>>);

/// The body of a response to a caller. Its type comes from the `in_flight` layer, the outermost layer of nearly all
/// paths.
pub(crate) type PathBody = in_flight::ResponseBody<AnswerBody>;

pub(crate) type ResponseFuture<A, E> = BoxFuture<'static, Result<Response<A>, E>>;

/// A service that can be called through a shared reference.
trait SharedService<B, A, E>: Send + Sync {
    fn answer(&self, req: Request<B>) -> ResponseFuture<A, E>;
}

/// A service that all threads share, so that a call need not clone it. A clone per call would change every reference
/// count in the service twice, and the threads would compete for these counts.
struct Shared<S, F> {
    /// The service, locked for one call at a time while the call creates its future.
    lent: Mutex<S>,
    /// This copy is cloned for a call if `lent` is locked by another call, or was poisoned by a panic.
    spare: S,
    box_future: F,
}

impl<S, F, B, A, E> SharedService<B, A, E> for Shared<S, F>
where
    S: Service<Request<B>, Response = Response<A>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    F: Fn(S::Future) -> ResponseFuture<A, E> + Send + Sync,
    B: Send + 'static,
    A: 'static,
    E: Send + 'static,
{
    fn answer(&self, req: Request<B>) -> ResponseFuture<A, E> {
        let (mut lent, mut clone) = (self.lent.try_lock(), None);
        let service = match &mut lent {
            Ok(service) => &mut **service,
            Err(_) => clone.insert(self.spare.clone()),
        };
        // The service is ready now, because no layer below makes a caller wait. So the service takes the request
        // immediately, and only its future is boxed, not the layers together with the request.
        match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => (self.box_future)(service.call(req)),
            Poll::Ready(Err(error)) => Box::pin(async { Err(error) }),
            Poll::Pending => Box::pin(self.spare.clone().oneshot(req)),
        }
    }
}

/// Boxes a service, its futures and the bodies of its responses, for use inside the stack.
pub(crate) fn boxed_with_body<S, B, A>(service: S) -> BoxedService<B>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error = Error> + Send + 'static,
    B: Send + 'static,
{
    boxed(service.map_response(|res: Response<A>| res.map(body::boxed)))
}

/// Boxes a service and its futures. The bodies of its responses keep their type.
pub(crate) fn boxed<S, B, A, E>(service: S) -> BoxedService<B, A, E>
where
    S: Service<Request<B>, Response = Response<A>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    A: 'static,
    E: Send + 'static,
{
    shared::<S, B, A, E, _>(service, |future: S::Future| -> ResponseFuture<A, E> {
        Box::pin(future)
    })
}

/// Boxes a service whose futures are already boxed.
pub(crate) fn from_boxed<S, B, A, E>(service: S) -> BoxedService<B, A, E>
where
    S: Service<Request<B>, Response = Response<A>, Error = E, Future = ResponseFuture<A, E>>
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

fn shared<S, B, A, E, F>(service: S, box_future: F) -> BoxedService<B, A, E>
where
    S: Service<Request<B>, Response = Response<A>, Error = E> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    F: Fn(S::Future) -> ResponseFuture<A, E> + Send + Sync + 'static,
    B: Send + 'static,
    A: 'static,
    E: Send + 'static,
{
    BoxedService(Arc::new(Shared {
        lent: Mutex::new(service.clone()),
        spare: service,
        box_future,
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
    type Future = ResponseFuture<A, E>;

    /// Always ready: when the boxed service is called, it is first polled for readiness.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> ResponseFuture<A, E> {
        self.0.answer(req)
    }
}

/// The service that sends each request to the service of its route.
#[derive(Debug)]
pub(crate) struct Router<B>(Arc<Inner<B>>);

#[derive(Debug)]
struct Inner<B> {
    routes: Routes,
    services: Services<B>,
}

/// The services of all routes. The index is the route.
pub(crate) type Services<B> = [BoxedService<B, PathBody>; Route::ALL.len()];

impl<B> Router<B> {
    pub(crate) fn new(routes: Routes, services: Services<B>) -> Self {
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
    type Future = ResponseFuture<PathBody, Error>;

    /// Always ready, because it is not yet known which route's service the request is for. That service is polled for
    /// readiness when the path is known.
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
    async fn service_that_panicked_handles_the_next_request() {
        let service: BoxedService<bool> = boxed(service_fn(|req: Request<bool>| {
            assert!(req.into_body(), "in the call");
            ready(Ok::<_, Error>(Response::new(full("an answer"))))
        }));
        let ask = |well| service.0.answer(Request::new(well));
        ask(true).await.unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| ask(false))).is_err());
        ask(true).await.unwrap();
    }

    #[tokio::test]
    async fn boxed_service_can_call_itself_recursively() {
        static SERVICE: OnceLock<BoxedService<u8>> = OnceLock::new();
        let within = |req: Request<u8>| -> ResponseFuture<AnswerBody, Error> {
            match req.into_body() {
                0 => Box::pin(ready(Ok(Response::new(full("an answer"))))),
                n => SERVICE.get().unwrap().0.answer(Request::new(n - 1)),
            }
        };
        let service = SERVICE.get_or_init(|| from_boxed(service_fn(within)));
        service.0.answer(Request::new(2)).await.unwrap();
    }
}
