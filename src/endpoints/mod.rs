//! Endpoints that do not call a model. They read state that other modules own.

pub(crate) mod catalog;
pub(crate) mod codex;
pub(crate) mod connect;
pub mod count_tokens;
pub(crate) mod error;
pub mod estimate;
pub mod handler;
pub mod key_info;
pub(crate) mod openapi;
pub mod own_keys;
pub(crate) mod page;
mod params;
pub mod payments;
pub mod receipts;
pub(crate) mod reply;
pub mod spending;
pub(crate) mod usage_page;

use std::sync::Arc;

use crate::catalog::documents::{PriceDocuments, Renderers};

/// The functions that render all documents derived from the catalog. They run once per snapshot.
pub const RENDERERS: Renderers = Renderers {
    openapi: openapi::render,
    usage_page: usage_page::render,
    prices: |view| PriceDocuments {
        json: catalog::render(view),
        html: page::render(view),
        connect: Arc::new(connect::render(view)),
        priced: view.priced,
    },
};
