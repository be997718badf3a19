//! A scripted vendor: an HTTP server that serves all formats of models. It is used by the demonstration, the tests and
//! the benches.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpListener, sync::Notify, task::JoinSet, time::sleep};

/// A request that the scripted vendor has received.
#[derive(Clone, Debug)]
pub struct Received {
    /// The request's path and query.
    pub path: String,
    /// All headers of the request.
    pub headers: HeaderMap,
    /// The body of the request, as it was received.
    pub body: Bytes,
}

impl Received {
    /// Returns the body as JSON, or null if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// The response of the scripted vendor to one request.
#[derive(Clone, Debug)]
pub struct Reply {
    status: StatusCode,
    headers: Vec<(&'static str, String)>,
    steps: Vec<Step>,
}

/// One step in sending the body of a scripted response.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes as one frame.
    Send(Bytes),
    /// Waits for this long.
    Wait(Duration),
    /// Waits until the test notifies this handle.
    Hold(Arc<Notify>),
    /// Closes the connection immediately, before the end of the response.
    Cut,
}

impl Reply {
    /// Returns a response with a JSON body.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        let steps = vec![Step::Send(body.to_string().into())];
        Self::raw(status, "application/json", steps)
    }

    /// Returns a stream of events. Each event is sent as a frame of its own.
    pub fn stream(events: impl IntoIterator<Item = String>) -> Self {
        let steps = events.into_iter().map(|event| Step::Send(event.into()));
        Self::raw(200, "text/event-stream", steps.collect())
    }

    /// Returns a response with this content type, whose body is sent in these steps.
    ///
    /// # Panics
    /// If `status` is not an HTTP status.
    #[must_use]
    pub fn raw(status: u16, content_type: &str, steps: Vec<Step>) -> Self {
        let status = StatusCode::from_u16(status).expect("a status from 100 to 999");
        Self {
            status,
            headers: vec![("content-type", content_type.to_owned())],
            steps,
        }
    }

    /// Adds a header to the scripted response.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Closes the connection after the last step, so that the response has no proper end.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.steps.push(Step::Cut);
        self
    }

    /// Inserts a step before the step with the index `at`.
    #[must_use]
    pub fn with_step(mut self, at: usize, step: Step) -> Self {
        self.steps.insert(at, step);
        self
    }
}

type Script = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

/// A running scripted vendor. Dropping it closes its port and all its connections.
pub struct ScriptedVendor {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    script: Mutex<Script>,
    received: Mutex<Vec<Received>>,
    /// How many responses are being sent now.
    open: AtomicUsize,
}

/// Pause before a connection is cut. During the pause, the bytes that were already sent leave the socket.
const CUT_PAUSE: Duration = Duration::from_millis(20);
/// How many received requests are kept for tests, at most.
const RECEIVED_MAX: usize = 10_000;

impl ScriptedVendor {
    /// Starts a vendor with the script [`polite`](super::script::polite) on a free port of the loopback interface.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start() -> std::io::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a vendor with the default script at this address.
    ///
    /// # Errors
    /// If the address is in use, or is not an address of this machine.
    pub async fn start_at(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(Arc::new(super::script::polite)),
            received: Mutex::default(),
            open: AtomicUsize::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            _tasks: tasks,
        })
    }

    /// Returns the address on which the vendor listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the script, from the next request on.
    pub fn script(&self, script: impl Fn(&Received) -> Reply + Send + Sync + 'static) {
        *lock(&self.shared.script) = Arc::new(script);
    }

    /// Returns the requests that the vendor has received so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        lock(&self.shared.received).clone()
    }

    /// Returns how many responses the vendor is sending now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for ScriptedVendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedVendor")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let _ = socket.set_nodelay(true);
        let shared = Arc::clone(&shared);
        let service = service_fn(move |req| answer(req, Arc::clone(&shared)));
        connections.spawn(async move {
            // If the script cuts a response, the connection ends with an error, which is intended.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    req: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<ReplyBody>, Infallible> {
    let (parts, body) = req.into_parts();
    let body = body.collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let received = Received {
        path: parts.uri.to_string(),
        headers: parts.headers,
        body,
    };
    let script = Arc::clone(&lock(&shared.script));
    let reply = script(&received);
    let mut log = lock(&shared.received);
    if log.len() < RECEIVED_MAX {
        log.push(received);
    }
    drop(log);
    let mut res = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        res = res.header(name, value);
    }
    shared.open.fetch_add(1, Ordering::SeqCst);
    let body = ReplyBody {
        steps: reply.steps.into_iter(),
        pause: None,
        cutting: false,
        shared,
    };
    Ok(res.body(body).expect("the script's headers are valid"))
}

struct ReplyBody {
    steps: std::vec::IntoIter<Step>,
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    cutting: bool,
    shared: Arc<Shared>,
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(cx));
            }
            self.pause = None;
            match self.steps.next() {
                None => return Poll::Ready(None),
                Some(Step::Send(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(Step::Wait(time)) => self.pause = Some(Box::pin(sleep(time))),
                Some(Step::Hold(notify)) => self.pause = Some(Box::pin(notify.notified_owned())),
                // The cut comes after a pause, in which the bytes that were already written leave the socket.
                Some(Step::Cut) if !self.cutting => {
                    self.cutting = true;
                    self.pause = Some(Box::pin(sleep(CUT_PAUSE)));
                    self.steps = vec![Step::Cut].into_iter();
                }
                Some(Step::Cut) => {
                    return Poll::Ready(Some(Err(std::io::Error::other("cut by the script"))));
                }
            }
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}
