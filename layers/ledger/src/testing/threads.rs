//! Tests in which several threads make calls at the same time. They find races that a single task with many joined
//! futures would miss.

#![expect(clippy::disallowed_types, reason = "threads run in real time")]

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{
    adjust::{adjusted, can_adjust, held, to},
    calls::free,
    desk::{again, booked, refused, reserved, settled},
    given::{hold, micro, settlement},
};
use crate::{
    contract::{Adjusted, Booked, Hold, Ledger, LedgerError, Refusal, Settled},
    number::RequestNumber,
};

const THREADS: usize = 2;
/// How many calls each thread makes, one after another.
const STEPS: u128 = 200;
/// The longest time for which the threads compete.
const RACE: Duration = Duration::from_millis(150);
/// How long a granted hold is kept, so that a second hold that was granted by mistake overlaps it.
const KEPT: Duration = Duration::from_micros(50);
/// If a thread waits longer than this for another thread, all threads run their remaining steps without waiting.
const MEETING_MAX: Duration = Duration::from_secs(10);
/// The value of the counter in a [`Meeting`] that a thread has left. No thread waits in such a meeting any more.
const LEFT: usize = usize::MAX / 2;

/// Runs each future on its own thread, within the runtime that polls this function.
async fn on_threads<F>(futures: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<_> = futures
        .map(|future| spawn_blocking(move || Handle::current().block_on(future)))
        .collect();
    let ended = join_all(tasks).await.into_iter();
    let output = ended.map(|task| task.unwrap_or_else(|error| resume_unwind(error.into_panic())));
    output.collect()
}

/// A point at which the threads wait for each other before each call. They spin instead of sleeping, because a sleeping
/// thread would wake up too late. A thread that panics drops its clone of the meeting, and the other threads then do
/// not wait for this thread any more.
#[derive(Clone, Debug, Default)]
struct Meeting(Arc<AtomicUsize>);

impl Meeting {
    fn wait(&self, step: u128) {
        let all = usize::try_from(step).unwrap_or(usize::MAX) * THREADS;
        self.0.fetch_add(1, Ordering::SeqCst);
        let since = Instant::now();
        while self.0.load(Ordering::SeqCst) < all {
            if since.elapsed() > MEETING_MAX {
                self.0.fetch_max(LEFT, Ordering::SeqCst);
            }
            thread::yield_now();
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.0.fetch_max(LEFT, Ordering::SeqCst);
    }
}

/// Invariant I1: the check of the free money and the hold are one atomic step.
pub(super) async fn holds_by_several_threads_are_granted_only_up_to_the_free_money<
    L: Ledger + Clone,
>(
    ledger: &L,
) {
    let open = Arc::new(AtomicUsize::new(0));
    let most = on_threads(["k1", "k2", "k1", "k2"].into_iter().map(|id| {
        let (ledger, open) = (ledger.clone(), Arc::clone(&open));
        async move {
            let mut most = 0;
            let since = Instant::now();
            while since.elapsed() < RACE {
                let new_hold = Hold {
                    number: RequestNumber::now_v7(),
                    ..hold(0, id, 600)
                };
                match ledger.reserve(&new_hold).await {
                    Ok(_) => {
                        most = most.max(open.fetch_add(1, Ordering::SeqCst) + 1);
                        thread::sleep(KEPT);
                        open.fetch_sub(1, Ordering::SeqCst);
                        let released =
                            ledger.release(new_hold.number, &new_hold.account, &new_hold.key);
                        released.await.expect("a hold is released");
                    }
                    Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => {}
                    Err(error) => panic!("{new_hold:?}: {error:?}"),
                }
            }
            most
        }
    }))
    .await;
    expect_eq!(
        most.into_iter().max(),
        Some(1),
        "holds of 600 µ₽ that were open at the same time, with 1000 µ₽ free"
    );
    expect_eq!(
        free(ledger, "k1").await,
        1000,
        "free after all was released"
    );
}

/// Invariant I5: if two threads send the same RESERVE at the same time, only one hold is made.
pub(super) async fn a_hold_sent_by_two_threads_is_granted_once<L: Ledger + Clone>(ledger: &L) {
    let meeting = Meeting::default();
    let answers = on_threads((0..THREADS).map(|_| {
        let (ledger, meeting) = (ledger.clone(), meeting.clone());
        async move {
            let mut answers = Vec::new();
            for n in 1..=STEPS {
                meeting.wait(n);
                let answer = ledger.reserve(&hold(n, "k1", 1)).await;
                answers.push(answer.map(|reserved| reserved.held.micro()));
            }
            answers
        }
    }))
    .await;
    for answer in answers.into_iter().flatten() {
        expect_eq!(
            answer.expect("a hold fits"),
            1,
            "held by one of two threads"
        );
    }
    expect_eq!(
        free(ledger, "k1").await,
        800,
        "free next to 200 holds of 1 µ₽, each sent by two threads"
    );
}

/// Makes [`STEPS`] holds of 1 µ₽. Two threads then settle or release each of them at the same time. Returns the
/// answers, by thread.
async fn ended_by_two<L: Ledger + Clone>(
    ledger: &L,
    releases: [bool; THREADS],
) -> Vec<Vec<Option<Settled>>> {
    for n in 1..=STEPS {
        reserved(ledger, &hold(n, "k1", 1)).await;
    }
    let meeting = Meeting::default();
    on_threads(releases.into_iter().map(|releases| {
        let (ledger, meeting) = (ledger.clone(), meeting.clone());
        async move {
            let mut answers = Vec::new();
            for n in 1..=STEPS {
                let call = settlement(n, "k1", 1);
                meeting.wait(n);
                answers.push(if releases {
                    let released = ledger.release(call.number, &call.account, &call.key);
                    released.await.expect("a hold is released");
                    None
                } else {
                    Some(ledger.settle(&call).await.expect("a call is settled"))
                });
            }
            answers
        }
    }))
    .await
}

/// Invariants I3 and I5: if two threads settle a call at the same time, it is charged once.
pub(super) async fn a_call_settled_by_two_threads_is_charged_once<L: Ledger + Clone>(ledger: &L) {
    let answers = ended_by_two(ledger, [false, false]).await;
    let first = booked(Booked::Held, 1, 0);
    for (n, (one, other)) in (1..).zip(answers[0].iter().zip(&answers[1])) {
        // If two settlements of a call are in flight at the same time, both may get the same answer.
        let both = [*one, *other].map(|answer| answer.expect("it was settled"));
        assert!(
            both.contains(&first)
                && both
                    .iter()
                    .all(|answer| [first, again(first)].contains(answer)),
            "the answers to call {n}: expected {first:?}, at most one marked as repeated, found {both:?}"
        );
    }
    expect_eq!(
        free(ledger, "k1").await,
        800,
        "free after 200 charges of 1 µ₽, each sent by two threads"
    );
}

/// Invariant I5: if a settlement and a release arrive at the same time, only the first one to be processed takes
/// effect, and both answers agree with this.
pub(super) async fn only_one_of_a_concurrent_settlement_and_release_takes_effect<
    L: Ledger + Clone,
>(
    ledger: &L,
) {
    let answers = ended_by_two(ledger, [false, true]).await;
    let mut left = 1000;
    for (n, answer) in (1..).zip(&answers[0]) {
        let answer = answer.expect("it was settled");
        let charged = booked(Booked::Held, 1, 0);
        let released = again(booked(Booked::Released, 0, 0));
        assert!(
            answer == charged || answer == released,
            "call {n}: expected {charged:?} or {released:?}, found {answer:?}"
        );
        expect_eq!(
            settled(ledger, n, "k1", 1).await,
            again(answer),
            "call {n}, settled once more"
        );
        left -= answer.charged.micro();
    }
    expect_eq!(
        free(ledger, "k1").await,
        left,
        "free after 200 calls, each settled and released at once"
    );
}

/// Invariant I1: the check of the free money and the increase of a hold are one atomic step.
pub(super) async fn holds_grow_by_several_threads_only_up_to_the_free_money<L: Ledger + Clone>(
    ledger: &L,
) {
    if !can_adjust(ledger).await {
        return;
    }
    let calls = [(1, "k1"), (2, "k2"), (3, "k1"), (4, "k2")];
    for (n, id) in calls {
        reserved(ledger, &hold(n, id, 1)).await;
    }
    let large = Arc::new(AtomicUsize::new(0));
    let most = on_threads(calls.into_iter().map(|(n, id)| {
        let (ledger, large) = (ledger.clone(), Arc::clone(&large));
        async move {
            let (mut most, mut sequence) = (0, 0);
            let since = Instant::now();
            while since.elapsed() < RACE {
                sequence += 2;
                if adjusted(&ledger, &to(n, id, sequence, 600)).await != held(600) {
                    continue;
                }
                most = most.max(large.fetch_add(1, Ordering::SeqCst) + 1);
                thread::sleep(KEPT);
                large.fetch_sub(1, Ordering::SeqCst);
                let shrunk = adjusted(&ledger, &to(n, id, sequence + 1, 1)).await;
                expect_eq!(shrunk, held(1), "a smaller amount");
            }
            most
        }
    }))
    .await;
    expect_eq!(
        most.into_iter().max(),
        Some(1),
        "holds that had grown to 600 µ₽ at the same time, with 1000 µ₽ free"
    );
    // The free amount may grow only after a while, because a lease may have to give back money that the holds of
    // another key no longer need.
    refused(ledger, &hold(5, "k1", 997)).await;
    let rest = reserved(ledger, &hold(6, "k1", 996)).await;
    expect_eq!(rest.held, micro(996), "held next to four holds of 1 µ₽");
}

/// Invariants I2, I3 and I5: the full hold ends, whichever of the two requests is processed first.
pub(super) async fn a_concurrent_adjustment_and_settlement_lose_no_money<L: Ledger + Clone>(
    ledger: &L,
) {
    if !can_adjust(ledger).await {
        return;
    }
    for n in 1..=STEPS {
        reserved(ledger, &hold(n, "k1", 2)).await;
    }
    let meeting = Meeting::default();
    on_threads([true, false].into_iter().map(|adjusts| {
        let (ledger, meeting) = (ledger.clone(), meeting.clone());
        async move {
            for n in 1..=STEPS {
                meeting.wait(n);
                if adjusts {
                    let amount = if n % 2 == 0 { 1 } else { 3 };
                    let answer = adjusted(&ledger, &to(n, "k1", 1, amount)).await;
                    assert!(
                        answer == held(amount) || answer == Ok(Adjusted::Gone),
                        "call {n}: expected {:?} or Gone, found {answer:?}",
                        held(amount)
                    );
                } else {
                    let paid = settled(&ledger, n, "k1", 1).await;
                    expect_eq!(paid, booked(Booked::Held, 1, 0), "call {n}");
                }
            }
        }
    }))
    .await;
    expect_eq!(
        free(ledger, "k1").await,
        800,
        "free after 200 charges of 1 µ₽, each next to an adjustment"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn threads_do_not_wait_for_a_thread_that_has_panicked() {
        let meeting = Meeting::default();
        let since = Instant::now();
        let threads = [1, STEPS].map(|steps| {
            let meeting = meeting.clone();
            spawn_blocking(move || {
                for step in 1..=steps {
                    meeting.wait(step);
                }
                assert_eq!(steps, STEPS);
            })
        });
        let ended = join_all(threads).await;
        assert_eq!(
            ended.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [false, true]
        );
        assert!(since.elapsed() < MEETING_MAX, "{:?}", since.elapsed());
    }
}
