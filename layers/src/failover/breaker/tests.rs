//! When a breaker opens and closes, and for whom.

use super::*;

use Trouble::{Answered, Away, Silent};

/// Two callers.
const ANN: u64 = 1;
const BOB: u64 = 2;

fn opened(now: Instant) -> Breaker {
    opened_by(Away, &[ANN], now)
}

/// Shut by failures of these callers in turn.
fn opened_by(trouble: Trouble, callers: &[u64], now: Instant) -> Breaker {
    let mut breaker = Breaker::new();
    for caller in callers.iter().cycle().take(FAILURES_MAX as usize) {
        let pass = breaker.pass(*caller, now).unwrap();
        breaker.failed(pass, trouble, now, 255);
    }
    breaker
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_open_it_and_an_answer_between_them_does_not() {
    let now = Instant::now();
    let mut breaker = Breaker::new();
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
            "a first byte is no end"
        );
        breaker.succeeded(pass);
        assert_eq!(breaker.failures(), 0);
    }
    assert_eq!(
        opened(now).shown(now),
        Shown::Open(OPEN_MIN),
        "five in a row"
    );
}

#[tokio::test(start_paused = true)]
async fn one_probe_is_let_through_when_its_time_is_over() {
    let now = Instant::now();
    let mut breaker = opened(now);
    assert_eq!(breaker.pass(ANN, now), None);
    let later = now + OPEN_MIN;
    assert_eq!(breaker.shown(later), Shown::Due);
    let probe = breaker.pass(ANN, later).unwrap();
    assert_eq!(breaker.pass(ANN, later), None, "exactly one");
    assert!(matches!(breaker.shown(later), Shown::Probing(_)));
    breaker.abandoned(probe, later);
    let probe = breaker.pass(ANN, later).expect("the place is free again");
    breaker.began(probe);
    assert_eq!(breaker.shown(later), Shown::Closed);
    // A stream that is cut behind the first byte of a probe: no second chance.
    breaker.failed(probe, Away, later, 255);
    assert_eq!(breaker.shown(later), Shown::Open(2 * OPEN_MIN));
}

#[tokio::test(start_paused = true)]
async fn each_failed_probe_doubles_the_time_up_to_a_minute_with_jitter() {
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
        "the doubling begins anew"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_from_before_it_opened_say_nothing() {
    let now = Instant::now();
    let mut breaker = Breaker::new();
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
    // An earlier probe's word is not the second one's.
    breaker.failed(first, Away, later, 255);
    breaker.succeeded(first);
    assert!(matches!(breaker.shown(later), Shown::Probing(_)));
    breaker.succeeded(second);
    assert_eq!(breaker.shown(later), Shown::Closed);
}

#[tokio::test(start_paused = true)]
async fn calls_from_before_it_opened_say_nothing_once_it_is_closed_again_either() {
    let now = Instant::now();
    let mut breaker = Breaker::new();
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
    // Nor do they say that all is well.
    let pass = breaker.pass(ANN, later).unwrap();
    breaker.failed(pass, Away, later, 255);
    breaker.succeeded(old[0]);
    assert_eq!(breaker.failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_one_callers_requests_do_shuts_it_for_that_caller_alone() {
    let now = Instant::now();
    for trouble in [Answered, Silent] {
        let mut breaker = opened_by(trouble, &[ANN], now);
        assert_eq!(breaker.shown_to(ANN, now), Shown::Open(OPEN_MIN));
        assert_eq!(breaker.shown_to(BOB, now), Shown::Closed);
        let pass = breaker.pass(BOB, now).unwrap();
        // Of two callers', it is the route.
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
    // No request is to blame for a connection.
    let breaker = opened_by(Away, &[ANN], now);
    assert_eq!(breaker.shown_to(BOB, now), Shown::Open(OPEN_MIN));
}

#[tokio::test(start_paused = true)]
async fn one_caller_does_not_end_the_probation_for_all() {
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
async fn as_a_last_resort_whoever_answers_is_always_asked() {
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
        "a call does not become many"
    );
    let pass = breaker.last_resort(BOB, true, now).unwrap();
    breaker.began(pass);
    assert_eq!(breaker.shown(now), Shown::Closed);
}

#[tokio::test(start_paused = true)]
async fn as_a_last_resort_whoever_cannot_be_reached_is_asked_four_times_a_second() {
    for trouble in [Away, Silent] {
        let mut now = Instant::now();
        let mut breaker = opened_by(trouble, &[ANN, BOB], now);
        for wait in [1, 2, 4] {
            // However long it would be shut by itself, and whether the tries before were answered.
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
        assert_eq!(breaker.shown(now), Shown::Closed, "all are let in");
    }
    // A connection is there: nobody has to wait for its answer.
    let now = Instant::now();
    let mut breaker = opened_by(Away, &[ANN], now);
    breaker.reached();
    assert!(breaker.last_resort(BOB, true, now).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_not_there_rests_and_is_no_failure() {
    let now = Instant::now();
    let mut breaker = Breaker::new();
    let pass = breaker.pass(ANN, now).unwrap();
    breaker.lacks(pass, now);
    assert!(breaker.is_lacking());
    assert_eq!(breaker.failures(), 0);
    assert_eq!(breaker.shown_to(ANN, now), Shown::Open(LACKING_REST));
    assert_eq!(
        breaker.shown_to(BOB, now),
        Shown::Closed,
        "it may be the one's request"
    );
    let pass = breaker.pass(BOB, now).unwrap();
    breaker.lacks(pass, now);
    assert_eq!(breaker.shown_to(3, now), Shown::Open(LACKING_REST));
    assert!(breaker.last_resort(3, true, now).is_some());
    // Not each call, and not for longer and longer.
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
        "it has the model, and fails once"
    );
}
