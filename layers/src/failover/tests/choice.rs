//! Tests which of several healthy routes a call takes.

use super::*;

#[tokio::test(start_paused = true)]
async fn conversation_of_a_sticky_model_stays_on_its_vendor_until_the_vendor_fails() {
    let mut world = World::new(["a", "b", "c"].map(route).into(), |_| Answers);
    world.sticky = true;
    let ask = async |text: &str| {
        let call = world.service.clone().oneshot(world.request(text));
        call.await.unwrap();
        world.requested().remove(0)
    };
    let mut homes = Vec::new();
    for number in 0..20 {
        let text = format!("conversation {number}");
        let home = ask(&text).await;
        for _ in 0..5 {
            assert_eq!(ask(&text).await, home);
        }
        world.health.enable(&home, false);
        assert_ne!(ask(&text).await, home);
        world.health.enable(&home, true);
        assert_eq!(ask(&text).await, home, "it comes back");
        homes.push(home);
    }
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), 3, "conversations are spread");
}

#[tokio::test(start_paused = true)]
async fn call_takes_the_route_with_fewer_calls_in_flight() {
    let world = World::new(["a", "b", "c", "d"].map(route).into(), |_| Streams(None));
    let mut streams = Vec::new();
    for _ in 0..300 {
        streams.push(world.call().await.unwrap());
    }
    for vendor in world.health.snapshot() {
        let count = vendor.in_flight;
        assert!((70..=80).contains(&count), "{}: {count}", vendor.name);
    }
}
