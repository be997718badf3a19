//! The limits that a reload can change. Layers and servers share them, and read them again for each request or
//! connection.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use tollgate_layers::{parse::ParseLimits, rate_limit::Quota, setting::Setting};

use crate::{
    config::Config,
    edge::{cors::Origins, head::HeadLimits, server::ConnectionLimits},
};

/// The limits of `[limits]` in force, and other settings that a reload can change. Clones share them.
#[derive(Clone, Debug)]
pub struct LiveLimits {
    /// The maximum rate of catalog requests per address.
    pub catalog: Setting<Option<Quota>>,
    /// The maximum rate of requests to all paths except the catalog, per address.
    pub callers: Setting<Option<Quota>>,
    /// The maximum rate of requests with an unknown key, per address.
    pub unknown_keys: Setting<Option<Quota>>,
    /// The maximum size of a request's head.
    pub head: Setting<HeadLimits>,
    /// The maximum number of requests in flight at the same time.
    pub in_flight_max: Setting<usize>,
    /// The maximum size of a request's body, and the maximum time to receive it.
    pub parse: Setting<ParseLimits>,
    /// The maximum size of a plain response, in bytes.
    pub answer_bytes_max: Setting<usize>,
    /// The maximum total size of all plain responses that are buffered at the same time, in bytes.
    pub answers_bytes_max: Setting<u64>,
    /// The maximum duration of a call.
    pub call_time_max: Setting<Duration>,
    /// How long a hold lasts unless it is extended.
    pub hold_ttl: Setting<Duration>,
    /// Limits and timeouts of callers' connections.
    pub connections: Setting<ConnectionLimits>,
    /// Limits and timeouts of operators' connections.
    pub admin_connections: Setting<ConnectionLimits>,
    /// The networks of proxies whose `x-forwarded-for` header is trusted.
    pub trusted_proxies: Setting<Arc<[IpNet]>>,
    /// The origins of web pages that may send requests with a key from a browser.
    pub cors_origins: Setting<Origins>,
    /// How long a drain waits for calls in flight after the process has received the signal to stop.
    pub drain_timeout: Setting<Duration>,
}

impl LiveLimits {
    /// Returns the limits that the configuration `config` sets.
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

    /// Applies the limits of `config`. Requests and connections that have already begun continue under the old limits.
    pub fn replace(&self, config: &Config) {
        // The pattern lists every field, so that the compiler reports a field that is not applied.
        macro_rules! apply {
            ($($field:ident)+, $($other:ident)+) => {
                let Self { $($field,)+ $($other,)+ } = Self::new(config);
                $(self.$field.set($field.get());)+
            };
        }
        apply! {
            catalog callers unknown_keys head in_flight_max parse answer_bytes_max answers_bytes_max connections
            admin_connections trusted_proxies cors_origins drain_timeout,
            hold_ttl call_time_max
        }
        // A hold must always last longer than its call. So if the hold time grows, it is set before the call time; if
        // it shrinks, it is set after the call time.
        if hold_ttl.get() > self.hold_ttl.get() {
            self.hold_ttl.set(hold_ttl.get());
            self.call_time_max.set(call_time_max.get());
        } else {
            self.call_time_max.set(call_time_max.get());
            self.hold_ttl.set(hold_ttl.get());
        }
    }
}
