//! The network and the operating system: HTTPS clients, addresses that must not be called, the open files that
//! connections share, and the replacement of files.

pub(crate) mod address;
pub mod files;
pub(crate) mod https;
pub(crate) mod replace;
