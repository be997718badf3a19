//! Observes when each request begins and ends. The layer is below `respond`, so errors are still values here, not HTTP
//! responses.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate_layers::{
    Error,
    error::Problem,
    respond::{Language, Refused},
};
use tower::{Layer, Service};

use super::{
    call_record::{CallRecord, Calls},
    facts::{Answered, Failure, code},
};
use crate::observe::metrics::requests::{CLIENT_LEFT, LimitedBy};

/// Creates a [`CallRecord`] for each request, and reports to it how the request ended.
#[derive(Clone, Debug)]
pub struct ObserveLayer {
    calls: Calls,
}

impl ObserveLayer {
    /// Creates a layer that creates its records in `calls`.
    #[must_use]
    pub const fn new(calls: Calls) -> Self {
        Self { calls }
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Observe {
            inner,
            calls: self.calls.clone(),
        }
    }
}

/// The service of [`ObserveLayer`].
#[derive(Clone, Debug)]
pub struct Observe<S> {
    inner: S,
    calls: Calls,
}

impl<S, B, A> Service<Request<B>> for Observe<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error>,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        let record = self.calls.begin(&req);
        req.extensions_mut().insert(record.clone());
        ResponseFuture {
            inner: self.inner.call(req),
            watch: Some(Watch {
                record,
                head: None,
                failure: None,
            }),
        }
    }
}

pin_project! {
    /// The future of [`Observe`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        // Present until the call is answered. From then on, the body of the response owns the watch.
        watch: Option<Watch>,
    }
}

impl<F, A> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, Error>>,
{
    type Output = Result<Response<ResponseBody<A>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let mut watch = this.watch.take().expect("polled after it was ready");
        Poll::Ready(match result {
            Ok(res) => {
                watch.answers(res.status().as_u16());
                Ok(res.map(|inner| ResponseBody {
                    inner,
                    watch: Some(watch),
                }))
            }
            Err(error) => {
                watch.refused(&error);
                Err(error)
            }
        })
    }
}

pin_project! {
    /// The body of a response, whose end is reported to the request's record.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        watch: Option<Watch>,
    }
}

impl<A: Body<Data = Bytes, Error = Error>> Body for ResponseBody<A> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        if let (Some(Err(error)), Some(watch)) = (&frame, &mut *this.watch) {
            watch.fails(error);
        }
        if !matches!(frame, Some(Ok(_))) || this.inner.is_end_stream() {
            *this.watch = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// When dropped, reports how the request ended.
#[derive(Debug)]
struct Watch {
    record: CallRecord,
    /// The status of the response, and the time until its head was sent; `None` as long as no head was sent.
    head: Option<(u16, Duration)>,
    failure: Option<Box<Failure>>,
}

impl Watch {
    fn answers(&mut self, status: u16) {
        self.head = Some((status, self.record.0.began.elapsed()));
    }

    fn refused(&mut self, error: &Error) {
        let status = self.fails(error);
        self.answers(status);
        let requests = &self.record.metrics().requests;
        if let Some(failure) = &self.failure {
            requests.refused(failure.code);
        }
        match error {
            Error::VendorLimit { .. } => {
                requests.limited(LimitedBy::Vendor).inc();
            }
            // Only refusals by `in_flight` itself are counted as shed. Layers below it refuse requests because of other
            // limits.
            Error::Overloaded if !self.record.lock().admitted => {
                requests.shed.inc();
            }
            _ => {}
        }
    }

    /// Records the error. Returns the status that the response to this error has, if no head was sent before the error.
    fn fails(&mut self, error: &Error) -> u16 {
        let refused = Refused::new(error, self.record.0.number, Language::En);
        self.failure = Some(Box::new(Failure {
            code: code(&refused),
            severity: refused.severity(),
            text: error.to_string(),
            cause: std::error::Error::source(error).map(ToString::to_string),
            field: match error {
                Error::Invalid { field, .. } if !field.is_empty() => Some(field.to_string()),
                _ => None,
            },
            without_quotes: without_quotes(error),
        }));
        refused.status().as_u16()
    }
}

/// Returns a shorter text for an error whose text may quote the request or a vendor's response; `None` for other
/// errors.
fn without_quotes(error: &Error) -> Option<String> {
    match error {
        Error::VendorRefused { status, .. } => {
            Some(format!("vendor refused the request with {status}"))
        }
        Error::Invalid {
            problem: Problem::NotJson(_),
            ..
        } => Some("invalid request: not JSON".to_owned()),
        _ => None,
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (status, head) = match self.head {
            Some((status, head)) => (status, Some(head)),
            None => (CLIENT_LEFT, None),
        };
        self.record.answered(Answered {
            status,
            head,
            whole: self.record.0.began.elapsed(),
            failure: self.failure.take(),
        });
    }
}
