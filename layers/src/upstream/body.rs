use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{
    error::{BoxError, Error},
    usage::Meter,
};

/// A whole body that tells the meter when a connection takes it: from then on the vendor may work.
#[derive(Debug)]
pub(super) struct RequestBody {
    bytes: Option<Bytes>,
    meter: Meter,
}

impl RequestBody {
    pub(super) fn new(bytes: Bytes, meter: Meter) -> Self {
        Self {
            bytes: Some(bytes),
            meter,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.meter.dispatched();
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

pin_project! {
    /// A vendor's body that may be silent only so long, and take only so long in all.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        idle: Duration,
        deadline: Instant,
        // When something came last.
        last: Instant,
        // Set when nothing is there to read, and not moved by every frame: when it goes off it looks
        // whether anything came in the meantime.
        alarm: Option<Pin<Box<Sleep>>>,
    }
}

impl<A> ResponseBody<A> {
    pub(super) fn new(inner: A, idle: Duration, deadline: Instant) -> Self {
        Self {
            inner,
            idle,
            deadline,
            last: Instant::now(),
            alarm: None,
        }
    }
}

impl<A> Body for ResponseBody<A>
where
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.project();
        if let Poll::Ready(frame) = this.inner.poll_frame(cx) {
            *this.last = Instant::now();
            return Poll::Ready(
                frame.map(|frame| frame.map_err(|error| Error::VendorBroken(error.into()))),
            );
        }
        let due = (*this.deadline).min(*this.last + *this.idle);
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        while alarm.as_mut().poll(cx).is_ready() {
            if Instant::now() >= due {
                return Poll::Ready(Some(Err(Error::VendorTimeout {
                    awaited: "next bytes",
                })));
            }
            alarm.as_mut().reset(due);
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
