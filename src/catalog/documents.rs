//! The catalog as it is shown to callers, and the documents that endpoints render from it.
//!
//! Documents are rendered when a snapshot is made, not when they are requested, and are swapped together with it, so
//! that no answer shows a price that is not charged. The endpoints determine their form.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use sha2::{Digest, Sha256};
use tollgate_layers::{
    model::Model,
    price::{Price, PriceList},
    reserve::ledger::TariffVersion,
    respond::Language,
};

use crate::config::{BaseRates, Tariff};

/// The functions by which endpoints render documents from a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Renderers {
    /// Renders the OpenAPI document. It has no prices, so it is rendered once per configuration.
    pub openapi: fn(&PublicUrls) -> Document,
    /// Renders the page for a key's holder in each language. It has no prices, so it is rendered once per
    /// configuration.
    pub usage_page: fn(&PublicUrls) -> ByLanguage,
    /// Renders the documents with prices, whenever prices change.
    pub prices: fn(&CatalogView<'_>) -> PriceDocuments,
}

/// A snapshot as it is shown: all models, with their prices if they have any.
#[derive(Clone, Debug)]
pub struct CatalogView<'a> {
    /// The addresses and texts of this installation of the gateway, in addition to models and prices.
    pub urls: &'a PublicUrls,
    /// The version of the tariff in force.
    pub version: TariffVersion,
    /// The factors between base prices and prices.
    pub tariff: Tariff,
    /// Whether models have prices now; without a fresh exchange rate they have none.
    pub priced: bool,
    /// The models, in the order of the catalog.
    pub models: Vec<ModelView<'a>>,
}

/// A model as the documents show it.
#[derive(Clone, Copy, Debug)]
pub struct ModelView<'a> {
    /// The model's settings in the snapshot.
    pub model: &'a Model,
    /// The model's prices now. A model whose price is out of range has none, even if other models have prices.
    pub prices: Option<&'a PriceList>,
    /// The price of an ordinary call that is made now; one of `prices`.
    pub in_force: Option<&'a Price>,
    /// When another price comes into force for ordinary calls, in Unix milliseconds, if the prices depend on the time.
    pub changes_at_ms: Option<u64>,
    /// The base prices in force times the multiplier, in dollars, for clients that compute in dollars.
    pub usd_mtok: Option<BaseRates>,
}

/// Addresses and settings that documents for callers show in addition to models and prices.
#[derive(Clone, Debug)]
pub struct PublicUrls {
    /// The service's name, a segment of its paths: `/v1/<service>/models`.
    pub service: String,
    /// The public base address, which ends in `/v1`.
    pub base_url: String,
    /// The language of texts for people.
    pub language: Language,
    /// Whether the holder of a key may create payments.
    pub pays: bool,
}

impl PublicUrls {
    /// Returns the base address for clients that append `/v1` themselves.
    #[must_use]
    pub fn root_url(&self) -> &str {
        self.base_url.strip_suffix("/v1").unwrap_or(&self.base_url)
    }
}

/// The documents that show prices, ready to be sent as answers.
#[derive(Clone, Debug)]
pub struct PriceDocuments {
    /// The catalog as JSON, for programs: section 2.6 of the specification.
    pub json: Document,
    /// The price page for people.
    pub html: Document,
    /// The configuration files for clients.
    pub connect: Arc<ConnectDocuments>,
    /// Whether the documents contain prices.
    pub priced: bool,
}

/// The configuration files for clients, ready to be sent.
#[derive(Clone, Debug)]
pub struct ConnectDocuments {
    /// The list of clients, for programs.
    pub index: Document,
    /// The list of clients, as a page for people.
    pub html: Document,
    /// Each client's configuration, in the order of the list.
    pub clients: Vec<Document>,
}

/// A page in both languages, ready to be sent.
#[derive(Clone, Debug)]
pub struct ByLanguage {
    /// The page in Russian.
    pub ru: Document,
    /// The page in English.
    pub en: Document,
}

/// The bytes of an answer, and the ETag under which clients cache these bytes.
#[derive(Clone, Debug)]
pub struct Document {
    /// The body of the answer.
    pub bytes: Bytes,
    /// A strong tag: the same tag means the same bytes.
    pub etag: HeaderValue,
}

impl Document {
    /// Creates a document of these bytes, tagged with their digest.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        let digest = Sha256::digest(&bytes);
        let etag: String = digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            bytes,
            etag: HeaderValue::from_str(&format!("\"{etag}\""))
                .expect("hexadecimal digits fit in a header"),
        }
    }
}
