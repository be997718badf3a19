//! The whole gateway: what `tollgate serve` runs, with a funded key, logging as the binary does.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::runtime;
use tollgate::{Gateway, runtime::log_event, store::Store};
use tollgate_layers::{
    auth::SecretKey,
    ceiling::Ceilings,
    key::AccountId,
    money::MicroRub,
    reserve::{
        Event,
        ledger::{Booked, Bookkeeping, Entry},
    },
};

use crate::{
    fixtures::{config, key_record},
    role,
};

/// Runs a gateway before `vendor`, and says at the end how many calls it has charged.
pub(crate) fn play(vendor: SocketAddr, ledger: &str) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    log_as_the_binary_does();
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
        let gateway = Gateway::build(&config(vendor, ledger), report).await?;
        let key = funded_key(gateway.store()).await?;
        role::say("address", &gateway.address());
        role::say("key", &key.expose());
        role::ready();
        role::until_told_to_stop().await;
        gateway.drain().await?;
        role::say("charged", &charged.load(Ordering::Relaxed));
        Ok(())
    })
}

/// A call was charged from its own hold.
fn is_charge(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Settled { settled, .. }
            if settled.booked == Booked::Held && settled.charged > MicroRub::ZERO && !settled.repeated
    )
}

/// `info` as JSON lines to the standard error; where that leads is the starting process's choice.
fn log_as_the_binary_does() {
    tracing_subscriber::fmt()
        .with_env_filter("info")
        .with_writer(io::stderr)
        .json()
        .flatten_event(true)
        .init();
}

async fn funded_key(store: &Store) -> anyhow::Result<SecretKey> {
    let account: AccountId = "bench".parse()?;
    store.create_account(&account, "Bench").await?;
    let funds = Entry {
        id: "funds".into(),
        amount: MicroRub::rubles(1_000_000_000),
        reason: None,
    };
    store.enter(&account, &funds).await?;
    let secret = SecretKey::generate();
    let record = key_record(&account, "bench-key", secret.digest());
    store.create_key(&record, Ceilings::NONE).await?;
    Ok(secret)
}
