//! Endpoints without a key: liveness, readiness, metrics, and the OpenAPI document.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use tollgate_layers::body::full;

use super::{
    Admin, Answer, ok,
    refusal::{Refusal, json_response, response},
    route::{AdminRequest, Route, routes},
};
use crate::{endpoints::openapi, observe::metrics::text::Format};

// The metrics need no key, because they contain no customer names.
pub(super) const ROUTES: &[Route] = routes! {
    get "/livez" => live .open();
    get "/readyz" => ready .open();
    get "/metrics" => metrics .open();
    get "/openapi.yaml" => openapi .open();
};

impl Admin {
    async fn live(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        ok(&json!({"status": "live"}))
    }

    async fn ready(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let Err(reason) = self.readiness.check() else {
            return ok(&json!({"status": "ready"}));
        };
        let report = json!({"status": "not ready", "reason": reason});
        Ok(json_response(StatusCode::SERVICE_UNAVAILABLE, &report).map(full))
    }

    async fn metrics(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let format = Format::asked_for(request.headers());
        let text = self.scrape.text(format).map_err(|error| {
            tracing::error!(%error, "the metrics could not be written to text");
            Refusal::Internal
        })?;
        Ok(response(full(text), format.content_type()))
    }

    async fn openapi(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        Ok(response(full(openapi::ADMIN), openapi::CONTENT_TYPE))
    }
}
