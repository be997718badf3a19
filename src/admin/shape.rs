//! The form of error responses to operators. It is used for panics, and for errors of layers that the callers' stack
//! also contains.

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

/// Writes errors in the form for operators: each text ends with what to do next. Only a text that refers to the log
/// contains the request number.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperatorsShape;

impl Shape for OperatorsShape {
    fn answer(&self, refused: &Refused<'_>) -> Response<Bytes> {
        match refused.error() {
            Error::Internal(cause) if cause.is::<Panicked>() => {
                let number = refused.number();
                Refusal::Panicked { number }.answer()
            }
            Error::Internal(cause) => Refusal::fault(cause).answer(),
            Error::Invalid { field, problem } => match of_head(problem) {
                // HTTP/2 carries the host in `:authority`.
                Some(text) if field == ":authority" => Refusal::invalid("host", text).answer(),
                Some(text) => Refusal::invalid(&**field, text).answer(),
                None => refused.usual(),
            },
            _ => refused.usual(),
        }
    }

    fn stamp(&self, _: RequestNumber, _: &mut HeaderMap) {}
}

/// Advice for a client whose request head is invalid.
fn of_head(problem: &Problem) -> Option<&'static str> {
    Some(match problem {
        Problem::HeaderMissing => "HTTP/1.1 requires this header: send it",
        Problem::Duplicate => "occurs twice: send this header once",
        Problem::NotAHost => "not a host: send a name, IPv4 or [IPv6], and :port where needed",
        Problem::Contradicts(":authority") => {
            "differs from :authority: send only one of the two headers"
        }
        Problem::Contradicts("transfer-encoding") => {
            "is sent together with transfer-encoding: send only one of the two headers"
        }
        _ => return None,
    })
}

/// The route of a request, kept for the log line of a panic.
#[derive(Clone, Debug)]
pub struct WhichCall {
    number: Option<RequestNumber>,
    method: Method,
    path: String,
}

impl Witness for WhichCall {
    fn from_request<B>(req: &Request<B>) -> Self {
        Self {
            number: req.extensions().get().copied(),
            method: req.method().clone(),
            path: req.uri().path().to_owned(),
        }
    }

    fn log(&self, panicked: &Panicked) {
        let Self {
            number,
            method,
            path,
        } = self;
        let number = number.map(tracing::field::display);
        tracing::error!(
            number, %method, path, cause = panicked.message(), "the handler of an admin API request panicked"
        );
    }
}
