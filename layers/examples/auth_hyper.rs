//! The `auth` layer alone, on raw hyper: a `match` turns its errors into responses.
//!
//! ```sh
//! cargo run -p tollgate-layers --features auth --example auth_hyper
//! ```

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{net::TcpListener, task::JoinSet};
use tollgate_layers::{
    Error,
    auth::{AuthLayer, KeyList, SecretKey},
    error::BoxError,
    facts::Caller,
};
use tower::{Layer, Service, ServiceExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let secret = SecretKey::generate();
    let keys = KeyList::from_iter([secret.record("laptop".parse()?, "acme".parse()?)]);
    let guarded = AuthLayer::new(keys).layer(tower::service_fn(hello));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut server = JoinSet::new();
    server.spawn(serve(listener, guarded));

    println!("no key:      {}", ask(address, None).await?);
    println!("a typo:      {}", ask(address, Some("tg-typo")).await?);
    let stranger = SecretKey::generate();
    println!(
        "unknown key: {}",
        ask(address, Some(stranger.expose())).await?
    );
    println!(
        "a good key:  {}",
        ask(address, Some(secret.expose())).await?
    );
    Ok(())
}

/// The service below the layer, which gets the caller's key.
async fn hello(req: Request<Incoming>) -> Result<Response<Full<Bytes>>, Error> {
    let Caller(key) = req.extensions().get().ok_or(Error::KeyMissing)?;
    let text = format!("hello {}, on the key {}", key.account, key.id);
    Ok(Response::new(Full::from(text)))
}

/// Serves each connection in its own task.
async fn serve<S>(listener: TcpListener, guarded: S)
where
    S: Service<Request<Incoming>, Response = Response<Full<Bytes>>, Error = Error>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let mut connections = JoinSet::new();
    while let Ok((stream, peer)) = listener.accept().await {
        let guarded = guarded.clone();
        connections.spawn(async move {
            let answer = service_fn(move |req| answer(guarded.clone(), req));
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), answer)
                .await;
            if let Err(error) = served {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// The service's answer, or its error as a response.
async fn answer<S>(guarded: S, req: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible>
where
    S: Service<Request<Incoming>, Response = Response<Full<Bytes>>, Error = Error>,
{
    let refused = match guarded.oneshot(req).await {
        Ok(res) => return Ok(res),
        Err(error) => error,
    };
    let mut res = Response::new(Full::from(refused.to_string()));
    *res.status_mut() = match refused {
        Error::AddressNotAllowed { .. } => StatusCode::FORBIDDEN,
        Error::LedgerUnavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::UNAUTHORIZED,
    };
    Ok(res)
}

/// Sends a request; returns the status and body of the response.
async fn ask(address: SocketAddr, key: Option<&str>) -> Result<String, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut req = Request::get(format!("http://{address}/")).body(Empty::<Bytes>::new())?;
    if let Some(key) = key {
        let value = HeaderValue::try_from(format!("Bearer {key}"))?;
        req.headers_mut().insert(AUTHORIZATION, value);
    }
    let res = client.request(req).await?;
    let status = res.status();
    let body = res.into_body().collect().await?.to_bytes();
    Ok(format!("{status}: {}", String::from_utf8_lossy(&body)))
}
