//! The simplest possible reverse proxy, with which the gateway is compared: a hyper server and a pooled hyper-util
//! client. Bodies are streamed in both directions. The proxy checks no key and no limit, reads no body, and changes no
//! header except `host`.

use std::net::SocketAddr;

use http::{
    Request, Response, Uri,
    header::HOST,
    uri::{Authority, Scheme},
};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::runtime;

use crate::{
    fixtures::vendor::{listen, serve},
    role,
};

/// Runs the bare proxy, which forwards all requests to `vendor`.
pub(crate) fn play(vendor: SocketAddr) -> anyhow::Result<()> {
    role::play(&mut runtime::Builder::new_multi_thread(), async {
        let (listener, address) = listen().await?;
        let authority: Authority = vendor.to_string().parse()?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        role::say("address", &address);
        role::ready();
        let forward = move |req| forward(client.clone(), authority.clone(), req);
        tokio::select! {
            served = serve(listener, forward) => served,
            () = role::until_told_to_stop() => Ok(()),
        }
    })
}

async fn forward(
    client: Client<HttpConnector, Incoming>,
    vendor: Authority,
    mut req: Request<Incoming>,
) -> Result<Response<Incoming>, Error> {
    let mut uri = std::mem::take(req.uri_mut()).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(vendor);
    *req.uri_mut() = Uri::from_parts(uri).expect("a scheme, an authority and a path are a URI");
    // The header `host` is removed here, because hyper's client adds it with the vendor's host.
    req.headers_mut().remove(HOST);
    client.request(req).await
}
