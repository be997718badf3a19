//! Limits a request's head before any other layer uses it. Refuses a request whose target is too long (414), whose
//! headers are too many or too large (431), or whose length, transfer coding or host is ambiguous (400).
//!
//! A head far beyond the limits of this layer is refused by hyper itself, as is input that is not an HTTP request. A
//! refusal by hyper has the same status but no body, and closes the connection.

use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, Either};
use http::{Request, Version};
use tollgate_layers::{Error, error::Problem, setting::Setting};
use tower::{Layer, Service};

use crate::edge::host::{self, HostFault};

/// Request extension that the server inserts if it is ambiguous where the request ends. Its value is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingFault {
    /// The head had both `content-length` and `transfer-encoding`.
    TwoLengths,
    /// The header `transfer-encoding` had another value than a single `chunked`.
    Coding,
}

/// The limits on the size of a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The maximum length of path and query, in bytes.
    pub uri_bytes_max: usize,
    /// The maximum number of header lines.
    pub headers_max: usize,
    /// The maximum total length of all header names and values, in bytes.
    pub bytes_max: usize,
}

impl HeadLimits {
    /// No limits on a head, except those that hyper enforces when it reads the head.
    pub const OF_THE_SERVER: Self = Self {
        uri_bytes_max: usize::MAX,
        headers_max: usize::MAX,
        bytes_max: usize::MAX,
    };
}

/// Layer that refuses requests whose heads exceed the limits.
#[derive(Clone, Debug)]
pub struct HeadLayer {
    limits: Setting<HeadLimits>,
}

impl HeadLayer {
    /// Creates a layer that refuses heads that exceed `limits`.
    #[must_use]
    pub fn new(limits: impl Into<Setting<HeadLimits>>) -> Self {
        Self {
            limits: limits.into(),
        }
    }
}

impl<S> Layer<S> for HeadLayer {
    type Service = Head<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Head {
            inner,
            limits: self.limits.clone(),
        }
    }
}

/// The service that [`HeadLayer`] creates.
#[derive(Clone, Debug)]
pub struct Head<S> {
    inner: S,
    limits: Setting<HeadLimits>,
}

impl<S, B> Service<Request<B>> for Head<S>
where
    S: Service<Request<B>, Error = Error>,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = Error;
    // The refusal is boxed to keep the future small: every future has space for a refusal, but few are refused.
    type Future = Either<S::Future, BoxFuture<'static, Result<S::Response, Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        match self.limits.get().check(&req).and_then(|()| one_host(&req)) {
            Ok(()) => Either::Left(self.inner.call(req)),
            Err(error) => Either::Right(Box::pin(async { Err(error) })),
        }
    }
}

impl HeadLimits {
    fn check<B>(&self, req: &Request<B>) -> Result<(), Error> {
        let fault = req.extensions().get().map(|fault| match fault {
            FramingFault::TwoLengths => {
                ("content-length", Problem::Contradicts("transfer-encoding"))
            }
            FramingFault::Coding => ("transfer-encoding", Problem::NotOneOf("chunked")),
        });
        if let Some((field, problem)) = fault {
            return Err(Error::invalid(field, problem));
        }
        let uri = req.uri().path_and_query();
        if uri.is_some_and(|uri| uri.as_str().len() > self.uri_bytes_max) {
            return Err(Error::UriTooLong {
                bytes_max: self.uri_bytes_max,
            });
        }
        let headers = req.headers();
        let bytes = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            name.as_str().len() + value.len()
        };
        if headers.len() > self.headers_max
            || headers.iter().map(bytes).sum::<usize>() > self.bytes_max
        {
            return Err(Error::HeadTooLarge {
                headers_max: self.headers_max,
                bytes_max: self.bytes_max,
            });
        }
        Ok(())
    }
}

/// Refuses a request if it is ambiguous which host it is for.
fn one_host<B>(req: &Request<B>) -> Result<(), Error> {
    let (field, problem) = match host::check(req.version(), req.uri(), req.headers()) {
        Ok(()) => return Ok(()),
        Err(HostFault::Missing) => ("host", Problem::HeaderMissing),
        Err(HostFault::Twice) => ("host", Problem::Duplicate),
        Err(HostFault::Malformed) => ("host", Problem::NotAHost),
        Err(HostFault::Contradicts) => ("host", Problem::Contradicts(":authority")),
        Err(HostFault::TargetMalformed) if req.version() == Version::HTTP_2 => {
            (":authority", Problem::NotAHost)
        }
        Err(HostFault::TargetMalformed) => ("host", Problem::NotAHost),
    };
    Err(Error::invalid(field, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        uri_bytes_max: 10,
        headers_max: 2,
        bytes_max: 20,
    };

    #[test]
    fn refusal_of_an_oversized_request_head_names_the_exceeded_limit() {
        let check = |uri: &str, headers: &[(&str, &str)]| {
            let req = headers
                .iter()
                .fold(Request::get(uri), |req, (name, value)| {
                    req.header(*name, *value)
                });
            LIMITS.check(&req.body(()).unwrap())
        };
        assert!(check("/123456789", &[("a", "1"), ("a", "2")]).is_ok());
        // The host in an absolute request target does not count towards the length of path and query.
        assert!(check("http://some.host.example/123456789", &[]).is_ok());
        for uri in ["/1234567890", "/?123456789", "http://h/1234567890"] {
            let refused = check(uri, &[]);
            assert!(
                matches!(refused, Err(Error::UriTooLong { bytes_max: 10 })),
                "{uri}: {refused:?}"
            );
        }
        for headers in [
            &[("a", "1"), ("a", "2"), ("a", "3")][..],
            &[("name", "12345678901234567")],
        ] {
            let refused = check("/", headers);
            assert!(
                matches!(refused, Err(Error::HeadTooLarge { .. })),
                "{headers:?}: {refused:?}"
            );
        }
    }

    #[test]
    fn refusal_of_ambiguous_request_framing_names_the_header_at_fault() {
        for (fault, name) in [
            (FramingFault::TwoLengths, "content-length"),
            (FramingFault::Coding, "transfer-encoding"),
        ] {
            let mut req = Request::new(());
            req.extensions_mut().insert(fault);
            let refused = LIMITS.check(&req);
            assert!(
                matches!(&refused, Err(Error::Invalid { field, .. }) if field == name),
                "{refused:?}"
            );
        }
    }
}
