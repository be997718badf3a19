//! A process that was started for the bench: how it says where it is, and when it ends.

use std::{fmt::Display, io};

use tokio::runtime;

/// Runs a role to its end. What goes wrong is told to the process that started it.
pub(crate) fn play(
    runtime: &mut runtime::Builder,
    role: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let runtime = runtime.enable_all().build()?;
    let played = runtime.block_on(role);
    if let Err(error) = &played {
        say("error", &format!("{error:#}").replace('\n', " "));
    }
    // The thread that waits for the end of the standard input may wait for ever.
    runtime.shutdown_background();
    played
}

/// A fact for the process that started this one.
pub(crate) fn say(name: &str, value: &dyn Display) {
    println!("{name}: {value}");
}

/// All that had to be said before the first call has been said.
pub(crate) fn ready() {
    println!("ready");
}

/// Until the process that started this one lets go of it, or has died.
pub(crate) async fn until_told_to_stop() {
    let waited = tokio::task::spawn_blocking(|| {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    });
    drop(waited.await);
}
