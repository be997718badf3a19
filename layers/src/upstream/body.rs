use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use super::http1::DrivenBody;
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

/// How long a body may be waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until its first byte.
    pub(super) first: Option<Instant>,
    /// Between two frames.
    pub(super) idle: Duration,
    /// To its end.
    pub(super) deadline: Instant,
}

/// A vendor's body. It may be silent only so long, and take only so long in all.
#[derive(Debug)]
pub struct ResponseBody(Patient<VendorBody>);

impl ResponseBody {
    pub(super) fn new(inner: VendorBody, patience: Patience) -> Self {
        Self(Patient::new(inner, patience))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// A body as it comes from a connection.
#[derive(Debug)]
pub(super) enum VendorBody {
    /// By whoever reads it.
    Driven(DrivenBody),
    /// By a task of the connection.
    Shared(Incoming),
}

impl Body for VendorBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Driven(inner) => Pin::new(inner).poll_frame(cx),
            Self::Shared(inner) => Pin::new(inner).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Driven(inner) => inner.is_end_stream(),
            Self::Shared(inner) => inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Driven(inner) => inner.size_hint(),
            Self::Shared(inner) => inner.size_hint(),
        }
    }
}

pin_project! {
    /// A body with an alarm for its silence.
    #[derive(Debug)]
    struct Patient<A> {
        #[pin]
        inner: A,
        patience: Patience,
        // When something came last.
        last: Instant,
        // Set when nothing is there to read, and not moved by every frame: when it goes off it looks
        // whether anything came in the meantime.
        alarm: Option<Pin<Box<Sleep>>>,
    }
}

impl<A> Patient<A> {
    fn new(inner: A, patience: Patience) -> Self {
        Self {
            inner,
            patience,
            last: Instant::now(),
            alarm: None,
        }
    }
}

impl<A> Body for Patient<A>
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
        let Patience {
            first,
            idle,
            deadline,
        } = *this.patience;
        if let Poll::Ready(frame) = this.inner.poll_frame(cx) {
            let Some(frame) = frame else {
                return Poll::Ready(None);
            };
            *this.last = Instant::now();
            this.patience.first = None;
            // A body that always has more never waits below.
            if *this.last >= deadline {
                return Poll::Ready(Some(Err(too_slow(first))));
            }
            let frame = frame.map_err(|error| Error::VendorBroken(error.into()));
            return Poll::Ready(Some(frame));
        }
        let due = deadline.min(first.unwrap_or(*this.last + idle));
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        // The first byte has a time of its own, and the next one's may be over before it.
        if alarm.deadline() > due {
            alarm.as_mut().reset(due);
        }
        while alarm.as_mut().poll(cx).is_ready() {
            if Instant::now() >= due {
                return Poll::Ready(Some(Err(too_slow(first))));
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

fn too_slow(first: Option<Instant>) -> Error {
    Error::VendorTimeout {
        awaited: if first.is_some() {
            "first byte"
        } else {
            "next bytes"
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use http_body_util::{BodyExt, StreamBody};
    use tokio::time::sleep;

    use super::*;

    /// A body whose bytes come after so many seconds each.
    fn body(
        waits: Vec<u64>,
        patience: Patience,
    ) -> Patient<impl Body<Data = Bytes, Error = io::Error>> {
        use futures_util::StreamExt;
        let frames = futures_util::stream::iter(waits).then(async |wait: u64| {
            sleep(Duration::from_secs(wait)).await;
            Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"x")))
        });
        Patient::new(StreamBody::new(frames), patience)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_the_next_one_and_the_end_have_a_time_each() {
        for (name, waits, bytes, awaited) in [
            ("in time", vec![9, 4, 4], 3, None),
            ("no first byte", vec![11], 0, Some("first byte")),
            ("no second byte", vec![1, 6], 1, Some("next bytes")),
            ("no next byte", vec![9, 4, 6], 2, Some("next bytes")),
            ("no end", vec![4; 30], 24, Some("next bytes")),
        ] {
            let now = Instant::now();
            let patience = Patience {
                first: Some(now + Duration::from_secs(10)),
                idle: Duration::from_secs(5),
                deadline: now + Duration::from_secs(100),
            };
            let mut body = std::pin::pin!(body(waits, patience));
            let (mut seen, mut failure) = (0, None);
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(_) => seen += 1,
                    Err(Error::VendorTimeout { awaited }) => {
                        failure = Some(awaited);
                        break;
                    }
                    Err(other) => panic!("{name}: {other}"),
                }
            }
            assert_eq!((seen, failure), (bytes, awaited), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_always_has_more_ends_at_the_deadline() {
        let now = Instant::now();
        let patience = Patience {
            first: None,
            idle: Duration::from_secs(5),
            deadline: now + Duration::from_secs(100),
        };
        let mut body = std::pin::pin!(body(vec![0; 10], patience));
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::advance(Duration::from_secs(101)).await;
        assert!(body.frame().await.unwrap().is_err());
    }
}
