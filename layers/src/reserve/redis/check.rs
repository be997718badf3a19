//! Whether the server is set up to keep money.

use std::collections::HashMap;

use super::RedisLedger;
use crate::{
    redis_conn::{OPERATOR_TIMEOUT, RedisFault},
    reserve::ledger::LedgerError,
};

impl RedisLedger {
    /// Looks at the server's settings: answers what could lose the newest entries.
    ///
    /// # Errors
    /// The server is out of reach, or would throw away a part of the books when its memory is full.
    pub async fn check_server(&self) -> Result<Vec<String>, LedgerError> {
        let mut warnings = Vec::new();
        match self.setting("maxmemory-policy").await? {
            Some(policy) if policy != "noeviction" => {
                let text = format!(
                    "maxmemory-policy is {policy}: the server would evict balances or results. \
                     Set it to noeviction"
                );
                return Err(RedisFault::Unexpected(text).into());
            }
            Some(_) => {}
            None => warnings.push(
                "the server does not show its settings: see to it that maxmemory-policy is noeviction \
                 and appendonly is yes"
                    .to_owned(),
            ),
        }
        if let Some(value) = self.setting("appendonly").await? {
            if value != "yes" {
                warnings.push(format!(
                    "appendonly is {value}: a restart of the server loses entries. Set it to yes"
                ));
            } else if let Some(value) = self.setting("appendfsync").await?
                && value != "always"
            {
                let lost = if value == "everysec" {
                    "up to a second"
                } else {
                    "an unknown time"
                };
                warnings.push(format!(
                    "appendfsync is {value}: a crash of the server loses {lost} of entries"
                ));
            }
        }
        if let Some(value) = self.setting("min-replicas-to-write").await?
            && value == "0"
            && self.replicas().await? > 0
        {
            warnings.push(
                "min-replicas-to-write is 0: a primary cut off from its replicas goes on taking entries \
                 that a failover loses. Set it to 1"
                    .to_owned(),
            );
        }
        Ok(warnings)
    }

    /// A setting; `None` where the host forbids to look.
    async fn setting(&self, name: &str) -> Result<Option<String>, RedisFault> {
        match self
            .0
            .conn
            .command::<HashMap<String, String>>(&["CONFIG", "GET", name], OPERATOR_TIMEOUT)
            .await
        {
            Ok(mut found) => Ok(found.remove(name)),
            Err(RedisFault::Refused { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn replicas(&self) -> Result<u32, RedisFault> {
        let info: String = match self
            .0
            .conn
            .command(&["INFO", "replication"], OPERATOR_TIMEOUT)
            .await
        {
            Err(RedisFault::Refused { .. }) => return Ok(0),
            info => info?,
        };
        let count = info
            .lines()
            .find_map(|line| line.strip_prefix("connected_slaves:"));
        Ok(count
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0))
    }
}
