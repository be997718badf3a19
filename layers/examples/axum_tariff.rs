//! An axum service with its own tariff. Each page has a fee, which the caller's account pays in advance. A page that is
//! not delivered is free.
//!
//! ```sh
//! cargo run -p tollgate-layers --features auth,passthrough,rate-limit,reserve,respond --example axum_tariff
//! ```

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Path},
    routing::get,
};
use bytes::Bytes;
use http::{Request, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};
use tollgate_layers::{
    Error,
    auth::{AuthLayer, SecretKey},
    call::Format,
    ceiling::Ceilings,
    error::BoxError,
    facts::{Caller, ClientAddr},
    key::{AccountId, KeyId},
    money::MicroRub,
    passthrough::metered::MeteredLayer,
    rate_limit::{Gcra, Quota, RateLimitLayer, by_address},
    reserve::{
        Bill, Event, Quote, ReserveLayer, Settler, SettlerSettings, Tariff,
        ledger::{Entry, Item, LedgerAdmin},
        memory::MemoryLedger,
    },
    respond::{Language, RespondLayer},
    usage::{End, Meter, Reading},
};
use tower::ServiceBuilder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let (acme, laptop): (AccountId, KeyId) = ("acme".parse()?, "laptop".parse()?);
    let ledger = MemoryLedger::new();
    ledger.create_account(&acme, "Acme").await?;
    let payment = Entry {
        id: "payment-1".into(),
        amount: MicroRub::rubles(5),
        reason: None,
    };
    ledger.enter(&acme, &payment).await?;
    let secret = SecretKey::generate();
    let record = secret.record(laptop, acme.clone());
    ledger.create_key(&record, Ceilings::NONE).await?;

    let (ends, mut ended) = mpsc::channel(16);
    let report = move |event: &Event<'_>| drop(ends.try_send(line(event)));
    let (settler, settling) = Settler::new(ledger.clone(), SettlerSettings::default(), report);
    let mut tasks = JoinSet::new();
    tasks.spawn(settling.run());

    // The layers from top to bottom. Axum's routes can be directly below them, because the layers accept any error
    // type.
    let layers = ServiceBuilder::new()
        .map_request(with_address)
        .layer(RespondLayer::new(Language::En))
        .layer(RateLimitLayer::new(
            Gcra::new(100_000),
            by_address(Quota::per_second(100)),
        ))
        .layer(AuthLayer::new(ledger.clone()))
        .layer(ReserveLayer::new(
            ledger.clone(),
            Fees,
            settler,
            Duration::from_secs(60),
        ))
        .layer(MeteredLayer::new(Format::Chat, 0));
    let app: Router = Router::new().route("/{page}", get(page)).layer(layers);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tasks.spawn(async move { drop(axum::serve(listener, app).await) });

    for page in ["haiku", "novel", "burnt", "novel"] {
        let (status, text) = ask(address, page, secret.expose()).await?;
        println!("GET /{page}\n  {status}: {text}");
        // A refused call made no hold, so the end of a hold is not reported for it.
        if status != StatusCode::FORBIDDEN {
            let end = ended.recv().await.ok_or("the settler has ended")?;
            let left = ledger.account(&acme).await?.balance_rub;
            println!("  {end}, {left} ₽ left");
        }
    }
    Ok(())
}

/// Inserts the client's address, which axum takes from the connection.
fn with_address<B>(mut req: Request<B>) -> Request<B> {
    let info = req.extensions().get::<ConnectInfo<SocketAddr>>();
    if let Some(address) = info.map(|info| ClientAddr(info.0.ip())) {
        req.extensions_mut().insert(address);
    }
    req
}

/// An ordinary handler.
async fn page(Path(page): Path<String>) -> Result<&'static str, (StatusCode, &'static str)> {
    match page.as_str() {
        "haiku" => Ok("An old silent pond"),
        "novel" => Ok("All happy families are alike"),
        _ => Err((StatusCode::INTERNAL_SERVER_ERROR, "the page is burnt")),
    }
}

/// 3 ₽ for a novel, 1 ₽ for any other page, paid by the caller that `auth` has found.
struct Fees;

impl<B> Tariff<B> for Fees {
    type Bill = Ticket;

    fn quote(&self, req: &Request<B>) -> Result<Quote<Ticket>, Error> {
        let Caller(key) = Caller::of(req)?;
        let fee = match req.uri().path() {
            "/novel" => MicroRub::rubles(3),
            _ => MicroRub::rubles(1),
        };
        let meter = Meter::default();
        let ticket = Ticket {
            fee,
            meter: meter.clone(),
        };
        let mut quote = Quote::new(key.account.clone(), key.id.clone(), fee, ticket);
        quote.meter = meter;
        Ok(quote)
    }

    /// Passes the meter to `MeteredLayer`, which records in it how the response ended.
    fn granted(&self, req: &mut Request<B>, ticket: &mut Ticket, _: MicroRub) {
        req.extensions_mut().insert(ticket.meter.clone());
    }
}

struct Ticket {
    fee: MicroRub,
    meter: Meter,
}

impl Bill for Ticket {
    /// Runs at the end of each call, even if the call failed.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        let item = Item::new("page", "the library", reading.end?);
        (reading.end == Some(End::Finished)).then_some((self.fee, item))
    }
}

/// Returns a line for the output: what a call was charged, or that it was free.
fn line(event: &Event<'_>) -> String {
    match event {
        Event::Settled { settlement, .. } => format!("charged {} ₽", settlement.cost),
        Event::Released { .. } => "free".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Requests a page; returns the status and body of the response.
async fn ask(address: SocketAddr, page: &str, key: &str) -> Result<(StatusCode, String), BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let req = Request::get(format!("http://{address}/{page}"))
        .header(AUTHORIZATION, format!("Bearer {key}"))
        .body(Empty::<Bytes>::new())?;
    let res = client.request(req).await?;
    let status = res.status();
    let body = res.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
