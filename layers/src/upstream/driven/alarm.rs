//! A timer that is reused for one wait after another.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

/// The timer of a connection. It is reused for each wait, because setting a timer and cancelling it each take a lock of
/// the runtime. It is set again only if the new wait ends earlier, or if it fires before the current wait ends.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    /// The task that the timer wakes.
    task: Option<Waker>,
}

impl Alarm {
    /// Returns ready if the time `due` has been reached. Otherwise the task is woken at that time.
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
        // The poll is `unconstrained`, because otherwise the timer does not register a task that has used up its
        // budget.
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

    /// Waits until `due`. Returns the number of seconds from `began` to the end of the wait.
    async fn waited(alarm: &mut Alarm, began: Instant, due: u64) -> u64 {
        let due = began + Duration::from_secs(due);
        poll_fn(|cx| alarm.poll(due, cx)).await;
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn timer_fires_on_time_whatever_the_previous_wait_was() {
        let (began, mut alarm) = (Instant::now(), Alarm::default());
        let second = Duration::from_secs(1);
        // Each wait is dropped after a second, before it ends.
        for due in [10, 20, 5, 900, 30, 31] {
            let wait = waited(&mut alarm, began, due);
            assert!(timeout(second, wait).await.is_err(), "{due}");
        }
        assert_eq!(waited(&mut alarm, began, 40).await, 40);
        assert_eq!(waited(&mut alarm, began, 40).await, 40, "asked again");
        assert_eq!(waited(&mut alarm, began, 50).await, 50);
    }

    #[tokio::test(start_paused = true)]
    async fn timer_wakes_the_task_that_waits_now_and_not_an_earlier_one() {
        let (began, mut alarm) = (Instant::now(), Alarm::default());
        // An earlier task polled the timer, and then its call stopped using the connection.
        let gone = &mut Context::from_waker(Waker::noop());
        let due = began + Duration::from_secs(5);
        assert!(alarm.poll(due, gone).is_pending());
        assert_eq!(waited(&mut alarm, began, 5).await, 5);
    }
}
