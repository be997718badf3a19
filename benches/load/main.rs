//! What does the whole gateway cost, beside a bare hyper reverse proxy in the same run?
//!
//! `cargo bench --bench load [-- SCENARIO… --seconds S --rounds N --connections N --targets T,…]`
//!
//! The binary starts itself again in other roles: a vendor with answers ready, a bare reverse proxy,
//! and gateways, each on a port of its own on the loopback, so that the CPU time of each is the
//! system's account of its process. This process is the client. `benches/README.md` says how the
//! figures come about.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod bare_proxy;
mod child;
mod client;
mod cpu;
mod gateway;
mod options;
mod report;
mod role;
mod run;
mod scenario;
mod target;
mod vendor;

use clap::Parser as _;

use crate::options::{Options, RoleName};

// As in the `tollgate` binary, and the same for the bare proxy: what is compared is the gateway's work.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match options.role {
        None => run::run(&options),
        Some(RoleName::Vendor) => vendor::play(),
        Some(RoleName::Bare) => bare_proxy::play(options.vendor()?),
        Some(RoleName::Gateway) => gateway::play(options.vendor()?, options.ledger()?),
    }
}
