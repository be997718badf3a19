//! Idempotency claims and stored responses in Redis, shared by many gateways. They are stored in the slot of their
//! account. Each operation is one script that uses the server's clock.
//!
//! ```text
//! tg:{A}:i:<id>   HASH  f fingerprint, n number, s running|answered|unanswered, u runs until, h hour, x kept until,
//!                       a the encrypted response
//! tg:{A}:iu       HASH  e<hour>, b<hour>: calls and bytes claimed in that hour, for the account's bounds
//! tg:answers        HASH  <hour>: bytes of all accounts
//! ```
//!
//! Redis deletes expired claims without a notification. So an account's usage of its limits is counted per hour, and
//! includes claims that have expired in the last hour.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    AnswerStore, Bounds, Claim, Claimed, Digest, Earlier, Finished, Outcome, Stage, millis,
};
use crate::{
    BoxError,
    conn::{
        Args, OPERATOR_TIMEOUT, RedisConn, RedisFault, RedisScript, Reply, Result, Value, read,
    },
    number::RequestNumber,
};

/// A store of claims and responses in Redis. Clones share the connection.
#[derive(Clone)]
pub struct RedisAnswers(Arc<Inner>);

struct Inner {
    conn: RedisConn,
    bounds: Bounds,
    claim: RedisScript,
    renew: RedisScript,
    finish: RedisScript,
    room: RedisScript,
}

impl RedisAnswers {
    /// Creates a store over an existing connection.
    #[must_use]
    pub fn new(conn: RedisConn, bounds: Bounds) -> Self {
        let script = |text| conn.script("", text);
        Self(Arc::new(Inner {
            bounds,
            claim: script(include_str!("redis/claim.lua")),
            renew: script(include_str!("redis/renew.lua")),
            finish: script(include_str!("redis/finish.lua")),
            room: script(include_str!("redis/room.lua")),
            conn,
        }))
    }

    /// Reserves `bytes` of the limit over all accounts, if they are available. A negative number gives bytes back.
    async fn has_room(&self, bytes: i64, stored: Duration) -> Result<bool> {
        let keys = ["tg:answers".to_owned()];
        let args = (bytes, self.0.bounds.bytes_max, millis(stored));
        self.ask(&self.0.room, &keys, args).await
    }

    async fn ask<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
    ) -> Result<T> {
        let conn = &self.0.conn;
        conn.eval(script, keys, args, OPERATOR_TIMEOUT).await
    }
}

impl fmt::Debug for RedisAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAnswers")
            .field("conn", &self.0.conn)
            .finish_non_exhaustive()
    }
}

fn keys(claim: &Claim) -> [String; 2] {
    let Claim { account, id, .. } = claim;
    [
        format!("tg:{{{account}}}:i:{id}"),
        format!("tg:{{{account}}}:iu"),
    ]
}

impl AnswerStore for RedisAnswers {
    async fn claim(&self, claim: &Claim, from: Option<RequestNumber>) -> Result<Claimed, BoxError> {
        let Inner { conn, bounds, .. } = &*self.0;
        let args = (
            &claim.fingerprint.0[..],
            claim.number.to_string(),
            millis(claim.lease),
            millis(claim.stored),
            bounds.account_calls_max,
            bounds.account_bytes_max,
            from.map(|from| from.to_string()).unwrap_or_default(),
        );
        let (keys, limit) = (keys(claim), conn.response_timeout());
        let answer: Value = conn.eval(&self.0.claim, &keys, args, limit).await?;
        Ok(claimed(answer)?)
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, BoxError> {
        let args = (claim.number.to_string(), millis(claim.lease));
        Ok(self.ask(&self.0.renew, &keys(claim), args).await?)
    }

    async fn finish(&self, claim: &Claim, outcome: Outcome<'_>) -> Result<Finished, BoxError> {
        let mut beyond = false;
        let bytes = match outcome {
            Outcome::Answered(answer) => i64::try_from(answer.len())?,
            _ => 0,
        };
        let (word, answer) = match outcome {
            Outcome::Answered(answer) if self.has_room(bytes, claim.stored).await? => {
                ("answered", answer)
            }
            Outcome::Answered(_) => {
                beyond = true;
                ("unanswered", &[][..])
            }
            Outcome::Unanswered => ("unanswered", &[][..]),
            Outcome::Free => ("free", &[][..]),
        };
        let args = (
            claim.number.to_string(),
            word,
            answer,
            self.0.bounds.account_bytes_max,
        );
        let finished: Result<String> = self.ask(&self.0.finish, &keys(claim), args).await;
        if word == "answered" && !finished.as_ref().is_ok_and(|word| word == "kept") {
            // The response was not stored: it exceeds the account's limit, or it was stored before. So the room for its
            // bytes is given back.
            let given_back = self.has_room(-bytes, claim.stored).await;
            if finished.is_ok() {
                given_back?;
            }
        }
        Ok(match finished?.as_str() {
            "kept" if beyond => Finished::TooMuch,
            "kept" | "was" => Finished::Kept,
            "too_much" => Finished::TooMuch,
            "not_mine" => Finished::NotMine,
            word => return Err(RedisFault::Unexpected(format!("finished {word:?}")).into()),
        })
    }
}

fn claimed(answer: Value) -> Result<Claimed> {
    let unexpected = |what: &str| RedisFault::Unexpected(format!("claimed {what}"));
    if let Value::Array(words) = &answer
        && words.len() == 1
    {
        let (word,): (String,) = read(answer)?;
        return match word.as_str() {
            "mine" => Ok(Claimed::Mine),
            "full" => Ok(Claimed::Full),
            word => Err(unexpected(word)),
        };
    }
    type Row = (String, Vec<u8>, String, String, u64, Vec<u8>);
    let (_, fingerprint, number, stage, left, answer): Row = read(answer)?;
    let fingerprint = <[u8; 32]>::try_from(fingerprint).map_err(|_| unexpected("fingerprint"))?;
    Ok(Claimed::Earlier(Earlier {
        fingerprint: Digest(fingerprint),
        number: number.parse().map_err(|_| unexpected("number"))?,
        stage: match stage.as_str() {
            "running" if left == 0 => Stage::Abandoned,
            "running" => Stage::Running(Duration::from_millis(left)),
            "answered" => Stage::Answered(answer),
            "unanswered" => Stage::Unanswered,
            word => return Err(unexpected(word)),
        },
    }))
}
