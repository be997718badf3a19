//! The network and the operating system: HTTPS clients, a check of addresses that must not be called, a division of
//! open files among connections, and atomic replacement of files.

pub(crate) mod address;
pub mod files;
pub(crate) mod https;
pub(crate) mod replace;
