//! Suppresses wakes that a task would send to itself, and so the polls that would follow.
//!
//! hyper passes a body through a channel. When a task takes a frame, the channel wakes the connection, which then sends
//! the next frame. If one task polls both the body and the connection, it wakes itself and is polled once more for
//! nothing. A connection that is polled with the waker of a [`SelfWake`] does not wake the task for events within
//! [`suppress_wakes`].
//!
//! ```
//! use std::task::Waker;
//!
//! use tollgate_layers::self_wake::{SelfWake, suppress_wakes};
//!
//! let mut wake = SelfWake::default();
//! let waker = wake.waker(Waker::noop());
//! // The task is not woken; the suppressed waker is returned.
//! let ((), heard) = suppress_wakes(|| waker.wake_by_ref());
//! assert!(heard.is_some());
//! ```

use std::{
    cell::Cell,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

thread_local! {
    static HUSHED: Cell<bool> = const { Cell::new(false) };
    static HEARD: Cell<Option<Waker>> = const { Cell::new(None) };
}

/// Wraps a task's waker so that wakes within [`suppress_wakes`] are suppressed. A new wrapper is created only if
/// another task polls.
#[derive(Debug, Default)]
pub struct SelfWake(Option<Made>);

#[derive(Debug)]
struct Made {
    ear: Arc<FilteredWaker>,
    waker: Waker,
}

impl SelfWake {
    /// Returns the wrapped waker of `task`, with which futures are to be polled instead of the task's own waker.
    pub fn waker(&mut self, task: &Waker) -> &Waker {
        self.0.take_if(|made| !made.ear.task.will_wake(task));
        let made = self.0.get_or_insert_with(|| {
            let ear = Arc::new(FilteredWaker {
                task: task.clone(),
                woken: AtomicBool::new(false),
            });
            let waker = Waker::from(Arc::clone(&ear));
            Made { ear, waker }
        });
        &made.waker
    }

    /// Returns whether the wrapped waker was woken since the last call of this function, or does not exist yet for this
    /// task. If false, every future that was polled with this waker is still pending.
    pub fn was_woken(&self, task: &Waker) -> bool {
        match &self.0 {
            // A later wake wakes the task, which then calls this function again.
            Some(made) if made.ear.task.will_wake(task) => {
                made.ear.woken.load(Ordering::Relaxed)
                    && made.ear.woken.swap(false, Ordering::AcqRel)
            }
            _ => true,
        }
    }

    /// Polls the future with the wrapped waker, unless [`SelfWake::was_woken`] returns false. Useful for a future that
    /// is seldom ready, in a task that is often polled for other reasons. Use a `SelfWake` for one future at a time,
    /// until that future is ready.
    pub fn poll<F>(&mut self, cx: &mut Context<'_>, future: Pin<&mut F>) -> Poll<F::Output>
    where
        F: Future + ?Sized,
    {
        if !self.was_woken(cx.waker()) {
            return Poll::Pending;
        }
        let polled = future.poll(&mut Context::from_waker(self.waker(cx.waker())));
        if polled.is_ready() {
            // This future is ready. The next future does not have the waker yet, so it must be polled at least once.
            self.0 = None;
        }
        polled
    }
}

/// Runs the closure, and returns the waker whose wake was suppressed on this thread, if any. Wakes from other threads
/// are not suppressed.
pub fn suppress_wakes<T>(run: impl FnOnce() -> T) -> (T, Option<Waker>) {
    /// Ends the suppression of wakes when it is dropped, even if the closure panics.
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            HUSHED.set(false);
        }
    }
    HUSHED.set(true);
    let until = Until;
    let done = run();
    drop(until);
    (done, HEARD.take())
}

#[derive(Debug)]
struct FilteredWaker {
    task: Waker,
    woken: AtomicBool,
}

impl Wake for FilteredWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if HUSHED.get() {
            HEARD.set(Some(self.task.clone()));
        } else {
            // The flag is set before the task is woken, because the task reads it when it is polled.
            self.woken.store(true, Ordering::Release);
            self.task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakes_from_the_polling_thread_are_deferred_and_never_lost() {
        let count = Arc::new(Count::default());
        let woken = || count.0.load(Ordering::Relaxed);
        let task = Waker::from(Arc::clone(&count));
        let mut wake = SelfWake::default();
        let waker = wake.waker(&task).clone();

        let ((), received) = suppress_wakes(|| waker.wake_by_ref());
        assert_eq!(woken(), 0);
        received.expect("the suppressed waker is returned").wake();
        assert_eq!(woken(), 1);

        let (_, received) = suppress_wakes(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| waker.wake_by_ref());
            });
        });
        assert_eq!((woken(), received.is_none()), (2, true));

        waker.wake_by_ref();
        assert_eq!(woken(), 3);
    }

    #[test]
    fn wrapped_waker_is_recreated_only_for_another_task() {
        let (one, other) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut wake = SelfWake::default();
        let first = wake.waker(&Waker::from(Arc::clone(&one))).clone();
        assert!(first.will_wake(wake.waker(&Waker::from(one))));
        wake.waker(&Waker::from(Arc::clone(&other))).wake_by_ref();
        assert_eq!(other.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn each_wake_is_reported_once_unless_it_is_suppressed() {
        let (task, other) = (
            Waker::from(Arc::new(Count::default())),
            Waker::from(Arc::new(Count::default())),
        );
        let mut wake = SelfWake::default();
        assert!(wake.was_woken(&task), "the task had no waker before");
        let waker = wake.waker(&task).clone();
        assert!(!wake.was_woken(&task));
        waker.wake_by_ref();
        assert!(wake.was_woken(&task));
        assert!(!wake.was_woken(&task));
        let ((), received) = suppress_wakes(|| waker.wake_by_ref());
        assert_eq!((received.is_some(), wake.was_woken(&task)), (true, false));
        assert!(wake.was_woken(&other), "another task has no waker of it");
    }

    #[test]
    fn future_is_polled_at_most_once_per_wake() {
        let task = Waker::from(Arc::new(Count::default()));
        let cx = &mut Context::from_waker(&task);
        let (mut polls, mut waker) = (0, None::<Waker>);
        let mut wake = SelfWake::default();
        // Columns: whether the future was woken before, whether it is then ready, and the expected number of polls.
        for (woken, ready, expected) in [
            (false, false, 1),
            (false, false, 1),
            (true, false, 2),
            (false, true, 2),
            (true, true, 3),
            (false, false, 4),
            (false, false, 4),
        ] {
            if woken {
                waker.take().expect("it was polled").wake();
            }
            let future = std::pin::pin!(std::future::poll_fn(|cx| {
                polls += 1;
                waker = Some(cx.waker().clone());
                if ready {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            let polled = wake.poll(cx, future);
            assert_eq!(polls, expected);
            assert_eq!(polled.is_ready(), ready && woken);
        }
    }

    #[test]
    fn wakes_are_no_longer_suppressed_after_a_panic() {
        let count = Arc::new(Count::default());
        let mut wake = SelfWake::default();
        let waker = wake.waker(&Waker::from(Arc::clone(&count))).clone();
        let panicked =
            std::panic::catch_unwind(|| suppress_wakes::<()>(|| panic!("the test panics")).1);
        assert!(panicked.is_err());
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
