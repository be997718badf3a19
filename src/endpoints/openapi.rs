//! What the gateway looks like to programs: OpenAPI 3.1 of both listeners, kept in `docs/` and served as
//! `/openapi.yaml`.
//!
//! The documents are those of a configuration that names neither `service` nor `base_url`. What callers get has
//! theirs, written once for each configuration. The operator's says of its server `/`, the listener that it comes
//! from, and is served as it is.

use http::{Request, Response};
use tollgate_layers::{Error, body::AnswerBody};

use crate::{
    catalog::{
        documents::{Document, PublicUrls},
        snapshot::Live,
    },
    endpoints::catalog::{document, for_anybody},
};

/// Where both listeners serve theirs.
pub(crate) const PATH: &str = "/openapi.yaml";
/// RFC 9512.
pub(crate) const CONTENT_TYPE: &str = "application/yaml";
/// The operator's.
pub(crate) const ADMIN: &str = include_str!("../../docs/openapi-admin.yaml");

const PUBLIC: &str = include_str!("../../docs/openapi-public.yaml");
/// What stands in it for the address without `/v1`, and for the paths of the service.
const ROOT_URL: &str = "\"http://127.0.0.1:8080\"";
const SERVICE_PATH: &str = "  /v1/tollgate/";

/// The callers' document.
pub(crate) fn render(urls: &PublicUrls) -> Document {
    Document::new(public(urls).into())
}

/// With the names and addresses of `urls`.
fn public(urls: &PublicUrls) -> String {
    // What JSON quotes is quoted in YAML.
    let root_url = serde_json::Value::from(urls.root_url()).to_string();
    PUBLIC
        .replace(SERVICE_PATH, &format!("  /v1/{}/", urls.service))
        .replace(ROOT_URL, &root_url)
}

/// Answers the callers' document of the snapshot in force.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    document(live.snapshot().openapi(), CONTENT_TYPE, true, req).map(for_anybody)
}

#[cfg(test)]
mod tests {
    use tollgate_layers::respond::Language;

    use super::*;

    #[test]
    fn names_and_addresses_are_those_of_the_configuration() {
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
