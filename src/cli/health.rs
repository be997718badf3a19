//! `tollgate health`: reports whether a gateway should get calls. If it should not, a supervisor can restart the
//! gateway, and a load balancer can send calls to other gateways.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{client::Client, failure::Failure, show};

/// Time between two requests to a gateway that is not ready.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn health(url: Option<&str>, wait_seconds: u64) -> Result<(), Failure> {
    let client = Client::without_key(url, "--url")?;
    let until = Instant::now() + Duration::from_secs(wait_seconds);
    while let Err(failure) = client.ready().await {
        if !matches!(failure, Failure::OutOfReach(_)) || Instant::now() >= until {
            return Err(failure);
        }
        sleep(INTERVAL).await;
    }
    show::write("ready\n")
}
