//! What does the whole gateway cost, beside a bare hyper reverse proxy in the same run?
//!
//! `cargo bench --bench load [-- SCENARIO… --seconds S --rounds N …]`; `-- --help` lists it all.
//!
//! The binary starts itself again in other roles: a vendor with answers ready, a bare reverse proxy,
//! and gateways, each on a port of its own on the loopback, so that the CPU time of each is the
//! system's account of its process. This process is the client. `benches/README.md` says how the
//! figures come about. With `--url` it is the client of a gateway that runs somewhere, and nothing else.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod bare_proxy;
mod child;
mod client;
mod cpu;
mod disturbance;
mod elsewhere;
mod gateway;
mod layers_alone;
mod memory;
mod nginx;
mod options;
mod report;
mod role;
mod run;
mod scenario;
mod target;
mod two_gateways;
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
        None => match options.deployment()? {
            None => run::run(&options),
            Some(deployment) => elsewhere::run(&options, &deployment),
        },
        Some(RoleName::Vendor) => vendor::play(),
        Some(RoleName::Bare) => bare_proxy::play(options.vendor()?),
        Some(RoleName::Layers) => layers_alone::play(options.vendor()?),
        Some(RoleName::Gateway) => gateway::play(&options.gateway()?),
        Some(RoleName::Holder) => memory::play(&options.holder()?),
    }
}
