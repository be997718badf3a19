//! The type of response bodies above the layers that are generic over the body type.

use std::{any::Any, task::Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use crate::error::{BoxError, Error};

/// A boxed response body. Its error type is concrete, so that a spawned task can serve it.
pub type AnswerBody = UnsyncBoxBody<Bytes, Error>;

/// The result of [`Body::poll_frame`] for a body of bytes.
#[allow(dead_code, reason = "not every feature wraps bodies")]
pub(crate) type PolledFrame<E = Error> = Poll<Option<Result<Frame<Bytes>, E>>>;

/// Boxes a body, and converts its errors by [`Error::from_below`]. A body that is already boxed is returned unchanged.
pub fn boxed<B>(body: B) -> AnswerBody
where
    B: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + 'static,
{
    let mut body = Some(body);
    if let Some(boxed) = (&mut body as &mut dyn Any).downcast_mut::<Option<AnswerBody>>()
        && let Some(boxed) = boxed.take()
    {
        return boxed;
    }
    let body = body.expect("the body is taken only when it is returned");
    body.map_err(Error::from_below).boxed_unsync()
}

/// Creates a response body from bytes that are all in memory.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}
