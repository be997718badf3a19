//! A vendor with one answer, after a while. It runs on one thread and does as little as it can.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::{runtime, time::sleep};

use crate::{
    fixtures::{
        chat_answer,
        vendor::{listen, serve},
    },
    role,
};

/// Runs the vendor, which takes so long for each answer.
pub(crate) fn play(time: Duration) -> anyhow::Result<()> {
    role::play(&mut runtime::Builder::new_current_thread(), async {
        let (listener, address) = listen().await?;
        let ready = chat_answer(400);
        role::say("address", &address);
        role::ready();
        let answer = move |req| answer(ready.clone(), time, req);
        tokio::select! {
            served = serve(listener, answer) => served,
            () = role::until_told_to_stop() => Ok(()),
        }
    })
}

async fn answer(
    ready: Bytes,
    time: Duration,
    req: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    // A connection is used again only when the request was read to its end.
    let mut body = req.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    if !time.is_zero() {
        sleep(time).await;
    }
    let mut res = Response::new(Full::new(ready));
    res.headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(res)
}
