//! A rate limit per client address on axum, with errors in the program's own format.
//!
//! ```sh
//! cargo run -p tollgate-layers --features rate-limit,request-number,respond --example rate_limit_axum
//! ```

use std::net::IpAddr;

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use http::{
    HeaderValue, Request, Response,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::BodyExt;
use tollgate_layers::{
    error::BoxError,
    facts::ClientAddr,
    rate_limit::{Gcra, Quota, RateLimitLayer, by_address},
    request_number::RequestNumberLayer,
    respond::{Language, Refused, RespondLayer},
};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let quota = Quota::per_second(1).with_burst(2);
    let layers = ServiceBuilder::new()
        .layer(RequestNumberLayer::new())
        .layer(RespondLayer::new(Language::En).shaped_by(problem))
        .layer(RateLimitLayer::new(Gcra::new(100_000), by_address(quota)));
    let app: Router = Router::new()
        .route("/weather", get(|| async { "sunny, 21 °C" }))
        .layer(layers);

    for visit in 1..=3 {
        let mut req = Request::get("/weather").body(Body::empty())?;
        // A server takes the address from the connection, or from a proxy that it trusts.
        let address = ClientAddr(IpAddr::from([192, 0, 2, 7]));
        req.extensions_mut().insert(address);
        println!(
            "visit {visit}: {}",
            shown(app.clone().oneshot(req).await?).await?
        );
    }
    Ok(())
}

/// Writes an error as problem details (RFC 9457). Its status and its other headers stay as usual.
fn problem(refused: &Refused<'_>) -> Response<Bytes> {
    let body = serde_json::json!({
        "title": refused.text(),
        "status": refused.status().as_u16(),
        "instance": format!("urn:uuid:{}", refused.number()),
    });
    let mut res = refused.usual().map(|_| Bytes::from(body.to_string()));
    let kind = HeaderValue::from_static("application/problem+json");
    res.headers_mut().insert(CONTENT_TYPE, kind);
    res
}

/// A response as text: its head in one line, and its body.
async fn shown(res: Response<Body>) -> Result<String, BoxError> {
    let mut head = res.status().to_string();
    for name in [CONTENT_TYPE, RETRY_AFTER] {
        if let Some(value) = res.headers().get(&name) {
            head = format!("{head}, {name}: {}", value.to_str()?);
        }
    }
    let body = res.into_body().collect().await?.to_bytes();
    Ok(format!("{head}\n  {}", String::from_utf8_lossy(&body)))
}
