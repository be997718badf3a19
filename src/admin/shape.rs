//! What the operators' answers look like where layers refuse that callers have too, and where a call panics.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use tollgate_layers::{
    Error,
    error::Problem,
    facts::RequestNumber,
    respond::{Refused, Shape},
};

use super::refusal::Refusal;
use crate::edge::panics::{Panicked, Witness};

/// Errors in the operators' words, which name what to do next. Only an answer that sends its reader to the log has
/// a number.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperatorsShape;

impl Shape for OperatorsShape {
    fn answer(&self, refused: &Refused<'_>) -> Response<Bytes> {
        match refused.error() {
            Error::Internal(cause) => match cause.downcast_ref::<Refusal>() {
                Some(refusal) => refusal.answer(),
                None if cause.is::<Panicked>() => {
                    let number = refused.number();
                    Refusal::Panicked { number }.answer()
                }
                None => {
                    tracing::error!(%cause, "the admin API is at fault");
                    Refusal::Internal.answer()
                }
            },
            Error::Invalid { field, problem } => match of_head(problem) {
                // HTTP/2 has the host elsewhere.
                Some(text) if field == ":authority" => Refusal::invalid("host", text).answer(),
                Some(text) => Refusal::invalid(&**field, text).answer(),
                None => refused.usual(),
            },
            _ => refused.usual(),
        }
    }

    fn stamp(&self, _: RequestNumber, _: &mut HeaderMap) {}
}

/// What an operator's client should do about its head.
fn of_head(problem: &Problem) -> Option<&'static str> {
    Some(match problem {
        Problem::HeaderMissing => "a header that HTTP/1.1 requires: send it",
        Problem::Duplicate => "stands there twice: send it once",
        Problem::NotAHost => "not a host: send a name, IPv4 or [IPv6], and :port where needed",
        Problem::Contradicts(":authority") => "another one than :authority says: send one of them",
        Problem::Contradicts("transfer-encoding") => {
            "stands beside transfer-encoding: send one of them"
        }
        _ => return None,
    })
}

/// Which call of the admin API it was.
#[derive(Clone, Debug)]
pub struct WhichCall {
    number: Option<RequestNumber>,
    method: Method,
    path: String,
}

impl Witness for WhichCall {
    fn of<B>(req: &Request<B>) -> Self {
        Self {
            number: req.extensions().get().copied(),
            method: req.method().clone(),
            path: req.uri().path().to_owned(),
        }
    }

    fn tell(&self, panicked: &Panicked) {
        let Self {
            number,
            method,
            path,
        } = self;
        let number = number.map(tracing::field::display);
        tracing::error!(
            number, %method, path, cause = panicked.message(), "a call of the admin API panicked"
        );
    }
}
