//! Sends requests that are not model calls, for example for OAuth tokens, through a vendor's proxy and with the
//! certificate authorities that the vendor's configuration names.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use tokio::time::{Instant, timeout_at};

use super::{clients::VendorClient, request::RequestBody};
use crate::{error::BoxError, model::Egress, usage::Meter};

/// The maximum size of a response, in bytes.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// A client that uses the proxy, certificate authorities and connect timeout of an [`Egress`]. It has its own pool of
/// connections.
#[derive(Clone)]
pub struct EgressClient(VendorClient);

impl EgressClient {
    /// Creates the client of an egress. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// An error if the proxy or a certificate of the egress is invalid.
    pub fn new(egress: &Egress) -> Result<Self, BoxError> {
        VendorClient::new(egress).map(Self)
    }

    /// Sends a request to its absolute URL, and returns the complete response. Redirects are not followed.
    ///
    /// # Errors
    /// An error if there is no response within `time_max`, or if the response is longer than 256 KiB.
    pub async fn send(
        &self,
        req: Request<Bytes>,
        time_max: Duration,
    ) -> Result<Response<Bytes>, BoxError> {
        let now = Instant::now();
        let until = now + time_max;
        let late = || BoxError::from("no response in time");
        let address = req.uri().clone();
        let req = Box::new(req.map(|body| RequestBody::new(body.into(), Meter::default())));
        let res = self.0.send(&address, req, now, until).await?;
        let (parts, body) = res.ok_or_else(late)?.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect();
        let body = timeout_at(until, body).await.map_err(|_| late())??;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }
}

debug_fields!(impl[] EgressClient {});
