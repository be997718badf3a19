//! The layers between a test of a vendor's settings and that vendor. A test has no hold, because it charges no account.

use tollgate_layers::{
    call::Attempt, passthrough::PassthroughLayer, translate::TranslateLayer, upstream::Upstream,
};
use tower::ServiceBuilder;

use crate::edge::router::{BoxedService, boxed_with_body};

/// Builds the service that `tollgate vendor test` calls, which sends calls to one vendor.
pub(crate) fn one_vendor(upstream: Upstream) -> BoxedService<Attempt> {
    let service = ServiceBuilder::new()
        .layer(TranslateLayer::new())
        .layer(PassthroughLayer::new(1_usize << 20))
        .service(upstream);
    boxed_with_body(service)
}
