//! Checks the section `[ledger]`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tollgate_layers::{redis_conn::RedisUrl, reserve::HoldMode};
use tollgate_ledger::unbooked::UnbookedBounds;

use super::{
    LedgerConfig, LedgerUrl, OutboxConfig,
    check::{Check, DAY_SECONDS, TOKENS_MAX, field_of},
    raw::RawLedger,
    secret::{Env, referred},
};

/// Default of `ledger.lease_ms_max`, in milliseconds.
const LEASE_MS_DEFAULT: u64 = 1_000;
/// Upper bound of `ledger.lease_ms_max`, in milliseconds. It is low because an operator's command may have to wait this
/// long for a lease to end.
const LEASE_MS_MAX: u64 = 10_000;
/// Upper bound of `ledger.refused_calls_max`, the maximum number of unbooked calls that are stored.
const REFUSED_MAX: u64 = 10_000_000;
/// Upper bound of `ledger.refused_calls_days`, the number of days for which an unbooked call is stored.
const REFUSED_DAYS_MAX: u64 = 400;

/// Calls a check for a field of the section `[ledger]`.
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
        let hold = [("usual", HoldMode::Usual), ("strict", HoldMode::Strict)];
        let hold = self.choice_or(raw.hold.as_deref(), HoldMode::Usual, "ledger.hold", hold);
        let outbox = raw.outbox.as_deref().unwrap_or("tollgate-outbox.db");
        let outbox = self.keep(outbox_path(outbox), "ledger.outbox");
        let outbox_calls_max = field!(self.whole(raw.outbox_calls_max, 100_000, 1..=10_000_000));
        let outbox_age_max = field!(self.seconds(raw.outbox_age_max_seconds, 3600, 1));
        let lease_ms_max = field!(self.whole(raw.lease_ms_max, LEASE_MS_DEFAULT, 0..=LEASE_MS_MAX));
        let image_tokens = field!(self.whole(raw.image_tokens, 5_000, 1..=TOKENS_MAX));
        let document_tokens = field!(self.whole(raw.document_tokens, 50_000, 1..=TOKENS_MAX));
        let search_tokens = field!(self.whole(raw.search_tokens, 15_000, 1..=TOKENS_MAX));
        let hold_conversations_max =
            field!(self.whole(raw.hold_conversations_max, 32_768, 0..=10_000_000));
        let hold_grace = field!(self.seconds(raw.hold_grace_seconds, 60, 1));
        let open_wait = field!(self.seconds(raw.open_wait_seconds, 0, 0));
        let refused_max = field!(self.whole(raw.refused_calls_max, 100_000, 0..=REFUSED_MAX));
        let refused_days = field!(self.whole(raw.refused_calls_days, 30, 0..=REFUSED_DAYS_MAX));
        let is_embedded = matches!(url, Some(LedgerUrl::Memory | LedgerUrl::Sqlite(_)));
        if is_embedded && raw.lease_ms_max.is_some_and(|most| most > 0) {
            let problem = "has no effect: only a ledger in Redis uses leases, and ledger.url is not a Redis URL";
            self.warnings.add("ledger.lease_ms_max", problem);
        }
        Some(LedgerConfig {
            url: url?,
            authorities: authorities.map(|pem| Arc::from(&*pem)),
            hold,
            image_tokens,
            document_tokens,
            search_tokens,
            hold_conversations_max,
            hold_grace,
            open_wait,
            refused_calls: refused_calls(refused_max, refused_days),
            outbox: OutboxConfig {
                path: outbox?,
                calls_max: outbox_calls_max,
                age_max: outbox_age_max,
            },
            lease_max: Duration::from_millis(lease_ms_max),
        })
    }
}

fn refused_calls(calls_max: u64, days: u64) -> Option<UnbookedBounds> {
    let bounds = UnbookedBounds {
        calls_max,
        age_max: Duration::from_secs(days * DAY_SECONDS),
    };
    (calls_max > 0 && days > 0).then_some(bounds)
}

fn outbox_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains(':') {
        return Err(
            "must be the path of a file, like tollgate-outbox.db: each gateway needs its own file"
                .into(),
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
            "must be memory:, sqlite:PATH, redis://HOST:PORT/DB, redis-sentinel://HOST:PORT,HOST:PORT/MASTER or \
             redis-cluster://HOST:PORT,HOST:PORT; for TLS, rediss://, rediss-sentinel:// or rediss-cluster://"
                .to_owned(),
        );
    }
    let parsed = RedisUrl::parse(&url).map_err(|error| error.to_string())?;
    if literal && parsed.has_credentials() {
        return Err(
            "contains a password: put the whole URL into an environment variable and write \"${NAME}\" here".to_owned()
        );
    }
    Ok(LedgerUrl::Redis(url))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{assert_mistakes, changed, parse};

    #[test]
    fn error_about_an_invalid_ledger_setting_names_the_setting() {
        assert_mistakes(
            r#"
             | [ledger]\nurl = "redis-cluster://a:1,,b:2" | ledger.url | a:7000,b:7001
             | [ledger]\nurl = "redis-cluster://a:1/2" | ledger.url | only database 0
             | [ledger]\nurl = "redis-cluster://:hunter2@a:1" | ledger.url | password
             | [ledger]\nurl = "rediss-sentinel://a,b" | ledger.url | /mymaster
             | [ledger]\nurl = "redis-ring://a" | ledger.url | redis-cluster://
             | [ledger]\nurl = "redis://" | ledger.url | redis://user:password@host:port
             | [ledger]\nurl = "postgres://a" | ledger.url | sqlite:PATH
             | [ledger]\nurl = "redis://:hunter2@h" | ledger.url | password
             | [ledger]\nhold = "loose" | ledger.hold | "strict"
             | [ledger]\nurl = "redis://h"\nca_file = "Cargo.toml" | ledger.ca_file | rediss
             | [ledger]\nurl = "rediss-cluster://h"\nca_file = "Cargo.toml" | ledger.ca_file | no certificate
             | [ledger]\nopen_wait_seconds = 100000 | ledger.open_wait_seconds | 0 to
        "#,
        );
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
