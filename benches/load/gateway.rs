//! A complete gateway as `tollgate serve` runs it, with a funded key and the log of the binary.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::runtime;
use tollgate::{Gateway, node::log_event};
use tollgate_layers::{
    money::MicroRub,
    reserve::{Event, ledger::Booked},
};

use crate::{
    fixtures::{config_with, funded_key},
    options::GatewayRole,
    role,
};

/// Runs a gateway. When it ends, prints the number of calls that it has charged.
pub(crate) fn play(given: &GatewayRole<'_>) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The log goes to standard error. The parent process discards it.
    let _log = tollgate::observe::log::to(io::stderr());
    role::play(&mut runtime::Builder::new_multi_thread(), async {
        let charged = Arc::new(AtomicU64::new(0));
        let report = {
            let charged = Arc::clone(&charged);
            move |event: &Event<'_>| {
                log_event(event);
                if is_charge(event) {
                    charged.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let lease = format!("lease_ms_max = {}", given.lease_ms.unwrap_or_default());
        let config = config_with(given.vendor, given.ledger, &[&lease]);
        let gateway = Gateway::build(&config, report).await?;
        let key = funded_key(gateway.store(), "bench").await?;
        role::say("address", &gateway.address());
        role::say("key", &key.expose());
        role::ready();
        role::until_told_to_stop().await;
        gateway.drain().await?;
        role::say("charged", &charged.load(Ordering::Relaxed));
        Ok(())
    })
}

/// Returns whether the event reports that a call was charged while its hold was still open, and for the first time.
pub(crate) fn is_charge(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Settled { settled, .. }
            if settled.booked == Booked::Held && settled.charged > MicroRub::ZERO && !settled.repeated
    )
}
