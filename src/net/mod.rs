//! The network and the operating system: clients for HTTPS, addresses that must not be called, and the open files that
//! connections share; how files are replaced.

pub(crate) mod address;
pub mod files;
pub(crate) mod https;
pub(crate) mod replace;
