//! A service on axum with three of the layers: keys, a rate limit per key, and errors as responses. It was written with
//! only the crate's documentation.
//!
//! ```sh
//! cargo run -p tollgate-layers --features auth,rate-limit,respond --example axum_service
//! ```

use std::net::SocketAddr;

use axum::{Extension, Router, extract::Path, routing::get};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, task::JoinSet};
use tollgate_layers::{
    auth::{AuthLayer, KeyList, SecretKey},
    error::BoxError,
    facts::Caller,
    key::KeyId,
    rate_limit::{Gcra, Quota, RateLimitLayer},
    respond::{Language, RespondLayer},
};
use tower::ServiceBuilder;

const PROVERBS: [&str; 3] = [
    "Measure seven times, cut once.",
    "What is written with a pen is not cut out with an axe.",
    "The eyes are afraid, the hands do it.",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let secret = SecretKey::generate();
    let keys = KeyList::from_iter([secret.record("laptop".parse()?, "acme".parse()?)]);

    let layers = ServiceBuilder::new()
        .layer(RespondLayer::new(Language::En))
        .layer(AuthLayer::new(keys))
        .layer(RateLimitLayer::new(Gcra::new(10_000), by_key));
    let app: Router = Router::new()
        .route("/proverbs/{number}", get(proverb))
        .layer(layers)
        // This route is added outside the layers, so it needs no key.
        .route("/health", get(|| async { "well" }));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, app).await });

    let key = Some(secret.expose());
    for (path, key) in [
        ("/health", None),
        ("/proverbs/1", None),
        ("/proverbs/1", key),
        ("/proverbs/4", key),
        ("/proverbs/2", key),
    ] {
        let with = key.map_or("", |_| " with a key");
        println!("GET {path}{with}\n  {}", ask(address, path, key).await?);
    }
    Ok(())
}

/// An ordinary handler, which finds the caller in a request extension.
async fn proverb(
    Extension(Caller(key)): Extension<Caller>,
    Path(number): Path<usize>,
) -> Result<String, (StatusCode, &'static str)> {
    let index = number.checked_sub(1);
    match index.and_then(|index| PROVERBS.get(index)) {
        Some(proverb) => Ok(format!("{proverb} (for {})", key.account)),
        None => Err((StatusCode::NOT_FOUND, "there are three")),
    }
}

/// One request per second and key, in bursts of at most two.
fn by_key<B>(req: &Request<B>) -> Option<(KeyId, Quota)> {
    let Caller(key) = req.extensions().get()?;
    let quota = Quota::per_second(1).with_burst(2);
    Some((key.id.clone(), quota))
}

/// Sends a request; returns the status and body of the response.
async fn ask(address: SocketAddr, path: &str, key: Option<&str>) -> Result<String, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut req = Request::get(format!("http://{address}{path}")).body(Empty::<Bytes>::new())?;
    if let Some(key) = key {
        let value = HeaderValue::try_from(format!("Bearer {key}"))?;
        req.headers_mut().insert(AUTHORIZATION, value);
    }
    let res = client.request(req).await?;
    let status = res.status();
    let body = res.into_body().collect().await?.to_bytes();
    Ok(format!("{status}: {}", String::from_utf8_lossy(&body)))
}
