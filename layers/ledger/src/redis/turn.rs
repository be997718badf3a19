//! Sends lease turns to the server, each as one run of `turn.lua`.

use std::collections::HashMap;

use super::{
    NO_ARGS, RECEIPT_MS, RedisLedger, booked_of,
    calls::{Refused, read_refusal},
    days::day_of,
    digits,
    lines::turn_lines,
    names::{
        NUMBER_BYTES, account_key, begins, hold_keys, place_field, places_key, receipt_key,
        time_within, tombstone_key, turns_key,
    },
};
use crate::{
    account::{AccountId, KeyId},
    conn::{Lane, RedisFault, Result},
    contract::{Booked, LedgerError, Settled},
    leases::{Step, Turn, TurnAnswer, TurnEnd, Word},
    money::MicroRub,
    number::RequestNumber,
};

/// A lease as it is stored in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The number of the lease. The lease's hold has the same number.
    pub number: RequestNumber,
    /// The account whose money is in the lease.
    pub account: AccountId,
    /// The key whose calls the lease pays for.
    pub key: KeyId,
    /// The name of the gateway that owns the lease.
    pub owner: String,
    /// The lease's money, for in-flight calls and for future calls.
    pub held_rub: MicroRub,
    /// The part of the lease that in-flight calls hold. Only the owner has this amount, so it is `None` if another
    /// gateway owns the lease.
    pub calls_rub: Option<MicroRub>,
    /// When the lease was opened, in Unix milliseconds of the server's clock.
    pub since_ms: u64,
    /// The time until which the owner may grant holds without another turn, in Unix milliseconds; 0 if it may not
    /// grant.
    pub grants_until_ms: u64,
    /// When the lease expires, in Unix milliseconds of the server's clock.
    pub due_ms: u64,
    /// The name of the lease's last turn.
    pub(crate) last: String,
}

/// The arguments of `turn.lua` that contain requested amounts, as indexes from 0.
const REQUESTED: [usize; 2] = [6, 7];
/// The value by which `turn.lua` reports that money is short because of a recall.
const RECALLED: u8 = 2;

type Reply = (
    String,
    i64,
    i64,
    u8,
    Vec<(String, i64, i64, bool)>,
    u64,
    String,
    Vec<Refused>,
);

impl RedisLedger {
    pub(super) async fn turn_of(&self, turn: &Turn, lane: Lane) -> Result<TurnAnswer, LedgerError> {
        self.0.data.present()?;
        let ends = in_order(&turn.ends);
        let number = |end: &TurnEnd| end.settlement.number;
        let batches = ends.chunk_by(|a, b| begins(number(a)) == begins(number(b)));
        let batches: Vec<&[&TurnEnd]> = batches.collect();
        let keys = keys_of(turn, &ends, &batches);
        let mut args = self.args_of(turn, &ends, &batches)?;
        let conn = &self.0.conn;
        let limit = conn.response_timeout();
        let scripts = &self.0.scripts;
        let asks = turn.more > MicroRub::ZERO || turn.raise > MicroRub::ZERO;
        let script = if asks {
            &scripts.asking_turn
        } else {
            &scripts.turn
        };
        // Boxed, so that the futures of calls stay small: a call may have to wait for this request.
        let asking = Box::pin(conn.eval_in::<Reply>(lane, script, &keys, &args, limit));
        let mut reply = asking.await;
        // A server that is out of memory refuses to lend money, but it must still receive settlements.
        let lends_nothing = asks && reply.as_ref().is_err_and(RedisFault::is_out_of_memory);
        if lends_nothing {
            for index in REQUESTED {
                args[index] = b"0".to_vec();
            }
            let telling = Box::pin(conn.eval_in(lane, &scripts.turn, &keys, &args, limit));
            reply = telling.await;
        }
        let reply = reply?;
        if reply.5 > 0 {
            self.0.noticed.note(&turn.account);
        }
        let mut answer = answer_of(reply, turn, &ends)?;
        // The flag `short` makes the lease's owner give money back, and request money again later.
        answer.short |= lends_nothing;
        let mut settled = answer.ends.iter();
        if settled.any(|end| end.booked == Booked::NoAccount) {
            self.missing_account().await?;
        }
        // The settlements are sorted by the times of their calls, so each day is added to the index once.
        for of_day in ends.chunk_by(|a, b| day_of(number(a)) == day_of(number(b))) {
            self.note_day(number(of_day[0]), &turn.account).await;
        }
        Ok(answer)
    }

    fn args_of(
        &self,
        turn: &Turn,
        ends: &[&TurnEnd],
        batches: &[&[&TurnEnd]],
    ) -> Result<Vec<Vec<u8>>, LedgerError> {
        let mut args: Vec<Vec<u8>> = [
            turn.lease.to_string(),
            turn.key.to_string(),
            word_of(turn.step).to_owned(),
            turn.before.clone(),
            turn.this.clone(),
            turn.give.micro().to_string(),
            turn.more.micro().to_string(),
            turn.raise.micro().to_string(),
            turn.short_of.micro().to_string(),
            turn.ttl_ms.to_string(),
            turn.grants_ms.to_string(),
            self.owner().to_owned(),
            RECEIPT_MS.to_string(),
            paid_whole(ends).map_or_else(String::new, digits),
        ]
        .map(String::into_bytes)
        .into();
        let lines = turn_lines(ends).map_err(|error| LedgerError::Unavailable(error.into()))?;
        args.push(lines.0.into_bytes());
        let covers = ends.iter().map(|TurnEnd { settlement, cover }| {
            format!("{}:{}", cover.micro(), u8::from(settlement.fresh))
        });
        args.push(covers.collect::<Vec<_>>().join(" ").into_bytes());
        args.push(lines.1.into_bytes());
        args.push(batches.len().to_string().into_bytes());
        args.extend(batches.iter().flat_map(|batch| batch_args(batch)));
        Ok(args)
    }

    /// Recalls the leased money of the account that no call holds. Returns how many leases may still grant holds.
    pub(super) async fn recall_in(&self, account: &AccountId) -> Result<u64> {
        let keys = ["", ":l"].map(|part| account_key(account, part));
        self.ask(&self.0.scripts.recall, &keys, NO_ARGS).await
    }

    /// Returns the leases of an account, and the server's time in milliseconds.
    pub(super) async fn leases_at(&self, account: &AccountId) -> Result<(u64, Vec<LeaseView>)> {
        let keys = ["", ":l", ":x"].map(|part| account_key(account, part));
        let (now, rows): (u64, Vec<(String, String, u64, String)>) = self
            .ask_patiently(&self.0.scripts.leases, &keys, NO_ARGS)
            .await?;
        let mut views = Vec::with_capacity(rows.len());
        for (number, hold, due_ms, record) in rows {
            // The record of an expired lease may still exist, although the lease's hold does not. Such leases are left
            // out.
            if hold.is_empty() {
                continue;
            }
            let view = LeaseView::from_reply(account, &number, &hold, due_ms, &record);
            let text = || format!("lease {number} of {account}: {hold:?} {record:?}");
            views.push(view.ok_or_else(|| RedisFault::Unexpected(text()))?);
        }
        Ok((now, views))
    }
}

/// Returns the name of a step as an argument of `turn.lua`.
const fn word_of(step: Step) -> &'static str {
    match step {
        Step::Open => "open",
        Step::GoOn => "go on",
        Step::Close => "close",
        Step::Tell => "tell",
    }
}

/// Returns the settlements in the order that `turn.lua` expects: calls whose numbers were generated within the same 4 s
/// are adjacent.
fn in_order(ends: &[TurnEnd]) -> Vec<&TurnEnd> {
    let mut ordered: Vec<&TurnEnd> = ends.iter().collect();
    ordered.sort_by_key(|end| begins(end.settlement.number));
    ordered
}

/// Returns the arguments of a batch: settlements of calls whose numbers were generated within the same 4 s. The second
/// argument contains when the batch's first and last call number were generated, in milliseconds since the beginning
/// of the 4 s.
fn batch_args(batch: &[&TurnEnd]) -> [Vec<u8>; 3] {
    let numbers = || batch.iter().map(|end| end.settlement.number);
    let times = || numbers().map(time_within);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let mut rest = Vec::with_capacity(NUMBER_BYTES * batch.len());
    numbers().for_each(|number| rest.extend_from_slice(place_field(&number)));
    let [count, span] = [batch.len().to_string(), format!("{first:04}:{last:04}")];
    [count.into_bytes(), span.into_bytes(), rest]
}

/// Returns the sum of the costs of these settlements. `None` if the lease does not pay one of the costs in full.
fn paid_whole(ends: &[&TurnEnd]) -> Option<MicroRub> {
    let mut all = MicroRub::ZERO;
    for TurnEnd { settlement, cover } in ends {
        if settlement.cost > *cover {
            return None;
        }
        all = all.plus_or_max(settlement.cost);
    }
    Some(all)
}

fn read_word(word: &str) -> Result<Word> {
    Ok(match word {
        "ok" => Word::Done,
        "refused" => Word::Refused,
        "short" => Word::Short,
        "fenced" => Word::Fenced,
        "gone" => Word::Gone,
        word => return Err(RedisFault::Unexpected(format!("answer {word:?}"))),
    })
}

fn keys_of(turn: &Turn, ends: &[&TurnEnd], batches: &[&[&TurnEnd]]) -> Vec<String> {
    let mut keys = Vec::with_capacity(8 + 2 * batches.len() + ends.len());
    keys.extend(hold_keys(&turn.account));
    keys.extend([":j", ":l", ":ev"].map(|part| account_key(&turn.account, part)));
    keys.push(tombstone_key(&turn.account, turn.lease));
    for key_of in [turns_key, places_key] {
        let first = batches.iter().map(|batch| batch[0].settlement.number);
        keys.extend(first.map(|number| key_of(&turn.account, number)));
    }
    let numbers = ends.iter().map(|end| end.settlement.number);
    keys.extend(numbers.map(|number| receipt_key(&turn.account, number)));
    keys
}

fn answer_of(reply: Reply, turn: &Turn, ends: &[&TurnEnd]) -> Result<TurnAnswer> {
    let (word, left, free, short, answers, _, last, refusals) = reply;
    let word = read_word(&word)?;
    let settled = if answers.is_empty() {
        let paid = ends.iter().map(|end| Settled {
            charged: end.settlement.cost,
            ..Settled::nothing(Booked::Held)
        });
        paid.collect()
    } else {
        let each = answers.iter().map(|(booked, charged, loss, repeated)| {
            Ok(Settled {
                booked: booked_of(booked)?,
                charged: MicroRub::new(*charged),
                loss: MicroRub::new(*loss),
                repeated: *repeated,
            })
        });
        each.collect::<Result<Vec<_>>>()?
    };
    if ends.len() != settled.len() {
        let text = format!(
            "{} settlements were sent, but {} results were returned",
            ends.len(),
            settled.len()
        );
        return Err(RedisFault::Unexpected(text));
    }
    let numbers = ends.iter().map(|end| end.settlement.number);
    let by_number: HashMap<RequestNumber, Settled> = numbers.zip(settled).collect();
    let in_turn = turn.ends.iter();
    let in_turn = in_turn.map(|end| by_number[&end.settlement.number]);
    Ok(TurnAnswer {
        word,
        left: MicroRub::new(left),
        free: MicroRub::new(free),
        short: short > 0,
        recalled: short == RECALLED,
        refusal: refusals.first().map(read_refusal).transpose()?,
        last,
        ends: in_turn.collect(),
    })
}

impl LeaseView {
    fn from_reply(
        account: &AccountId,
        number: &str,
        hold: &str,
        due_ms: u64,
        record: &str,
    ) -> Option<Self> {
        let mut hold = hold.split(':');
        let (held, key) = (hold.next()?, hold.next()?);
        let mut record = record.splitn(4, ' ');
        let (last, until_ms) = (record.next()?, record.next()?);
        let (since_ms, owner) = (record.next()?, record.next()?);
        Some(Self {
            number: number.parse().ok()?,
            account: account.clone(),
            key: key.parse().ok()?,
            owner: owner.to_owned(),
            held_rub: MicroRub::new(held.parse().ok()?),
            calls_rub: None,
            since_ms: since_ms.parse().ok()?,
            grants_until_ms: until_ms.parse().ok()?,
            due_ms,
            last: last.to_owned(),
        })
    }
}
