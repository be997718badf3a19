//! Reads a request's body only when a handler requests it. Bounds the body's size and the time to receive it.

use std::{
    fmt,
    future::ready,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Request;
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tollgate_layers::{Error, error::BoxError};
use tower::{Layer, Service};

const BYTES_MAX: usize = 64 * 1024;
const TIME_MAX: Duration = Duration::from_secs(10);

/// Turns `Request<B>` into `Request<UnreadBody>`.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimitLayer {
    bytes_max: usize,
    time_max: Duration,
}

impl BodyLimitLayer {
    /// Limits a body to `bytes_max` bytes, which must arrive within `time_max`.
    #[must_use]
    pub const fn new(bytes_max: usize, time_max: Duration) -> Self {
        Self {
            bytes_max,
            time_max,
        }
    }
}

/// Limits bodies to 64 KiB within 10 seconds.
impl Default for BodyLimitLayer {
    fn default() -> Self {
        Self::new(BYTES_MAX, TIME_MAX)
    }
}

impl<S> Layer<S> for BodyLimitLayer {
    type Service = BodyLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BodyLimit {
            inner,
            limits: *self,
        }
    }
}

/// The service of [`BodyLimitLayer`].
#[derive(Clone, Debug)]
pub struct BodyLimit<S> {
    inner: S,
    limits: BodyLimitLayer,
}

impl<S, B> Service<Request<B>> for BodyLimit<S>
where
    S: Service<Request<UnreadBody>>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let limits = self.limits;
        self.inner
            .call(req.map(|body| UnreadBody::new(body, limits)))
    }
}

/// A body that no handler has requested yet. The time limit starts when a handler begins to read the body.
pub struct UnreadBody(BoxFuture<'static, Result<Bytes, BodyError>>);

impl UnreadBody {
    fn new<B>(body: B, limits: BodyLimitLayer) -> Self
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        Self(Box::pin(async move {
            let whole = Limited::new(body, limits.bytes_max).collect();
            match tokio::time::timeout(limits.time_max, whole).await {
                Err(_) => Err(BodyError::TooSlow),
                Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge {
                    bytes_max: limits.bytes_max,
                }),
                Ok(Err(_)) => Err(BodyError::Broken),
                Ok(Ok(whole)) => Ok(whole.to_bytes()),
            }
        }))
    }

    /// Creates a body that is already in memory.
    pub(crate) fn read(body: Bytes) -> Self {
        Self(Box::pin(ready(Ok(body))))
    }

    /// Reads the whole body, within its limits.
    ///
    /// # Errors
    /// [`BodyError`] if a limit is exceeded, or if the connection ends first.
    pub(crate) async fn whole(self) -> Result<Bytes, BodyError> {
        self.0.await
    }
}

/// The reason why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    TooLarge {
        bytes_max: usize,
    },
    TooSlow,
    /// The connection ended before the whole body arrived.
    Broken,
}

impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { bytes_max } => Self::BodyTooLarge {
                bytes_max: bytes_max as u64,
            },
            BodyError::TooSlow => Self::BodyTooSlow,
            BodyError::Broken => Self::BodyBroken("it broke off".into()),
        }
    }
}

impl fmt::Debug for UnreadBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnreadBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full, StreamBody};

    use super::*;

    const LIMITS: BodyLimitLayer = BodyLimitLayer::new(100, Duration::from_secs(10));

    #[tokio::test(start_paused = true)]
    async fn limit_of_the_body_size_is_enforced() {
        let of = |bytes: usize| Full::new(Bytes::from(vec![b' '; bytes]));
        let whole = UnreadBody::new(of(100), LIMITS).whole().await;
        assert_eq!(whole.unwrap().len(), 100);
        let larger = UnreadBody::new(of(101), LIMITS).whole().await;
        assert_eq!(larger, Err(BodyError::TooLarge { bytes_max: 100 }));

        let never = StreamBody::new(futures_util::stream::pending::<
            Result<http_body::Frame<Bytes>, BoxError>,
        >());
        let slow = UnreadBody::new(never, LIMITS).whole().await;
        assert_eq!(slow, Err(BodyError::TooSlow));
        let broken = Empty::<Bytes>::new().map_err(|never| match never {});
        let broken = broken.with_trailers(async { Some(Err(BoxError::from("cut"))) });
        let broken = UnreadBody::new(broken, LIMITS).whole().await;
        assert_eq!(broken, Err(BodyError::Broken));
    }
}
