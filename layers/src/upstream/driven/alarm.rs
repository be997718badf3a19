//! One timer for many waits.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

/// A timer that a connection keeps from wait to wait: to set and to cancel one takes a lock of the runtime each
/// time. It is moved for a wait that ends sooner, and when it goes off too early for the one that is on then.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whom it wakes.
    task: Option<Waker>,
}

impl Alarm {
    /// Whether the wait that ends at `due` has ended. The task is woken when it does.
    pub(in crate::upstream) fn poll(&mut self, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let is_set = |sleep: &Pin<Box<Sleep>>| sleep.deadline() <= due && !sleep.is_elapsed();
        let is_mine = |task: &Waker| task.will_wake(cx.waker());
        if self.task.as_ref().is_some_and(is_mine) && self.sleep.as_ref().is_some_and(is_set) {
            return Poll::Pending;
        }
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        // Out of its budget, a task would not be known to it.
        while pin!(unconstrained(sleep.as_mut())).poll(cx).is_ready() {
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
        self.task
            .get_or_insert_with(|| cx.waker().clone())
            .clone_from(cx.waker());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::time::timeout;

    use super::*;

    /// When this wait ended, in seconds since `began`.
    async fn waited(alarm: &mut Alarm, began: Instant, due: u64) -> u64 {
        let due = began + Duration::from_secs(due);
        poll_fn(|cx| alarm.poll(due, cx)).await;
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_in_its_time_whatever_the_one_before_was_for() {
        let (began, mut alarm) = (Instant::now(), Alarm::default());
        let second = Duration::from_secs(1);
        // Each is given up after a second.
        for due in [10, 20, 5, 900, 30, 31] {
            let wait = waited(&mut alarm, began, due);
            assert!(timeout(second, wait).await.is_err(), "{due}");
        }
        assert_eq!(waited(&mut alarm, began, 40).await, 40);
        assert_eq!(waited(&mut alarm, began, 40).await, 40, "asked again");
        assert_eq!(waited(&mut alarm, began, 50).await, 50);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_now_is_woken() {
        let (began, mut alarm) = (Instant::now(), Alarm::default());
        // The call before, which had the connection.
        let gone = &mut Context::from_waker(Waker::noop());
        let due = began + Duration::from_secs(5);
        assert!(alarm.poll(due, gone).is_pending());
        assert_eq!(waited(&mut alarm, began, 5).await, 5);
    }
}
