//! State that the listeners of one process share. [`limits`] has the settings that a reload can change, [`rates`] the
//! counts per key, and [`limiter`] the counts per address. [`readiness`] decides whether this node should get traffic,
//! [`scrape`] reads the values for the metrics, and [`config_file`] applies the configuration file.

pub mod config_file;
pub mod limiter;
pub mod limits;
pub mod rates;
pub mod readiness;
pub mod scrape;
