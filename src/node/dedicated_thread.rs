//! Runs a task on its own thread, so that the task does not delay calls and calls do not delay the task.

use std::{io, thread};

use tokio::{runtime::Builder, sync::oneshot};

/// Starts `work` on a new thread that has its own runtime. Dropping the returned future stops the work. The future
/// completes when the work has completed.
pub(super) async fn run(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<impl Future<Output = ()> + Send> {
    let (began, begun) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let (ended, end) = oneshot::channel::<()>();
    thread::Builder::new().name(name.into()).spawn(move || {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(began.send(Err(error))),
        };
        let _ = began.send(Ok(()));
        runtime.block_on(async {
            tokio::select! {
                () = work => {}
                _ = stopped => {}
            }
        });
        drop(runtime);
        drop(ended);
    })?;
    begun.await.map_err(io::Error::other)??;
    Ok(async move {
        let _stop = stop;
        // No message is sent through the channel. Its sender is dropped when the thread ends, which wakes the receiver.
        let _ = end.await;
    })
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn dedicated_work_runs_on_its_own_thread_until_it_ends() {
        let (tell, mut reported) = mpsc::channel::<ThreadId>(1);
        let work = async move {
            tokio::task::yield_now().await;
            tell.send(thread::current().id()).await.unwrap();
        };
        run("work", work).await.unwrap().await;
        assert_ne!(reported.recv().await.unwrap(), thread::current().id());
    }

    /// Dropping the future drops the work and the work's runtime, whatever await point the work has reached.
    #[tokio::test]
    async fn dedicated_work_is_dropped_with_the_future_that_awaits_it() {
        let (held, mut dropped) = mpsc::channel::<()>(1);
        let work = async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        let running = run("work", work).await.unwrap();
        assert!(
            dropped
                .try_recv()
                .is_err_and(|error| error == mpsc::error::TryRecvError::Empty)
        );
        drop(running);
        assert_eq!(dropped.recv().await, None);
    }
}
