//! Connections of HTTP/1.1, each driven by the call that has it.
//!
//! hyper-util's client spawns a task for each connection, and a body comes over from it frame by frame:
//! a switch of tasks, and a write to the caller, for each. Here whoever reads the body drives the
//! connection too, so that all frames that have come are there at once, and a call waits for no other task.
//! A connection whose call is dropped is closed; one whose answer has ended waits for the next call.
//!
//! From the top: this client → [`body`] → [`pool`] → [`connection`] → [`alarm`] and [`crate::self_wake`].

mod alarm;
mod body;
mod connection;
mod pool;

use std::{future::poll_fn, sync::Arc, time::Duration};

use http::{
    Response, Uri,
    header::HOST,
    uri::{Authority, PathAndQuery, Scheme},
};
use tokio::time::{Instant, timeout_at};
use tower::Service;

pub(super) use self::{alarm::Alarm, body::DrivenBody};
use self::{
    connection::{Connection, NoHead},
    pool::{Origin, Pool, PooledConnection},
};
use super::{connect::Connector, request::BoxRequest};
use crate::error::BoxError;

/// A pool of connections, and the way to open more.
pub(super) struct Http1Client {
    connector: Connector,
    pool: Arc<Pool>,
}

impl Http1Client {
    pub(super) fn new(connector: Connector, idle_timeout: Duration) -> Self {
        let pool = Pool::new(idle_timeout);
        Self { connector, pool }
    }

    /// Sends a request to an absolute address, `now`; `None` if no head of an answer has come by `until`. One
    /// that no byte of was written, as its connection turned out to be closed, goes over another one.
    ///
    /// # Errors
    /// There is no connection, or it broke before the head of an answer.
    pub(super) async fn send(
        &self,
        address: &Uri,
        mut req: BoxRequest,
        now: Instant,
        until: Instant,
    ) -> Result<Option<Response<DrivenBody>>, BoxError> {
        let (Some(scheme), Some(authority)) = (address.scheme(), address.authority()) else {
            return Err("an address without a host".into());
        };
        let path = address.path_and_query().cloned();
        *req.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        loop {
            let idle = self.pool.take(scheme, authority, now);
            let reused = idle.is_some();
            let mut pooled = match idle {
                Some(pooled) => pooled,
                None => {
                    // Boxed: each call has room for this future, which has a stream in it.
                    let connecting =
                        Box::pin(timeout_at(until, self.connect(address, scheme, authority)));
                    match connecting.await {
                        Ok(pooled) => pooled?,
                        Err(_) => return Ok(None),
                    }
                }
            };
            req.headers_mut().insert(HOST, pooled.origin.host.clone());
            match pooled.connection.exchange(req, until).await {
                Ok(res) => {
                    return Ok(Some(res.map(|incoming| DrivenBody::new(incoming, pooled))));
                }
                Err(NoHead::Late) => return Ok(None),
                Err(NoHead::Broken(_, Some(unsent))) if reused => req = unsent,
                Err(NoHead::Broken(error, _)) => return Err(error.into()),
            }
        }
    }

    async fn connect(
        &self,
        address: &Uri,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Box<PooledConnection>, BoxError> {
        let origin = Origin::new(scheme, authority).ok_or("an address without a host")?;
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let stream = connector.call(address.clone()).await?;
        let retires = stream.retires();
        Ok(Box::new(PooledConnection {
            connection: Connection::open(stream).await?,
            retires,
            pool: Arc::downgrade(&self.pool),
            origin,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpListener},
        pin::pin,
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Wake, Waker},
        thread,
    };

    use bytes::Bytes;
    use http::Request;
    use http_body_util::BodyExt;
    use tokio::task::yield_now;
    use tower::ServiceExt;

    use super::*;
    use crate::{
        call::{Format, Outbound},
        model::{ModelKind, Route, Vendor},
        upstream::{ResponseBody, Upstream},
        usage::Meter,
    };

    /// A vendor that answers a call on each of two connections. Between two waits of the barrier it takes its
    /// leave of the first one and closes it.
    fn vendor(farewell: &'static str) -> (SocketAddr, Arc<Barrier>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let leaves = Arc::new(Barrier::new(2));
        let leaving = Arc::clone(&leaves);
        thread::spawn(move || {
            let answer = || {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut seen, mut buffer) = (Vec::new(), [0; 1024]);
                while !seen.ends_with(b"ping") {
                    let count = stream.read(&mut buffer).unwrap();
                    assert!(count > 0, "it was closed before the request was there");
                    seen.extend_from_slice(&buffer[..count]);
                }
                let pong = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npong";
                stream.write_all(pong).unwrap();
                stream
            };
            let mut first = answer();
            leaving.wait();
            first.write_all(farewell.as_bytes()).unwrap();
            drop(first);
            leaving.wait();
            answer();
        });
        (address, leaves)
    }

    /// A way to that vendor, with connections of its own.
    fn way(address: SocketAddr) -> (Upstream, Arc<Route>) {
        let endpoint = format!("http://{address}/v1/chat/completions");
        let key = Format::Chat.credential("k").unwrap();
        let vendor = Vendor::new("v", Format::Chat, endpoint.parse().unwrap(), key);
        let upstream = Upstream::new(Duration::from_secs(60));
        (upstream, Arc::new(Route::new(vendor, "m")))
    }

    /// The whole answer to a ping.
    async fn pong(way: &(Upstream, Arc<Route>)) -> Bytes {
        answer(way).await.collect().await.unwrap().to_bytes()
    }

    /// The body of the answer to a ping.
    async fn answer((upstream, route): &(Upstream, Arc<Route>)) -> ResponseBody {
        let outbound = Outbound {
            route: Arc::clone(route),
            credential: 0,
            body: "ping".into(),
            stream: false,
            choices: 1,
            kind: ModelKind::Chat,
            strip_usage: false,
            meter: Meter::default(),
        };
        let answer = upstream.clone().oneshot(Request::new(outbound));
        answer.await.unwrap().into_body()
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_while_it_waited_costs_no_call() {
        for farewell in [
            "",
            "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
        ] {
            let (address, leaves) = vendor(farewell);
            let way = way(address);
            assert_eq!(pong(&way).await, "pong");
            leaves.wait();
            leaves.wait();
            // The runtime learns of it.
            for _ in 0..3 {
                yield_now().await;
            }
            assert_eq!(pong(&way).await, "pong", "{farewell:?}");
        }
    }

    #[tokio::test]
    async fn frames_that_are_there_go_on_as_one_and_what_comes_behind_them_is_not_lost() {
        for (rest, is_whole) in [("0\r\n\r\n", true), ("nonsense\r\n", false), ("", false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let way = way(listener.local_addr().unwrap());
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut seen, mut buffer) = (Vec::new(), [0; 1024]);
                while !seen.ends_with(b"ping") {
                    let count = stream.read(&mut buffer).unwrap();
                    seen.extend_from_slice(&buffer[..count]);
                }
                let chunks = "3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n";
                let answer =
                    format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}{rest}");
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let mut body = answer(&way).await;
            let (mut frames, mut data, mut failed) = (0, Vec::new(), false);
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => {
                        frames += 1;
                        data.extend_from_slice(&frame.into_data().unwrap());
                    }
                    Err(_) => {
                        failed = true;
                        break;
                    }
                }
            }
            assert_eq!(data, b"onetwothree", "{rest:?}");
            assert_eq!((frames, failed), (1, !is_whole), "{rest:?}");
        }
    }

    /// Counts what wakes a task.
    struct Counted {
        task: Waker,
        wakes: AtomicUsize,
    }

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            self.task.wake_by_ref();
        }
    }

    #[tokio::test]
    async fn a_call_does_not_wake_the_task_that_had_its_connection_before() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = way(listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut buffer = [0; 1024];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                seen.extend_from_slice(&buffer[..count]);
                if seen.ends_with(b"ping") {
                    seen.clear();
                    let pong = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npong";
                    stream.write_all(pong).unwrap();
                }
            }
        });
        let mut before = pin!(pong(&way));
        let mut its_task = None;
        poll_fn(|cx| {
            let task = its_task.get_or_insert_with(|| {
                let (task, wakes) = (cx.waker().clone(), AtomicUsize::new(0));
                Arc::new(Counted { task, wakes })
            });
            let waker = Waker::from(Arc::clone(task));
            before.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await;
        let wakes = || {
            its_task
                .as_ref()
                .map(|task| task.wakes.load(Ordering::Relaxed))
        };
        let woken = wakes();
        assert!(woken > Some(0));
        assert_eq!(pong(&way).await, "pong");
        assert_eq!(wakes(), woken);
    }
}
