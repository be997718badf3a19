//! The whole stack for model calls in one route of an axum program: keys, holds, prices, a vendor. The vendor is
//! another axum server here, with a prepared answer.
//!
//! ```sh
//! cargo run -p tollgate-layers --example axum_models --features \
//!     auth,failover,parse,passthrough,request-number,reserve,respond,select,translate,upstream
//! ```

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{
    HeaderValue, Request, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use tollgate_layers::{
    auth::{AuthLayer, SecretKey},
    call::Format,
    ceiling::Ceilings,
    error::BoxError,
    failover::{FailoverLayer, FailoverSettings, Health},
    key::{AccountId, KeyId},
    model::{Found, Model, Models, Route, Vendor},
    money::MicroRub,
    parse::{ParseLayer, ParseLimits},
    passthrough::PassthroughLayer,
    price::{Price, Rate},
    request_number::RequestNumberLayer,
    reserve::{
        HoldMode, ReserveLayer, Settler, SettlerSettings,
        ledger::{Entry, LedgerAdmin},
        memory::MemoryLedger,
        tokens::ByTokens,
    },
    respond::{Language, RespondLayer},
    select::SelectLayer,
    translate::TranslateLayer,
    upstream::Upstream,
};
use tower::ServiceBuilder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    let vendor = Router::new().route("/v1/chat/completions", post(answer));
    let vendor = served(vendor, &mut tasks).await?;

    let (acme, laptop): (AccountId, KeyId) = ("acme".parse()?, "laptop".parse()?);
    let ledger = MemoryLedger::new();
    ledger.create_account(&acme, "Acme").await?;
    let payment = Entry {
        id: "payment-1".into(),
        amount: MicroRub::rubles(100),
        reason: None,
    };
    ledger.enter(&acme, &payment).await?;
    let secret = SecretKey::generate();
    let record = secret.record(laptop, acme.clone());
    ledger.create_key(&record, Ceilings::NONE).await?;
    let (settler, settling) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});

    // The layers from top to bottom; the crate's README.md explains the place of each.
    let models = ServiceBuilder::new()
        .layer(RequestNumberLayer::new())
        .layer(RespondLayer::new(Language::En))
        .layer(AuthLayer::new(ledger.clone()))
        .layer(ParseLayer::new(ParseLimits::default()))
        .layer(SelectLayer::without_ledger(Catalog::new(vendor)?))
        .layer(ReserveLayer::new(
            ledger.clone(),
            ByTokens::new(HoldMode::Usual, 1600, 100_000),
            settler,
            Duration::from_secs(960),
        ))
        .layer(FailoverLayer::new(
            Health::new(),
            FailoverSettings::default(),
        ))
        .layer(TranslateLayer::new())
        .layer(PassthroughLayer::new(1 << 20))
        .service(Upstream::new(Duration::from_secs(900)));
    let app = Router::new()
        .route_service("/v1/chat/completions", models)
        .route("/health", axum::routing::get(|| async { "well" }));
    let mut serving = JoinSet::new();
    let address = served(app, &mut serving).await?;

    for (model, key) in [
        ("small", secret.expose()),
        ("large", secret.expose()),
        ("small", "tg-x"),
    ] {
        println!("{model}: {}", ask(address, model, key).await?);
    }
    // After the server has stopped, the settler ends every hold, and then it stops too.
    serving.shutdown().await;
    settling.run().await;
    let left = ledger.account(&acme).await?.balance_rub;
    println!("left: {left} ₽ of 100.00 ₽");
    Ok(())
}

/// A catalog of one model at one vendor.
#[derive(Clone)]
struct Catalog(Arc<Model>, Arc<Price>);

impl Catalog {
    fn new(vendor: SocketAddr) -> Result<Self, BoxError> {
        let endpoint: Uri = format!("http://{vendor}/v1/chat/completions").parse()?;
        let credential = Format::Chat.credential("our key at the vendor")?;
        let vendor = Vendor::new("vendor", Format::Chat, endpoint, credential);
        let model = Model::new("small", 4096).route(Route::new(vendor, "small-2026-11"));
        let rubles_for_a_million = |rubles: u64| Rate::new(rubles * 1_000_000);
        let price = Price {
            input: rubles_for_a_million(100),
            cached_input: rubles_for_a_million(10),
            output: rubles_for_a_million(400),
            cache_write: rubles_for_a_million(125),
            version: 1,
            exchange_rate: "90.50".into(),
            ..Price::default()
        };
        Ok(Self(Arc::new(model), Arc::new(price)))
    }
}

impl Models for Catalog {
    fn find_model(&self, id: &str) -> Found {
        if id == self.0.id {
            Found::Callable(Arc::clone(&self.0), Arc::clone(&self.1).into())
        } else {
            Found::Unknown
        }
    }
}

/// The vendor's response.
async fn answer() -> ([(http::HeaderName, &'static str); 1], String) {
    let answer = json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "small-2026-11",
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": "Measure seven times." },
            "finish_reason": "stop",
        }],
        "usage": { "prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25 },
    });
    ([(CONTENT_TYPE, "application/json")], answer.to_string())
}

/// Serves an app on a free port.
async fn served(app: Router, tasks: &mut JoinSet<()>) -> Result<SocketAddr, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tasks.spawn(async move { drop(axum::serve(listener, app).await) });
    Ok(address)
}

/// Sends a call; returns the status, cost and text of the response.
async fn ask(address: SocketAddr, model: &str, key: &str) -> Result<String, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": "A proverb?" }] });
    let mut req = Request::post(format!("http://{address}/v1/chat/completions"))
        .body(Full::new(Bytes::from(body.to_string())))?;
    let key = HeaderValue::try_from(format!("Bearer {key}"))?;
    req.headers_mut().insert(AUTHORIZATION, key);
    let res = client.request(req).await?;
    let status = res.status();
    let cost = res.headers().get("x-cost-rub").cloned();
    let body: Value = serde_json::from_slice(&res.into_body().collect().await?.to_bytes())?;
    let text = body["choices"][0]["message"]["content"]
        .as_str()
        .or(body["error"]["code"].as_str());
    let cost = cost.as_ref().and_then(|cost| cost.to_str().ok());
    Ok(format!(
        "{status}, {}, {} ₽",
        text.unwrap_or_default(),
        cost.unwrap_or("0.00")
    ))
}
