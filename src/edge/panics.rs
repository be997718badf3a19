//! Catches panics in a request and in the body of its response. The caller receives status 500 or an error event, and
//! the connection continues. When the call is dropped, guards release everything that it holds.
//!
//! Background tasks run in rounds. If a round panics, the panic is caught and logged, and the next round runs as usual.

use std::{
    any::Any,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate_layers::{Error, error::BoxError};
use tower::{Layer, Service};

/// The pause before a background task that panicked is started again.
pub(crate) const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Layer that turns a panic below it into an [`Error::Internal`] with the cause [`Panicked`].
///
/// A layer above logs the panic. If that layer would lack facts about the request, a [`Witness`] logs it instead.
#[derive(Clone, Debug, Default)]
pub struct PanicsLayer<W = ()>(PhantomData<fn() -> W>);

impl PanicsLayer {
    /// Creates a layer that turns panics into errors and does not log them.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }

    /// Makes the layer report each panic to a [`Witness`] of the request, too.
    #[must_use]
    pub const fn witnessed_by<W: Witness>(self) -> PanicsLayer<W> {
        PanicsLayer(PhantomData)
    }
}

/// Facts about a request that are logged if the request panics.
pub trait Witness: Clone {
    /// Copies the facts from the request, before the layers below receive the request.
    fn from_request<B>(req: &Request<B>) -> Self;

    /// Logs a panic in the request or in its response's body, with the facts.
    fn log(&self, panicked: &Panicked);
}

/// Logs nothing, because a layer above logs the panic.
impl Witness for () {
    fn from_request<B>(_: &Request<B>) -> Self {}

    fn log(&self, _: &Panicked) {}
}

/// The cause of an [`Error::Internal`] that was caused by a panic. Contains the panic's message.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(String);

impl Panicked {
    fn new(panic: &(dyn Any + Send)) -> Self {
        Self(panic_message(panic).to_owned())
    }

    /// Returns the message with which the code panicked.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0
    }
}

impl<S, W> Layer<S> for PanicsLayer<W> {
    type Service = Panics<S, W>;

    fn layer(&self, inner: S) -> Self::Service {
        Panics {
            inner,
            witness: PhantomData,
        }
    }
}

/// The service that [`PanicsLayer`] creates.
#[derive(Clone, Debug)]
pub struct Panics<S, W = ()> {
    inner: S,
    witness: PhantomData<fn() -> W>,
}

impl<S, B, A, W> Service<Request<B>> for Panics<S, W>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error>,
    W: Witness,
{
    type Response = Response<ResponseBody<A, W>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let witness = W::from_request(&req);
        let (inner, refused) = match caught(&witness, || self.inner.call(req)) {
            Ok(inner) => (Some(inner), None),
            Err(error) => (None, Some(Box::new(error))),
        };
        ResponseFuture {
            inner,
            refused,
            witness,
        }
    }
}

pin_project! {
    /// The future of [`Panics`], which turns a panic into an error.
    #[derive(Debug)]
    pub struct ResponseFuture<F, W = ()> {
        #[pin]
        inner: Option<F>,
        // The error is boxed to keep the future small: every call's future is moved, but few calls are refused.
        refused: Option<Box<Error>>,
        witness: W,
    }
}

impl<F, A, W> Future for ResponseFuture<F, W>
where
    F: Future<Output = Result<Response<A>, Error>>,
    W: Witness,
{
    type Output = Result<Response<ResponseBody<A, W>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            let error = this.refused.take();
            let error = error.expect("a completed future must not be polled again");
            return Poll::Ready(Err(*error));
        };
        let res = match caught(this.witness, || inner.poll(cx)) {
            Ok(polled) => ready!(polled)?,
            Err(error) => {
                // The inner future is dropped now, and not later together with this future, because its guards must
                // release without delay what they hold.
                drop(caught(&(), || this.inner.set(None)));
                return Poll::Ready(Err(error));
            }
        };
        let witness = this.witness.clone();
        Poll::Ready(Ok(res.map(|inner| ResponseBody {
            inner: Some(inner),
            witness,
        })))
    }
}

pin_project! {
    /// The body of a response. A panic in it becomes an error.
    #[derive(Debug)]
    pub struct ResponseBody<A, W = ()> {
        // `None` after a panic, because a body that has panicked must not be polled again.
        #[pin]
        inner: Option<A>,
        witness: W,
    }
}

impl<A: Body<Data = Bytes, Error = Error>, W: Witness> Body for ResponseBody<A, W> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        match caught(this.witness, || inner.poll_frame(cx)) {
            Ok(frame) => frame,
            Err(error) => {
                drop(caught(&(), || this.inner.set(None)));
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.inner.as_ref().map(Body::size_hint);
        hint.unwrap_or_default()
    }
}

/// Calls `run` and returns its result. If `run` panics, reports the panic to the witness and returns an error.
fn caught<T>(witness: &impl Witness, run: impl FnOnce() -> T) -> Result<T, Error> {
    // A panic may leave the state of `run` half-changed. That is acceptable, because the state is dropped and never
    // used again.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let panicked = Panicked::new(&*panic);
        witness.log(&panicked);
        Error::Internal(BoxError::from(panicked))
    })
}

/// Returns the message with which the code panicked.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or(panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("a panic without a message")
}

/// Runs one round of a background task. If the round panics, logs the panic with the task's name and returns `None`.
pub(crate) async fn catch_round<T>(part: &str, round: impl Future<Output = T>) -> Option<T> {
    match AssertUnwindSafe(round).catch_unwind().await {
        Ok(done) => Some(done),
        Err(panic) => {
            log(part, &*panic);
            None
        }
    }
}

/// Runs a background task until it ends. If it panics, starts it again after a pause.
pub(crate) async fn restarted<F: Future>(part: &str, task: impl Fn() -> F) -> F::Output {
    loop {
        if let Some(done) = catch_round(part, task()).await {
            return done;
        }
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

/// Logs a panic in the part of the gateway that `part` names.
pub(crate) fn log(part: &str, panic: &(dyn Any + Send)) {
    tracing::error!(
        part,
        cause = panic_message(panic),
        "a part of the gateway panicked"
    );
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tollgate_layers::body::{AnswerBody, boxed};
    use tower::{ServiceExt, service_fn};

    use super::*;

    struct Fragile;

    impl Body for Fragile {
        type Data = Bytes;
        type Error = Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
            panic!("in the body");
        }
    }

    fn cause_of(error: &Error) -> String {
        let Error::Internal(cause) = error else {
            panic!("{error:?}");
        };
        cause.to_string()
    }

    #[tokio::test]
    async fn panic_anywhere_in_a_call_becomes_an_error() {
        let at = |place: &'static str| {
            PanicsLayer::new().layer(service_fn(move |_: Request<()>| {
                assert!(place != "call", "in the call");
                async move {
                    assert!(place != "future", "in the future");
                    Ok::<Response<AnswerBody>, Error>(Response::new(boxed(Fragile)))
                }
            }))
        };
        for (place, expected) in [
            ("call", "panicked: in the call"),
            ("future", "panicked: in the future"),
        ] {
            let error = at(place).oneshot(Request::new(())).await.err().unwrap();
            assert_eq!(cause_of(&error), expected);
        }
        let res = at("body").oneshot(Request::new(())).await.unwrap();
        let mut body = res.into_body();
        let error = body.frame().await.unwrap().err().unwrap();
        assert_eq!(cause_of(&error), "panicked: in the body");
        assert!(body.frame().await.is_none() && body.is_end_stream());
    }

    #[tokio::test]
    async fn background_task_continues_after_a_round_that_panicked() {
        let mut rounds = Vec::new();
        for round in 0..3 {
            let done = catch_round("a part", async {
                assert!(round != 1, "in a round");
                round
            });
            rounds.push(done.await);
        }
        assert_eq!(rounds, [Some(0), None, Some(2)]);
    }
}
