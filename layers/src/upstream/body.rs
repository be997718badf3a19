//! A vendor's response body, with its timeouts, as it arrives from a connection.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{
    driven::{Alarm, DrivenBody},
    functions,
};
use crate::{
    body::PolledFrame,
    error::{BoxError, Error},
};

/// If frames are always ready, the clock is read once per 64 frames.
const FRAMES_A_LOOK: u8 = 64;

/// The timeouts of a response's body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The deadline for the first byte of the body. `None` for a plain response, and after the first byte has arrived.
    pub(super) first: Option<Instant>,
    /// The maximum time between two frames of the body.
    pub(super) idle: Duration,
    /// The deadline for the end of the body.
    pub(super) deadline: Instant,
}

/// The body of a vendor's response. The time between two frames and the total time are limited.
#[derive(Debug)]
pub struct ResponseBody {
    inner: VendorBody,
    wait: Wait,
    /// Rewrites function calls into tool calls. Set only for vendors that use `functions`.
    functions: Option<Box<functions::Answer>>,
}

impl ResponseBody {
    /// Creates the body of a vendor's response. If `has_functions`, function calls are rewritten into tool calls.
    pub(super) fn new(inner: VendorBody, patience: Patience, has_functions: bool) -> Self {
        let answer = || Box::new(functions::Answer::new(patience.first.is_some()));
        Self {
            inner,
            wait: Wait::new(patience),
            functions: has_functions.then(answer),
        }
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        self.wait.in_time(frame, self.inner.alarm(), cx)
    }

    /// Polls for frames until an event is complete. For a plain response, polls until the response is complete.
    fn poll_rewritten(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        loop {
            let answer = self.functions.as_ref();
            if answer.is_some_and(|answer| answer.has_ended()) {
                return Poll::Ready(None);
            }
            let frame = ready!(self.poll_inner(cx));
            let Some(answer) = &mut self.functions else {
                return Poll::Ready(frame);
            };
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => answer.feed(&data)?,
                // Trailers of the vendor are dropped.
                Some(Ok(Err(_))) => continue,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => answer.finish(),
            };
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match self.functions {
            None => self.poll_inner(cx),
            Some(_) => self.poll_rewritten(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.functions {
            None => self.inner.is_end_stream(),
            Some(answer) => answer.has_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.functions {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

/// A response body. The variant states how the body's connection is polled.
#[derive(Debug)]
pub(super) enum VendorBody {
    /// HTTP/1.1: the task that reads the body also polls the connection.
    Driven(DrivenBody),
    /// HTTP/2: a separate task polls the connection.
    Shared(Incoming, Alarm),
}

impl VendorBody {
    /// Returns the timer with which the reading task waits for frames.
    fn alarm(&mut self) -> &mut Alarm {
        match self {
            Self::Driven(inner) => inner.alarm(),
            Self::Shared(_, alarm) => alarm,
        }
    }
}

impl Body for VendorBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<hyper::Error> {
        match self.get_mut() {
            Self::Driven(inner) => Pin::new(inner).poll_frame(cx),
            Self::Shared(inner, _) => Pin::new(inner).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Driven(inner) => inner.is_end_stream(),
            Self::Shared(inner, _) => inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Driven(inner) => inner.size_hint(),
            Self::Shared(inner, _) => inner.size_hint(),
        }
    }
}

/// Measures the wait for each frame.
#[derive(Debug)]
struct Wait {
    patience: Patience,
    /// The time since which a frame is awaited. `None` if the last poll returned a frame: the clock is not read for
    /// frames that are ready at once.
    since: Option<Instant>,
    /// The number of received frames, modulo 256.
    frames: u8,
}

impl Wait {
    const fn new(patience: Patience) -> Self {
        Self {
            patience,
            since: None,
            frames: 0,
        }
    }

    /// Returns the result of the poll, or an error if the wait for a frame has taken too long.
    fn in_time<E: Into<BoxError>>(
        &mut self,
        frame: PolledFrame<E>,
        alarm: &mut Alarm,
        cx: &mut Context<'_>,
    ) -> PolledFrame {
        let Patience {
            first,
            idle,
            deadline,
        } = self.patience;
        let Poll::Ready(frame) = frame else {
            let due = match first {
                Some(first) => first,
                None => *self.since.get_or_insert_with(Instant::now) + idle,
            };
            let too_late = alarm.poll(deadline.min(due), cx);
            return too_late.map(|()| Some(Err(too_slow(first))));
        };
        let Some(frame) = frame else {
            return Poll::Ready(None);
        };
        self.patience.first = None;
        self.since = None;
        self.frames = self.frames.wrapping_add(1);
        // The timer is polled only if no frame is ready. For frames that are always ready, the deadline is checked
        // here.
        if self.frames.is_multiple_of(FRAMES_A_LOOK) && Instant::now() >= deadline {
            return Poll::Ready(Some(Err(too_slow(first))));
        }
        let frame = frame.map_err(|error| Error::VendorBroken(error.into()));
        Poll::Ready(Some(frame))
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
    use std::{future::poll_fn, io};

    use http_body_util::StreamBody;
    use tokio::time::sleep;

    use super::*;

    /// A body for tests, with its timeouts.
    struct Waited<A> {
        inner: Pin<Box<A>>,
        wait: Wait,
        alarm: Alarm,
    }

    impl<A: Body<Data = Bytes, Error = io::Error>> Waited<A> {
        async fn frame(&mut self) -> Option<Result<Frame<Bytes>, Error>> {
            poll_fn(|cx| {
                let frame = self.inner.as_mut().poll_frame(cx);
                self.wait.in_time(frame, &mut self.alarm, cx)
            })
            .await
        }
    }

    /// Returns a body whose frames arrive at these intervals, in seconds after the previous frame; 0 means at once.
    fn body(
        waits: Vec<u64>,
        patience: Patience,
    ) -> Waited<impl Body<Data = Bytes, Error = io::Error>> {
        use futures_util::StreamExt;
        let frames = futures_util::stream::iter(waits).then(async |wait: u64| {
            if wait > 0 {
                sleep(Duration::from_secs(wait)).await;
            }
            Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"x")))
        });
        Waited {
            inner: Box::pin(StreamBody::new(frames)),
            wait: Wait::new(patience),
            alarm: Alarm::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_byte_and_next_bytes_and_end_of_a_body_have_separate_timeouts() {
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
                deadline: now + Duration::from_secs(99),
            };
            let mut body = body(waits, patience);
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
    async fn endless_body_is_ended_soon_after_its_deadline() {
        let now = Instant::now();
        let patience = Patience {
            first: None,
            idle: Duration::from_secs(5),
            deadline: now + Duration::from_secs(100),
        };
        let mut body = body(vec![0; 1000], patience);
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::advance(Duration::from_secs(101)).await;
        let mut more = 0;
        while body.frame().await.expect("it has more").is_ok() {
            more += 1;
        }
        assert!(more < FRAMES_A_LOOK, "{more}");
    }
}
