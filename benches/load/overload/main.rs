//! Does the gateway keep what it promises when there is too much for it?
//!
//! `cargo bench --bench overload [-- load slow --seconds S --in-flight N --vendor-ms MS]`
//!
//! `load` finds the load that is served without a refusal, then sends three times as much; `slow` keeps two
//! thousand slow connections open beside a client that behaves well. The gateway is the `tollgate` binary,
//! the vendor and the slow clients are this binary in other roles, and this process is the client. Ends with
//! status 1 when a bound is broken. `benches/README.md` says what is measured.

#[path = "../child.rs"]
#[allow(dead_code, reason = "the load bench uses the rest")]
mod child;
#[path = "../../fixtures/mod.rs"]
mod fixtures;
#[path = "../role.rs"]
mod role;

mod client;
mod gateway;
mod load;
mod options;
mod report;
mod slow;
mod vendor;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{
    options::{Options, RoleName, ScenarioName},
    report::Bounds,
};

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    match options.role {
        None => run(&options),
        Some(RoleName::Vendor) => vendor::play(options.vendor_time()).map(|()| ExitCode::SUCCESS),
        Some(RoleName::Slow) => slow::play(options.to()?, options.from).map(|()| ExitCode::SUCCESS),
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if cfg!(debug_assertions) {
        eprintln!("overload: not an optimised build; use `cargo bench`");
    }
    // One thread: the client is to leave the cores to what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut bounds = Bounds::default();
    for scenario in options.scenarios() {
        runtime.block_on(async {
            match scenario {
                ScenarioName::Load => load::run(options, &mut bounds).await,
                ScenarioName::Slow => slow::run(options, &mut bounds).await,
            }
        })?;
    }
    Ok(bounds.finish())
}
