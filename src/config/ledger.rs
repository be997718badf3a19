//! Checks the section `[ledger]`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tollgate_layers::{redis_conn::RedisUrl, reserve::HoldMode};

use super::{
    LedgerConfig, LedgerUrl, OutboxConfig,
    check::{Check, TOKENS_MAX, field_of},
    raw::RawLedger,
    secret::{Env, referred},
};

/// How long a gateway may hold money from a lease without an answer from Redis, unless the configuration says otherwise.
const LEASE_MS_DEFAULT: u64 = 1_000;
/// Upper bound of a lease's duration, and so of how long an operator's command may wait for a lease to end.
const LEASE_MS_MAX: u64 = 10_000;

/// Reads a field of `[ledger]`.
macro_rules! field {
    ($($call:tt)+) => {
        field_of!("ledger": $($call)+)
    };
}

impl Check<'_> {
    pub(super) fn ledger(&mut self, raw: &RawLedger) -> Option<LedgerConfig> {
        let url = ledger_url(raw.url.as_deref().unwrap_or("sqlite:tollgate.db"), self.env);
        let url = self.keep(url, "ledger.url");
        let plain = match &url {
            Some(LedgerUrl::Redis(url)) => !url.starts_with("rediss"),
            Some(_) => true,
            None => false,
        };
        let authorities = self.authorities(raw.ca_file.as_deref(), plain, "ledger.ca_file");
        let hold = match raw.hold.as_deref() {
            None => Some(HoldMode::Usual),
            Some(text) => self.choice(
                text,
                "ledger.hold",
                [("usual", HoldMode::Usual), ("strict", HoldMode::Strict)],
            ),
        };
        let image_tokens = field!(self.whole(raw.image_tokens, 5_000, 1..=TOKENS_MAX));
        let document_tokens = field!(self.whole(raw.document_tokens, 50_000, 1..=TOKENS_MAX));
        let search_tokens = field!(self.whole(raw.search_tokens, 15_000, 1..=TOKENS_MAX));
        let hold_conversations_max =
            field!(self.whole(raw.hold_conversations_max, 32_768, 0..=10_000_000));
        let hold_grace = field!(self.seconds(raw.hold_grace_seconds, 60, 1));
        let open_wait = field!(self.seconds(raw.open_wait_seconds, 0, 0));
        let outbox = raw.outbox.as_deref().unwrap_or("tollgate-outbox.db");
        let outbox = self.keep(outbox_path(outbox), "ledger.outbox");
        let outbox_calls_max = field!(self.whole(raw.outbox_calls_max, 100_000, 1..=10_000_000));
        let outbox_age_max = field!(self.seconds(raw.outbox_age_max_seconds, 3600, 1));
        let is_embedded = matches!(url, Some(LedgerUrl::Memory | LedgerUrl::Sqlite(_)));
        let lease_ms_max = field!(self.whole(raw.lease_ms_max, LEASE_MS_DEFAULT, 0..=LEASE_MS_MAX));
        if is_embedded && raw.lease_ms_max.is_some_and(|most| most > 0) {
            let problem = "has no effect here: only a ledger in Redis has leases, and this one is in the gateway itself";
            self.warnings.add("ledger.lease_ms_max", problem);
        }
        Some(LedgerConfig {
            url: url?,
            authorities: authorities?.map(|pem| Arc::from(&*pem)),
            hold: hold?,
            image_tokens: image_tokens?,
            document_tokens: document_tokens?,
            search_tokens: search_tokens?,
            hold_conversations_max: hold_conversations_max?,
            hold_grace: hold_grace?,
            open_wait: open_wait?,
            outbox: OutboxConfig {
                path: outbox?,
                calls_max: outbox_calls_max?,
                age_max: outbox_age_max?,
            },
            lease_max: Duration::from_millis(lease_ms_max?),
        })
    }
}

fn outbox_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains(':') {
        return Err(
            "must be the path of a file, like tollgate-outbox.db: one for each gateway".into(),
        );
    }
    Ok(PathBuf::from(text))
}

pub(super) fn ledger_url(text: &str, env: Env<'_>) -> Result<LedgerUrl, String> {
    let reference = referred(text, env);
    let literal = reference.is_none();
    let url = reference.unwrap_or_else(|| Ok(text.to_owned()))?;
    if url == "memory:" {
        return Ok(LedgerUrl::Memory);
    }
    if let Some(path) = url.strip_prefix("sqlite:") {
        return match path {
            "" => Err("needs a path: sqlite:PATH, like sqlite:tollgate.db".to_owned()),
            path => Ok(LedgerUrl::Sqlite(path.into())),
        };
    }
    let schemes = ["redis", "redis-sentinel", "redis-cluster"];
    let is_redis = url
        .split_once("://")
        .map(|(scheme, _)| scheme.replacen("rediss", "redis", 1))
        .is_some_and(|scheme| schemes.contains(&scheme.as_str()));
    if !is_redis {
        return Err(
            "must be memory:, sqlite:PATH, redis://HOST:PORT/DB, redis-sentinel://HOST:PORT,HOST:PORT/MASTER \
             or redis-cluster://HOST:PORT,HOST:PORT; rediss://, rediss-sentinel:// and rediss-cluster:// \
             for TLS"
                .to_owned(),
        );
    }
    let parsed = RedisUrl::parse(&url).map_err(|error| error.to_string())?;
    if literal && parsed.has_credentials() {
        return Err(
            "has a password in it: put the whole address into the environment and write \"${NAME}\" here".to_owned()
        );
    }
    Ok(LedgerUrl::Redis(url))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{assert_mistakes, changed, parse};

    #[test]
    fn invalid_ledger_setting_is_refused_by_name() {
        assert_mistakes(&[
            (
                "[admin]",
                "[ledger]\nurl = \"redis-cluster://a:1,,b:2\"\n[admin]",
                "ledger.url",
                "a:7000,b:7001",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis-cluster://a:1/2\"\n[admin]",
                "ledger.url",
                "database 0 only",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis-cluster://:hunter2@a:1\"\n[admin]",
                "ledger.url",
                "password",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"rediss-sentinel://a,b\"\n[admin]",
                "ledger.url",
                "/mymaster",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis-ring://a\"\n[admin]",
                "ledger.url",
                "redis-cluster://",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis://\"\n[admin]",
                "ledger.url",
                "redis://user:password@host:port",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"postgres://a\"\n[admin]",
                "ledger.url",
                "sqlite:PATH",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis://:hunter2@h\"\n[admin]",
                "ledger.url",
                "password",
            ),
            (
                "[admin]",
                "[ledger]\nhold = \"loose\"\n[admin]",
                "ledger.hold",
                "\"strict\"",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis://h\"\nca_file = \"Cargo.toml\"\n[admin]",
                "ledger.ca_file",
                "rediss",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"rediss-cluster://h\"\nca_file = \"Cargo.toml\"\n[admin]",
                "ledger.ca_file",
                "no certificate",
            ),
            (
                "[admin]",
                "[ledger]\nopen_wait_seconds = 100000\n[admin]",
                "ledger.open_wait_seconds",
                "0 to",
            ),
        ]);
    }

    #[test]
    fn ledger_urls_are_parsed() {
        for (text, url) in [
            ("memory:", LedgerUrl::Memory),
            ("sqlite:a/b.db", LedgerUrl::Sqlite("a/b.db".into())),
            (
                "redis://host:6379/0",
                LedgerUrl::Redis("redis://host:6379/0".into()),
            ),
            ("rediss://host", LedgerUrl::Redis("rediss://host".into())),
            (
                "redis-sentinel://a,b:26380/mymaster",
                LedgerUrl::Redis("redis-sentinel://a,b:26380/mymaster".into()),
            ),
            (
                "rediss-cluster://a:7000,b:7001",
                LedgerUrl::Redis("rediss-cluster://a:7000,b:7001".into()),
            ),
            (
                "${LEDGER_URL}",
                LedgerUrl::Redis("redis://:hunter2@db:6379/0".into()),
            ),
        ] {
            let config = parse(&changed(
                "[admin]",
                &format!("[ledger]\nurl = \"{text}\"\n[admin]"),
            ))
            .expect(text);
            assert_eq!(config.ledger.url, url);
        }
    }
}
