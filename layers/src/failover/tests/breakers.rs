//! Routes that fail are left alone, for whom it helps, and looked at again.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sick_route_is_left_alone_and_one_call_looks_whether_it_is_back() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(in_order(), move |attempt| {
        match (&*attempt.route.vendor.name, *is_sick.lock().unwrap()) {
            ("a", true) => Fails(down()),
            ("a", false) => Nothing,
            _ => Answers,
        }
    });
    for _ in 0..5 {
        assert!(world.call().await.is_ok());
    }
    world.asked();
    assert!(world.call().await.is_ok());
    assert_eq!(world.asked(), ["b"]);
    let open_for = world.vendor("a").routes[0].open_for.unwrap();
    assert!(open_for <= Duration::from_secs(1) && open_for >= Duration::from_millis(500));

    advance(Duration::from_secs(1)).await;
    assert_eq!(world.breaker("a"), BreakerState::HalfOpen);
    assert!(
        world.call().await.is_ok(),
        "the probe's failure is not noticed"
    );
    assert_eq!(world.asked(), ["a", "b"]);
    assert_eq!(world.breaker("a"), BreakerState::Open);

    advance(Duration::from_secs(2)).await;
    *sick.lock().unwrap() = false;
    let mut probe = world.call();
    assert!((&mut probe).now_or_never().is_none());
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a", "b", "b", "b"], "exactly one probe");
    // Its client leaves: the next call is the probe.
    drop(probe);
    world.call_and_leave();
    assert_eq!(world.asked(), ["a"]);
    let mut probe = world.call();
    assert!((&mut probe).now_or_never().is_none());
    assert_eq!(world.asked(), ["a"]);
    drop(probe);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_answered_lets_everybody_in() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(in_order(), move |attempt| {
        match (&*attempt.route.vendor.name, *is_sick.lock().unwrap()) {
            ("a", true) => Fails(down()),
            _ => Streams(None),
        }
    });
    for _ in 0..5 {
        drop(world.call().await.unwrap());
    }
    *sick.lock().unwrap() = false;
    advance(Duration::from_secs(1)).await;
    world.asked();
    // The probe's stream goes on.
    let streams = [
        world.call().await.unwrap(),
        world.call().await.unwrap(),
        world.call().await.unwrap(),
    ];
    assert_eq!(world.asked(), ["a", "a", "a"]);
    assert_eq!(world.vendor("a").in_flight, 3);
    drop(streams);
    assert!(world.is_idle());
}

/// It takes each request, sends the head of a stream, and is silent: what goes on behind that is a sign of life of our own.
#[tokio::test(start_paused = true)]
async fn a_probe_whose_vendor_says_nothing_lets_nobody_in() {
    let end = Arc::new(Mutex::new(None));
    let ends = Arc::clone(&end);
    let world = World::new(in_order(), move |attempt| {
        match (&*attempt.route.vendor.name, *ends.lock().unwrap()) {
            ("a", None) => Fails(down()),
            ("a", Some(end)) => Idles(end),
            _ => Answers,
        }
    });
    for _ in 0..5 {
        drop(world.call().await.unwrap());
    }
    for ended in [Some(End::VendorCut), Some(End::Finished)] {
        *end.lock().unwrap() = Some(ended);
        advance(Duration::from_secs(3)).await;
        world.asked();
        let probe = world.call().await.unwrap();
        for _ in 0..3 {
            drop(world.call().await.unwrap());
        }
        assert_eq!(world.asked(), ["a", "b", "b", "b"]);
        assert_eq!(read(Ok(probe)).await.is_ok(), ended == Some(End::Finished));
        drop(world.call().await.unwrap());
        let next = if ended == Some(End::Finished) {
            "a"
        } else {
            "b"
        };
        assert_eq!(world.asked(), [next], "{ended:?}");
    }
    assert!(world.is_idle());
}

/// A model that thinks for longer than a head is waited with.
#[tokio::test(start_paused = true)]
async fn a_probe_whose_vendor_speaks_late_lets_everybody_in_then() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(in_order(), move |attempt| {
        match (&*attempt.route.vendor.name, *is_sick.lock().unwrap()) {
            ("a", true) => Fails(down()),
            ("a", false) => Idles(None),
            _ => Answers,
        }
    });
    for _ in 0..5 {
        drop(world.call().await.unwrap());
    }
    *sick.lock().unwrap() = false;
    advance(Duration::from_secs(1)).await;
    world.asked();
    let mut probe = world.call().await.unwrap().into_body();
    for asked in ["b", "a"] {
        probe.frame().await.unwrap().unwrap();
        drop(world.call().await.unwrap());
        assert_eq!(world.asked().last().unwrap(), asked);
    }
    assert_eq!(world.breaker("a"), BreakerState::Closed);
    drop(probe);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn when_none_can_be_reached_each_is_tried_four_times_a_second_and_others_are_told_when() {
    let world = World::new(in_order(), |_| Fails(down()));
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    world.asked();
    for _ in 0..100 {
        let Err(Error::RoutesOut { retry_after }) = world.call().await else {
            panic!("somebody was asked");
        };
        assert!(world.asked().is_empty());
        assert!(retry_after <= Duration::from_millis(250), "{retry_after:?}");
        advance(retry_after).await;
        let refused = world.call().await;
        assert!(matches!(refused, Err(Error::VendorUnavailable(_))));
        assert_eq!(world.asked().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_route_is_never_shut_by_what_its_vendor_answers() {
    type Make = fn() -> Does;
    let cases: [Make; 4] = [
        || Fails(answered(500)),
        || Fails(Error::VendorBroken("html".into())),
        || Fails(answered(404)),
        || Streams(Some(End::VendorCut)),
    ];
    for does in cases {
        let world = World::new(vec![route("a")], move |attempt| {
            if is_of(attempt, "well") {
                Answers
            } else {
                does()
            }
        });
        for number in 0..20 {
            let call = world.call_of(["one", "two", "three"][number % 3]).await;
            assert!(read(call).await.is_err());
            assert_eq!(world.asked(), ["a"], "{:?}: each call is asked", does());
        }
        assert!(world.call_of("well").await.is_ok(), "{:?}", does());
        assert!(world.is_idle());
    }
}

#[tokio::test(start_paused = true)]
async fn one_callers_requests_take_no_route_from_another() {
    type Make = fn() -> Does;
    let cases: [Make; 5] = [
        || Fails(answered(500)),
        || Fails(silent()),
        || Fails(Error::VendorBroken("html".into())),
        || Fails(answered(404)),
        || Streams(Some(End::VendorCut)),
    ];
    for does in cases {
        let world = World::new(in_order(), move |attempt| {
            if is_of(attempt, "poison") && &*attempt.route.vendor.name == "a" {
                does()
            } else {
                Answers
            }
        });
        for _ in 0..20 {
            let _ = read(world.call_of("poison").await).await;
        }
        world.asked();
        assert!(world.call_of("poison").await.is_ok());
        assert_eq!(world.asked(), ["b"], "{:?}: it fails over at once", does());
        for key in ["one", "two"] {
            assert!(world.call_of(key).await.is_ok());
            assert_eq!(world.asked(), ["a"], "{:?}, {key}", does());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_two_callers_meet_shuts_a_route_for_all_that_have_another() {
    let world = World::new(in_order(), a_fails(|| answered(500)));
    for key in ["one", "two", "one", "two", "one"] {
        assert!(world.call_of(key).await.is_ok());
    }
    world.asked();
    assert!(world.call_of("three").await.is_ok());
    assert_eq!(world.asked(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn of_several_that_are_shut_the_one_that_answers_is_found() {
    let well = Arc::new(Mutex::new(""));
    let which = Arc::clone(&well);
    let world = World::new(in_order(), move |attempt| {
        if *attempt.route.vendor.name == **which.lock().unwrap() {
            Answers
        } else {
            Fails(answered(500))
        }
    });
    for _ in 0..20 {
        assert!(world.call().await.is_err());
    }
    for name in ["b", "a"] {
        *well.lock().unwrap() = name;
        world.asked();
        let mut calls = 1_usize;
        while world.call().await.is_err() {
            calls += 1;
            advance(Duration::from_millis(100)).await;
            assert!(calls < 20, "{name} is asked at last");
        }
        // Sick vendors are not sent a multiple of the calls.
        assert!(world.asked().len() <= calls + calls.div_ceil(2));
        assert_eq!(world.breaker(name), BreakerState::Closed);
        // Back to where both are shut.
        *well.lock().unwrap() = "";
        for _ in 0..20 {
            assert!(world.call().await.is_err());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn once_a_vendor_is_reached_again_nobody_waits_for_its_first_answer() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(vec![route("a")], move |attempt| {
        if *is_sick.lock().unwrap() {
            return Fails(down());
        }
        // It thinks.
        attempt.priced.meter.dispatched();
        Nothing
    });
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    *sick.lock().unwrap() = false;
    assert!(matches!(world.call().await, Err(Error::RoutesOut { .. })));
    advance(Duration::from_millis(250)).await;
    world.asked();
    let mut calls = [world.call(), world.call(), world.call()];
    for call in &mut calls {
        assert!(call.now_or_never().is_none());
    }
    assert_eq!(world.asked(), ["a", "a", "a"]);
    drop(calls);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_vendor_that_was_passed_by_is_not_reached_by_what_the_next_one_is_sent() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(in_order(), move |attempt| {
        if *is_sick.lock().unwrap() {
            return Fails(down());
        }
        if &*attempt.route.vendor.name == "a" {
            return Fails(unfit());
        }
        attempt.priced.meter.dispatched();
        Nothing
    });
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    *sick.lock().unwrap() = false;
    advance(Duration::from_millis(250)).await;
    world.asked();
    // Both are shut, and its last resort.
    let mut first = world.call();
    assert!((&mut first).now_or_never().is_none());
    assert_eq!(world.asked(), ["a", "b"]);
    let mut second = world.call();
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(
        world.asked(),
        ["b"],
        "nobody knows yet that a can be reached"
    );
    drop((first, second));
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_vendor_without_the_model_rests_and_is_no_outage() {
    let world = World::new(in_order(), a_fails(|| answered(404)));
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a", "b", "b", "b"]);
    let route = &world.vendor("a").routes[0];
    assert!(route.model_unknown);
    assert_eq!((route.breaker, route.failures), (BreakerState::Closed, 0));
    assert_eq!(route.rests_for, Some(Duration::from_secs(30)));
    advance(Duration::from_secs(30)).await;
    for _ in 0..2 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a", "b", "b"], "now and then");
    assert!(world.vendor("a").routes[0].model_unknown);

    // The operator has mended it, or the vendor has.
    let first = Mutex::new(Some(Fails(answered(404))));
    let world = World::new(vec![self::route("a")], move |_| {
        first.lock().unwrap().take().unwrap_or(Answers)
    });
    assert!(world.call().await.is_err());
    assert!(world.vendor("a").routes[0].model_unknown);
    assert!(world.call().await.is_ok());
    let route = &world.vendor("a").routes[0];
    assert!(!route.model_unknown);
    assert_eq!(route.rests_for, None);
}
