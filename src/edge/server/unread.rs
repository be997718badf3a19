//! Reads and discards the unread rest of a request's body, within limits.
//!
//! A body is discarded because a client that is still sending it has not read the response yet. If the gateway closed
//! the connection, the client's next write would fail, and the client's kernel would discard the response (RFC 9112,
//! section 9.6).

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Buf;
use http_body::Body;
use tokio::time::{Instant, Sleep, sleep};

/// The maximum number of bytes that are discarded. It is twice the default limit of a body, so that a client whose body
/// is refused for its size still receives the response.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The maximum time for discarding a body. An idle connection may stay open for longer, so a client gains nothing by
/// sending slowly.
const TIME_MAX: Duration = Duration::from_secs(30);
/// The maximum time between two pieces of a body that is discarded.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// If a body has at most this size and no task has begun to read it, the rest is expected soon, so the connection is
/// reused.
const SHORT_BYTES_MAX: u64 = 256 * 1024;

/// The rest of a request's body that no task has read.
#[derive(Debug)]
pub(super) struct Unread<B> {
    body: B,
    bytes_left: u64,
    until: Instant,
    idle: Pin<Box<Sleep>>,
    /// Whether the connection must be closed after the response. The response then contains `connection: close`.
    pub(super) ends_connection: bool,
}

impl<B: Body + Unpin> Unread<B> {
    /// Takes the unread rest of a body. If a task has begun to read the body, or if the client waits for `100
    /// Continue`, the rest may never arrive. In this case, the connection is closed.
    pub(super) fn new(body: B, begun: bool) -> Self {
        let upper = body.size_hint().upper();
        let is_short = upper.is_some_and(|bytes| bytes <= SHORT_BYTES_MAX);
        Self {
            body,
            bytes_left: BYTES_MAX,
            until: Instant::now() + TIME_MAX,
            idle: Box::pin(sleep(IDLE_MAX)),
            ends_connection: begun || !is_short,
        }
    }

    /// Reads and discards more of the body. Completes at the end of the body, or when a limit is reached.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let Some(Ok(frame)) = frame else {
                return Poll::Ready(());
            };
            let bytes = frame.data_ref().map_or(0, |data| data.remaining() as u64);
            let now = Instant::now();
            match self.bytes_left.checked_sub(bytes) {
                Some(left) if now < self.until => self.bytes_left = left,
                _ => return Poll::Ready(()),
            }
            let idle_until = self.until.min(now + IDLE_MAX);
            self.idle.as_mut().reset(idle_until);
        }
        self.idle.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn};

    use bytes::Bytes;
    use futures_util::stream::{self, Stream};
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    const PIECE_BYTES: usize = 64 * 1024;

    fn pieces(
        wait: Duration,
    ) -> Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>> {
        Box::pin(stream::unfold((), move |()| async move {
            sleep(wait).await;
            let piece = Bytes::from_static(&[b'x'; PIECE_BYTES]);
            Some((Ok(Frame::data(piece)), ()))
        }))
    }

    /// Returns how long discarding took, and how many bytes were discarded.
    async fn discarded<B: Body + Unpin>(body: B) -> (Duration, u64) {
        let begun = Instant::now();
        let mut unread = Unread::new(body, true);
        poll_fn(|cx| unread.poll_discard(cx)).await;
        (begun.elapsed(), BYTES_MAX - unread.bytes_left)
    }

    #[tokio::test(start_paused = true)]
    async fn unread_body_is_discarded_within_limits_of_bytes_and_time() {
        let endless = StreamBody::new(pieces(Duration::ZERO));
        let (took, bytes) = discarded(endless).await;
        assert_eq!(bytes, BYTES_MAX);
        assert!(took < TIME_MAX, "{took:?}");

        let dripping = StreamBody::new(pieces(IDLE_MAX / 2));
        let (took, bytes) = discarded(dripping).await;
        assert!((TIME_MAX..TIME_MAX + IDLE_MAX).contains(&took), "{took:?}");
        assert!(bytes < BYTES_MAX);

        let silent = StreamBody::new(pieces(TIME_MAX));
        let (took, bytes) = discarded(silent).await;
        assert!((IDLE_MAX..2 * IDLE_MAX).contains(&took), "{took:?}");
        assert_eq!(bytes, 0);

        let (took, bytes) = discarded(Full::new(Bytes::from_static(b"whole"))).await;
        assert_eq!((took, bytes), (Duration::ZERO, 5));
    }

    #[tokio::test]
    async fn connection_continues_after_a_short_unread_body_and_ends_after_a_long_one() {
        let of = |bytes: u64| Full::new(Bytes::from(vec![b'x'; usize::try_from(bytes).unwrap()]));
        for (bytes, begun, ends) in [
            (SHORT_BYTES_MAX, false, false),
            (SHORT_BYTES_MAX, true, true),
            (SHORT_BYTES_MAX + 1, false, true),
        ] {
            let unread = Unread::new(of(bytes), begun);
            assert_eq!(unread.ends_connection, ends, "{bytes} {begun}");
        }
        let of_unknown_length = StreamBody::new(pieces(Duration::ZERO));
        assert!(Unread::new(of_unknown_length, false).ends_connection);
    }
}
