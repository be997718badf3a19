//! The limits that a reload changes. Layers and servers share them, and each reads its limit at each request or
//! connection.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tollgate_layers::{parse::ParseLimits, rate_limit::Quota, setting::Setting};

use crate::{
    config::Config,
    edge::{cors::Origins, head::HeadLimits, server::ConnectionLimits},
};

/// The values of `[limits]` in force, and other settings that a reload changes. Clones share them.
#[derive(Clone, Debug)]
pub struct LiveLimits {
    /// The rate limit of catalog requests, per address.
    pub catalog: Setting<Option<Quota>>,
    /// The rate limit of requests to all other paths, per address.
    pub callers: Setting<Option<Quota>>,
    /// The rate limit of requests with an unknown key, per address.
    pub unknown_keys: Setting<Option<Quota>>,
    /// The size limits of a request's head.
    pub head: Setting<HeadLimits>,
    /// The maximum number of requests in flight.
    pub in_flight_max: Setting<usize>,
    /// The size and time limits of a request's body.
    pub parse: Setting<ParseLimits>,
    /// The largest size of a plain answer, in bytes.
    pub answer_bytes_max: Setting<usize>,
    /// The largest total size of the plain answers that are buffered at the same time, in bytes.
    pub answers_bytes_max: Setting<u64>,
    /// The longest time that a call may take.
    pub call_time_max: Setting<Duration>,
    /// How long a hold lasts if it is not extended.
    pub hold_ttl: Setting<Duration>,
    /// The limits on callers' connections.
    pub connections: Setting<ConnectionLimits>,
    /// The limits on operators' connections.
    pub admin_connections: Setting<ConnectionLimits>,
    /// The peers whose `x-forwarded-for` is trusted.
    pub trusted_proxies: Setting<Arc<[IpNet]>>,
    /// Origins of web pages that may use keys from a browser.
    pub cors_origins: Setting<Origins>,
    /// How long running calls may take after the process has got the signal to stop.
    pub drain_timeout: Setting<Duration>,
}

impl LiveLimits {
    /// Returns the limits that `config` sets.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let limits = &config.limits;
        let proxies: Arc<[IpNet]> = config.trusted_proxies.clone().into();
        let mut parse = ParseLimits::default();
        parse.body_bytes_max = limits.body_bytes_max;
        parse.bodies_bytes_max = limits.body_bytes_in_flight_max;
        parse.body_time_max = limits.body_timeout;
        parse.body_rate_min = limits.body_rate_min;
        parse.messages_max = limits.messages_max;
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
            parse: parse.into(),
            answer_bytes_max: limits.answer_bytes_max.into(),
            answers_bytes_max: limits.answer_bytes_in_flight_max.into(),
            call_time_max: limits.call_time_max.into(),
            hold_ttl: (limits.call_time_max + config.ledger.hold_grace).into(),
            connections: limits.connections.into(),
            admin_connections: ConnectionLimits {
                max: (config.admin.as_ref()).map_or(0, |admin| admin.connections_max),
                ..limits.connections
            }
            .into(),
            trusted_proxies: proxies.into(),
            cors_origins: config.cors_origins.clone().into(),
            drain_timeout: limits.drain_timeout.into(),
        }
    }

    /// Applies the limits of `config`. Requests and connections that have begun continue under the old limits.
    pub fn replace(&self, config: &Config) {
        let Self {
            catalog,
            callers,
            unknown_keys,
            head,
            in_flight_max,
            parse,
            answer_bytes_max,
            answers_bytes_max,
            call_time_max,
            hold_ttl,
            connections,
            admin_connections,
            trusted_proxies,
            cors_origins,
            drain_timeout,
        } = Self::new(config);
        self.catalog.set(catalog.get());
        self.callers.set(callers.get());
        self.unknown_keys.set(unknown_keys.get());
        self.head.set(head.get());
        self.in_flight_max.set(in_flight_max.get());
        self.parse.set(parse.get());
        self.answer_bytes_max.set(answer_bytes_max.get());
        self.answers_bytes_max.set(answers_bytes_max.get());
        // A hold must always last longer than its call. So a longer hold time is set before the call time, and a
        // shorter hold time after it.
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
        self.cors_origins.set(cors_origins.get());
        self.drain_timeout.set(drain_timeout.get());
    }
}
