//! The limits that a reload changes: layers and servers share them, each reads its own at each request or
//! connection.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tollgate_layers::{parse::ParseLimits, rate_limit::Quota, setting::Setting};

use crate::{
    config::Config,
    edge::{head::HeadLimits, server::ConnectionLimits},
};

/// What is in force of `[limits]`, and beside it. Clones share it.
#[derive(Clone, Debug)]
pub struct LiveLimits {
    /// Of the catalog, by address.
    pub catalog: Setting<Option<Quota>>,
    /// Of all other paths, by address.
    pub callers: Setting<Option<Quota>>,
    /// Of unknown keys, by address.
    pub unknown_keys: Setting<Option<Quota>>,
    /// Of a request's head.
    pub head: Setting<HeadLimits>,
    /// Requests at a time.
    pub in_flight_max: Setting<usize>,
    /// Of a request's body.
    pub parse: Setting<ParseLimits>,
    /// Bytes of a plain answer.
    pub answer_bytes_max: Setting<usize>,
    /// The longest that a call may take.
    pub call_time_max: Setting<Duration>,
    /// How long a hold lives.
    pub hold_ttl: Setting<Duration>,
    /// Of callers' connections.
    pub connections: Setting<ConnectionLimits>,
    /// Of operators' connections.
    pub admin_connections: Setting<ConnectionLimits>,
    /// Peers whose `x-forwarded-for` is believed.
    pub trusted_proxies: Setting<Arc<[IpNet]>>,
    /// Time for running calls when the process is told to stop.
    pub drain_timeout: Setting<Duration>,
}

impl LiveLimits {
    /// Those of `config`.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let limits = &config.limits;
        let proxies: Arc<[IpNet]> = config.trusted_proxies.clone().into();
        Self {
            catalog: Some(Quota::per_second(limits.catalog_requests_per_second)).into(),
            callers: limits.requests_per_second.map(Quota::per_second).into(),
            unknown_keys: Some(
                Quota::per_second(limits.unknown_keys_per_second)
                    .with_burst(limits.unknown_keys_burst),
            )
            .into(),
            head: HeadLimits {
                uri_bytes_max: limits.uri_bytes_max,
                headers_max: limits.connections.headers_max,
                bytes_max: limits.connections.head_bytes_max,
            }
            .into(),
            in_flight_max: limits.in_flight_max.into(),
            parse: ParseLimits {
                body_bytes_max: limits.body_bytes_max,
                bodies_bytes_max: limits.body_bytes_in_flight_max,
                body_time_max: limits.body_timeout,
                body_rate_min: limits.body_rate_min,
                messages_max: limits.messages_max,
            }
            .into(),
            answer_bytes_max: limits.answer_bytes_max.into(),
            call_time_max: limits.call_time_max.into(),
            hold_ttl: (limits.call_time_max + config.ledger.hold_grace).into(),
            connections: limits.connections.into(),
            admin_connections: ConnectionLimits {
                max: (config.admin.as_ref()).map_or(0, |admin| admin.connections_max),
                ..limits.connections
            }
            .into(),
            trusted_proxies: proxies.into(),
            drain_timeout: limits.drain_timeout.into(),
        }
    }

    /// From now on those of `config`; what has begun goes on under the old ones.
    pub fn replace(&self, config: &Config) {
        let Self {
            catalog,
            callers,
            unknown_keys,
            head,
            in_flight_max,
            parse,
            answer_bytes_max,
            call_time_max,
            hold_ttl,
            connections,
            admin_connections,
            trusted_proxies,
            drain_timeout,
        } = Self::new(config);
        self.catalog.set(catalog.get());
        self.callers.set(callers.get());
        self.unknown_keys.set(unknown_keys.get());
        self.head.set(head.get());
        self.in_flight_max.set(in_flight_max.get());
        self.parse.set(parse.get());
        self.answer_bytes_max.set(answer_bytes_max.get());
        // A hold must outlive its call: the longer time comes first.
        if hold_ttl.get() > self.hold_ttl.get() {
            self.hold_ttl.set(hold_ttl.get());
            self.call_time_max.set(call_time_max.get());
        } else {
            self.call_time_max.set(call_time_max.get());
            self.hold_ttl.set(hold_ttl.get());
        }
        self.connections.set(connections.get());
        self.admin_connections.set(admin_connections.get());
        self.trusted_proxies.set(trusted_proxies.get());
        self.drain_timeout.set(drain_timeout.get());
    }
}
