//! HTTP/1.1 connections, each of which is polled by the call that uses it.
//!
//! hyper-util's client spawns a task for each connection. A body then arrives from that task frame by frame, and each
//! frame costs a task switch and a write to the caller. In this client, the task that reads the body also polls the
//! connection. So all received frames are available at once, and a call waits for no other task. If a call is dropped,
//! its connection is closed. If its response has ended, the connection is used for another call.
//!
//! From top to bottom: this client → [`body`] → [`pool`] → [`connection`] → [`alarm`] and [`crate::self_wake`].

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
use tower_service::Service;

pub(super) use self::{alarm::Alarm, body::DrivenBody};
use self::{
    connection::{Connection, NoHead},
    pool::{Origin, Pool, PooledConnection},
};
use super::{
    connect::Connector,
    request::{BoxRequest, copy},
};
use crate::error::BoxError;

/// The client of one egress: a pool of idle connections, and the connector that opens new ones.
pub(super) struct Http1Client {
    connector: Connector,
    pool: Arc<Pool>,
}

impl Http1Client {
    pub(super) fn new(connector: Connector, idle_timeout: Duration) -> Self {
        let pool = Pool::new(idle_timeout);
        Self { connector, pool }
    }

    /// Sends a request to an absolute URL, and returns the head of the response. Returns `None` if the head has not
    /// arrived by `until`. `now` is the current time. If a pooled connection was closed before the request was written,
    /// the request is sent over another connection. If the peer closes a pooled connection after that, but without a
    /// byte of a response, the request is sent once more, over a new connection.
    ///
    /// # Errors
    /// An error if no connection could be made, or if the connection broke before the head of a response arrived.
    pub(super) async fn send(
        &self,
        address: &Uri,
        mut req: BoxRequest,
        now: Instant,
        until: Instant,
    ) -> Result<Option<Response<DrivenBody>>, BoxError> {
        let (Some(scheme), Some(authority)) = (address.scheme(), address.authority()) else {
            return Err("the URL has no host".into());
        };
        let path = address.path_and_query().cloned();
        *req.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        let mut is_second = false;
        loop {
            let idle = (!is_second)
                .then(|| self.pool.take(scheme, authority, now))
                .flatten();
            let spare = idle.is_some().then(|| copy(&req));
            let mut pooled = match idle {
                Some(pooled) => pooled,
                None => {
                    // This future is boxed because it contains a connection, and few calls open one. Otherwise every
                    // call's future would reserve space for it.
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
                Err(NoHead::Broken(_, Some(unsent))) if spare.is_some() => req = unsent,
                Err(NoHead::Broken(error, _)) => match spare {
                    Some(spare) if pooled.connection.got_nothing(&error) => {
                        (req, is_second) = (spare, true);
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    async fn connect(
        &self,
        address: &Uri,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Box<PooledConnection>, BoxError> {
        let origin = Origin::new(scheme, authority).ok_or("the URL has no host")?;
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
        task::{Context, Poll, Wake, Waker},
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
        error::Error,
        model::{ModelKind, Route, Vendor},
        upstream::{ResponseBody, Upstream},
        usage::Meter,
    };

    /// A vendor that answers one call on each of two connections. Between its two waits at the barrier, it sends
    /// `farewell` on the first connection and closes it.
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
                    assert!(
                        count > 0,
                        "the connection was closed before the request arrived"
                    );
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

    /// Returns an upstream that has its own connections, and a route to the vendor at this address.
    fn way(address: SocketAddr) -> (Upstream, Arc<Route>) {
        let endpoint = format!("http://{address}/v1/chat/completions");
        let key = Format::Chat.credential("k").unwrap();
        let vendor = Vendor::new("v", Format::Chat, endpoint.parse().unwrap(), key);
        let upstream = Upstream::new(Duration::from_secs(60));
        (upstream, Arc::new(Route::new(vendor, "m")))
    }

    /// Sends a ping, and returns the complete response.
    async fn pong(way: &(Upstream, Arc<Route>)) -> Bytes {
        answer(way).await.collect().await.unwrap().to_bytes()
    }

    /// Sends a ping, and returns the body of the response.
    async fn answer(way: &(Upstream, Arc<Route>)) -> ResponseBody {
        ask(way).await.unwrap().into_body()
    }

    /// Sends a ping to the vendor at this route.
    async fn ask(way: &(Upstream, Arc<Route>)) -> Result<Response<ResponseBody>, Error> {
        send(way, Bytes::from_static(b"ping")).await
    }

    async fn send(
        (upstream, route): &(Upstream, Arc<Route>),
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Error> {
        let outbound = Outbound {
            route: Arc::clone(route),
            credential: 0,
            body: body.into(),
            stream: false,
            choices: 1,
            kind: ModelKind::Chat,
            strip_usage: false,
            meter: Meter::default(),
        };
        upstream.clone().oneshot(Request::new(outbound)).await
    }

    #[tokio::test]
    async fn connection_that_closes_while_idle_fails_no_call() {
        for farewell in [
            "",
            "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
        ] {
            let (address, leaves) = vendor(farewell);
            let way = way(address);
            assert_eq!(pong(&way).await, "pong");
            leaves.wait();
            leaves.wait();
            // While this task yields, the runtime notices that the peer has closed the connection.
            for _ in 0..3 {
                yield_now().await;
            }
            assert_eq!(pong(&way).await, "pong", "{farewell:?}");
        }
    }

    /// A vendor that counts requests. It answers the first request. To the second one, on the same connection, it sends
    /// `last` and closes the connection. It answers all later requests.
    fn vendor_that_hangs_up(last: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut seen, mut buffer) = (stream.unwrap(), Vec::new(), [0; 1024]);
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    seen.extend_from_slice(&buffer[..count]);
                    if !seen.ends_with(b"ping") {
                        continue;
                    }
                    seen.clear();
                    if counted.fetch_add(1, Ordering::SeqCst) == 1 {
                        stream.write_all(last).unwrap();
                        break;
                    }
                    let pong = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npong";
                    stream.write_all(pong).unwrap();
                }
            }
        });
        (address, requests)
    }

    #[tokio::test]
    async fn reused_connection_that_ends_without_a_byte_is_replaced_once() {
        for (last, sent) in [(&b""[..], 3), (b"HTTP/1.1 2", 2), (b"nonsense\r\n\r\n", 2)] {
            let (address, requests) = vendor_that_hangs_up(last);
            let way = way(address);
            assert_eq!(pong(&way).await, "pong");
            let second = ask(&way).await.map(drop);
            assert_eq!(second.is_ok(), sent == 3, "{last:?}: {second:?}");
            assert_eq!(requests.load(Ordering::SeqCst), sent, "{last:?}");
        }
    }

    #[tokio::test]
    async fn request_dropped_while_it_is_sent_again_is_freed() {
        /// A request body that shows whether it is still in memory.
        struct Ping {
            _kept: Arc<()>,
        }

        impl AsRef<[u8]> for Ping {
            fn as_ref(&self) -> &[u8] {
                b"ping"
            }
        }

        let mut has_ended = false;
        for polls in 0..1000 {
            let (address, _) = vendor_that_hangs_up(b"");
            let way = way(address);
            assert_eq!(pong(&way).await, "pong");
            let stored = Arc::new(());
            let body = Bytes::from_owner(Ping {
                _kept: Arc::clone(&stored),
            });
            let mut call = Box::pin(send(&way, body));
            for _ in 0..polls {
                if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await {
                    has_ended = true;
                    break;
                }
                thread::sleep(Duration::from_millis(1));
                yield_now().await;
            }
            drop(call);
            assert_eq!(Arc::strong_count(&stored), 1, "{polls}");
            if has_ended {
                break;
            }
        }
        assert!(has_ended);
    }

    #[tokio::test]
    async fn new_connection_that_ends_without_a_byte_is_not_replaced() {
        let (address, requests) = vendor_that_hangs_up(b"");
        requests.store(1, Ordering::SeqCst);
        ask(&way(address)).await.map(drop).unwrap_err();
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn ready_frames_are_joined_and_later_frames_are_not_lost() {
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

    /// A waker that counts how often it is woken.
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
    async fn call_does_not_wake_the_connections_previous_task() {
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
