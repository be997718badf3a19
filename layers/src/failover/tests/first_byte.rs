//! Tests that a call is retried at another vendor if a vendor fails before the first byte of a response.

use super::*;

#[tokio::test(start_paused = true)]
async fn call_whose_vendor_fails_before_the_first_byte_is_answered_by_another_vendor() {
    type Fails = fn() -> Error;
    let failures: [(&str, Fails); 9] = [
        ("refused", down),
        ("silent", silent),
        ("limited", || limit(5)),
        ("404", || answered(404)),
        ("500", || answered(500)),
        ("529", || answered(529)),
        ("broken", || Error::VendorBroken("html".into())),
        ("our key", key_refused),
        ("cannot carry it", unfit),
    ];
    for (name, failure) in failures {
        let world = World::new(in_order(), a_fails(failure));
        let req = world.request("x");
        let meter = req.body().meter.clone();
        let answered = world.service.clone().oneshot(req).await;
        assert_eq!(read(answered).await.unwrap(), "onetwo", "{name}");
        assert_eq!(world.requested(), ["a", "b"], "{name}");
        assert_eq!(meter.read().vendor.as_deref(), Some("b"), "{name}");
        assert!(world.is_idle(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn error_caused_by_the_request_is_returned_at_once_and_not_counted_as_a_failure() {
    let refused = |status: StatusCode| Error::VendorRefused {
        status,
        text: String::new(),
        too_long: false,
    };
    for (name, error) in [
        ("400", refused(StatusCode::BAD_REQUEST)),
        ("413", refused(StatusCode::PAYLOAD_TOO_LARGE)),
        ("422", refused(StatusCode::UNPROCESSABLE_ENTITY)),
        ("409", answered(409)),
        ("ours", Error::Internal("bug".into())),
    ] {
        let error = Mutex::new(Some(error));
        let world = World::new(in_order(), move |_| {
            error.lock().unwrap().take().map_or(Answers, Fails)
        });
        assert!(world.call().await.is_err(), "{name}");
        assert_eq!(world.requested(), ["a"], "{name}");
        assert_eq!(world.vendor("a").routes[0].failures, 0, "{name}");
        assert!(world.is_idle(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn if_all_routes_fail_the_most_informative_error_is_returned() {
    type Make = fn() -> Error;
    let cases: [(Make, Make, Make); 8] = [
        (down, silent, down),
        (silent, down, down),
        (|| limit(9), || limit(3), || limit(3)),
        (down, || limit(60), || limit(60)),
        (key_refused, silent, silent),
        (|| answered(404), silent, silent),
        (unfit, down, down),
        (unfit, unfit, unfit),
    ];
    for (of_a, of_b, returned) in cases {
        let world = World::new(in_order(), move |attempt| {
            let is_a = &*attempt.route.vendor.name == "a";
            Fails(if is_a { of_a() } else { of_b() })
        });
        let error = world.call().await.unwrap_err();
        assert_eq!(format!("{error:?}"), format!("{:?}", returned()));
        assert_eq!(world.requested(), ["a", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn without_retry_budget_the_first_error_is_returned() {
    let settings = FailoverSettings {
        budget: BudgetSettings {
            retries_percent: 0,
            retries_per_second: 0,
            retries_max: 1,
        },
        ..FailoverSettings::default()
    };
    let world = World::with(settings, in_order(), a_fails(down));
    assert!(world.call().await.is_ok());
    assert!(matches!(
        world.call().await,
        Err(Error::VendorUnavailable(_))
    ));
    assert_eq!(world.requested(), ["a", "b", "a"]);
    assert!(world.is_idle());

    let world = World::with(settings, in_order(), a_fails(unfit));
    for _ in 0..5 {
        assert!(world.call().await.is_ok(), "no vendor was called in vain");
    }
}

#[tokio::test(start_paused = true)]
async fn number_and_time_of_attempts_are_limited() {
    let many = || ["a", "b", "c", "d", "e", "f"].map(route).into();
    let world = World::new(many(), |_| Fails(down()));
    assert!(world.call().await.is_err());
    assert_eq!(world.requested().len(), 4);

    // After two minutes of silence, there is time for another attempt. After more than two and a half minutes, no time
    // is left.
    for (seconds, requested) in [(120, 2), (151, 1)] {
        let world = World::new(many(), move |_| Stalls(seconds));
        assert!(world.call().await.is_err());
        assert_eq!(world.requested().len(), requested, "{seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn call_of_a_disconnected_client_is_not_retried() {
    let world = World::new(in_order(), |_| Stalls(1));
    let req = world.request("x");
    let meter = req.body().meter.clone();
    let mut call = Box::pin(world.service.clone().oneshot(req));
    assert!((&mut call).now_or_never().is_none());
    meter.update(|reading| reading.client_gone = true);
    assert!(call.await.is_err());
    assert_eq!(world.requested(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn meter_records_whether_the_gateway_would_read_on_if_the_client_disconnected() {
    let mut routes = in_order();
    routes[1] = Route {
        priority: 1,
        ..with_vendor("b", |vendor| vendor.on_disconnect = OnDisconnect::Drain)
    };
    let world = World::new(routes, |attempt| match &*attempt.route.vendor.name {
        "a" => Stalls(1),
        _ => Streams(None),
    });
    let req = world.request("x");
    let meter = req.body().meter.clone();
    let mut call = Box::pin(world.service.clone().oneshot(req));
    assert!((&mut call).now_or_never().is_none());
    assert!(!meter.read().outlives_client);
    let answer = call.await.unwrap();
    assert!(meter.read().outlives_client);
    drop(answer);
}

#[tokio::test(start_paused = true)]
async fn call_to_a_model_without_a_route_fails_with_an_error() {
    let world = World::new(vec![], |_| Answers);
    assert!(matches!(
        world.call().await,
        Err(Error::VendorUnavailable(_))
    ));
}
