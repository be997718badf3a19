//! Tests when a breaker opens and closes, and for which callers it applies.

use super::*;

use Trouble::{Answered, Away, Silent};

/// Two callers, each identified by a number.
const ANN: u64 = 1;
const BOB: u64 = 2;

fn opened(now: Instant) -> Breaker {
    opened_by(Away, &[ANN], now)
}

/// Returns a breaker that was opened by failures of calls of these callers, one caller after the other.
fn opened_by(trouble: Trouble, callers: &[u64], now: Instant) -> Breaker {
    let mut breaker = Breaker::default();
    for caller in callers.iter().cycle().take(FAILURES_MAX as usize) {
        let pass = breaker.pass(*caller, now).unwrap();
        breaker.failed(pass, trouble, now, 255);
    }
    breaker
}

#[tokio::test(start_paused = true)]
async fn breaker_opens_after_consecutive_failures_without_a_success_in_between() {
    let now = Instant::now();
    let mut breaker = Breaker::default();
    for _ in 0..3 {
        for _ in 1..FAILURES_MAX {
            let pass = breaker.pass(ANN, now).unwrap();
            breaker.failed(pass, Away, now, 0);
        }
        let pass = breaker.pass(ANN, now).unwrap();
        breaker.began(pass);
        assert_eq!(
            breaker.failures(),
            FAILURES_MAX - 1,
            "a first byte does not end the call"
        );
        breaker.succeeded(pass);
        assert_eq!(breaker.failures(), 0);
    }
    assert_eq!(
        opened(now).shown(now),
        Shown::Open(OPEN_MIN),
        "after five failures in a row"
    );
}

#[tokio::test(start_paused = true)]
async fn open_breaker_admits_one_probe_after_its_pause() {
    let now = Instant::now();
    let mut breaker = opened(now);
    assert_eq!(breaker.pass(ANN, now), None);
    let later = now + OPEN_MIN;
    assert_eq!(breaker.shown(later), Shown::Due);
    let probe = breaker.pass(ANN, later).unwrap();
    assert_eq!(breaker.pass(ANN, later), None, "exactly one");
    assert!(matches!(breaker.shown(later), Shown::Probing(_)));
    breaker.abandoned(probe, later);
    let probe = breaker
        .pass(ANN, later)
        .expect("the next call can be the probe");
    breaker.began(probe);
    assert_eq!(breaker.shown(later), Shown::Closed);
    // If the probe's stream breaks off after its first byte, the breaker opens again.
    breaker.failed(probe, Away, later, 255);
    assert_eq!(breaker.shown(later), Shown::Open(2 * OPEN_MIN));
}

#[tokio::test(start_paused = true)]
async fn each_failed_probe_doubles_the_breakers_pause_up_to_a_minute_with_jitter() {
    let mut now = Instant::now();
    let mut breaker = opened(now);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
        let wait = Duration::from_secs(seconds);
        assert_eq!(breaker.shown(now), Shown::Open(wait));
        now += wait;
        let probe = breaker.pass(ANN, now).unwrap();
        breaker.failed(probe, Away, now, 255);
    }
    now += OPEN_MAX;
    let probe = breaker.pass(ANN, now).unwrap();
    breaker.failed(probe, Away, now, 0);
    assert_eq!(breaker.shown(now), Shown::Open(OPEN_MAX / 2));
    now += OPEN_MAX;
    let probe = breaker.pass(ANN, now).unwrap();
    breaker.succeeded(probe);
    assert_eq!((breaker.shown(now), breaker.failures()), (Shown::Closed, 0));
    for _ in 0..FAILURES_MAX {
        let pass = breaker.pass(ANN, now).unwrap();
        breaker.failed(pass, Away, now, 255);
    }
    assert_eq!(
        breaker.shown(now),
        Shown::Open(OPEN_MIN),
        "the wait doubles from the minimum again"
    );
}

#[tokio::test(start_paused = true)]
async fn call_begun_before_the_breaker_opened_does_not_change_the_open_breaker() {
    let now = Instant::now();
    let mut breaker = Breaker::default();
    let old = breaker.pass(ANN, now).unwrap();
    for _ in 0..FAILURES_MAX {
        let pass = breaker.pass(ANN, now).unwrap();
        breaker.failed(pass, Away, now, 255);
    }
    breaker.succeeded(old);
    breaker.failed(old, Away, now, 255);
    breaker.abandoned(old, now);
    assert_eq!(breaker.shown(now), Shown::Open(OPEN_MIN));

    let first = breaker.pass(ANN, now + OPEN_MIN).unwrap();
    breaker.began(first);
    breaker.failed(first, Away, now + OPEN_MIN, 255);
    let later = now + 3 * OPEN_MIN;
    let second = breaker.pass(ANN, later).unwrap();
    // The first probe has already ended; its result must not end the second probe.
    breaker.failed(first, Away, later, 255);
    breaker.succeeded(first);
    assert!(matches!(breaker.shown(later), Shown::Probing(_)));
    breaker.succeeded(second);
    assert_eq!(breaker.shown(later), Shown::Closed);
}

#[tokio::test(start_paused = true)]
async fn call_begun_before_the_breaker_opened_does_not_count_after_the_breaker_has_closed() {
    let now = Instant::now();
    let mut breaker = Breaker::default();
    let old: Vec<Pass> = (0..FAILURES_MAX)
        .map(|_| breaker.pass(ANN, now).unwrap())
        .collect();
    for _ in 0..FAILURES_MAX {
        let pass = breaker.pass(ANN, now).unwrap();
        breaker.failed(pass, Away, now, 255);
    }
    let later = now + OPEN_MIN;
    let probe = breaker.pass(ANN, later).unwrap();
    breaker.succeeded(probe);
    for old in &old {
        breaker.failed(*old, Away, later, 255);
        breaker.lacks(*old, later);
    }
    let shown = (breaker.shown(later), breaker.failures());
    assert_eq!(shown, (Shown::Closed, 0));
    // The success of a call that began before the breaker opened does not reset the count of failures.
    let pass = breaker.pass(ANN, later).unwrap();
    breaker.failed(pass, Away, later, 255);
    breaker.succeeded(old[0]);
    assert_eq!(breaker.failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_of_one_caller_open_the_breaker_for_that_caller_only() {
    let now = Instant::now();
    for trouble in [Answered, Silent] {
        let mut breaker = opened_by(trouble, &[ANN], now);
        assert_eq!(breaker.shown_to(ANN, now), Shown::Open(OPEN_MIN));
        assert_eq!(breaker.shown_to(BOB, now), Shown::Closed);
        let pass = breaker.pass(BOB, now).unwrap();
        // Once calls of two callers have failed, the breaker is open for all callers.
        breaker.failed(pass, trouble, now, 255);
        assert_eq!(breaker.shown_to(BOB, now), Shown::Open(OPEN_MIN));

        let mut breaker = opened_by(trouble, &[ANN], now);
        let pass = breaker.pass(BOB, now).unwrap();
        breaker.began(pass);
        assert_eq!(breaker.shown_to(ANN, now), Shown::Open(OPEN_MIN));
        breaker.succeeded(pass);
        assert_eq!(breaker.shown_to(ANN, now), Shown::Closed);
        assert_eq!(breaker.failures(), 0);

        let breaker = opened_by(trouble, &[ANN, BOB], now);
        assert_eq!(breaker.shown_to(3, now), Shown::Open(OPEN_MIN));
    }
    // A request cannot cause a failure to connect, so this failure opens the breaker for all callers.
    let breaker = opened_by(Away, &[ANN], now);
    assert_eq!(breaker.shown_to(BOB, now), Shown::Open(OPEN_MIN));
}

#[tokio::test(start_paused = true)]
async fn failure_after_an_outage_reopens_the_breaker_despite_another_callers_success() {
    let now = Instant::now();
    let mut breaker = opened_by(Answered, &[ANN, BOB], now);
    let later = now + OPEN_MIN;
    let probe = breaker.pass(BOB, later).unwrap();
    breaker.began(probe);
    let pass = breaker.pass(ANN, later).unwrap();
    breaker.failed(pass, Answered, later, 255);
    assert_eq!(breaker.shown_to(ANN, later), Shown::Open(2 * OPEN_MIN));
    assert_eq!(breaker.shown_to(BOB, later), Shown::Closed);
}

#[tokio::test(start_paused = true)]
async fn reachable_vendor_is_always_tried_as_a_last_resort_despite_its_open_breaker() {
    let now = Instant::now();
    let mut breaker = opened_by(Answered, &[ANN, BOB], now);
    for _ in 0..1000 {
        assert_eq!(breaker.pass(ANN, now), None);
        let pass = breaker.last_resort(ANN, true, now).unwrap();
        breaker.failed(pass, Answered, now, 255);
    }
    assert_eq!(breaker.shown(now), Shown::Open(OPEN_MIN), "no longer");
    assert_eq!(
        breaker.last_resort(ANN, false, now),
        None,
        "retries do not multiply calls"
    );
    let pass = breaker.last_resort(BOB, true, now).unwrap();
    breaker.began(pass);
    assert_eq!(breaker.shown(now), Shown::Closed);
}

#[tokio::test(start_paused = true)]
async fn unreachable_vendor_is_tried_as_a_last_resort_four_times_a_second() {
    for trouble in [Away, Silent] {
        let mut now = Instant::now();
        let mut breaker = opened_by(trouble, &[ANN, BOB], now);
        for wait in [1, 2, 4] {
            // One call per interval is admitted, however long the breaker stays open and however many calls failed
            // before.
            for _ in 0..wait * 4 {
                assert_eq!(breaker.last_resort(ANN, true, now), None);
                assert!(breaker.last_resort_in(now) <= PROBE_EVERY);
                now += PROBE_EVERY;
                assert!(breaker.last_resort(ANN, true, now).is_some());
            }
            now += OPEN_MAX;
            let probe = breaker.pass(ANN, now).unwrap();
            breaker.failed(probe, trouble, now, 255);
        }
        now += PROBE_EVERY;
        let pass = breaker.last_resort(BOB, true, now).unwrap();
        breaker.began(pass);
        assert_eq!(breaker.shown(now), Shown::Closed, "all calls are admitted");
    }
    // Once a call's connection was made, other calls are admitted without waiting for that call's response.
    let now = Instant::now();
    let mut breaker = opened_by(Away, &[ANN], now);
    breaker.reached();
    assert!(breaker.last_resort(BOB, true, now).is_some());
}

#[tokio::test(start_paused = true)]
async fn vendor_that_lacks_the_model_is_paused_for_the_caller_and_no_failure_is_counted() {
    let now = Instant::now();
    let mut breaker = Breaker::default();
    let pass = breaker.pass(ANN, now).unwrap();
    breaker.lacks(pass, now);
    assert!(breaker.is_lacking());
    assert_eq!(breaker.failures(), 0);
    assert_eq!(breaker.shown_to(ANN, now), Shown::Open(LACKING_REST));
    assert_eq!(
        breaker.shown_to(BOB, now),
        Shown::Closed,
        "this caller's request may be the cause"
    );
    let pass = breaker.pass(BOB, now).unwrap();
    breaker.lacks(pass, now);
    assert_eq!(breaker.shown_to(3, now), Shown::Open(LACKING_REST));
    assert!(breaker.last_resort(3, true, now).is_some());
    // A later 404 pauses the route again, for the same time as the first 404.
    let later = now + LACKING_REST;
    let probe = breaker.pass(3, later).unwrap();
    breaker.lacks(probe, later);
    assert_eq!(breaker.shown_to(ANN, later), Shown::Open(LACKING_REST));

    let pass = breaker.last_resort(ANN, true, later).unwrap();
    breaker.began(pass);
    assert!(!breaker.is_lacking());
    assert_eq!(
        (breaker.shown(later), breaker.failures()),
        (Shown::Closed, 0)
    );

    let pass = breaker.pass(ANN, later).unwrap();
    breaker.lacks(pass, later);
    let pass = breaker.pass(BOB, later).unwrap();
    breaker.failed(pass, Answered, later, 255);
    assert_eq!(
        (breaker.shown_to(ANN, later), breaker.failures()),
        (Shown::Closed, 1),
        "the vendor has the model, and failed once"
    );
}
