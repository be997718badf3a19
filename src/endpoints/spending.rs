//! `GET /v1/<service>/usage`: a key's spending by day, by model and by session.
//!
//! Sums by day and by model come from the roll-up and cover the whole period. Sums by session are computed from the
//! latest receipts, and a request reads only a limited number of them. The response states the time since which the
//! sums by session are complete.

use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
    sync::Arc,
};

use http::{Request, Response};
use serde::Serialize;
use tokio::sync::Semaphore;
use tollgate_layers::{
    Error,
    body::AnswerBody,
    facts::Caller,
    key::{KeyId, KeyRecord},
    money::MicroRub,
    reserve::ledger::Receipt,
    session::SessionId,
    usage::Usage,
};
use tollgate_ledger::rollup::{self, CallScope, Part};

use crate::{
    endpoints::{handler::Handler, key_info::no_books, params::Params, reply},
    ledger::{
        AnyLedger,
        latest::{LatestLines, charged},
    },
    text::time::{day, now_ms, rfc3339},
};

const DAY_MS: u64 = 86_400_000;
const DAYS: u64 = 30;
const DAYS_MAX: u64 = 31;
/// The maximum number of journal lines from which the sums of sessions are computed.
const LINES_MAX: usize = 2_000;
/// The largest number of reports that are computed concurrently.
const AT_ONCE_MAX: usize = 4;
/// The largest number of sessions in a response.
const SESSIONS_MAX: usize = 50;

/// Serves a key's spending. Must be below `auth`, which identifies the key.
#[derive(Clone, Debug)]
pub struct Spending {
    store: AnyLedger,
    at_once: Arc<Semaphore>,
}

impl Spending {
    /// Creates the service, which reads sums and receipts from `store`.
    #[must_use]
    pub fn new(store: AnyLedger) -> Self {
        Self {
            store,
            at_once: Arc::new(Semaphore::new(AT_ONCE_MAX)),
        }
    }

    /// Returns the spending of a key. An owner key gets the spending of all keys of its account, or of the one key that
    /// its request names.
    async fn report(
        &self,
        key: &KeyRecord,
        of: Option<&KeyId>,
        days: u64,
    ) -> Result<Report, Error> {
        let _permit = self.at_once.try_acquire().map_err(|_| Error::Overloaded)?;
        let until_ms = now_ms();
        // The report covers whole UTC days including today, as ceilings do.
        let since_ms = (until_ms / DAY_MS + 1).saturating_sub(days) * DAY_MS;
        let mut report = Report::since(since_ms);
        let call_scope = CallScope::Account(&key.account);
        let read = rollup::read(&self.store, call_scope, since_ms..u64::MAX, |part| {
            if part.key.is_some_and(|paid| sees(key, of, paid)) {
                report.add(part);
            }
            ControlFlow::Continue(())
        });
        read.await.map_err(no_books)?;
        let mut latest = LatestLines::new(&self.store, &key.account, since_ms, u64::MAX);
        let mut left = LINES_MAX;
        while let Some(lines) = latest.next().await.map_err(no_books)? {
            for line in &lines {
                if left == 0 {
                    report.sessions_complete = false;
                    return Ok(report);
                }
                left -= 1;
                report.sessions_since_ms = line.at_ms();
                let own = |receipt: &&Receipt| sees(key, of, &receipt.key);
                if let Some(receipt) = charged(line).filter(own) {
                    report.add_session(receipt);
                }
            }
        }
        Ok(report)
    }
}

/// Returns whether `key` may see a call that was charged to the key `paid`. A key sees its own calls. An owner key sees
/// the calls of all keys of its account, or only those of the key `of`.
pub(super) fn sees(key: &KeyRecord, of: Option<&KeyId>, paid: &KeyId) -> bool {
    match of {
        Some(of) => of == paid,
        None => key.is_owner() || *paid == key.id,
    }
}

/// Returns the names of the parameters that a key may use; an owner key may use further parameters.
pub(super) fn known<'a>(
    key: &KeyRecord,
    of_key: &'a [&'static str],
    of_owner: &'a [&'static str],
) -> &'a [&'static str] {
    match key.is_owner() {
        true => of_owner,
        false => of_key,
    }
}

impl<B: Send + 'static> Handler<B> for Spending {
    async fn handle(self, req: Request<B>) -> Result<Response<AnswerBody>, Error> {
        let Caller(key) = Caller::of(&req)?;
        let params = Params::parse(req.uri().query(), known(key, &["days"], &["days", "key"]))?;
        let of = params.optional("key", "id", |text| text.parse().ok())?;
        let days = params.number("days", DAYS_MAX)?.unwrap_or(DAYS);
        let report = self.report(key, of.as_ref(), days).await?;
        Ok(reply::json(&report.answer()))
    }
}

#[derive(Debug, Default)]
struct Report {
    since_ms: u64,
    total: Sums,
    days: BTreeMap<String, Sums>,
    models: HashMap<String, Sums>,
    sessions: HashMap<Option<SessionId>, Sums>,
    sessions_since_ms: u64,
    /// Whether the sums by session cover the whole period. If not, they omit older receipts.
    sessions_complete: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Sums {
    calls: u64,
    usage: Usage,
    charged_rub: MicroRub,
}

impl Sums {
    fn add(&mut self, sums: &rollup::Sums) {
        self.calls += sums.calls;
        self.usage = self.usage.plus(&sums.usage);
        let charged = i64::try_from(sums.charged_micro).unwrap_or(i64::MAX);
        self.charged_rub = self.charged_rub.plus_or_max(MicroRub::new(charged));
    }
}

impl Report {
    fn since(since_ms: u64) -> Self {
        Self {
            since_ms,
            sessions_since_ms: since_ms,
            sessions_complete: true,
            ..Self::default()
        }
    }

    fn add(&mut self, part: &Part<'_>) {
        let days = self.days.entry(day(part.at_ms)).or_default();
        let models = match self.models.get_mut(part.model) {
            Some(sums) => sums,
            None => self.models.entry(part.model.to_owned()).or_default(),
        };
        for sums in [&mut self.total, days, models] {
            sums.add(part.sums);
        }
    }

    fn add_session(&mut self, receipt: &Receipt) {
        let session = receipt.item.session.clone();
        let sums = self.sessions.entry(session).or_default();
        sums.add(&rollup::Sums::from_receipt(receipt));
    }

    fn answer(self) -> Answer {
        let sessions_since_ms = match self.sessions_complete {
            true => self.since_ms,
            false => self.sessions_since_ms,
        };
        let mut sessions = dearest(self.sessions, |session, sums| BySession { session, sums });
        let sessions_left_out = sessions.len().saturating_sub(SESSIONS_MAX);
        sessions.truncate(SESSIONS_MAX);
        let days = self.days.into_iter();
        Answer {
            since: rfc3339(self.since_ms),
            counted_since: rfc3339(self.since_ms),
            complete: true,
            total: self.total,
            days: days.map(|(day, sums)| ByDay { day, sums }).collect(),
            models: dearest(self.models, |model, sums| ByModel { model, sums }),
            sessions,
            sessions_left_out,
            sessions_since: rfc3339(sessions_since_ms),
            sessions_complete: self.sessions_complete,
        }
    }
}

/// Sorts rows by cost, highest first.
fn dearest<K: Ord, R>(sums: HashMap<K, Sums>, row: impl Fn(K, Sums) -> R) -> Vec<R> {
    let mut rows: Vec<(K, Sums)> = sums.into_iter().collect();
    rows.sort_by(|(name, sums), (other, others)| {
        (others.charged_rub.cmp(&sums.charged_rub)).then_with(|| name.cmp(other))
    });
    let rows = rows.into_iter();
    rows.map(|(name, sums)| row(name, sums)).collect()
}

#[derive(Debug, Serialize)]
struct Answer {
    since: String,
    /// The time since which all charges are in the sums.
    counted_since: String,
    /// Whether the sums cover the whole period that the caller requested.
    complete: bool,
    total: Sums,
    days: Vec<ByDay>,
    models: Vec<ByModel>,
    sessions: Vec<BySession>,
    /// The number of sessions that are omitted because they cost less than the listed ones.
    sessions_left_out: usize,
    /// The time since which all charges are in the sums by session.
    sessions_since: String,
    /// Whether the sums by session cover the whole period that the caller requested.
    sessions_complete: bool,
}

#[derive(Debug, Serialize)]
struct ByDay {
    day: String,
    #[serde(flatten)]
    sums: Sums,
}

#[derive(Debug, Serialize)]
struct ByModel {
    model: String,
    #[serde(flatten)]
    sums: Sums,
}

#[derive(Debug, Serialize)]
struct BySession {
    /// The session; null for the calls without a session.
    session: Option<SessionId>,
    #[serde(flatten)]
    sums: Sums,
}
