//! The admin API, asked in this process in the name of whoever has signed in.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tollgate_layers::Error;
use tower::Service;

use crate::{
    admin::{AnswerBody, Operator, UnreadBody, refusal_of},
    endpoints::router::Branch,
};

pub(super) type ApiService = Branch<UnreadBody, AnswerBody>;

/// The API for one operator.
#[derive(Clone, Debug)]
pub(super) struct Api {
    service: ApiService,
    operator: Operator,
}

/// What the API refused.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

impl Api {
    pub(super) const fn new(service: ApiService, operator: Operator) -> Self {
        Self { service, operator }
    }

    /// Asks, and reads the answer as text.
    ///
    /// # Errors
    /// The outer one is our own fault; the inner one is what the API says no with.
    pub(super) async fn text(&self, path: &str) -> Result<Result<String, Refused>, Error> {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        Ok(answer.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Asks, and reads the answer's JSON.
    ///
    /// # Errors
    /// See [`Api::text`].
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Result<T, Refused>, Error> {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        json(answer)
    }

    /// Changes something, and reads the answer's JSON.
    ///
    /// # Errors
    /// See [`Api::text`].
    pub(super) async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<T, Refused>, Error> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = self.send(method, path, body.into()).await?;
        json(answer)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Result<Bytes, Refused>, Error> {
        let req = Request::builder()
            .method(method)
            .uri(path)
            .header(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )
            .extension(self.operator.clone())
            .body(UnreadBody::read(body));
        // What people type stands in it encoded.
        let req = req.map_err(|error| Error::Internal(error.into()))?;
        let answer = match self.service.clone().call(req).await {
            Ok(answer) => answer,
            Err(error) => {
                let (status, text) = refusal_of(error)?;
                return Ok(Err(Refused { status, text }));
            }
        };
        Ok(Ok(answer.into_body().collect().await?.to_bytes()))
    }
}

fn json<T: DeserializeOwned>(answer: Result<Bytes, Refused>) -> Result<Result<T, Refused>, Error> {
    match answer {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Ok(value)),
            Err(error) => Err(Error::Internal(error.into())),
        },
        Err(refused) => Ok(Err(refused)),
    }
}
