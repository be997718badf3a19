//! The layers that a request from the customer portal's playground passes through. The request is sent for a signed-in
//! member.

use tower::ServiceBuilder;

use super::parts::Parts;
use crate::{
    cabinet::{
        Cabinet,
        playground::{AsMember, presented_digest},
    },
    edge::{
        router::{BoxedService, boxed, from_boxed},
        server::RequestBody,
    },
    endpoints::handler::handled,
    observe::record,
};

/// Builds the service that checks the member's session and then calls `below` with the member's key.
#[rustfmt::skip] // A layer a line, with the statuses with which it refuses.
pub(super) fn member(parts: &Parts<'_>, cabinet: &Cabinet, below: BoxedService<RequestBody>) -> BoxedService<RequestBody> {
    let below = ServiceBuilder::new()
        .layer(parts.auth().taking(presented_digest)) // 401 403 503  + Caller, by the key that `AsMember` presents
        .map_request(record::known)
        .layer(parts.key_rate()) //           429          per key, per second
        .service(from_boxed(below));
    handled(AsMember::new(cabinet.clone(), boxed(below))) // 401 403  the session, its token, the member's role
}
