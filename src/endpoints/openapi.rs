//! The OpenAPI 3.1 documents of both listeners, stored in `docs/` and served at `/openapi.yaml`.
//!
//! The stored documents describe a configuration without `service` and `base_url`. The configured values are inserted
//! into the callers' document once per configuration. The operators' document is served unchanged, because its server
//! is `/`, the listener that serves it.

use http::{Request, Response};
use tollgate_layers::{Error, body::AnswerBody};

use crate::{
    catalog::{
        documents::{Document, PublicUrls},
        snapshot::Live,
    },
    endpoints::catalog::document,
};

/// The media type of YAML, by RFC 9512.
pub(crate) const CONTENT_TYPE: &str = "application/yaml";
/// The OpenAPI document for operators.
pub(crate) const ADMIN: &str = include_str!("../../docs/openapi-admin.yaml");

const PUBLIC: &str = include_str!("../../docs/openapi-public.yaml");
/// The two texts in the document that are replaced: `ROOT_URL` by the base URL without `/v1`, and `SERVICE_PATH` by the
/// beginning of the service's paths.
const ROOT_URL: &str = "\"http://127.0.0.1:8080\"";
const SERVICE_PATH: &str = "  /v1/tollgate/";

/// Renders the OpenAPI document for callers.
pub(crate) fn render(urls: &PublicUrls) -> Document {
    Document::new(public(urls).into())
}

/// Replaces the names and URLs in the document by those of `urls`.
fn public(urls: &PublicUrls) -> String {
    // A string quoted for JSON is also valid in YAML.
    let root_url = serde_json::Value::from(urls.root_url()).to_string();
    PUBLIC
        .replace(SERVICE_PATH, &format!("  /v1/{}/", urls.service))
        .replace(ROOT_URL, &root_url)
}

/// Returns the callers' document of the current snapshot.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    document(live.snapshot().openapi(), CONTENT_TYPE, true, req)
}

#[cfg(test)]
mod tests {
    use tollgate_layers::respond::Language;

    use super::*;

    #[test]
    fn openapi_document_has_configured_names_and_addresses() {
        let urls = |service: &str, base_url: &str| PublicUrls {
            pays: false,
            service: service.into(),
            base_url: base_url.into(),
            language: Language::Ru,
        };
        let usual = public(&urls("tollgate", "http://127.0.0.1:8080/v1"));
        assert_eq!(usual, PUBLIC);

        let other = public(&urls("gate", "https://ai.example/llm/v1"));
        assert!(!other.contains("/v1/tollgate/") && !other.contains("127.0.0.1"));
        for path in ["models", "key", "estimate", "receipts/{number}", "usage"] {
            assert!(other.contains(&format!("\n  /v1/gate/{path}:\n")), "{path}");
        }
        assert!(other.contains("\n  - url: \"https://ai.example/llm\"\n"));
    }
}
