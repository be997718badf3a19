//! The one body type of answers above the layers that wrap it generically.

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use crate::error::Error;

/// A boxed body of an answer. Its error is concrete, so that it can be served from a spawned task.
pub type AnswerBody = UnsyncBoxBody<Bytes, Error>;

/// Boxes a body, once, at the top.
pub fn boxed<B>(body: B) -> AnswerBody
where
    B: Body<Data = Bytes, Error = Error> + Send + 'static,
{
    body.boxed_unsync()
}

/// A body that is there as a whole.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}
