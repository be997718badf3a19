//! `tollgate health`: reports whether a gateway should get calls. Supervisors use it to restart a gateway, and
//! balancers to route around it.

use super::{client::Client, failure::Failure, show};

pub(super) async fn health(url: Option<&str>) -> Result<(), Failure> {
    Client::without_key(url, "--url")?.ready().await?;
    show::write("ready\n")
}
