//! The process of the vendor. Its CPU time is not counted.

use tokio::runtime;

use crate::{
    fixtures::vendor::{Vendor, listen},
    role,
};

/// Runs the vendor on a single thread.
pub(crate) fn play() -> anyhow::Result<()> {
    role::play(&mut runtime::Builder::new_current_thread(), async {
        let (listener, address) = listen().await?;
        role::say("address", &address);
        role::ready();
        tokio::select! {
            served = Vendor::new().serve(listener) => served,
            () = role::until_told_to_stop() => Ok(()),
        }
    })
}
