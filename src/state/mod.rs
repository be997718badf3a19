//! State that the listeners of one process share: the settings that a reload changes ([`limits`]), counts per key
//! ([`rates`]) and per address ([`limiter`]), whether this node should get calls ([`readiness`]), and what a scrape
//! reads ([`scrape`]).

pub mod limiter;
pub mod limits;
pub mod rates;
pub mod readiness;
pub mod scrape;
