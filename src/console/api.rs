//! Calls the admin API inside this process, in the name of the operator who has signed in.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::Service;

use crate::{
    admin::{AnswerBody, Refusal},
    edge::{body_limit::UnreadBody, router::BoxedService},
    operators::Operator,
};

pub(super) type ApiService = BoxedService<UnreadBody, AnswerBody, Refusal>;

/// The admin API, with one operator's rights.
#[derive(Clone, Debug)]
pub(super) struct Api {
    service: ApiService,
    operator: Operator,
}

/// A refusal by the admin API.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

impl Api {
    pub(super) const fn new(service: ApiService, operator: Operator) -> Self {
        Self { service, operator }
    }

    /// Sends a GET request and returns the response as text.
    ///
    /// # Errors
    /// The outer error is a fault of the gateway; the inner one is the API's refusal.
    pub(super) async fn text(&self, path: &str) -> Result<Result<String, Refused>, Refusal> {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        Ok(answer.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Sends a GET request and returns the response's bytes.
    ///
    /// # Errors
    /// The outer error is a fault of the gateway; the inner one is the API's refusal.
    pub(super) async fn bytes(&self, path: &str) -> Result<Result<Bytes, Refused>, Refusal> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Sends a GET request and parses the response's JSON.
    ///
    /// # Errors
    /// The outer error is a fault of the gateway; the inner one is the API's refusal.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Result<T, Refused>, Refusal> {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        json(answer)
    }

    /// Sends a request that changes something, and parses the response's JSON.
    ///
    /// # Errors
    /// The outer error is a fault of the gateway; the inner one is the API's refusal.
    pub(super) async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<T, Refused>, Refusal> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = self.send(method, path, body.into()).await?;
        json(answer)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Result<Bytes, Refused>, Refusal> {
        let req = Request::builder()
            .method(method)
            .uri(path)
            .header(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )
            .extension(self.operator.clone())
            .body(UnreadBody::read(body));
        // Text that people typed is percent-encoded in `path`, so an invalid request is the gateway's own fault.
        let req = req.map_err(Refusal::fault)?;
        let answer = match self.service.clone().call(req).await {
            Ok(answer) => answer,
            Err(refusal) => {
                let (status, text) = (refusal.status(), refusal.message());
                return Ok(Err(Refused { status, text }));
            }
        };
        Ok(Ok(answer
            .into_body()
            .collect()
            .await
            .map_err(Refusal::fault)?
            .to_bytes()))
    }
}

fn json<T: DeserializeOwned>(
    answer: Result<Bytes, Refused>,
) -> Result<Result<T, Refused>, Refusal> {
    match answer {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Ok(value)),
            Err(error) => Err(Refusal::fault(error)),
        },
        Err(refused) => Ok(Err(refused)),
    }
}
