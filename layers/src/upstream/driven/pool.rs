//! The pool of idle connections, grouped by scheme, host and port.

use std::{
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use http::{
    HeaderValue,
    uri::{Authority, Scheme},
};
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, sleep};

use super::connection::Connection;
use crate::lock::lock;

/// A pool of connections that wait for their next call.
pub(super) struct Pool {
    /// The idle connections by origin (scheme, host and port). Vendors have few hosts, so a linear search is faster
    /// than a hash map.
    idle: Mutex<Vec<(Origin, Vec<Idle>)>>,
    idle_timeout: Duration,
}

/// A connection, with the state that is kept from call to call. It is boxed because it is large and often moved.
pub(super) struct PooledConnection {
    pub(super) connection: Connection,
    pub(super) retires: Instant,
    /// The pool to which the connection returns after its call has ended.
    pub(super) pool: Weak<Pool>,
    pub(super) origin: Origin,
}

struct Idle {
    pooled: Box<PooledConnection>,
    until: Instant,
}

impl Pool {
    /// Creates an empty pool. Until the pool is dropped, a task closes connections that were idle for `idle_timeout`.
    pub(super) fn new(idle_timeout: Duration) -> Arc<Self> {
        let pool = Arc::new(Self {
            idle: Mutex::default(),
            idle_timeout,
        });
        TokioExecutor::new().execute(tidy(Arc::downgrade(&pool), idle_timeout));
        pool
    }

    /// Takes the connection that was used most recently, so that connections that are not needed reach their idle
    /// timeout. The peer may have closed the returned connection.
    pub(super) fn take(
        &self,
        scheme: &Scheme,
        authority: &Authority,
        now: Instant,
    ) -> Option<Box<PooledConnection>> {
        loop {
            let Idle { pooled, until } = of(&mut self.lock(), scheme, authority)?.pop()?;
            if until > now {
                return Some(pooled);
            }
        }
    }

    pub(super) fn put(&self, mut pooled: Box<PooledConnection>) {
        let now = Instant::now();
        if pooled.retires <= now || !pooled.connection.is_free() {
            return;
        }
        let until = pooled.retires.min(now + self.idle_timeout);
        let mut idle = self.lock();
        match of(&mut idle, &pooled.origin.scheme, &pooled.origin.authority) {
            Some(waiting) => waiting.push(Idle { pooled, until }),
            None => {
                let origin = pooled.origin.clone();
                idle.push((origin, vec![Idle { pooled, until }]));
            }
        }
    }

    /// Closes connections that were idle for too long, and connections that the peer has closed.
    fn tidy(&self) {
        let now = Instant::now();
        let mut closed = Vec::new();
        self.lock().retain_mut(|(_, waiting)| {
            closed.extend(waiting.extract_if(.., |idle| {
                idle.until <= now || !idle.pooled.connection.is_idle()
            }));
            !waiting.is_empty()
        });
        // The connections are dropped after the lock was released, because closing a connection is a system call.
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Origin, Vec<Idle>)>> {
        // A panic cannot leave the list half written, so the lock may be used after a panic.
        lock(&self.idle)
    }
}

/// The scheme, host and port to which a connection leads.
#[derive(Clone)]
pub(super) struct Origin {
    scheme: Scheme,
    authority: Authority,
    /// The value of the `host` header.
    pub(super) host: HeaderValue,
}

impl Origin {
    /// Returns `None` if the host is not a valid header value.
    pub(super) fn new(scheme: &Scheme, authority: &Authority) -> Option<Self> {
        let is_default = match authority.port_u16() {
            None => true,
            Some(80) => *scheme == Scheme::HTTP,
            Some(443) => *scheme == Scheme::HTTPS,
            Some(_) => false,
        };
        let host = if is_default {
            authority.host()
        } else {
            authority.as_str()
        };
        Some(Self {
            scheme: scheme.clone(),
            authority: authority.clone(),
            host: HeaderValue::from_str(host).ok()?,
        })
    }

    fn is(&self, scheme: &Scheme, authority: &Authority) -> bool {
        // The pointers are compared first, because both usually come from the same configuration.
        let is_same = std::ptr::eq(self.authority.as_str(), authority.as_str());
        (is_same || self.authority == *authority) && self.scheme == *scheme
    }
}

/// Returns the idle connections to this scheme, host and port.
fn of<'a>(
    idle: &'a mut [(Origin, Vec<Idle>)],
    scheme: &Scheme,
    authority: &Authority,
) -> Option<&'a mut Vec<Idle>> {
    let found = idle
        .iter_mut()
        .find(|(origin, _)| origin.is(scheme, authority));
    found.map(|(_, waiting)| waiting)
}

/// Closes idle connections from time to time, until the pool is dropped.
async fn tidy(pool: Weak<Pool>, idle_timeout: Duration) {
    let often = (idle_timeout / 2).clamp(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        sleep(often).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.tidy();
    }
}
