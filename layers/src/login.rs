//! Authentication at a vendor that does not accept a fixed key in a header.
//!
//! A [`Login`] adds the credential to each request: a token that expires, or a signature of the request.
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

/// Result of a [`Login`].
pub type LoginFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Adds a credential to requests. Neither `Debug` nor an error may contain a secret.
pub trait Login: fmt::Debug + Send + Sync + 'static {
    /// Adds the credential to the request's headers; gets a new token if there is no valid one.
    ///
    /// # Errors
    /// If there is no credential, with the reason.
    fn sign<'a>(&'a self, request: Unsigned<'a>) -> LoginFuture<'a, Result<(), BoxError>>;

    /// Whether a request that the vendor refused is signed and sent once more. `sent` has the headers of the request,
    /// `answer` those of the refusal.
    fn is_renewed_after(&self, sent: &HeaderMap, status: StatusCode, answer: &HeaderMap) -> bool;
}

/// A request that lacks only its credential.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unsigned<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// The absolute address.
    pub address: &'a Uri,
    /// All headers but `host` and `content-length`.
    pub headers: &'a mut HeaderMap,
    /// The segments of the body.
    pub body: &'a [Bytes],
}

impl<'a> Unsigned<'a> {
    /// A request without a credential.
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
