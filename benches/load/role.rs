//! A process that was started for the bench: prints its facts, and ends when its parent does.

use std::{fmt::Display, io};

use tokio::runtime;

/// Runs a role to its end. An error is printed for the parent process.
pub(crate) fn play(
    runtime: &mut runtime::Builder,
    role: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let runtime = runtime.enable_all().build()?;
    let played = runtime.block_on(role);
    if let Err(error) = &played {
        say("error", &format!("{error:#}").replace('\n', " "));
    }
    // The thread that reads standard input may block for ever.
    runtime.shutdown_background();
    played
}

/// Prints a fact for the parent process.
pub(crate) fn say(name: &str, value: &dyn Display) {
    println!("{name}: {value}");
}

/// Reports that all facts that are needed before the first call have been printed.
pub(crate) fn ready() {
    println!("ready");
}

/// Waits until the parent process closes the pipe, or has died.
pub(crate) async fn until_told_to_stop() {
    let waited = tokio::task::spawn_blocking(|| {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    });
    drop(waited.await);
}
