//! The catalog as callers see it, and the documents that endpoints render from it.
//!
//! Documents are rendered when a snapshot is made, not when they are requested, and are replaced together with the
//! snapshot. So no response shows a price that is not charged. The endpoints determine the form of the documents.

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

use crate::{
    config::{BaseRates, Tariff},
    text::hex::hex,
};

/// The functions by which endpoints render documents from a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Renderers {
    /// Renders the OpenAPI document. It has no prices, so it is rendered once per configuration.
    pub openapi: fn(&PublicUrls) -> Document,
    /// Renders the usage page for holders of keys, in each language. It has no prices, so it is rendered once per
    /// configuration.
    pub usage_page: fn(&PublicUrls) -> ByLanguage,
    /// Renders the documents that contain prices. It runs whenever prices change.
    pub prices: fn(&CatalogView<'_>) -> PriceDocuments,
}

/// The contents of a snapshot that documents show: all models, with their prices if they have any.
#[derive(Clone, Debug)]
pub struct CatalogView<'a> {
    /// The addresses and texts of this installation of the gateway, in addition to models and prices.
    pub urls: &'a PublicUrls,
    /// The version of the tariff in force.
    pub version: TariffVersion,
    /// The multipliers by which prices are computed from base prices.
    pub tariff: Tariff,
    /// Whether models have prices now; without a fresh exchange rate they have none.
    pub priced: bool,
    /// The models, in the order of the catalog.
    pub models: Vec<ModelView<'a>>,
}

/// The data of a model that documents show.
#[derive(Clone, Copy, Debug)]
pub struct ModelView<'a> {
    /// The model's settings in the snapshot.
    pub model: &'a Model,
    /// The model's prices now. A model whose price is out of range has none, even if other models have prices.
    pub prices: Option<&'a PriceList>,
    /// The price, among `prices`, of a call that is made now with a short input and the vendor's default service.
    pub in_force: Option<&'a Price>,
    /// When `in_force` changes next, in Unix milliseconds; `None` if prices do not depend on the time.
    pub changes_at_ms: Option<u64>,
    /// The base prices in force, times the multiplier, in dollars: for clients that compute costs in dollars.
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

/// The documents that show prices, ready to be sent as responses.
#[derive(Clone, Debug)]
pub struct PriceDocuments {
    /// The catalog as JSON, for programs, as section 2.6 of `docs/decisions.md` specifies it.
    pub json: Document,
    /// The price page for people.
    pub html: Document,
    /// The configuration files for clients.
    pub connect: Arc<ConnectDocuments>,
    /// Whether the documents contain prices.
    pub priced: bool,
}

/// The configuration files for clients, rendered and ready to be sent.
#[derive(Clone, Debug)]
pub struct ConnectDocuments {
    /// The list of clients, for programs.
    pub index: Document,
    /// The list of clients, as a page for people.
    pub html: Document,
    /// Each client's configuration, in the order of the list.
    pub clients: Vec<Document>,
}

/// A page in both languages, rendered and ready to be sent.
#[derive(Clone, Debug)]
pub struct ByLanguage {
    /// The page in Russian.
    pub ru: Document,
    /// The page in English.
    pub en: Document,
}

/// The body of a response, and the ETag under which clients cache it.
#[derive(Clone, Debug)]
pub struct Document {
    /// The body of the response.
    pub bytes: Bytes,
    /// A strong ETag: two bodies with the same tag have the same bytes.
    pub etag: HeaderValue,
}

impl Document {
    /// Creates a document of these bytes, tagged with their digest.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        let digest = Sha256::digest(&bytes);
        let etag = hex(&digest[..16]);
        Self {
            bytes,
            etag: HeaderValue::from_str(&format!("\"{etag}\""))
                .expect("hexadecimal digits are a valid header value"),
        }
    }
}
