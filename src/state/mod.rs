//! State that the listeners of one process share: the settings that a reload changes ([`limits`]), counts per key
//! ([`rates`]) and per address ([`limiter`]), the readiness of this node ([`readiness`]), the values for a scrape
//! ([`scrape`]), and the configuration file ([`config_file`]).

pub mod config_file;
pub mod limiter;
pub mod limits;
pub mod rates;
pub mod readiness;
pub mod scrape;
