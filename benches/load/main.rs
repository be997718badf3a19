//! Measures the cost of the whole gateway, compared with a bare hyper reverse proxy in the same run.
//!
//! `cargo bench --bench load [-- SCENARIO… --seconds S --rounds N …]`; `-- --help` lists all options.
//!
//! The binary starts itself again in other roles: a vendor with prepared answers, a bare reverse proxy, and gateways,
//! each on its own port of the loopback interface, so that the kernel accounts the CPU time of each. This process is
//! the client. `benches/README.md` explains how the results are obtained.
//! `tollgate load` is the same client, for a gateway that runs elsewhere.

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

// The allocator of the `tollgate` binary. The bare proxy uses it too, so that only the gateway's work differs.
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
