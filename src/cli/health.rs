//! `tollgate health`: whether a gateway should get calls, for whoever restarts or routes around it.

use super::{client::Client, failure::Failure, show};

pub(super) async fn health(url: Option<&str>) -> Result<(), Failure> {
    Client::without_key(url, "--url")?.ready().await?;
    show::write("ready\n")
}
