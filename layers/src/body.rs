//! The body type of answers, above the layers that are generic over it.

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use crate::error::Error;

/// A boxed body of an answer. Its error type is concrete, so that a spawned task can serve it.
pub type AnswerBody = UnsyncBoxBody<Bytes, Error>;

/// Boxes a body; called once, by the topmost layer.
pub fn boxed<B>(body: B) -> AnswerBody
where
    B: Body<Data = Bytes, Error = Error> + Send + 'static,
{
    body.boxed_unsync()
}

/// Creates a body whose data is already complete.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}
