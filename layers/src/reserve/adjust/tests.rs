use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};

use crate::{
    auth::SecretKey,
    call::Format,
    ceiling::Ceilings,
    error::Error,
    facts::{EventStream, RequestNumber},
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::{
        Bill, Event, Quote, ReserveLayer, Settler, SettlerSettings, Tariff,
        ledger::{
            Adjusted, Adjustment, Entry, Hold, Item, Ledger, LedgerAdmin, LedgerError, Reserved,
            Settled, Settlement,
        },
        memory::MemoryLedger,
    },
    usage::{Bounds, CoveredOutput, End, Meter, Reading, StoppedBy, Usage},
};

const HELD: MicroRub = MicroRub::rubles(9);
const LOWER: MicroRub = MicroRub::rubles(4);
const COST: MicroRub = MicroRub::rubles(3);

/// How a test's ledger answers adjustments of holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    AtOnce,
    Never,
    Fails,
    Unsupported,
}

/// A ledger in memory that answers adjustments in one of the ways of [`Answers`].
#[derive(Clone)]
struct Slow {
    books: MemoryLedger,
    answers: Answers,
    adjustments: Arc<AtomicUsize>,
}

impl Ledger for Slow {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.books.reserve(hold).await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        self.books.settle(settlement).await
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.books.release(number, account, key).await
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.books.extend(number, account, ttl).await
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.adjustments.fetch_add(1, Ordering::SeqCst);
        match self.answers {
            Answers::AtOnce => self.books.adjust(adjustment).await,
            Answers::Never => pending().await,
            Answers::Fails => Err(LedgerError::Unavailable("no answer".into())),
            Answers::Unsupported => Ok(Adjusted::Unsupported),
        }
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.books.probe(account, key).await
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        self.books.expire().await
    }
}

#[derive(Clone)]
struct Fee(AccountId, KeyId, Meter);

impl Tariff<()> for Fee {
    type Bill = Ticket;

    fn quote(&self, _: &Request<()>) -> Result<Quote<Ticket>, Error> {
        let mut quote = Quote::new(self.0.clone(), self.1.clone(), HELD, Ticket);
        quote.meter = self.2.clone();
        Ok(quote)
    }

    fn granted(&self, _: &mut Request<()>, _: &mut Ticket, _: MicroRub) {}
}

struct Ticket;

impl Bill for Ticket {
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        let end = reading.end.unwrap_or(End::ClientLeft);
        Some((COST, Item::new("m", "v", end)))
    }

    fn cost_max(&self, _: &Reading) -> Option<MicroRub> {
        Some(LOWER)
    }
}

/// Something that the meter records before a frame: usage, text, or the end of the response.
#[derive(Clone, Copy)]
enum Reports {
    Nothing,
    Usage,
    Text,
    End,
}

#[derive(Debug, PartialEq, Eq)]
struct Ended {
    frames: usize,
    adjustments: usize,
    /// The amount of the hold after the last frame that was read.
    held: MicroRub,
    /// The largest and the last amount of the hold in each settlement.
    settled: Vec<(Option<MicroRub>, Option<MicroRub>)>,
    balance: MicroRub,
}

/// Makes a call whose stream has one frame for each of `reports`, and drops the call after `taken` frames.
async fn call(answers: Answers, is_stream: bool, reports: &[Reports], taken: usize) -> Ended {
    let books = MemoryLedger::new();
    let payer: (AccountId, KeyId) = ("acme".parse().unwrap(), "web".parse().unwrap());
    books.create_account(&payer.0, "Acme").await.unwrap();
    let payment = Entry {
        id: "1".into(),
        amount: MicroRub::rubles(10),
        reason: None,
    };
    books.enter(&payer.0, &payment).await.unwrap();
    let key = SecretKey::generate().record(payer.1.clone(), payer.0.clone());
    books.create_key(&key, Ceilings::NONE).await.unwrap();
    let ledger = Slow {
        books: books.clone(),
        answers,
        adjustments: Arc::default(),
    };

    let settled = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&settled);
    let settings = SettlerSettings::default();
    let (settler, settling) = Settler::new(ledger.clone(), settings, move |event| {
        if let Event::Settled { settlement, .. } = event {
            let item = &settlement.item;
            let amounts = (item.held_max_rub, item.held_at_end_rub);
            seen.lock().unwrap().push(amounts);
        }
    });
    let meter = Meter::default();
    let fee = Fee(payer.0.clone(), payer.1, meter.clone());
    let layer = ReserveLayer::new(ledger.clone(), fee, settler, Duration::from_secs(60));
    let frames = reports.to_vec();
    let service = layer.layer(tower::service_fn(move |_| {
        let meter = meter.clone();
        let frames = futures_util::stream::iter(frames.clone()).map(move |report| {
            meter.update(|reading| match report {
                Reports::Nothing => {}
                Reports::Usage => reading.usage = Some(Usage::default()),
                Reports::Text => reading.text_bytes += 1,
                Reports::End => reading.end = Some(End::Finished),
            });
            Ok::<_, Error>(Frame::data(Bytes::from_static(b"data: {}\n\n")))
        });
        let mut res = Response::new(StreamBody::new(Box::pin(frames)));
        if is_stream {
            res.extensions_mut().insert(EventStream(Format::Chat));
        }
        async { Ok::<_, Error>(res) }
    }));
    let mut body = service.oneshot(Request::new(())).await.unwrap().into_body();
    let mut frames = 0;
    while frames < taken
        && let Some(frame) = body.frame().await
    {
        frame.unwrap();
        frames += 1;
    }
    let held = books.account(&payer.0).await.unwrap().held_rub;
    drop((body, layer));
    settling.run().await;
    let account = books.account(&payer.0).await.unwrap();
    assert_eq!(account.held_rub, MicroRub::ZERO);
    let settled = settled.lock().unwrap().clone();
    Ended {
        frames,
        adjustments: ledger.adjustments.load(Ordering::SeqCst),
        held,
        settled,
        balance: account.balance_rub,
    }
}

const STREAM: [Reports; 4] = [
    Reports::Nothing,
    Reports::Usage,
    Reports::Text,
    Reports::End,
];

#[tokio::test]
async fn hold_is_lowered_once_and_ends_once_whenever_the_client_leaves() {
    for taken in 0..=STREAM.len() {
        let ended = call(Answers::AtOnce, true, &STREAM, taken).await;
        let is_lowered = taken >= 2;
        let expected = Ended {
            frames: taken,
            adjustments: usize::from(is_lowered),
            held: if is_lowered { LOWER } else { HELD },
            settled: vec![match is_lowered {
                true => (Some(HELD), Some(LOWER)),
                false => (None, None),
            }],
            balance: MicroRub::rubles(7),
        };
        assert_eq!(ended, expected, "{taken}");
    }
}

#[tokio::test]
async fn stream_does_not_wait_while_its_hold_is_changed() {
    for answers in [Answers::Never, Answers::Fails, Answers::Unsupported] {
        for taken in 0..=STREAM.len() {
            let ended = call(answers, true, &STREAM, taken).await;
            assert_eq!(ended.frames, taken, "{answers:?}");
            assert_eq!(ended.adjustments, usize::from(taken >= 2), "{answers:?}");
            assert_eq!(ended.settled, [(None, None)], "{answers:?} {taken}");
            assert_eq!(ended.balance, MicroRub::rubles(7), "{answers:?} {taken}");
        }
    }
}

#[tokio::test]
async fn hold_is_not_lowered_if_text_precedes_usage_or_the_response_is_not_a_stream() {
    let late = [Reports::Text, Reports::Usage, Reports::End];
    for (is_stream, reports) in [(true, &late[..]), (false, &STREAM[..])] {
        let ended = call(Answers::AtOnce, is_stream, reports, 9).await;
        assert_eq!(ended.adjustments, 0);
        assert_eq!(ended.settled, [(None, None)]);
    }
}

/// The cost of an output token, in micro-rubles.
const TOKEN: i64 = 1_000;
const OUTPUT_MAX: u64 = 20_000;
const SPEED: u64 = 100;

/// A tariff that charges output tokens, with holds that grow.
#[derive(Clone)]
struct PerToken(AccountId, KeyId, Meter);

impl Tariff<()> for PerToken {
    type Bill = Self;

    fn quote(&self, _: &Request<()>) -> Result<Quote<Self>, Error> {
        let first = self.cost_within(&Reading::default(), 4_096).unwrap();
        let mut quote = Quote::new(self.0.clone(), self.1.clone(), first, self.clone());
        quote.meter = self.2.clone();
        Ok(quote)
    }

    fn granted(&self, _: &mut Request<()>, _: &mut Self, _: MicroRub) {
        self.2.charge_within(Bounds {
            output_bound: OUTPUT_MAX,
            output_limit: OUTPUT_MAX,
            growing: Some(Arc::new(CoveredOutput::new(SPEED, 4_096))),
            ..Bounds::default()
        });
    }
}

impl Bill for PerToken {
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        let output = self.2.bounds()?.count(reading).usage.output;
        let mut item = Item::new("m", "v", reading.end.unwrap_or(End::ClientLeft));
        item.stopped_by = reading.stopped_by;
        Some((self.cost_within(reading, output)?, item))
    }

    fn cost_within(&self, _: &Reading, output_tokens: u64) -> Option<MicroRub> {
        Some(MicroRub::new(i64::try_from(output_tokens).unwrap() * TOKEN))
    }
}

/// A vendor whose stream begins after `silence` seconds, and then has `speed` tokens per second.
#[derive(Clone, Copy)]
struct Vendor {
    silence: u64,
    speed: u64,
    seconds: u64,
}

#[derive(Debug)]
struct Growth {
    status: Result<(), Error>,
    /// The duration of the call in seconds.
    seconds: u64,
    adjustments: usize,
    charged: i64,
    loss: i64,
    item: Option<Item>,
}

/// Makes a call to this vendor, from an account with `balance` rubles, and drops the call after `taken` frames.
async fn grown(answers: Answers, balance: i64, vendor: Vendor, taken: usize) -> Growth {
    let books = MemoryLedger::new();
    let payer: (AccountId, KeyId) = ("acme".parse().unwrap(), "web".parse().unwrap());
    books.create_account(&payer.0, "Acme").await.unwrap();
    let payment = Entry {
        id: "1".into(),
        amount: MicroRub::rubles(balance),
        reason: None,
    };
    books.enter(&payer.0, &payment).await.unwrap();
    let key = SecretKey::generate().record(payer.1.clone(), payer.0.clone());
    books.create_key(&key, Ceilings::NONE).await.unwrap();
    let ledger = Slow {
        books: books.clone(),
        answers,
        adjustments: Arc::default(),
    };
    let settled = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&settled);
    let settings = SettlerSettings::default();
    let (settler, settling) = Settler::new(ledger.clone(), settings, move |event| {
        if let Event::Settled {
            settlement,
            settled,
        } = event
        {
            *seen.lock().unwrap() = Some((settlement.item.clone(), **settled));
        }
    });
    let meter = Meter::default();
    let tariff = PerToken(payer.0.clone(), payer.1, meter.clone());
    let layer = ReserveLayer::new(
        ledger.clone(),
        tariff.clone(),
        settler,
        Duration::from_secs(600),
    );
    let of_vendor = meter.clone();
    let service = layer.layer(tower::service_fn(move |_| {
        let meter = of_vendor.clone();
        async move {
            meter.dispatched();
            sleep(Duration::from_secs(vendor.silence)).await;
            let frames = futures_util::stream::unfold(0, move |second| {
                let meter = meter.clone();
                async move {
                    let read = meter.read();
                    if read.end.is_some() {
                        return None;
                    }
                    if read.stopped_by.is_none() {
                        sleep(Duration::from_secs(1)).await;
                    }
                    let ends = second == vendor.seconds || read.stopped_by.is_some();
                    meter.update(|reading| match ends {
                        true => reading.end = Some(End::Finished),
                        false => {
                            reading.text_tokens += vendor.speed;
                            reading.text_bytes += vendor.speed * 4;
                        }
                    });
                    let frame = Frame::data(Bytes::from_static(b"data: {}\n\n"));
                    Some((Ok::<_, Error>(frame), second + 1))
                }
            });
            let mut res = Response::new(StreamBody::new(Box::pin(frames)));
            res.extensions_mut().insert(EventStream(Format::Chat));
            Ok::<_, Error>(res)
        }
    }));
    let begun = Instant::now();
    let answer = service.oneshot(Request::new(())).await;
    let status = answer
        .as_ref()
        .map(|_| ())
        .map_err(|error| Error::Internal(error.to_string().into()));
    let mut body = answer.ok().map(Response::into_body);
    let mut frames = 0;
    while let Some(body) = &mut body
        && frames < taken
        && let Some(frame) = body.frame().await
    {
        frame.unwrap();
        frames += 1;
        // Whenever the call ends, even if the gateway is killed, the hold must be at least the cost of the call.
        let account = books.account(&payer.0).await.unwrap();
        let (cost, _) = tariff.charge(&meter.read()).unwrap();
        assert!(
            account.held_rub >= cost || meter.read().end.is_some(),
            "{frames} {cost}"
        );
        assert!(account.held_rub <= account.balance_rub);
    }
    let seconds = begun.elapsed().as_secs();
    drop((body, layer));
    settling.run().await;
    let account = books.account(&payer.0).await.unwrap();
    assert_eq!(account.held_rub, MicroRub::ZERO);
    let ended: Option<(Item, Settled)> = settled.lock().unwrap().take();
    let (item, settled) = ended.unzip();
    Growth {
        status,
        seconds,
        adjustments: ledger.adjustments.load(Ordering::SeqCst),
        charged: balance * 1_000_000 - account.balance_rub.micro(),
        loss: settled.map_or(0, |settled| settled.loss.micro()),
        item,
    }
}

#[tokio::test(start_paused = true)]
async fn growing_hold_is_raised_ahead_of_need_without_delaying_the_stream() {
    let vendor = Vendor {
        silence: 0,
        speed: 60,
        seconds: 150,
    };
    let grown = grown(Answers::AtOnce, 100, vendor, usize::MAX).await;
    assert_eq!(grown.seconds, 151, "{grown:?}");
    assert_eq!(grown.charged, 150 * 60 * TOKEN);
    assert_eq!((grown.loss, grown.adjustments), (0, 3));
    let item = grown.item.unwrap();
    assert_eq!((item.end, item.stopped_by), (End::Finished, None));
    let held = [item.held_max_rub, item.held_at_end_rub].map(|held| held.unwrap().micro());
    assert_eq!(held, [4 * 4_096 * TOKEN; 2]);
}

#[tokio::test(start_paused = true)]
async fn stream_whose_hold_cannot_be_raised_is_stopped_while_its_hold_still_covers_it() {
    for (answers, balance, silence, stopped_by, seconds) in [
        (Answers::AtOnce, 10, 0, StoppedBy::Balance, 90..100),
        (Answers::AtOnce, 5, 0, StoppedBy::Balance, 40..50),
        (Answers::AtOnce, 10, 20, StoppedBy::Balance, 90..100),
        (Answers::Never, 100, 0, StoppedBy::Ledger, 38..41),
        (Answers::Fails, 100, 0, StoppedBy::Ledger, 38..41),
        (Answers::Unsupported, 100, 30, StoppedBy::Ledger, 38..41),
    ] {
        for speed in [1, 100] {
            let vendor = Vendor {
                silence,
                speed,
                seconds: 1_000,
            };
            let grown = grown(answers, balance, vendor, usize::MAX).await;
            assert!(
                seconds.contains(&grown.seconds),
                "{answers:?} {speed} {grown:?}"
            );
            assert!(
                grown.charged <= balance * 1_000_000 && grown.loss == 0,
                "{grown:?}"
            );
            let item = grown.item.unwrap();
            assert_eq!(
                (item.end, item.stopped_by),
                (End::Finished, Some(stopped_by))
            );
            assert_eq!(item.held_at_end_rub, item.held_max_rub);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_leaves_pays_only_for_what_arrived() {
    let vendor = Vendor {
        silence: 0,
        speed: 100,
        seconds: 150,
    };
    for taken in (0..150).step_by(7) {
        let grown = grown(Answers::AtOnce, 100, vendor, taken).await;
        assert_eq!(grown.charged, 100 * taken as i64 * TOKEN);
        assert_eq!(grown.item.unwrap().end, End::ClientLeft);
    }
}

/// A model may reason before the response begins, and the gateway does not see that reasoning.
#[tokio::test(start_paused = true)]
async fn hold_grows_before_the_response_begins_and_a_refused_raise_fails_the_call() {
    let vendor = Vendor {
        silence: 120,
        speed: 60,
        seconds: 3,
    };
    let rich = grown(Answers::AtOnce, 100, vendor, usize::MAX).await;
    assert!(rich.status.is_ok() && rich.adjustments >= 3, "{rich:?}");
    assert_eq!(rich.charged, 3 * 60 * TOKEN);
    let poor = grown(Answers::AtOnce, 10, vendor, usize::MAX).await;
    assert!(poor.status.is_err() && poor.seconds < 100, "{poor:?}");
    assert_eq!(poor.item.unwrap().stopped_by, Some(StoppedBy::Balance));
}
