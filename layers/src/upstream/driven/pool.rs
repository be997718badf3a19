//! Connections that wait for their next call, by where they lead to.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
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

/// Connections that wait for their next call.
pub(super) struct Pool {
    /// By where they lead to: the few hosts that vendors have, so that looking through them costs less than a hash.
    idle: Mutex<Vec<(Origin, Vec<Idle>)>>,
    idle_timeout: Duration,
}

/// A connection, and what is known of it from call to call. It is large, and goes from hand to hand in its box.
pub(super) struct PooledConnection {
    pub(super) connection: Connection,
    pub(super) retires: Instant,
    /// Where it goes when its call is done.
    pub(super) pool: Weak<Pool>,
    pub(super) origin: Origin,
}

struct Idle {
    pooled: Box<PooledConnection>,
    until: Instant,
}

impl Pool {
    /// An empty one. A task of it closes what idles for so long, until its last user is gone.
    pub(super) fn new(idle_timeout: Duration) -> Arc<Self> {
        let pool = Arc::new(Self {
            idle: Mutex::default(),
            idle_timeout,
        });
        TokioExecutor::new().execute(tidy(Arc::downgrade(&pool), idle_timeout));
        pool
    }

    /// The one that was used last: the others may then be closed for want of work. Its peer may have closed it.
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

    /// Closes what has waited too long, or was closed by its peer.
    fn tidy(&self) {
        let now = Instant::now();
        let mut closed = Vec::new();
        self.lock().retain_mut(|(_, waiting)| {
            closed.extend(waiting.extract_if(.., |idle| {
                idle.until <= now || !idle.pooled.connection.is_idle()
            }));
            !waiting.is_empty()
        });
        // Outside the lock: closing is a call to the system.
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Origin, Vec<Idle>)>> {
        // A connection is either in it or not.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a connection leads to.
#[derive(Clone)]
pub(super) struct Origin {
    scheme: Scheme,
    authority: Authority,
    /// What requests say of it.
    pub(super) host: HeaderValue,
}

impl Origin {
    /// `None` for a host that no header can name.
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
        // Mostly they are the same bytes of one config.
        let is_same = std::ptr::eq(self.authority.as_str(), authority.as_str());
        (is_same || self.authority == *authority) && self.scheme == *scheme
    }
}

/// Those that lead there.
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

/// Until the pool's last user is gone.
async fn tidy(pool: Weak<Pool>, idle_timeout: Duration) {
    let often = (idle_timeout / 2).clamp(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        sleep(often).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.tidy();
    }
}
