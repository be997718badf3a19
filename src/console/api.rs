//! Calls the admin API inside this process, in the name of the operator who has signed in.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tollgate_layers::body::AnswerBody;
use tower::Service;

use super::views::Counters;
use crate::{
    admin::Refusal,
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

/// The reason why a page is not shown.
pub(super) enum Failed {
    /// The admin API refused a request that the page needs.
    Refused(Refused),
    /// The gateway failed.
    Fault(Refusal),
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Refusal> for Failed {
    fn from(fault: Refusal) -> Self {
        Self::Fault(fault)
    }
}

/// Separates refusals by the admin API, which a page shows, from faults of the gateway.
///
/// # Errors
/// The fault of the gateway.
pub(super) fn separate_faults<T>(result: Result<T, Failed>) -> Result<Result<T, Refused>, Refusal> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Failed::Refused(refused)) => Ok(Err(refused)),
        Err(Failed::Fault(fault)) => Err(fault),
    }
}

impl Api {
    pub(super) const fn new(service: ApiService, operator: Operator) -> Self {
        Self { service, operator }
    }

    /// Returns this node's counters; zeros if the API refuses the request.
    ///
    /// # Errors
    /// A fault of the gateway.
    pub(super) async fn counters(&self) -> Result<Counters, Refusal> {
        let metrics = self.bytes("/metrics").await?.unwrap_or_default();
        Ok(Counters::of(&String::from_utf8_lossy(&metrics)))
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
        json(self.bytes(path).await?)
    }

    /// Sends a GET request for a list. The response is an object whose only field is the list.
    ///
    /// # Errors
    /// The outer error is a fault of the gateway; the inner one is the API's refusal.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Result<Vec<T>, Refused>, Refusal> {
        let answer = self.get::<BTreeMap<String, Vec<T>>>(path).await?;
        Ok(answer.map(|lists| lists.into_values().flatten().collect()))
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
        json(self.send(method, path, body.into()).await?)
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
            .header(header::CONTENT_TYPE, "application/json")
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
        let body = answer.into_body().collect().await;
        Ok(Ok(body.map_err(Refusal::fault)?.to_bytes()))
    }
}

fn json<T: DeserializeOwned>(
    answer: Result<Bytes, Refused>,
) -> Result<Result<T, Refused>, Refusal> {
    match answer {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Ok)
            .map_err(Refusal::fault),
        Err(refused) => Ok(Err(refused)),
    }
}
