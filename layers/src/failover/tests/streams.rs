//! Behind the first byte it does not, and its end says how the vendor is.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_begun_is_never_begun_again_and_its_cut_counts() {
    let world = World::new(in_order(), |attempt| match &*attempt.route.vendor.name {
        "a" => Streams(Some(End::VendorCut)),
        _ => Answers,
    });
    for _ in 0..5 {
        assert_eq!(world.breaker("a"), BreakerState::Closed);
        assert!(read(world.call().await).await.is_err());
        assert_eq!(world.asked(), ["a"]);
    }
    assert_eq!(world.breaker("a"), BreakerState::Open);
    assert!(read(world.call().await).await.is_ok());
    assert_eq!(world.asked(), ["b"]);
}

/// It may be about what the caller asked for.
#[tokio::test(start_paused = true)]
async fn an_error_inside_a_stream_that_was_begun_shuts_no_route() {
    let world = World::new(in_order(), |_| Streams(Some(End::VendorError)));
    for _ in 0..20 {
        assert!(read(world.call().await).await.is_err());
        assert_eq!(world.asked(), ["a"]);
    }
    assert_eq!(world.breaker("a"), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_a_stream_says_nothing_about_the_vendor() {
    let world = World::new(in_order(), |_| Streams(None));
    for _ in 0..20 {
        drop(world.call().await.unwrap());
    }
    let route = &world.vendor("a").routes[0];
    assert_eq!((route.breaker, route.failures), (BreakerState::Closed, 0));
    assert!(world.is_idle());
}
