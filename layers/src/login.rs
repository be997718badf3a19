//! Authentication at vendors that do not accept a fixed key in a header.
//!
//! A [`Login`] adds a credential to each request: a token that expires, or a signature of the request.
//!
//! ```
//! use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
//! use tollgate_layers::{
//!     error::BoxError,
//!     login::{Login, LoginFuture, Unsigned},
//! };
//!
//! #[derive(Debug)]
//! struct Fixed;
//!
//! impl Login for Fixed {
//!     fn sign<'a>(&'a self, request: Unsigned<'a>) -> LoginFuture<'a, Result<(), BoxError>> {
//!         let token = HeaderValue::from_static("Bearer token");
//!         request.headers.insert(AUTHORIZATION, token);
//!         Box::pin(async { Ok(()) })
//!     }
//!
//!     fn is_renewed_after(&self, _: &HeaderMap, _: StatusCode, _: &HeaderMap) -> bool {
//!         false
//!     }
//! }
//! ```

use std::{fmt, pin::Pin};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};

use crate::error::BoxError;

/// The future that a [`Login`] returns.
pub type LoginFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Adds a credential to requests. Neither `Debug` nor an error may contain a secret.
pub trait Login: fmt::Debug + Send + Sync + 'static {
    /// Adds the credential to the request's headers. If there is no valid OAuth token, requests a new one first.
    ///
    /// # Errors
    /// An error if no credential can be obtained.
    fn sign<'a>(&'a self, request: Unsigned<'a>) -> LoginFuture<'a, Result<(), BoxError>>;

    /// Returns whether a request that the vendor refused should be signed again and sent once more. `sent` contains the
    /// headers of the request, `answer` those of the refusal.
    fn is_renewed_after(&self, sent: &HeaderMap, status: StatusCode, answer: &HeaderMap) -> bool;
}

/// A request that is complete except for its credential.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unsigned<'a> {
    /// The HTTP method of the request.
    pub method: &'a Method,
    /// The absolute URL of the request.
    pub address: &'a Uri,
    /// All headers of the request except `host` and `content-length`, which the connection adds.
    pub headers: &'a mut HeaderMap,
    /// The segments of the request's body, in order.
    pub body: &'a [Bytes],
}

impl<'a> Unsigned<'a> {
    /// Creates a request that has no credential yet.
    #[must_use]
    pub const fn new(
        method: &'a Method,
        address: &'a Uri,
        headers: &'a mut HeaderMap,
        body: &'a [Bytes],
    ) -> Self {
        Self {
            method,
            address,
            headers,
            body,
        }
    }
}
