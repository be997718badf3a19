//! Measures the cost of the whole gateway. In the same run, measures a bare hyper reverse proxy, with which the gateway
//! is compared.
//!
//! Usage: `cargo bench --bench load [-- SCENARIO… --seconds S --rounds N …]`. `-- --help` lists all options.
//!
//! The binary starts itself again in other roles: a vendor with prepared responses, a bare reverse proxy, and gateways.
//! Each has its own port on 127.0.0.1 and its own process, so that the kernel counts its CPU time separately. The
//! process that was started first is the client. `benches/README.md` explains how the results are obtained. `tollgate
//! load` is the same client, for a gateway that runs elsewhere.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod bare_proxy;
mod child;
mod cpu;
mod gateway;
mod memory;
mod options;
mod report;
mod role;
mod run;
mod scenario;
mod target;
mod vendor;

use clap::Parser as _;

use crate::options::{Options, RoleName};

// The same allocator as in the `tollgate` binary. The bare proxy uses it too, so that gateway and bare proxy differ
// only by the gateway's work.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match options.role {
        None => run::run(&options),
        Some(RoleName::Vendor) => vendor::play(),
        Some(RoleName::Bare) => bare_proxy::play(options.vendor()?),
        Some(RoleName::Gateway) => gateway::play(&options.gateway()?),
        Some(RoleName::Holder) => memory::play(&options.holder()?),
    }
}
