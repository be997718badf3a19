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
    usage::{End, Meter, Reading, Usage},
};

const HELD: MicroRub = MicroRub::rubles(9);
const LOWER: MicroRub = MicroRub::rubles(4);
const COST: MicroRub = MicroRub::rubles(3);

/// How the ledger of a test answers adjustments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    AtOnce,
    Never,
    Fails,
    Unsupported,
}

/// A ledger in memory that answers adjustments in one of these ways.
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

/// Values that the meter gets before a frame.
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
    /// For each settlement, the largest and the last amount of its hold.
    settled: Vec<(Option<MicroRub>, Option<MicroRub>)>,
    balance: MicroRub,
}

/// Makes a call whose stream has one frame for each of `reports`, and drops it after `taken` frames.
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
async fn stream_does_not_wait_for_the_change_of_its_hold() {
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
async fn hold_is_not_lowered_if_text_precedes_usage_or_the_answer_is_not_a_stream() {
    let late = [Reports::Text, Reports::Usage, Reports::End];
    for (is_stream, reports) in [(true, &late[..]), (false, &STREAM[..])] {
        let ended = call(Answers::AtOnce, is_stream, reports, 9).await;
        assert_eq!(ended.adjustments, 0);
        assert_eq!(ended.settled, [(None, None)]);
    }
}
