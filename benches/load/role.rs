//! Runs a process in one of the bench's roles. The process prints facts, and ends when its parent process ends.

use std::{fmt::Display, io};

use tokio::runtime;

/// Runs a role to its end. If it fails, prints the error for the parent process.
pub(crate) fn play(
    runtime: &mut runtime::Builder,
    role: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let runtime = runtime.enable_all().build()?;
    let played = runtime.block_on(role);
    if let Err(error) = &played {
        say("error", &format!("{error:#}").replace('\n', " "));
    }
    // The thread that reads standard input may block forever, so the runtime must not wait for it.
    runtime.shutdown_background();
    played
}

/// Prints a fact, which the parent process reads.
pub(crate) fn say(name: &str, value: &dyn Display) {
    println!("{name}: {value}");
}

/// Prints that the role is ready. The process must have printed all facts that the parent process needs for the first
/// call before it calls this function.
pub(crate) fn ready() {
    println!("ready");
}

/// Waits until the parent process closes the pipe to this process's standard input, or dies.
pub(crate) async fn until_told_to_stop() {
    let waited = tokio::task::spawn_blocking(|| {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    });
    drop(waited.await);
}
