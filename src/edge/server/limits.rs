//! Limits and timeouts of connections, and the settings of hyper that follow from them.

use std::time::Duration;

use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
};

use crate::net::files::Shares;

/// How many more header lines hyper allows than `headers_max`, so that the layer `head` refuses a request with too
/// many. With the default `headers_max`, hyper's limit is 100 lines, up to which it needs no allocation.
const HEADERS_SPARE: usize = 36;
/// The minimum size of hyper's read buffer. It is large enough for the request body of a typical coding tool to arrive
/// as one frame, which is not copied.
const BUFFER_BYTES_MIN: usize = 128 * 1024;
/// Limits and timeouts of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The maximum number of open connections.
    pub max: usize,
    /// The maximum number of open connections per address block. Does not apply to trusted proxies.
    pub per_address_max: usize,
    /// The maximum time until a new connection has sent its first byte.
    pub first_byte_timeout: Duration,
    /// The maximum time to receive a request's head.
    pub head_timeout: Duration,
    /// The maximum time for which a connection may be idle.
    pub idle_timeout: Duration,
    /// The age at which a connection is closed, once its requests in flight have ended. Up to a tenth is added at
    /// random.
    pub age_max: Duration,
    /// The maximum time for a request and its whole response.
    pub request_timeout: Duration,
    /// A client that has read no data for this long is disconnected.
    pub write_timeout: Duration,
    /// The maximum number of header lines of a request.
    pub headers_max: usize,
    /// The maximum size of a request's head, in bytes. The server reads at most twice this size, or 128 KB if that is
    /// more.
    pub head_bytes_max: usize,
    /// Limits of HTTP/2 connections.
    pub h2: H2Limits,
}

/// The limits of an HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Limits {
    /// The maximum number of concurrent requests on a connection.
    pub streams_max: u32,
    /// The size of the flow-control window of a stream, in bytes.
    pub stream_window_bytes: u32,
    /// The size of the flow-control window of a connection, in bytes.
    pub connection_window_bytes: u32,
    /// The interval between two pings that the gateway sends to a client.
    pub ping_interval: Duration,
    /// The maximum time until the client answers a ping.
    pub ping_timeout: Duration,
}

impl Default for H2Limits {
    fn default() -> Self {
        Self {
            streams_max: 100,
            stream_window_bytes: 64 * 1024,
            connection_window_bytes: 1024 * 1024,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(20),
        }
    }
}

/// The maximum number of streams that a client has opened and reset before the gateway handled them. If there are more,
/// the connection is closed (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 20;
/// The maximum number of streams that the gateway has reset because of the client's errors. If there are more, the
/// connection is closed.
const LOCAL_RESETS_MAX: usize = 1024;

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max: Shares::of_process(0).callers,
            per_address_max: 256,
            first_byte_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            age_max: Duration::from_secs(3600),
            request_timeout: Duration::from_secs(1260),
            write_timeout: Duration::from_secs(30),
            headers_max: 64,
            head_bytes_max: 32 * 1024,
            h2: H2Limits::default(),
        }
    }
}

impl ConnectionLimits {
    /// Returns the settings of hyper's server for these limits.
    pub(super) fn server(self) -> auto::Builder<TokioExecutor> {
        let h2 = self.h2;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // The limits of hyper are slightly larger than the configured limits, so that the layer `head` refuses an
        // oversized request. A refusal by hyper would have no body.
        builder
            .http1()
            // `supervise` limits the time to receive a head, with one timer per connection instead of one per head.
            .header_read_timeout(None::<Duration>)
            .max_headers(self.headers_max + HEADERS_SPARE)
            // Without vectored writes, hyper copies all available frames into one buffer and sends them in one write. A
            // vectored write of hyper would contain at most five frames, because with chunked encoding each frame has
            // three parts.
            .writev(false)
            .max_buf_size((self.head_bytes_max * 2).max(BUFFER_BYTES_MIN));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(h2.streams_max)
            .initial_stream_window_size(h2.stream_window_bytes)
            .initial_connection_window_size(h2.connection_window_bytes)
            .keep_alive_interval(h2.ping_interval)
            .keep_alive_timeout(h2.ping_timeout)
            .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
            .max_local_error_reset_streams(LOCAL_RESETS_MAX)
            .max_header_list_size(u32::try_from(self.head_bytes_max * 2).unwrap_or(u32::MAX));
        builder
    }
}
