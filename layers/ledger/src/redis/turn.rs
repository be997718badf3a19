//! Turns of leases, as the server is told of them.

use std::{sync::Arc, time::Duration};

use super::{
    RECEIPT_MS, RedisLedger, booked_of,
    names::{account_key, hold_keys, receipt_key, tombstone_key},
};
use crate::{
    account::{AccountId, KeyId},
    conn::RedisFault,
    contract::{Booked, LedgerError, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// For how long a recall keeps leases from getting more; `turn.lua` has the same.
pub(super) const RECALLED_FOR: Duration = Duration::from_secs(1);

/// What is done with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Open,
    GoOn,
    Close,
    /// Ends are told, and nothing else: by whoever does not grant from it.
    Tell,
}

/// One turn of a lease. Sent again it is done once: ends are known by their numbers, the rest by its word.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) lease: RequestNumber,
    pub(super) account: AccountId,
    pub(super) key: KeyId,
    pub(super) step: Step,
    /// The word of the turn before it: a second owner of the lease does not know it.
    pub(super) before: String,
    pub(super) this: String,
    pub(super) give: MicroRub,
    pub(super) more: MicroRub,
    /// With less than this free beside it nobody gets more.
    pub(super) short_of: MicroRub,
    /// How long the lease lives unless there is another turn.
    pub(super) ttl_ms: u64,
    /// For how long more may be granted from it; zero where nothing is.
    pub(super) grants_ms: u64,
    pub(super) ends: Vec<TurnEnd>,
}

/// The end of a call that a lease held money for.
#[derive(Clone, Debug)]
pub(super) struct TurnEnd {
    pub(super) settlement: Arc<Settlement>,
    /// What the lease pays of it.
    pub(super) cover: MicroRub,
}

/// How a turn went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Done,
    /// Done, and nothing more may be granted on this key.
    Refused,
    /// There is too little free money for a lease.
    Short,
    /// Another one goes on with the lease.
    Fenced,
    /// The ledger has no such lease, or has ended it.
    Gone,
}

#[derive(Clone, Debug)]
pub(super) struct TurnAnswer {
    pub(super) word: Word,
    /// What the lease has now.
    pub(super) left: MicroRub,
    /// What is free beside it.
    pub(super) free: MicroRub,
    /// Money is short: leases are to be given back.
    pub(super) short: bool,
    /// Of each end, in their order.
    pub(super) ends: Vec<Settled>,
}

/// A lease as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Its number, which is its hold's.
    pub number: RequestNumber,
    /// Whose money.
    pub account: AccountId,
    /// On which key.
    pub key: KeyId,
    /// The gateway that has it.
    pub owner: String,
    /// What it has, for running calls or for those to come.
    pub held_rub: MicroRub,
    /// Since when, in Unix milliseconds of the server's clock.
    pub since_ms: u64,
    /// Until when its owner may grant from it, unless there is another turn; 0 where it may not.
    pub grants_until_ms: u64,
    /// When it ends by itself.
    pub due_ms: u64,
}

type Reply = (String, i64, i64, bool, Vec<(String, i64, i64, bool)>, u64);

impl RedisLedger {
    pub(super) async fn turn(&self, turn: &Turn) -> Result<TurnAnswer, LedgerError> {
        self.0.data.present()?;
        let mut keys = Vec::with_capacity(7 + 2 * turn.ends.len());
        keys.extend(hold_keys(&turn.account));
        keys.extend([":j", ":l", ":ev"].map(|part| account_key(&turn.account, part)));
        let mut args: Vec<String> = vec![
            turn.lease.to_string(),
            turn.key.to_string(),
            turn.step.as_str().to_owned(),
            turn.before.clone(),
            turn.this.clone(),
            turn.give.micro().to_string(),
            turn.more.micro().to_string(),
            turn.short_of.micro().to_string(),
            turn.ttl_ms.to_string(),
            turn.grants_ms.to_string(),
            self.owner().to_owned(),
            RECEIPT_MS.to_string(),
        ];
        for TurnEnd { settlement, cover } in &turn.ends {
            let number = settlement.number;
            keys.extend([
                tombstone_key(&turn.account, number),
                receipt_key(&turn.account, number),
            ]);
            let item = serde_json::to_string(&settlement.item)
                .map_err(|error| LedgerError::Unavailable(error.into()))?;
            args.extend([
                number.to_string(),
                settlement.cost.micro().to_string(),
                cover.micro().to_string(),
                u8::from(settlement.fresh).to_string(),
                settlement.held.micro().to_string(),
                item,
            ]);
        }
        let reply: Reply = self.ask(&self.0.scripts.turn, &keys, &args).await?;
        if reply.5 > 0 {
            self.0.told.note(&turn.account);
        }
        let answer = TurnAnswer::of(reply, turn.ends.len())?;
        if answer
            .ends
            .iter()
            .any(|end| end.booked == Booked::NoAccount)
        {
            self.missing_account().await?;
        }
        for end in &turn.ends {
            self.note_day(end.settlement.number, &turn.account).await;
        }
        Ok(answer)
    }

    /// Asks for what leases have of the account and no call holds. Says how many may still grant something.
    pub(super) async fn recall(&self, account: &AccountId) -> Result<u64, RedisFault> {
        let keys = ["", ":l"].map(|part| account_key(account, part));
        let none: [String; 0] = [];
        self.ask(&self.0.scripts.recall, &keys, &none[..]).await
    }

    /// The leases of an account, and the server's time in ms.
    pub(super) async fn leases_at(
        &self,
        account: &AccountId,
    ) -> Result<(u64, Vec<LeaseView>), RedisFault> {
        let keys = ["", ":l", ":x"].map(|part| account_key(account, part));
        let (now, rows): (u64, Vec<(String, String, u64, String)>) = self
            .ask_patiently(&self.0.scripts.leases, &keys, &[])
            .await?;
        let views = rows
            .into_iter()
            // One that has ended by itself may have left its record behind.
            .filter(|(_, hold, _, _)| !hold.is_empty())
            .map(|(number, hold, due_ms, record)| {
                LeaseView::of(account, &number, &hold, due_ms, &record).ok_or_else(|| {
                    RedisFault::Unexpected(format!(
                        "lease {number} of {account}: {hold:?} {record:?}"
                    ))
                })
            });
        Ok((now, views.collect::<Result<_, _>>()?))
    }
}

impl Step {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::GoOn => "go on",
            Self::Close => "close",
            Self::Tell => "tell",
        }
    }
}

impl TurnAnswer {
    fn of((word, left, free, short, ends, _): Reply, told: usize) -> Result<Self, RedisFault> {
        let word = match word.as_str() {
            "ok" => Word::Done,
            "refused" => Word::Refused,
            "short" => Word::Short,
            "fenced" => Word::Fenced,
            "gone" => Word::Gone,
            word => return Err(RedisFault::Unexpected(format!("answer {word:?}"))),
        };
        if ends.len() != told {
            let text = format!("{told} ends were told, and {} answered", ends.len());
            return Err(RedisFault::Unexpected(text));
        }
        let ends = ends.into_iter().map(|(booked, charged, loss, repeated)| {
            Ok(Settled {
                booked: booked_of(&booked)?,
                charged: MicroRub::new(charged),
                loss: MicroRub::new(loss),
                repeated,
            })
        });
        Ok(Self {
            word,
            left: MicroRub::new(left),
            free: MicroRub::new(free),
            short,
            ends: ends.collect::<Result<_, RedisFault>>()?,
        })
    }
}

impl LeaseView {
    fn of(
        account: &AccountId,
        number: &str,
        hold: &str,
        due_ms: u64,
        record: &str,
    ) -> Option<Self> {
        let mut hold = hold.split(':');
        let (held, key) = (hold.next()?, hold.next()?);
        let mut record = record.splitn(4, ' ').skip(1);
        let (until_ms, since_ms, owner) = (record.next()?, record.next()?, record.next()?);
        Some(Self {
            number: number.parse().ok()?,
            account: account.clone(),
            key: key.parse().ok()?,
            owner: owner.to_owned(),
            held_rub: MicroRub::new(held.parse().ok()?),
            since_ms: since_ms.parse().ok()?,
            grants_until_ms: until_ms.parse().ok()?,
            due_ms,
        })
    }
}
