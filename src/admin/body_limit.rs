//! A body is read when whoever answers asks for it, whole, and within its limits of size and time.

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

use super::refusal::Refusal;

const BYTES_MAX: usize = 64 * 1024;
const TIME_MAX: Duration = Duration::from_secs(10);

/// Turns `Request<B>` into `Request<UnreadBody>`.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimitLayer {
    bytes_max: usize,
    time_max: Duration,
}

impl BodyLimitLayer {
    /// A body has at most `bytes_max`, and they come within `time_max`.
    #[must_use]
    pub const fn new(bytes_max: usize, time_max: Duration) -> Self {
        Self {
            bytes_max,
            time_max,
        }
    }
}

/// 64 KiB within 10 seconds.
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
    S: Service<Request<UnreadBody>, Error = Error>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let limits = self.limits;
        self.inner
            .call(req.map(|body| UnreadBody::new(body, limits)))
    }
}

/// A body that nobody has asked for yet; then its time begins.
pub struct UnreadBody(BoxFuture<'static, Result<Bytes, Refusal>>);

impl UnreadBody {
    fn new<B>(body: B, limits: BodyLimitLayer) -> Self
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        Self(Box::pin(async move {
            let whole = Limited::new(body, limits.bytes_max).collect();
            match tokio::time::timeout(limits.time_max, whole).await {
                Err(_) => Err(Refusal::BodyTooSlow),
                Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::BodyTooLarge {
                    bytes_max: limits.bytes_max,
                }),
                Ok(Err(_)) => Err(Refusal::BodyBroken),
                Ok(Ok(whole)) => Ok(whole.to_bytes()),
            }
        }))
    }

    /// A body that is there already.
    pub(crate) fn read(body: Bytes) -> Self {
        Self(Box::pin(ready(Ok(body))))
    }

    pub(super) async fn whole(self) -> Result<Bytes, Refusal> {
        self.0.await
    }

    /// All of a caller's, who is told in a caller's words what is wrong with it.
    pub(crate) async fn bytes_of_caller(self) -> Result<Bytes, Error> {
        self.whole().await.map_err(|refusal| match refusal {
            Refusal::BodyTooLarge { bytes_max } => Error::BodyTooLarge {
                bytes_max: bytes_max as u64,
            },
            Refusal::BodyTooSlow => Error::BodyTooSlow,
            _ => Error::BodyBroken("it broke off".into()),
        })
    }

    /// All of it, for who else stands below.
    pub(crate) async fn bytes(self) -> Result<Bytes, Error> {
        Ok(self.whole().await?)
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
    async fn a_body_is_held_to_its_limits() {
        let of = |bytes: usize| Full::new(Bytes::from(vec![b' '; bytes]));
        let whole = UnreadBody::new(of(100), LIMITS).whole().await;
        assert_eq!(whole.unwrap().len(), 100);
        let larger = UnreadBody::new(of(101), LIMITS).whole().await;
        assert_eq!(larger, Err(Refusal::BodyTooLarge { bytes_max: 100 }));

        let never = StreamBody::new(futures_util::stream::pending::<
            Result<http_body::Frame<Bytes>, BoxError>,
        >());
        let slow = UnreadBody::new(never, LIMITS).whole().await;
        assert_eq!(slow, Err(Refusal::BodyTooSlow));
        let broken = Empty::<Bytes>::new().map_err(|never| match never {});
        let broken = broken.with_trailers(async { Some(Err(BoxError::from("cut"))) });
        let broken = UnreadBody::new(broken, LIMITS).whole().await;
        assert_eq!(broken, Err(Refusal::BodyBroken));
    }
}
