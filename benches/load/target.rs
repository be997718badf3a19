//! What the calls are sent to.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, ensure};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
};
use tempfile::TempDir;
use tollgate_layers::call::Format;

use crate::{
    child::Child,
    client::Prepared,
    cpu::Processes,
    fixtures::{
        directory,
        redis_server::{self, RedisServer},
    },
    options::{Ledger, Options, RoleName},
    scenario::Scenario,
};

/// The vendor, and the proxies before it.
pub(crate) struct Field {
    /// The bare proxy first.
    pub(crate) targets: Vec<Target>,
    _vendor: Child,
}

impl Field {
    pub(crate) fn start(options: &Options) -> anyhow::Result<Self> {
        let vendor = Child::start(RoleName::Vendor, &[])?;
        let address = vendor.address()?.to_string();
        let mut targets = vec![Target::bare(&address)?];
        for ledger in ledgers(options)? {
            targets.push(Target::gateway(&address, ledger)?);
        }
        Ok(Self {
            targets,
            _vendor: vendor,
        })
    }

    /// Lets the gateways drain, and checks that each has charged every call that was answered.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        for target in &mut self.targets {
            target.stop()?;
        }
        Ok(())
    }
}

/// The gateways to run: those asked for, or one for each ledger that an operator would choose.
fn ledgers(options: &Options) -> anyhow::Result<Vec<Ledger>> {
    let has_redis = redis_server::is_installed();
    if !options.targets.is_empty() {
        ensure!(
            has_redis || !options.targets.contains(&Ledger::Redis),
            "--targets redis needs redis-server on the PATH: install it, or leave redis out"
        );
        return Ok(options.targets.clone());
    }
    if has_redis {
        Ok(vec![Ledger::Sqlite, Ledger::Redis])
    } else {
        eprintln!("load: no redis-server on the PATH, so there are no figures with Redis");
        Ok(vec![Ledger::Sqlite])
    }
}

/// A proxy under load.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// Whose CPU time a call costs.
    pub(crate) processes: Processes,
    /// The caller's key; a bare proxy asks for none.
    key: Option<String>,
    /// Calls that were answered.
    pub(crate) answered: u64,
    child: Child,
    // Both go after the process that uses them.
    _directory: Option<TempDir>,
    _redis: Option<RedisServer>,
}

impl Target {
    fn bare(vendor: &str) -> anyhow::Result<Self> {
        let child = Child::start(RoleName::Bare, &[("--vendor", vendor)])?;
        Ok(Self {
            name: "bare",
            address: child.address()?,
            processes: Processes::new([child.pid()]),
            key: None,
            answered: 0,
            child,
            _directory: None,
            _redis: None,
        })
    }

    fn gateway(vendor: &str, ledger: Ledger) -> anyhow::Result<Self> {
        let (mut place, mut server) = (None, None);
        let (name, url) = match ledger {
            Ledger::Memory => ("memory", "memory:".to_owned()),
            Ledger::Sqlite => {
                let place = place.insert(TempDir::new_in(directory()?)?);
                let file = place.path().join("ledger.db");
                ("sqlite", format!("sqlite:{}", file.display()))
            }
            Ledger::Redis => {
                let server = server.insert(RedisServer::start().context("redis-server")?);
                ("redis", server.url())
            }
        };
        let args = [("--vendor", vendor), ("--ledger", url.as_str())];
        let child = Child::start(RoleName::Gateway, &args)?;
        // A ledger's server works for the gateway's calls alone.
        let pids = [Some(child.pid()), server.as_ref().map(RedisServer::pid)];
        Ok(Self {
            name,
            address: child.address()?,
            processes: Processes::new(pids.into_iter().flatten()),
            key: Some(child.said("key")?.to_owned()),
            answered: 0,
            child,
            _directory: place,
            _redis: server,
        })
    }

    /// The scenario's call to this target.
    pub(crate) fn prepare(&self, scenario: &Scenario) -> anyhow::Result<Arc<Prepared>> {
        let path = match &self.key {
            Some(_) => scenario.gateway_path().to_owned(),
            // It goes on to the vendor as it is.
            None => scenario.canned.vendor_path(),
        };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, self.address.to_string().try_into()?);
        headers.insert(USER_AGENT, HeaderValue::from_static("tollgate-load"));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // The bare proxy gets as many headers of the same length, and passes them on.
        let key = self.key.as_deref().unwrap_or(NO_KEY);
        match scenario.canned.format() {
            Format::Chat => {
                headers.insert(AUTHORIZATION, format!("Bearer {key}").try_into()?);
            }
            Format::Messages => {
                headers.insert(X_API_KEY, key.to_owned().try_into()?);
                headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
            }
        }
        Ok(Arc::new(Prepared {
            uri: path.parse()?,
            headers,
            body: scenario.body.clone(),
            measure: scenario.measure,
        }))
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.child.stop()?;
        if self.key.is_some() {
            let charged: u64 = self.child.said("charged")?.parse()?;
            ensure!(
                charged == self.answered,
                "the gateway on {} has answered {} calls and charged {charged}",
                self.name,
                self.answered
            );
        }
        Ok(())
    }
}

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const NO_KEY: &str = "tg-000000000000000000000000000000000000000000000000";
