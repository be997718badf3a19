//! The layers that an operator's request passes through, from top to bottom.

use std::convert::Infallible;

use http::{Request, Response};
use http_body::Body;
use tollgate_layers::{
    body::AnswerBody, error::BoxError, request_number::RequestNumberLayer, respond,
};
use tower::{Service, ServiceBuilder};

use crate::{
    admin::{self, Admin, AdminAuthLayer, OperatorsShape, WhichCall},
    config::AdminConfig,
    console::ConsoleLayer,
    edge::{
        body_limit::limit_body,
        head::{HeadLayer, HeadLimits},
        panics::{self, PanicsLayer},
    },
    observe::metrics::{Metrics, requests::LimitedBy},
};

/// The response type of the outermost layer for operators.
pub type OperatorsAnswer =
    Response<respond::ResponseBody<panics::ResponseBody<AnswerBody, WhichCall>, OperatorsShape>>;

/// Builds the service that handles operators' requests.
#[rustfmt::skip] // A layer a line, with the statuses with which it refuses.
pub fn operators<B>(
    config: &AdminConfig,
    metrics: &Metrics,
    admin: Admin,
    console: ConsoleLayer,
) -> impl Service<Request<B>, Response = OperatorsAnswer, Error = Infallible, Future: Send>
+ Clone + Send + Sync + 'static
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let respond = respond::RespondLayer::new(respond::Language::En).shaped_by(OperatorsShape).without_log();
    ServiceBuilder::new()
        .layer(RequestNumberLayer::new()) //               + RequestNumber
        .layer(respond) //                                 Error → JSON in the operators' form; above it: Infallible
        .layer(PanicsLayer::new().witnessed_by::<WhichCall>()) // 500  in the call and in its body; logs the route
        .layer(HeadLayer::new(HeadLimits::OF_THE_SERVER)) // 400  one length, one host; only the server's limits
        .map_result(admin::answer_refusals) //             Refusal → its answer. Above it an Error is a fault or a refused head
        .layer(AdminAuthLayer::new(config, metrics.requests.limited(LimitedBy::AdminKey))) // 401 403 429  the key if the route needs it, else the host; unknown paths get their 404 below
        .map_request(limit_body::<B>) //         408 413      Request<B> → Request<UnreadBody>: read on request of the handler
        .layer(console) //                    303 401 403 429  pages for signed-in operators; they call the routes below
        .service(admin::Routes::new(admin)) // 404 405, and the ledger's errors
}
