//! A token endpoint for tests, on a real socket.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri, header::AUTHORIZATION};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tollgate_layers::{
    error::BoxError,
    login::{Login, Unsigned},
};

/// A request that the test's token endpoint has received.
#[derive(Clone, Debug)]
pub(super) struct TokenRequest {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl TokenRequest {
    pub(super) fn head(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

pub(super) struct TokenServer {
    address: String,
    seen: Arc<Mutex<Vec<TokenRequest>>>,
    task: tokio::task::JoinHandle<()>,
}

impl TokenServer {
    /// Starts a token endpoint. `answer` gets the number of a request and returns the status and the body of the
    /// response.
    pub(super) async fn start(
        answer: impl Fn(usize) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(move |number, _| {
            let (status, body) = answer(number);
            Response::builder().status(status).body(body).unwrap()
        })
        .await
    }

    pub(super) async fn start_with(
        answer: impl Fn(usize, &TokenRequest) -> Response<String> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, stored) = (Arc::new(answer), Arc::clone(&seen));
        #[expect(
            clippy::disallowed_methods,
            reason = "aborted when the server is dropped"
        )]
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = service_fn(|req: Request<Incoming>| {
                    let (answer, stored) = (Arc::clone(&answer), Arc::clone(&stored));
                    async move {
                        let (parts, body) = req.into_parts();
                        let body = body.collect().await?.to_bytes();
                        let seen = TokenRequest {
                            path: parts.uri.to_string(),
                            headers: parts.headers,
                            body: String::from_utf8_lossy(&body).into_owned(),
                        };
                        let mut stored = stored.lock().unwrap_or_else(PoisonError::into_inner);
                        let answer = answer(stored.len(), &seen);
                        stored.push(seen);
                        Ok::<_, hyper::Error>(answer.map(|body| Full::new(Bytes::from(body))))
                    }
                });
                let served = http1::Builder::new()
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), service);
                drop(served.await);
            }
        });
        Self {
            address,
            seen,
            task,
        }
    }

    pub(super) fn url(&self, path: &str) -> Uri {
        format!("http://{}{path}", self.address).parse().unwrap()
    }

    pub(super) fn seen(&self) -> Vec<TokenRequest> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the headers that a login adds to a request.
pub(super) async fn signed(
    login: &dyn Login,
    address: &str,
    body: &'static str,
) -> Result<HeaderMap, BoxError> {
    let mut headers = HeaderMap::new();
    let address = address.parse().unwrap();
    let body = [Bytes::from_static(body.as_bytes())];
    let unsigned = Unsigned::new(&Method::POST, &address, &mut headers, &body);
    login.sign(unsigned).await?;
    Ok(headers)
}

pub(super) async fn bearer(login: &dyn Login) -> Result<String, BoxError> {
    let headers = signed(login, "http://v/", "{}").await?;
    Ok(headers[AUTHORIZATION].to_str()?.to_owned())
}
