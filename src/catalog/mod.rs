//! What is sold and for how much: the snapshot in force, and the exchange rate that its prices follow.
//!
//! It renders nothing and imports no endpoint: what they make of a snapshot they hand in as
//! [`Renderers`](documents::Renderers), and it is swapped with the snapshot.

mod customers;
pub mod documents;
pub mod prices;
pub mod rate_feed;
pub mod select_json;
pub mod snapshot;
pub(crate) mod tariffs;
