//! Tests that a call is not retried after the first byte, and that the end of its stream is recorded in the route's
//! health.

use super::*;

#[tokio::test(start_paused = true)]
async fn stream_that_breaks_off_is_not_retried_and_counts_as_a_vendor_failure() {
    let world = World::new(in_order(), |attempt| match &*attempt.route.vendor.name {
        "a" => Streams(Some(End::VendorCut)),
        _ => Answers,
    });
    for _ in 0..5 {
        assert_eq!(world.breaker("a"), BreakerState::Closed);
        assert!(read(world.call().await).await.is_err());
        assert_eq!(world.requested(), ["a"]);
    }
    assert_eq!(world.breaker("a"), BreakerState::Open);
    assert!(read(world.call().await).await.is_ok());
    assert_eq!(world.requested(), ["b"]);
}

/// A caller's request may have caused the error event, so it must not open the breaker.
#[tokio::test(start_paused = true)]
async fn error_event_within_a_stream_does_not_open_the_breaker() {
    let world = World::new(in_order(), |_| Streams(Some(End::VendorError)));
    for _ in 0..20 {
        assert!(read(world.call().await).await.is_err());
        assert_eq!(world.requested(), ["a"]);
    }
    assert_eq!(world.breaker("a"), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn client_that_leaves_a_stream_does_not_affect_the_vendors_health() {
    let world = World::new(in_order(), |_| Streams(None));
    for _ in 0..20 {
        drop(world.call().await.unwrap());
    }
    let route = &world.vendor("a").routes[0];
    assert_eq!((route.breaker, route.failures), (BreakerState::Closed, 0));
    assert!(world.is_idle());
}
