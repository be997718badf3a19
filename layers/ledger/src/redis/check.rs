//! Checks that the Redis servers are configured not to lose money.

use std::collections::HashMap;

use super::RedisLedger;
use crate::{
    conn::{OPERATOR_TIMEOUT, Primary, RedisFault, Result},
    contract::LedgerError,
};

impl RedisLedger {
    /// Checks the settings of every primary. Returns a warning for each setting that may lose the newest data. If there
    /// are several servers, a warning begins with the server's name.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if a server is configured to evict data when its memory is full, or if no server
    /// answers.
    pub async fn check_server(&self) -> Result<Vec<String>, LedgerError> {
        let conn = &self.0.conn;
        let primaries = conn.look().await;
        let mut warnings = Vec::new();
        let (mut silent, mut somebody_answered) = (None, false);
        for primary in &primaries {
            let name = if conn.is_replicated() {
                format!("{}: ", primary.address())
            } else {
                String::new()
            };
            match check(primary, conn.is_replicated()).await {
                Ok(found) => {
                    somebody_answered = true;
                    warnings.extend(found.into_iter().map(|warning| format!("{name}{warning}")));
                }
                Err(RedisFault::Unexpected(text)) => {
                    return Err(RedisFault::Unexpected(format!("{name}{text}")).into());
                }
                Err(fault) => {
                    warnings.push(format!("the server's settings were not checked: {fault}"));
                    silent = Some(fault);
                }
            }
        }
        match silent {
            Some(fault) if !somebody_answered => Err(fault.into()),
            _ => Ok(warnings),
        }
    }
}

/// Returns the warnings about one server. If `replicas_expected` is set, there is also a warning if the server has no
/// replica.
async fn check(primary: &Primary, replicas_expected: bool) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    match setting(primary, "maxmemory-policy").await? {
        Some(policy) if policy != "noeviction" => {
            return Err(RedisFault::Unexpected(format!(
                "maxmemory-policy is {policy}: the server would evict data of the ledger, such as balances. \
                 Set it to noeviction"
            )));
        }
        Some(_) => {}
        None => warnings.push(
            "the server does not allow reading its settings: make sure that maxmemory-policy is noeviction \
             and appendonly is yes"
                .to_owned(),
        ),
    }
    if let Some(value) = setting(primary, "appendonly").await? {
        if value != "yes" {
            warnings.push(format!(
                "appendonly is {value}: a restart of the server loses entries. Set it to yes"
            ));
        } else if let Some(value) = setting(primary, "appendfsync").await?
            && value != "always"
        {
            let lost = if value == "everysec" {
                "up to a second"
            } else {
                "an unknown number"
            };
            warnings.push(format!(
                "appendfsync is {value}: a crash of the server loses {lost} of entries"
            ));
        }
    }
    let replicas = primary.info(OPERATOR_TIMEOUT).await?;
    match replicas.map(|info| info.replicas) {
        Some(0) if replicas_expected => warnings
            .push("no replica is connected: nothing replaces this server if it fails".to_owned()),
        None | Some(0) => {}
        Some(_) => {
            if setting(primary, "min-replicas-to-write").await?.as_deref() == Some("0") {
                warnings.push(
                    "min-replicas-to-write is 0: a primary cut off from its replicas keeps accepting \
                     entries that a failover loses. Set it to 1"
                        .to_owned(),
                );
            }
        }
    }
    Ok(warnings)
}

/// Reads a setting of the server; `None` if the hosting provider forbids reading settings.
async fn setting(primary: &Primary, name: &str) -> Result<Option<String>> {
    match primary
        .command::<HashMap<String, String>>(&["CONFIG", "GET", name], OPERATOR_TIMEOUT)
        .await
    {
        Ok(mut found) => Ok(found.remove(name)),
        Err(RedisFault::Refused { .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}
