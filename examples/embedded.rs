//! Runs a complete gateway inside another program. The program builds the gateway from a configuration, adds accounts
//! and watches calls by calling functions, and drains the gateway at the end. It decides where the reports about calls
//! go.
//!
//! ```sh
//! cargo run --example embedded
//! ```

use std::net::SocketAddr;

use anyhow::Context as _;
use bytes::Bytes;
use http::{
    HeaderValue, Request,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tollgate::{Gateway, config::Config, demo::vendor::ScriptedVendor, ledger::AnyLedger};
use tollgate_layers::{
    auth::SecretKey,
    ceiling::Ceilings,
    key::AccountId,
    money::MicroRub,
    reserve::{
        Event,
        ledger::{Entry, LedgerAdmin},
    },
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // A server on its own port takes the place of a model vendor.
    let vendor = ScriptedVendor::start().await?;
    let secrets = |name: &str| (name == "VENDOR_KEY").then(|| "sk-of-the-vendor".to_owned());
    let config = Config::parse(&config_text(vendor.address()), &secrets)
        .map_err(|mistakes| anyhow::anyhow!("{mistakes}"))?;

    let (lines, mut booked) = mpsc::channel(16);
    let gateway = Gateway::build(&config, move |event| {
        if let Event::Settled {
            settlement,
            settled,
        } = event
        {
            let (model, usage) = (&settlement.item.model, settlement.item.usage);
            let line = format!(
                "{model}: {} tokens in, {} out, {} ₽",
                usage.input_total(),
                usage.output,
                settled.charged
            );
            drop(lines.try_send(line));
        }
    })
    .await?;

    let acme: AccountId = "acme".parse()?;
    let key = funded_key(gateway.store(), &acme).await?;
    println!("answered: {}", ask(gateway.address(), &key).await?);
    println!(
        "charged: {}",
        booked.recv().await.context("the settler has ended")?
    );
    let account = gateway.store().account(&acme).await?;
    println!("left: {} ₽", account.balance_rub);

    gateway.drain().await
}

/// The configuration, in the same format as a configuration file; see `deploy/tollgate.toml`. Port 0 picks a free port.
/// Without a section `[admin]`, there is no listener for operators.
fn config_text(vendor: SocketAddr) -> String {
    format!(
        r#"
listen = "127.0.0.1:0"
base_url = "http://gateway.example/v1"
[ledger]
url = "memory:"
[[rate.source]]
fixed = "90.50"
[tariff]
sell_rate_multiplier = "1.15"
[[vendor]]
name = "scripted"
format = "chat"
url = "http://{vendor}/v1"
key = "${{VENDOR_KEY}}"
[[model]]
id = "small"
family = "Small"
usdt_mtok = {{ input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }}
output_tokens_max = 32000
routes = [ {{ vendor = "scripted", model = "scripted-1" }} ]
"#
    )
}

async fn funded_key(books: &AnyLedger, account: &AccountId) -> anyhow::Result<SecretKey> {
    books.create_account(account, "Acme").await?;
    let payment = Entry {
        id: "invoice 1".into(),
        amount: MicroRub::rubles(1000),
        reason: None,
    };
    books.enter(account, &payment).await?;
    let secret = SecretKey::generate();
    let record = secret.record("laptop".parse()?, account.clone());
    books.create_key(&record, Ceilings::NONE).await?;
    Ok(secret)
}

/// Sends a call as an ordinary client library does, and returns the text of the response.
async fn ask(gateway: SocketAddr, key: &SecretKey) -> anyhow::Result<String> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let call = json!({
        "model": "small",
        "messages": [{ "role": "user", "content": "Hello" }],
    });
    let mut req = Request::post(format!("http://{gateway}/v1/chat/completions"))
        .body(Full::new(Bytes::from(call.to_string())))?;
    let headers = req.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let shown = format!("Bearer {}", key.expose());
    headers.insert(AUTHORIZATION, HeaderValue::try_from(shown)?);
    let res = client.request(req).await?;
    let answer: Value = serde_json::from_slice(&res.into_body().collect().await?.to_bytes())?;
    let text = &answer["choices"][0]["message"]["content"];
    Ok(text
        .as_str()
        .with_context(|| answer.to_string())?
        .to_owned())
}
