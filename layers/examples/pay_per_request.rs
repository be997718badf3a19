//! Pay per request for a service that does not call models, with the program's own ledger.
//!
//! The ledger is a map in memory. Before it is used, the crate's contract tests for ledgers check it
//! (`reserve::testing`).
//!
//! ```sh
//! cargo run -p tollgate-layers --features request-number,reserve,respond,testing --example pay_per_request
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tollgate_layers::{
    Error,
    body::{self, AnswerBody},
    error::BoxError,
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    request_number::RequestNumberLayer,
    reserve::{
        Bill, Event, Quote, ReserveLayer, Settler, SettlerSettings, Tariff,
        ledger::{Booked, Hold, Item, Ledger, LedgerError, Refusal, Reserved, Settled, Settlement},
        testing,
    },
    respond::{Language, Refused, RespondLayer},
    usage::{End, Meter, Reading},
};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    testing::check(async |openings| {
        let purses = Purses::default();
        for opening in openings {
            let keys = opening.keys.iter().map(|key| key.id.clone());
            purses.open(&opening.account, opening.payment.amount, keys.collect());
        }
        purses
    })
    .await;
    println!(
        "the ledger keeps {} promises",
        testing::cases::<Purses>().len()
    );

    let (acme, web): (AccountId, KeyId) = ("acme".parse()?, "web".parse()?);
    let purses = Purses::default();
    purses.open(&acme, MicroRub::rubles(5), vec![web.clone()]);

    let (lines, mut booked) = mpsc::channel(16);
    let report = move |event: &Event<'_>| drop(lines.try_send(line(event)));
    let (settler, settling) = Settler::new(purses.clone(), SettlerSettings::default(), report);
    let mut tasks = JoinSet::new();
    tasks.spawn(settling.run());

    let fee = Fee {
        amount: MicroRub::rubles(2),
        key: web,
    };
    let hold_time = Duration::from_secs(60);
    let service = ServiceBuilder::new()
        .layer(RequestNumberLayer::new())
        .layer(RespondLayer::new(Language::En).shaped_by(payment_required))
        .layer(ReserveLayer::new(purses.clone(), fee, settler, hold_time))
        .service_fn(horoscope);

    for path in ["/leo", "/cloudy", "/virgo", "/libra"] {
        let req = Request::get(path).header("x-account", &*acme).body(())?;
        let res = service.clone().oneshot(req).await?;
        let status = res.status();
        let text = res.into_body().collect().await?.to_bytes();
        println!("GET {path}\n  {status}: {}", String::from_utf8_lossy(&text));
        // A request rejected for lack of money made no hold, so the settler reports nothing for it.
        if status != StatusCode::PAYMENT_REQUIRED {
            let line = booked.recv().await.ok_or("the settler has ended")?;
            println!("  {line}, {} ₽ left", purses.balance(&acme));
        }
    }
    Ok(())
}

/// The service: answers every request except one.
async fn horoscope(req: Request<()>) -> Result<Response<AnswerBody>, Error> {
    if req.uri().path() == "/cloudy" {
        return Err(Error::Internal("no star to be seen".into()));
    }
    if let Some(meter) = req.extensions().get::<Meter>() {
        meter.update(|reading| reading.end = Some(End::Finished));
    }
    Ok(Response::new(body::full("a good day to measure twice")))
}

/// A fixed fee per horoscope. A request header names the account that pays. With `auth` as an outer layer, `Caller`
/// would name the account.
#[derive(Clone)]
struct Fee {
    amount: MicroRub,
    key: KeyId,
}

impl<B> Tariff<B> for Fee {
    type Bill = Ticket;

    fn quote(&self, req: &Request<B>) -> Result<Quote<Ticket>, Error> {
        let named = req.headers().get("x-account");
        let account = named
            .and_then(|name| name.to_str().ok()?.parse().ok())
            .ok_or(Error::KeyMissing)?;
        let meter = Meter::default();
        let bill = Ticket {
            amount: self.amount,
            meter: meter.clone(),
        };
        let mut quote = Quote::new(account, self.key.clone(), self.amount, bill);
        quote.meter = meter;
        Ok(quote)
    }

    fn granted(&self, req: &mut Request<B>, bill: &mut Ticket, _: MicroRub) {
        req.extensions_mut().insert(bill.meter.clone());
    }
}

struct Ticket {
    amount: MicroRub,
    meter: Meter,
}

impl Bill for Ticket {
    /// A request without a delivered answer costs nothing.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        let item = Item::new("horoscope", "the stars", reading.end?);
        Some((self.amount, item))
    }
}

/// Answers with 402 if there is too little money, and with the usual response to other errors.
fn payment_required(refused: &Refused<'_>) -> Response<Bytes> {
    let mut res = refused.usual();
    let text = match refused.error() {
        Error::DoesNotFit { needs, free, .. } => {
            *res.status_mut() = StatusCode::PAYMENT_REQUIRED;
            format!("a horoscope costs {needs} ₽, {free} ₽ are left")
        }
        _ => refused.text(),
    };
    res.map(|_| Bytes::from(text))
}

fn line(event: &Event<'_>) -> String {
    match event {
        Event::Settled { settled, .. } => format!("charged {} ₽", settled.charged),
        Event::Released { .. } => "free".into(),
        other => format!("{other:?}"),
    }
}

/// A ledger that passes the contract tests for ledgers, but stores everything in memory.
#[derive(Clone, Default)]
struct Purses(Arc<Mutex<HashMap<AccountId, Purse>>>);

impl Purses {
    fn open(&self, account: &AccountId, balance: MicroRub, keys: Vec<KeyId>) {
        let purse = Purse {
            balance,
            keys,
            ..Purse::default()
        };
        self.lock().insert(account.clone(), purse);
    }

    fn balance(&self, account: &AccountId) -> MicroRub {
        let purses = self.lock();
        purses
            .get(account)
            .map_or(MicroRub::ZERO, |purse| purse.balance)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, Purse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Purse {
    balance: MicroRub,
    keys: Vec<KeyId>,
    open: HashMap<RequestNumber, Open>,
    /// Ended holds. A long-running ledger would remove them after some time.
    ended: HashMap<RequestNumber, Ended>,
}

struct Open {
    hold: Hold,
    held: MicroRub,
    due: Instant,
}

enum Ended {
    /// Expired hold of this key; it can still be settled.
    Expired(KeyId),
    Booked(Settled),
}

impl Purse {
    fn held(&self, counts: impl Fn(&Hold) -> bool) -> MicroRub {
        self.open
            .values()
            .filter(|open| counts(&open.hold))
            .fold(MicroRub::ZERO, |sum, open| sum.plus_or_max(open.held))
    }

    fn free(&self) -> MicroRub {
        self.balance.minus_or_zero(self.held(|_| true))
    }

    fn admits(&self, key: &KeyId) -> Result<(), Refusal> {
        if !self.keys.contains(key) {
            Err(Refusal::Unknown)
        } else if self.balance == MicroRub::ZERO {
            Err(Refusal::AccountEmpty)
        } else {
            Ok(())
        }
    }

    fn reserve(&mut self, hold: &Hold) -> Result<Reserved, Refusal> {
        if self.ended.contains_key(&hold.number) {
            return Err(Refusal::Gone);
        }
        if let Some(open) = self.open.get(&hold.number) {
            let (same, held) = (open.hold == *hold, open.held);
            let free = self.free();
            return if same {
                Ok(Reserved { held, free })
            } else {
                Err(Refusal::Conflict)
            };
        }
        self.admits(&hold.key)?;
        if self.free() < hold.want {
            self.expire();
        }
        let free = self.free();
        let held = hold.want.min(free);
        if held < hold.least {
            let held = self.held(|other| other.key == hold.key);
            let ceiling = None;
            return Err(Refusal::DoesNotFit {
                free,
                held,
                ceiling,
            });
        }
        let open = Open {
            hold: hold.clone(),
            held,
            due: Instant::now() + hold.ttl,
        };
        self.open.insert(hold.number, open);
        Ok(Reserved {
            held,
            free: free.minus_or_zero(held),
        })
    }

    fn settle(&mut self, settlement: &Settlement) -> Settled {
        let Settlement {
            number, key, cost, ..
        } = settlement;
        let booked = match (self.ended.get(number), self.open.get(number)) {
            (Some(Ended::Booked(first)), _) => {
                return Settled {
                    repeated: true,
                    ..*first
                };
            }
            (Some(Ended::Expired(on)), _) if on == key => Booked::Late,
            (None, Some(open)) if open.hold.key == *key => Booked::Held,
            (None, None) if settlement.fresh && self.keys.contains(key) => Booked::Forced,
            _ => return nothing(Booked::Stale),
        };
        // Remove the hold first, so that the free money includes what it held.
        self.open.remove(number);
        let charged = self.free().min(*cost);
        self.balance = self.balance.minus_or_zero(charged);
        let settled = Settled {
            charged,
            loss: cost.minus_or_zero(charged),
            ..nothing(booked)
        };
        self.ended.insert(*number, Ended::Booked(settled));
        settled
    }

    fn release(&mut self, number: RequestNumber) {
        self.open.remove(&number);
        if !matches!(self.ended.get(&number), Some(Ended::Booked(_))) {
            let released = nothing(Booked::Released);
            self.ended.insert(number, Ended::Booked(released));
        }
    }

    fn expire(&mut self) -> usize {
        let now = Instant::now();
        let due = |_: &RequestNumber, open: &mut Open| open.due <= now;
        let expired: Vec<_> = self.open.extract_if(due).collect();
        let count = expired.len();
        let ended = |(number, open): (_, Open)| (number, Ended::Expired(open.hold.key));
        self.ended.extend(expired.into_iter().map(ended));
        count
    }
}

fn nothing(booked: Booked) -> Settled {
    Settled {
        booked,
        charged: MicroRub::ZERO,
        loss: MicroRub::ZERO,
        repeated: false,
    }
}

impl Ledger for Purses {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let mut purses = self.lock();
        let purse = purses.get_mut(&hold.account).ok_or(Refusal::Unknown);
        purse
            .and_then(|purse| purse.reserve(hold))
            .map_err(LedgerError::Refused)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let mut purses = self.lock();
        Ok(match purses.get_mut(&settlement.account) {
            Some(purse) => purse.settle(settlement),
            None => nothing(Booked::NoAccount),
        })
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        _: &KeyId,
    ) -> Result<(), LedgerError> {
        if let Some(purse) = self.lock().get_mut(account) {
            purse.release(number);
        }
        Ok(())
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        let mut purses = self.lock();
        let purse = purses.get_mut(account);
        let open = purse.and_then(|purse| purse.open.get_mut(&number));
        Ok(open.is_some_and(|open| {
            open.due = Instant::now() + ttl;
            true
        }))
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        let purses = self.lock();
        let purse = purses.get(account).ok_or(Refusal::Unknown);
        purse
            .and_then(|purse| purse.admits(key))
            .map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        Ok(self.lock().values_mut().map(Purse::expire).sum())
    }
}
