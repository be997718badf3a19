//! Models on sale and their prices: the snapshot in force, and the exchange rate that its prices follow.
//!
//! This module renders nothing and imports no endpoint. Endpoints pass in their rendering functions as
//! [`Renderers`](documents::Renderers), and the rendered documents are replaced together with the snapshot.

mod customers;
pub mod documents;
pub mod prices;
pub mod rate_feed;
pub mod snapshot;
pub(crate) mod tariffs;
