//! A route of the operators' listener: its path and method, what its requests need, and its handler.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;

use super::{Admin, Answer, Operator, Right, refusal::Refusal};
use crate::edge::body_limit::UnreadBody;

/// A path and a method with the handler of their requests.
pub(super) struct Route {
    pub(super) method: &'static str,
    /// Pattern of the path. A segment in braces matches any segment; a pattern has at most two such segments. The last
    /// segment in braces also matches an empty one.
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) right: Right,
    pub(super) answer: Handler,
}

/// Lists routes: method, path, handler, and what the route needs beyond the default of its method.
macro_rules! routes {
    ($($method:ident $path:literal => $handler:ident $(.$needs:ident($($right:expr)?))*;)*) => {
        &[$(
            Route::$method($path, |admin, request| Box::pin(admin.$handler(request)))
                $(.$needs($($right)?))*
        ),*]
    };
}

pub(super) use routes;

type Handler = fn(Arc<Admin>, AdminRequest) -> Answering;

pub(super) type Answering = BoxFuture<'static, Result<Answer, Refusal>>;

/// Requirements of a route: the admin key, and whether the query may have parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// The request needs nothing: the response is public, and the request's headers and query are not read.
    Open,
    /// The request needs the admin key; query parameters are refused.
    WithKey,
    /// The request needs the admin key and may have query parameters, which the handler reads. All other routes refuse
    /// parameters.
    WithKeyAndQuery,
}

impl Route {
    pub(super) const fn get(path: &'static str, answer: Handler) -> Self {
        Self::new("GET", path, answer).needs(Right::Read)
    }

    pub(super) const fn post(path: &'static str, answer: Handler) -> Self {
        Self::new("POST", path, answer)
    }

    pub(super) const fn put(path: &'static str, answer: Handler) -> Self {
        Self::new("PUT", path, answer)
    }

    pub(super) const fn patch(path: &'static str, answer: Handler) -> Self {
        Self::new("PATCH", path, answer)
    }

    pub(super) const fn delete(path: &'static str, answer: Handler) -> Self {
        Self::new("DELETE", path, answer)
    }

    /// Requires that the operator has this right. A route that makes a change and names no right requires all rights.
    pub(super) const fn needs(self, right: Right) -> Self {
        Self { right, ..self }
    }

    /// Makes the route public: its requests need no admin key.
    pub(super) const fn open(self) -> Self {
        Self {
            access: Access::Open,
            ..self
        }
    }

    /// Allows query parameters.
    pub(super) const fn with_query(self) -> Self {
        Self {
            access: Access::WithKeyAndQuery,
            ..self
        }
    }

    const fn new(method: &'static str, path: &'static str, answer: Handler) -> Self {
        Self {
            method,
            path,
            access: Access::WithKey,
            right: Right::Everything,
            answer,
        }
    }
}

/// A request as it is passed to its handler.
pub(super) struct AdminRequest {
    pub(super) named: [String; 2],
    pub(super) query: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) operator: Operator,
    pub(super) body: UnreadBody,
}

impl AdminRequest {
    /// Returns the operator that sent the request, for the audit log.
    pub(super) fn who(&self) -> Operator {
        self.operator.clone()
    }

    /// Returns the first path segment that matched braces, not validated.
    pub(super) fn named(&self) -> &str {
        &self.named[0]
    }

    /// Returns the second path segment that matched braces, not validated.
    pub(super) fn second_named(&self) -> &str {
        &self.named[1]
    }

    pub(super) fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    pub(super) const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Reads the whole body, within its limits.
    pub(super) async fn body(self) -> Result<Bytes, Refusal> {
        Ok(self.body.whole().await?)
    }
}
