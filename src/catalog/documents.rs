//! What there is to say of a snapshot, and what endpoints have made of it.
//!
//! Documents are made when a snapshot is, not when somebody asks, and are swapped with it: no answer shows a price
//! that is not charged. How they look is the endpoints' alone.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use rust_decimal::Decimal;
use sha2::{Digest, Sha256};
use tollgate_layers::{
    model::Model, price::PriceList, reserve::ledger::TariffVersion, respond::Language,
};

use crate::config::UsdtRates;

/// How documents are made.
#[derive(Clone, Copy, Debug)]
pub struct Renderers {
    /// Of what no price changes: made once for each configuration.
    pub openapi: fn(&PublicUrls) -> Document,
    /// The same: the page of a key's holder, in each language.
    pub usage_page: fn(&PublicUrls) -> ByLanguage,
    /// Of the prices: made again whenever they change.
    pub prices: fn(&CatalogView<'_>) -> PriceDocuments,
}

/// A snapshot as it is shown: all models, and their prices or none.
#[derive(Clone, Debug)]
pub struct CatalogView<'a> {
    /// Where it is shown.
    pub urls: &'a PublicUrls,
    /// The tariff version in force.
    pub version: TariffVersion,
    /// What stands between the exchange rate and the price.
    pub sell_rate_multiplier: Decimal,
    /// Whether there are prices now.
    pub priced: bool,
    /// In the order of the catalog.
    pub models: Vec<ModelView<'a>>,
}

/// A model as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct ModelView<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its prices now; those of a model whose price is out of range are absent beside those of others.
    pub prices: Option<&'a PriceList>,
    /// What is asked for it in dollars, for clients that reckon in them.
    pub usd_mtok: Option<UsdtRates>,
}

/// What callers are told beside models and prices.
#[derive(Clone, Debug)]
pub struct PublicUrls {
    /// The path segment of the service.
    pub service: String,
    /// Ends in `/v1`.
    pub base_url: String,
    /// Of texts for people.
    pub language: Language,
    /// Whether the holder of a key may ask for a payment.
    pub pays: bool,
}

impl PublicUrls {
    /// The base address of clients that append `/v1` themselves.
    #[must_use]
    pub fn root_url(&self) -> &str {
        self.base_url.strip_suffix("/v1").unwrap_or(&self.base_url)
    }
}

/// Answers that show prices, ready to be sent.
#[derive(Clone, Debug)]
pub struct PriceDocuments {
    /// For programs: specification 2.6.
    pub json: Document,
    /// For people.
    pub html: Document,
    /// For clients, ready-made.
    pub connect: Arc<ConnectDocuments>,
    /// Whether they show prices.
    pub priced: bool,
}

/// Set-up of clients, ready to be sent.
#[derive(Clone, Debug)]
pub struct ConnectDocuments {
    /// The list of clients for programs.
    pub index: Document,
    /// And for people.
    pub html: Document,
    /// What each client takes, in the order of the list.
    pub clients: Vec<Document>,
}

/// A page in both languages, ready to be sent.
#[derive(Clone, Debug)]
pub struct ByLanguage {
    /// In Russian.
    pub ru: Document,
    /// In English.
    pub en: Document,
}

/// Bytes and the name that clients keep them under.
#[derive(Clone, Debug)]
pub struct Document {
    /// What is sent.
    pub bytes: Bytes,
    /// Strong: the same tag means the same bytes.
    pub etag: HeaderValue,
}

impl Document {
    /// These bytes, named by their digest.
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
