//! Reads a request's body only when a handler requests it, and limits the body's size and the time to receive it.

use std::{fmt, future::ready, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Request;
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tollgate_layers::{Error, error::BoxError};

/// The maximum size of a request's body, and the maximum time to receive it.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes_max: usize,
    time_max: Duration,
}

const LIMITS: Limits = Limits {
    bytes_max: 64 * 1024,
    time_max: Duration::from_secs(10),
};

/// Limits a request's body to 64 KiB within 10 seconds. The body is read only if a handler requests it.
pub(crate) fn limit_body<B>(req: Request<B>) -> Request<UnreadBody>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    req.map(|body| UnreadBody::new(body, LIMITS))
}

/// A body that no handler has requested yet. The time limit starts when a handler begins to read the body.
pub struct UnreadBody(BoxFuture<'static, Result<Bytes, BodyError>>);

impl UnreadBody {
    fn new<B>(body: B, limits: Limits) -> Self
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

    /// Reads the whole body, within its limits of size and time.
    ///
    /// # Errors
    /// [`BodyError`] if a limit is exceeded, or if the connection ends first.
    pub(crate) async fn whole(self) -> Result<Bytes, BodyError> {
        self.0.await
    }
}

/// The reason why a request's body was not read to its end.
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
            BodyError::Broken => Self::BodyBroken("the request body ended too early".into()),
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

    const LIMITS: Limits = Limits {
        bytes_max: 100,
        time_max: Duration::from_secs(10),
    };

    #[tokio::test(start_paused = true)]
    async fn body_that_is_too_large_or_arrives_too_slowly_is_refused() {
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
