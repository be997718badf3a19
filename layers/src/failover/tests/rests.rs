//! Tests that routes and API keys are paused for as long as their vendors state, and that slots are released. Also
//! tests that this state survives a reload of the config and is shown to operators.

use super::*;

#[tokio::test(start_paused = true)]
async fn rate_limited_route_is_paused_for_its_vendors_retry_after() {
    let world = World::new(in_order(), a_fails(|| limit(30)));
    assert!(world.call().await.is_ok());
    advance(Duration::from_secs(29)).await;
    assert!(world.call().await.is_ok());
    let rests_for = world.vendor("a").routes[0].rests_for;
    assert_eq!(rests_for, Some(Duration::from_secs(1)));
    advance(Duration::from_secs(1)).await;
    assert!(world.call().await.is_ok());
    assert_eq!(world.requested(), ["a", "b", "b", "a", "b"]);
    assert_eq!(world.breaker("a"), BreakerState::Closed, "no sickness");

    let endless = World::new(in_order(), a_fails(|| limit(3600)));
    assert!(endless.call().await.is_ok());
    let rests_for = endless.vendor("a").routes[0].rests_for;
    assert_eq!(rests_for, Some(Duration::from_secs(300)), "bounded");
}

#[tokio::test(start_paused = true)]
async fn the_only_route_of_a_model_is_probed_by_one_call_at_a_time_while_it_is_paused() {
    let calls = Mutex::new(VecDeque::from([Fails(limit(30)), Nothing, Fails(limit(7))]));
    let world = World::new(vec![route("a")], move |_| {
        calls.lock().unwrap().pop_front().unwrap_or(Answers)
    });
    assert!(matches!(world.call().await, Err(Error::VendorLimit { .. })));
    let mut waiting = world.call();
    assert!((&mut waiting).now_or_never().is_none());
    advance(Duration::from_secs(5)).await;
    let Err(Error::VendorLimit { retry_after }) = world.call().await else {
        panic!("a second call was admitted");
    };
    assert_eq!(retry_after, Duration::from_secs(25));
    assert_eq!(world.requested(), ["a", "a"]);
    drop(waiting);
    // The caller gets the shorter wait from the vendor's new response, but the route is not paused for a shorter time.
    let Err(Error::VendorLimit { retry_after }) = world.call().await else {
        panic!("the slot was not released");
    };
    assert_eq!(retry_after, Duration::from_secs(7));
    let rests_for = world.vendor("a").routes[0].rests_for;
    assert_eq!(rests_for, Some(Duration::from_secs(25)));
    // After a complete response, the route is used as before.
    assert!(world.call().await.is_ok());
    assert_eq!(world.vendor("a").routes[0].rests_for, None);
}

#[tokio::test(start_paused = true)]
async fn call_during_a_probe_of_the_only_route_of_a_model_gets_the_reason_for_the_routes_pause() {
    let asks_for_time = || {
        Error::VendorUnavailable(Box::new(VendorAnswered {
            status: StatusCode::SERVICE_UNAVAILABLE,
            text: String::new(),
            retry_after: Some(Duration::from_secs(9)),
        }))
    };
    type Make = fn() -> Error;
    let cases: [(Make, Make); 3] = [
        (|| limit(9), || limit(9)),
        (asks_for_time, || Error::RoutesOut {
            retry_after: Duration::from_secs(9),
        }),
        (key_refused, || Error::RoutesOut {
            retry_after: Duration::from_secs(30),
        }),
    ];
    for (reported, returned) in cases {
        let first = Mutex::new(Some(Fails(reported())));
        let world = World::new(vec![route("a")], move |_| {
            first.lock().unwrap().take().unwrap_or(Nothing)
        });
        assert!(world.call().await.is_err());
        let mut trying = world.call();
        assert!((&mut trying).now_or_never().is_none());
        let error = world.call().await.unwrap_err();
        assert_eq!(format!("{error:?}"), format!("{:?}", returned()));
    }
}

#[tokio::test(start_paused = true)]
async fn vendor_keys_are_used_in_turn_and_a_refused_key_is_skipped() {
    let world = World::new(vec![with_keys("a")], |_| Answers);
    for _ in 0..4 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.requested(), ["a#0", "a#1", "a#0", "a#1"]);

    let world = World::new(vec![with_keys("a")], |attempt| match attempt.credential {
        0 => Fails(key_refused()),
        _ => Answers,
    });
    for _ in 0..3 {
        assert!(world.call().await.is_ok(), "nobody notices");
    }
    assert_eq!(world.requested(), ["a#0", "a#1", "a#1", "a#1"]);
    let vendor = world.vendor("a");
    assert_eq!((vendor.keys, vendor.keys_parked), (2, 1));
    advance(Duration::from_secs(300)).await;
    for _ in 0..2 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(
        world.requested(),
        ["a#0", "a#1", "a#1"],
        "tried again, and parked"
    );
}

#[tokio::test(start_paused = true)]
async fn vendor_key_at_its_limit_leaves_the_vendors_other_key_usable() {
    let world = World::new(vec![with_keys("a")], |attempt| match attempt.credential {
        0 => Fails(limit(60)),
        _ => Answers,
    });
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.requested(), ["a#0", "a#1", "a#1", "a#1"]);
    assert_eq!(
        world.vendor("a").routes[0].rests_for,
        None,
        "not as a whole"
    );
}

#[tokio::test(start_paused = true)]
async fn vendor_at_its_connection_limit_is_skipped_until_a_stream_ends() {
    let full = |name: &str| with_vendor(name, |vendor| vendor.connections_max = 1);
    let second = Route {
        priority: 1,
        ..full("b")
    };
    let world = World::new(vec![full("a"), second], |_| Streams(None));
    let first = world.call().await.unwrap();
    let second = world.call().await.unwrap();
    assert!(matches!(world.call().await, Err(Error::Overloaded)));
    assert_eq!(world.requested(), ["a", "b"]);
    drop(second);
    drop(world.call().await.unwrap());
    drop(first);
    drop(world.call().await.unwrap());
    assert_eq!(world.requested(), ["b", "a"]);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn plain_response_releases_its_connection_slot_before_the_client_reads_it() {
    let lone = with_vendor("a", |vendor| vendor.connections_max = 1);
    let world = World::new(vec![lone], |_| Answers);
    let answer = world.call().await.unwrap();
    assert!(world.is_idle());
    assert_eq!(read(Ok(answer)).await.unwrap(), "onetwo");
}

#[tokio::test(start_paused = true)]
async fn call_dropped_at_any_await_releases_its_route_and_vendor_slots() {
    let world = World::new(in_order(), |_| Nothing);
    world.call_and_leave();
    assert_eq!(world.requested(), ["a"]);
    assert!(world.is_idle(), "the call is dropped before its first poll");
    // The call is dropped while its first attempt waits for the first byte, while its second attempt does, and after
    // each frame of the body.
    for polls in 0..3 {
        let world = World::new(in_order(), |attempt| match &*attempt.route.vendor.name {
            "a" => Stalls(1),
            _ => Nothing,
        });
        let mut call = world.call();
        for _ in 0..polls {
            assert!((&mut call).now_or_never().is_none());
            advance(Duration::from_secs(2)).await;
        }
        drop(call);
        assert!(world.is_idle(), "{polls}");
    }
    for frames in 0..=2 {
        let world = World::new(in_order(), |_| Streams(Some(End::Finished)));
        let mut body = world.call().await.unwrap().into_body();
        for _ in 0..frames {
            assert!(body.frame().await.unwrap().is_ok());
        }
        assert!(!world.is_idle());
        drop(body);
        assert!(world.is_idle(), "{frames}");
    }
    let world = World::new(in_order(), |_| Streams(Some(End::Finished)));
    let mut body = world.call().await.unwrap().into_body();
    while body.frame().await.is_some() {}
    assert!(
        world.is_idle(),
        "the answer has ended, and its body is kept"
    );
}

#[tokio::test(start_paused = true)]
async fn vendor_can_be_disabled_and_enabled_by_the_operator() {
    let world = World::new(in_order(), |_| Streams(None));
    let running = world.call().await.unwrap();
    assert!(world.health.enable("a", false));
    assert!(!world.health.enable("nobody", false));
    drop(world.call().await.unwrap());
    assert_eq!(world.requested(), ["a", "b"]);
    assert_eq!(world.vendor("a").in_flight, 1, "running calls continue");
    assert!(world.health.enable("b", false));
    assert!(matches!(world.call().await, Err(Error::RoutesOut { .. })));
    // The configuration is reloaded.
    world.health.follow(&world.routes);
    assert!(world.vendor("a").disabled);
    assert!(world.health.enable("a", true));
    drop(world.call().await.unwrap());
    assert_eq!(world.requested(), ["a"]);
    drop(running);
    assert!(world.is_idle());
}

/// Sends calls in all three formats; the vendor `a` supports two of them.
#[tokio::test(start_paused = true)]
async fn formats_of_one_vendor_share_its_breaker_and_connection_limit_and_key_pauses() {
    let formats = [Format::Chat, Format::Messages, Format::Responses];
    let speaking_two = || {
        with_vendor("a", |vendor| {
            vendor.format = Format::Messages;
            let keys = ["one", "two"];
            vendor.credentials = keys.map(HeaderValue::from_static).into();
            vendor.connections_max = 1;
            let keys = keys.map(|key| Format::Chat.credential(key).unwrap());
            let endpoint = vendor.endpoint.clone();
            *vendor = vendor.clone().also(Format::Chat, endpoint, keys);
        })
    };
    let call = |world: &World, format: Format| {
        let mut req = world.request("x");
        let call = &mut req.body_mut().call;
        Arc::get_mut(call).unwrap().format = format;
        world.service.clone().oneshot(req)
    };
    let spoken = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&spoken);
    let world = World::new(vec![speaking_two()], move |attempt| {
        seen.lock().unwrap().push(attempt.route.vendor.format);
        match attempt.credential {
            0 => Fails(key_refused()),
            _ => Streams(None),
        }
    });
    for format in formats {
        let running = call(&world, format).await.unwrap();
        let full = call(&world, Format::Chat).await;
        assert!(matches!(full, Err(Error::Overloaded)), "{format:?}");
        drop(running);
    }
    // The rejected API key was used only once, although the calls were sent in two formats.
    assert_eq!(world.requested(), ["a#0", "a#1", "a#1", "a#1"]);
    let (chat, messages) = (Format::Chat, Format::Messages);
    assert_eq!(*spoken.lock().unwrap(), [chat, chat, messages, messages]);
    assert_eq!(world.vendor("a").routes.len(), 1);

    let world = World::new(vec![speaking_two()], |_| Fails(down()));
    for format in formats.into_iter().cycle().take(5) {
        assert_eq!(world.breaker("a"), BreakerState::Closed);
        assert!(call(&world, format).await.is_err());
    }
    assert_eq!(world.breaker("a"), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn reload_keeps_the_health_only_of_unchanged_routes() {
    let world = World::new(in_order(), |_| Fails(down()));
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    let running = world.health.clone();
    let larger = with_vendor("a", |vendor| {
        vendor.connections_max = 7;
        vendor.credentials.push(HeaderValue::from_static("two"));
    });
    running.follow(&[Arc::new(larger), Arc::new(route("c"))]);
    let all = running.snapshot();
    let names: Vec<&str> = all.iter().map(|vendor| &*vendor.name).collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(all[0].routes[0].breaker, BreakerState::Open);
    assert_eq!((all[0].connections_max, all[0].keys), (7, 2));
    let other = Route {
        model: "m-2".into(),
        ..route("a")
    };
    running.follow(&[Arc::new(other)]);
    let all = running.snapshot();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].routes.len(), 1);
    assert_eq!(all[0].routes[0].model, "m-2");
    assert_eq!(all[0].routes[0].breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn latest_error_of_a_vendor_is_kept_with_its_status() {
    type Make = fn() -> Error;
    let cases: [(Make, Option<StatusCode>); 6] = [
        (|| answered(404), Some(StatusCode::NOT_FOUND)),
        (|| answered(500), Some(StatusCode::INTERNAL_SERVER_ERROR)),
        (|| limit(5), Some(StatusCode::TOO_MANY_REQUESTS)),
        (key_refused, Some(StatusCode::UNAUTHORIZED)),
        (down, None),
        (silent, None),
    ];
    for (error, status) in cases {
        let first = Mutex::new(Some(Fails(error())));
        let world = World::new(vec![route("a")], move |_| {
            first.lock().unwrap().take().unwrap_or(Answers)
        });
        assert!(world.call().await.is_err());
        advance(Duration::from_secs(400)).await;
        assert!(world.call().await.is_ok());
        let ago = Duration::from_secs(400);
        let last = world.vendor("a").routes[0].last_error;
        assert_eq!(last, Some(LastError { ago, status }), "{:?}", error());
    }

    let world = World::new(vec![route("a")], |_| Streams(Some(End::VendorCut)));
    assert!(read(world.call().await).await.is_err());
    let last = world.vendor("a").routes[0].last_error;
    assert_eq!(
        last.map(|last| last.status),
        Some(None),
        "a stream that was cut"
    );

    // The vendor did not cause these errors, so they are not shown as errors of the vendor.
    let cases: [Make; 3] = [
        unfit,
        || Error::Internal("bug".into()),
        || Error::VendorRefused {
            status: StatusCode::BAD_REQUEST,
            text: String::new(),
            too_long: false,
        },
    ];
    for error in cases {
        let world = World::new(vec![route("a")], move |_| Fails(error()));
        assert!(world.call().await.is_err());
        assert_eq!(
            world.vendor("a").routes[0].last_error,
            None,
            "{:?}",
            error()
        );
    }
}
