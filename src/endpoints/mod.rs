//! What a path leads to where it is not a call to a vendor: each answers by itself, out of what others keep.

pub mod any_origin;
pub(crate) mod catalog;
pub(crate) mod codex;
pub(crate) mod connect;
pub mod count_tokens;
pub mod estimate;
pub mod key_info;
pub(crate) mod openapi;
pub mod own_keys;
pub(crate) mod page;
mod params;
pub mod payments;
pub mod receipts;
pub(crate) mod reply;
pub mod router;
pub mod spending;
pub(crate) mod usage_page;

use std::sync::Arc;

use crate::catalog::documents::{PriceDocuments, Renderers};

/// All that is rendered of the catalog, before anybody asks for it.
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
