//! Tests that calls with another route skip a failing route, and that the failing route is probed later.

use super::*;

#[tokio::test(start_paused = true)]
async fn failing_route_is_skipped_and_then_probed_by_one_call() {
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
    world.requested();
    assert!(world.call().await.is_ok());
    assert_eq!(world.requested(), ["b"]);
    let open_for = world.vendor("a").routes[0].open_for.unwrap();
    assert!(open_for <= Duration::from_secs(1) && open_for >= Duration::from_millis(500));

    advance(Duration::from_secs(1)).await;
    assert_eq!(world.breaker("a"), BreakerState::HalfOpen);
    assert!(
        world.call().await.is_ok(),
        "the probe's failure is not noticed"
    );
    assert_eq!(world.requested(), ["a", "b"]);
    assert_eq!(world.breaker("a"), BreakerState::Open);

    advance(Duration::from_secs(2)).await;
    *sick.lock().unwrap() = false;
    let mut probe = world.call();
    assert!((&mut probe).now_or_never().is_none());
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.requested(), ["a", "b", "b", "b"], "exactly one probe");
    // The client of the probe disconnects, so the next call becomes the probe.
    drop(probe);
    world.call_and_leave();
    assert_eq!(world.requested(), ["a"]);
    let mut probe = world.call();
    assert!((&mut probe).now_or_never().is_none());
    assert_eq!(world.requested(), ["a"]);
    drop(probe);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn answered_probe_readmits_all_calls() {
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
    world.requested();
    // The response to the probe has begun, so other calls are admitted while its stream is still running.
    let streams = [
        world.call().await.unwrap(),
        world.call().await.unwrap(),
        world.call().await.unwrap(),
    ];
    assert_eq!(world.requested(), ["a", "a", "a"]);
    assert_eq!(world.vendor("a").in_flight, 3);
    drop(streams);
    assert!(world.is_idle());
}

/// The vendor accepts each request, sends the head of a stream, and then sends nothing. All frames after the head are
/// the gateway's keep-alives.
#[tokio::test(start_paused = true)]
async fn probe_readmits_no_other_call_while_its_response_has_no_event() {
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
        world.requested();
        let probe = world.call().await.unwrap();
        for _ in 0..3 {
            drop(world.call().await.unwrap());
        }
        assert_eq!(world.requested(), ["a", "b", "b", "b"]);
        assert_eq!(read(Ok(probe)).await.is_ok(), ended == Some(End::Finished));
        drop(world.call().await.unwrap());
        let next = if ended == Some(End::Finished) {
            "a"
        } else {
            "b"
        };
        assert_eq!(world.requested(), [next], "{ended:?}");
    }
    assert!(world.is_idle());
}

/// The vendor's first event comes after the gateway has forwarded the head, as it does if a model reasons for a long
/// time.
#[tokio::test(start_paused = true)]
async fn probe_readmits_all_calls_once_its_late_response_arrives() {
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
    world.requested();
    let mut probe = world.call().await.unwrap().into_body();
    for requested in ["b", "a"] {
        probe.frame().await.unwrap().unwrap();
        drop(world.call().await.unwrap());
        assert_eq!(world.requested().last().unwrap(), requested);
    }
    assert_eq!(world.breaker("a"), BreakerState::Closed);
    drop(probe);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn if_all_routes_are_unreachable_one_call_per_250_ms_tries_them_and_others_get_retry_after() {
    let world = World::new(in_order(), |_| Fails(down()));
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    world.requested();
    for _ in 0..100 {
        let Err(Error::RoutesOut { retry_after }) = world.call().await else {
            panic!("somebody was asked");
        };
        assert!(world.requested().is_empty());
        assert!(retry_after <= Duration::from_millis(250), "{retry_after:?}");
        advance(retry_after).await;
        let refused = world.call().await;
        assert!(matches!(refused, Err(Error::VendorUnavailable(_))));
        assert_eq!(world.requested().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_only_route_of_a_model_admits_calls_whatever_the_vendor_answers() {
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
            assert_eq!(world.requested(), ["a"], "{:?}: each call is sent", does());
        }
        assert!(world.call_of("well").await.is_ok(), "{:?}", does());
        assert!(world.is_idle());
    }
}

#[tokio::test(start_paused = true)]
async fn route_that_fails_one_callers_requests_stays_available_to_other_callers() {
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
        world.requested();
        assert!(world.call_of("poison").await.is_ok());
        assert_eq!(
            world.requested(),
            ["b"],
            "{:?}: the call fails over at once",
            does()
        );
        for key in ["one", "two"] {
            assert!(world.call_of(key).await.is_ok());
            assert_eq!(world.requested(), ["a"], "{:?}, {key}", does());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_two_callers_move_all_callers_to_another_route() {
    let world = World::new(in_order(), a_fails(|| answered(500)));
    for key in ["one", "two", "one", "two", "one"] {
        assert!(world.call_of(key).await.is_ok());
    }
    world.requested();
    assert!(world.call_of("three").await.is_ok());
    assert_eq!(world.requested(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn route_that_answers_again_is_found_although_all_breakers_are_open() {
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
        world.requested();
        let mut calls = 1_usize;
        while world.call().await.is_err() {
            calls += 1;
            advance(Duration::from_millis(100)).await;
            assert!(calls < 20, "{name} is called in the end");
        }
        // While all vendors fail, retries add at most half as many attempts as there are calls.
        assert!(world.requested().len() <= calls + calls.div_ceil(2));
        assert_eq!(world.breaker(name), BreakerState::Closed);
        // All vendors fail again, so both breakers are open when the next vendor recovers.
        *well.lock().unwrap() = "";
        for _ in 0..20 {
            assert!(world.call().await.is_err());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_reachable_vendor_do_not_wait_for_the_response_to_a_probe() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(vec![route("a")], move |attempt| {
        if *is_sick.lock().unwrap() {
            return Fails(down());
        }
        // The gateway has sent the request, so the vendor is reachable. The response has not arrived yet.
        attempt.priced.meter.dispatched();
        Nothing
    });
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    *sick.lock().unwrap() = false;
    assert!(matches!(world.call().await, Err(Error::RoutesOut { .. })));
    advance(Duration::from_millis(250)).await;
    world.requested();
    let mut calls = [world.call(), world.call(), world.call()];
    for call in &mut calls {
        assert!(call.now_or_never().is_none());
    }
    assert_eq!(world.requested(), ["a", "a", "a"]);
    drop(calls);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn response_of_the_next_vendor_does_not_make_a_skipped_vendor_count_as_reachable() {
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
    world.requested();
    // Both breakers are open, so this call tries a route as a last resort.
    let mut first = world.call();
    assert!((&mut first).now_or_never().is_none());
    assert_eq!(world.requested(), ["a", "b"]);
    let mut second = world.call();
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(
        world.requested(),
        ["b"],
        "no connection to a has been made yet"
    );
    drop((first, second));
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn vendor_without_the_model_is_paused_and_not_reported_as_an_outage() {
    let world = World::new(in_order(), a_fails(|| answered(404)));
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.requested(), ["a", "b", "b", "b"]);
    let route = &world.vendor("a").routes[0];
    assert!(route.model_unknown);
    assert_eq!((route.breaker, route.failures), (BreakerState::Closed, 0));
    assert_eq!(route.rests_for, Some(Duration::from_secs(30)));
    advance(Duration::from_secs(30)).await;
    for _ in 0..2 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.requested(), ["a", "b", "b"], "now and then");
    assert!(world.vendor("a").routes[0].model_unknown);

    // The first response is a 404. Then the operator corrects the model's name, or the vendor adds the model.
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
