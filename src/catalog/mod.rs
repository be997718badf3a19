//! What is sold and for how much: the snapshot in force, and the exchange rate that its prices follow. Renders nothing.

pub mod rate_feed;
pub mod select_json;
pub mod snapshot;
