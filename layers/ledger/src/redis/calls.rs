//! The operations of the Redis ledger that serve calls.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    iter,
    time::Duration,
};

use futures_util::future::{join, join_all};
use uuid::Uuid;

use super::{
    ACCOUNTS_AT_ONCE, RECEIPT_MS, RedisLedger, SWEPT_MAX, booked_of,
    names::{
        account_key, call_keys, hold_keys, place_field, places_key, receipt_key, text_of, turns_key,
    },
};
use crate::{
    account::{AccountId, KeyId},
    ceiling::Ceiling,
    conn::{Lane, RedisFault, Result, Value, read},
    contract::{
        Adjusted, Adjustment, Booked, Hold, Ledger, LedgerError, Refusal, Reserved, Settled,
        Settlement,
    },
    leases::{Turn, TurnEnd, lease::ENDS_MAX, ttl_ms},
    money::MicroRub,
    number::RequestNumber,
    settle::cause_of,
};

/// The typical size of a receipt's item in bytes: the initial capacity of the buffer.
const ITEM_SIZE: usize = 512;
/// The largest number of expired holds that one run of EXPIRE ends, so that the script does not block the server.
const EXPIRE_MAX: usize = 100;

impl RedisLedger {
    /// Makes a hold in the ledger, without a lease.
    pub(super) async fn reserve_in_ledger(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let keys = call_keys(&hold.account, hold.number);
        let mut buffer = Uuid::encode_buffer();
        let args = (
            text_of(hold.number, &mut buffer),
            &*hold.key,
            hold.want.micro(),
            hold.least.micro(),
            ttl_ms(hold.ttl),
        );
        let answer: Value = self.ask(&self.0.scripts.reserve, &keys, args).await?;
        if let Value::Array(amounts) = &answer
            && let [Value::Int(held), Value::Int(free)] = amounts.as_slice()
        {
            return Ok(Reserved {
                held: MicroRub::new(*held),
                free: MicroRub::new(*free),
            });
        }
        let refused: Refused = read(answer)?;
        if refused.0 == "unknown" {
            self.missing_account().await?;
        }
        Err(LedgerError::Refused(read_refusal(&refused)?))
    }

    /// Changes the amount of a hold that was made in the ledger, without a lease.
    pub(super) async fn adjust_in_ledger(
        &self,
        adjustment: &Adjustment,
    ) -> Result<Adjusted, LedgerError> {
        let keys = hold_keys(&adjustment.account);
        let mut buffer = Uuid::encode_buffer();
        let args = (
            text_of(adjustment.number, &mut buffer),
            &*adjustment.key,
            adjustment.sequence,
            adjustment.amount.max(MicroRub::ZERO).micro(),
        );
        let answer: Refused = self.ask(&self.0.scripts.adjust, &keys, args).await?;
        match answer.0.as_str() {
            "held" => Ok(Adjusted::Held(MicroRub::new(answer.1))),
            "gone" => Ok(Adjusted::Gone),
            "no_account" => {
                self.missing_account().await?;
                Ok(Adjusted::Gone)
            }
            _ => Err(LedgerError::Refused(read_refusal(&answer)?)),
        }
    }

    /// Settles a call whose hold was made in the ledger, without a lease.
    pub(super) async fn settle_in_ledger(
        &self,
        settlement: &Settlement,
    ) -> Result<Settled, LedgerError> {
        let Settlement {
            number,
            account,
            key,
            held,
            cost,
            fresh,
            lease: _,
            item,
        } = settlement;
        let mut keys = call_keys(account, *number);
        keys.extend([
            account_key(account, ":j"),
            receipt_key(account, *number),
            account_key(account, ":ev"),
            places_key(account, *number),
            turns_key(account, *number),
        ]);
        let mut json: Vec<u8> = Vec::with_capacity(ITEM_SIZE);
        serde_json::to_writer(&mut json, item)
            .map_err(|error| LedgerError::Unavailable(error.into()))?;
        let mut buffer = Uuid::encode_buffer();
        let args = (
            text_of(*number, &mut buffer),
            &**key,
            cost.micro(),
            u8::from(*fresh),
            held.micro(),
            json.as_slice(),
            RECEIPT_MS,
            place_field(number),
        );
        let mut answer: Value = self.ask(&self.0.scripts.settle, &keys, args).await?;
        if let Value::Array(words) = &mut answer
            && words.len() == 5
        {
            words.truncate(4);
            self.0.noticed.note(account);
        }
        let (booked, charged, loss, repeated): (String, i64, i64, bool) = read(answer)?;
        let booked = booked_of(&booked)?;
        let (charged, loss) = (MicroRub::new(charged), MicroRub::new(loss));
        if booked == Booked::NoAccount {
            self.missing_account().await?;
        } else {
            self.note_day(*number, account).await;
        }
        Ok(Settled {
            booked,
            charged,
            loss,
            repeated,
        })
    }

    /// Settles several calls of one key that have holds against a lease of another process, or against a lease that
    /// this process has lost. No two settlements may be of the same call.
    async fn settle_from<'a>(
        &self,
        lease: RequestNumber,
        mut settlements: impl ExactSizeIterator<Item = &'a Settlement>,
    ) -> Vec<Result<Settled, LedgerError>> {
        let count = settlements.len();
        let Some(first) = settlements.next() else {
            return Vec::new();
        };
        let mut turn = Turn::report(lease, first);
        turn.ends.extend(settlements.map(TurnEnd::from_settlement));
        match self.turn_of(&turn, Lane::Shared).await {
            Ok(answer) => answer.ends.into_iter().map(Ok).collect(),
            Err(error) => {
                let cause = cause_of(error).to_string();
                let each = || Err(LedgerError::Unavailable(cause.clone().into()));
                iter::repeat_with(each).take(count).collect()
            }
        }
    }

    pub(super) async fn expire_in(&self, account: &AccountId) -> Result<usize> {
        let keys = hold_keys(account);
        self.ask_patiently(&self.0.scripts.expire, &keys, &[EXPIRE_MAX.to_string()])
            .await
    }
}

impl Ledger for RedisLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.0.data.present()?;
        crate::leases::reserve(self, self.leases(), hold).await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        self.0.data.present()?;
        if let Some(leases) = self.leases()
            && let Some(settled) = leases.settle(settlement).await
        {
            return settled;
        }
        match settlement.lease {
            Some(lease) => {
                let reported = self.settle_from(lease, iter::once(settlement));
                let settled = Box::pin(reported).await.pop();
                settled.unwrap_or_else(|| {
                    Err(RedisFault::Unexpected(
                        "the script returned no result for a settlement".into(),
                    )
                    .into())
                })
            }
            None => self.settle_in_ledger(settlement).await,
        }
    }

    /// If this process does not have a lease any more, reports all settlements of the lease's calls in one turn. After
    /// a failover there are many such settlements.
    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        let mut of_leases: HashMap<_, Vec<usize>> = HashMap::new();
        let (mut others, mut seen) = (Vec::new(), HashSet::new());
        for (at, settlement) in settlements.iter().enumerate() {
            let (number, account, key) = (settlement.number, &settlement.account, &settlement.key);
            match settlement.lease {
                Some(lease) if self.lease_of(number, key).is_none() && seen.insert(number) => {
                    of_leases.entry((lease, account, key)).or_default().push(at);
                }
                _ => others.push(at),
            }
        }
        let turns = of_leases
            .iter()
            .flat_map(|((lease, ..), all)| all.chunks(ENDS_MAX).map(|some| (*lease, some)));
        let reported = turns.map(|(lease, some)| async move {
            let ends = some.iter().map(|at| &settlements[*at]);
            let answers = self.settle_from(lease, ends).await;
            some.iter().copied().zip(answers).collect::<Vec<_>>()
        });
        let settled = others
            .into_iter()
            .map(|at| async move { (at, self.settle(&settlements[at]).await) });
        let (reported, settled) = join(join_all(reported), join_all(settled)).await;
        let answers: BTreeMap<usize, _> = reported.into_iter().flatten().chain(settled).collect();
        answers.into_values().collect()
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.0.data.present()?;
        if (self.leases()).is_some_and(|leases| leases.release(number, key)) {
            return Ok(());
        }
        let keys = call_keys(account, number);
        let _: i64 = self
            .ask(&self.0.scripts.release, &keys, number.to_string())
            .await?;
        Ok(())
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.0.data.present()?;
        if (self.leases()).is_some_and(|leases| leases.extend(number, account, ttl)) {
            return Ok(true);
        }
        let keys = [account_key(account, ""), account_key(account, ":x")];
        let args = (number.to_string(), ttl_ms(ttl));
        Ok(self.ask(&self.0.scripts.extend, &keys, args).await?)
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.0.data.present()?;
        crate::leases::adjust(self, self.leases(), adjustment).await
    }

    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        self.leases()?.lease_of(number, key)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.0.data.present()?;
        let keys = [account_key(account, "")];
        let (word, ceiling, index): (String, String, u64) =
            self.ask(&self.0.scripts.probe, &keys, &**key).await?;
        if word == "ok" {
            return Ok(());
        }
        if word == "unknown" {
            self.missing_account().await?;
        }
        let refusal = read_refusal(&(word, 0, 0, ceiling, index))?;
        Err(LedgerError::Refused(refusal))
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        let mut cursor = self.0.sweep.lock().await;
        let (mut swept, mut count) = (0, 0);
        let (mut silent, mut somebody_answered) = (None, false);
        loop {
            let (next, ids) = self.next_ids(*cursor).await?;
            for ids in ids.chunks(ACCOUNTS_AT_ONCE) {
                for ended in join_all(ids.iter().map(|id| self.expire_in(id))).await {
                    match ended {
                        Ok(ended) => {
                            somebody_answered = true;
                            count += ended;
                        }
                        // If a primary has failed, holds on the other primaries must still expire.
                        Err(fault) => silent = Some(fault),
                    }
                }
            }
            *cursor = next;
            swept += ids.len();
            if next == 0 || swept >= SWEPT_MAX {
                break;
            }
        }
        match silent {
            Some(fault) if !somebody_answered => Err(fault.into()),
            _ => Ok(count),
        }
    }
}

/// A refusal as scripts return it: a word, two amounts, the ceiling that refuses, and the index of the ceiling's month
/// or day.
pub(super) type Refused = (String, i64, i64, String, u64);

/// Parses a refusal.
pub(super) fn read_refusal(refused: &Refused) -> Result<Refusal> {
    let (word, first, second, ceiling, index) = refused;
    let (free, held) = (MicroRub::new(*first), MicroRub::new(*second));
    Ok(match (word.as_str(), ceiling_of(ceiling, *index)?) {
        ("does_not_fit", ceiling) => Refusal::DoesNotFit {
            free,
            held,
            ceiling,
        },
        ("too_many_calls", _) => Refusal::TooManyCalls {
            most: u32::try_from(free.micro()).unwrap_or(u32::MAX),
        },
        ("unknown", None) => Refusal::Unknown,
        ("suspended", None) => Refusal::Suspended,
        ("disabled", None) => Refusal::Disabled,
        ("account_empty", None) => Refusal::AccountEmpty,
        ("used_up", Some(ceiling)) => Refusal::CeilingUsedUp(ceiling),
        ("gone", None) => Refusal::Gone,
        ("conflict", None) => Refusal::Conflict,
        (word, _) => return Err(RedisFault::Unexpected(format!("answer {word:?}"))),
    })
}

/// Parses the name of the ceiling in a script's refusal, if there is one. `index` is the index of the ceiling's month
/// or day.
fn ceiling_of(word: &str, index: u64) -> Result<Option<Ceiling>> {
    Ok(match word {
        "" => None,
        "total" => Some(Ceiling::Total),
        "month" => Some(Ceiling::of_month(index)),
        "day" => Some(Ceiling::of_day(index)),
        "group_total" => Some(Ceiling::GroupTotal),
        "group_month" => Some(Ceiling::of_month(index).of_group()),
        "group_day" => Some(Ceiling::of_day(index).of_group()),
        word => return Err(RedisFault::Unexpected(format!("ceiling {word:?}"))),
    })
}
