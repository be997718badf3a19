//! Reads and discards the rest of a request's body that the gateway no longer needs, within limits.
//!
//! A client that is still sending does not read the answer yet. If the connection were closed, its next write would
//! fail, and the kernel would discard the unread answer (RFC 9112, section 9.6).

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Buf;
use http_body::Body;
use tokio::time::{Instant, Sleep, sleep};

/// The maximum number of discarded bytes: twice the default limit of a body, so that a client whose body is refused for
/// its size gets the answer.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The maximum time for discarding. An idle connection may stay open for longer, so a client gains nothing by sending
/// slowly.
const TIME_MAX: Duration = Duration::from_secs(30);
/// The longest time between two pieces of a body that is discarded.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// If a body is at most this large and no task has begun to read it, it arrives soon, so its connection is reused.
const SHORT_BYTES_MAX: u64 = 256 * 1024;

/// The rest of a request's body that nobody has read.
#[derive(Debug)]
pub(super) struct Unread<B> {
    body: B,
    bytes_left: u64,
    until: Instant,
    silence: Pin<Box<Sleep>>,
    ends_connection: bool,
}

impl<B: Body + Unpin> Unread<B> {
    /// Takes the unread rest of a body. If reading has `begun`, or the client waits for `100 Continue`, the rest may
    /// never arrive, so the connection is closed.
    pub(super) fn new(body: B, begun: bool) -> Self {
        let is_short = body
            .size_hint()
            .upper()
            .is_some_and(|bytes| bytes <= SHORT_BYTES_MAX);
        Self {
            body,
            bytes_left: BYTES_MAX,
            until: Instant::now() + TIME_MAX,
            silence: Box::pin(sleep(SILENCE_MAX)),
            ends_connection: begun || !is_short,
        }
    }

    /// Returns whether the connection must be closed; the answer then contains `connection: close`.
    pub(super) const fn ends_connection(&self) -> bool {
        self.ends_connection
    }

    /// Reads and discards more of the body. Resolves at the end of the body, or when a limit is reached.
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
            let patience = self.until.min(now + SILENCE_MAX);
            self.silence.as_mut().reset(patience);
        }
        self.silence.as_mut().poll(cx)
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

    /// Returns the elapsed time, and the number of bytes discarded.
    async fn discarded<B: Body + Unpin>(body: B) -> (Duration, u64) {
        let begun = Instant::now();
        let mut unread = Unread::new(body, true);
        poll_fn(|cx| unread.poll_discard(cx)).await;
        (begun.elapsed(), BYTES_MAX - unread.bytes_left)
    }

    #[tokio::test(start_paused = true)]
    async fn unread_body_is_discarded_within_limits_of_bytes_time_and_silence() {
        let endless = StreamBody::new(pieces(Duration::ZERO));
        let (took, bytes) = discarded(endless).await;
        assert_eq!(bytes, BYTES_MAX);
        assert!(took < TIME_MAX, "{took:?}");

        let dripping = StreamBody::new(pieces(SILENCE_MAX / 2));
        let (took, bytes) = discarded(dripping).await;
        assert!(
            (TIME_MAX..TIME_MAX + SILENCE_MAX).contains(&took),
            "{took:?}"
        );
        assert!(bytes < BYTES_MAX);

        let silent = StreamBody::new(pieces(TIME_MAX));
        let (took, bytes) = discarded(silent).await;
        assert!((SILENCE_MAX..2 * SILENCE_MAX).contains(&took), "{took:?}");
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
            assert_eq!(unread.ends_connection(), ends, "{bytes} {begun}");
        }
        let of_unknown_length = StreamBody::new(pieces(Duration::ZERO));
        assert!(Unread::new(of_unknown_length, false).ends_connection());
    }
}
