//! A process in one of the bench's roles: it prints its facts, and ends when its parent process ends.

use std::{fmt::Display, io};

use tokio::runtime;

/// Runs a role to its end. Prints an error for the parent process.
pub(crate) fn play(
    runtime: &mut runtime::Builder,
    role: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let runtime = runtime.enable_all().build()?;
    let played = runtime.block_on(role);
    if let Err(error) = &played {
        say("error", &format!("{error:#}").replace('\n', " "));
    }
    // The thread that reads standard input may block for ever, so the runtime does not wait for it.
    runtime.shutdown_background();
    played
}

/// Prints a fact for the parent process.
pub(crate) fn say(name: &str, value: &dyn Display) {
    println!("{name}: {value}");
}

/// Prints that the role is ready: the parent process has all facts that it needs before the first call.
pub(crate) fn ready() {
    println!("ready");
}

/// Waits until the parent process closes the pipe of standard input, or has died.
pub(crate) async fn until_told_to_stop() {
    let waited = tokio::task::spawn_blocking(|| {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    });
    drop(waited.await);
}
