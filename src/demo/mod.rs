//! `tollgate demo`: runs the whole gateway in one process, with a scripted vendor and a funded key. Nothing has to be
//! installed.

pub mod script;
pub mod vendor;

use std::net::{SocketAddr, TcpListener};

use anyhow::Context as _;
use tokio::sync::mpsc;
use tollgate_layers::{
    auth::SecretKey,
    ceiling::Ceilings,
    key::AccountId,
    money::MicroRub,
    reserve::{
        Event,
        ledger::{Entry, LedgerAdmin, Settled, Settlement},
    },
};

use self::vendor::ScriptedVendor;
use crate::{
    config::Config,
    edge::server::InheritedSockets,
    ledger::AnyLedger,
    node::{Gateway, log_event, until_told_to_stop},
};

const ACCOUNT: &str = "demo";
const FUNDS: MicroRub = MicroRub::rubles(1000);

/// Returns the text of a configuration with one scripted vendor.
///
/// The vendor serves four models: `demo-chat` in the Chat Completions format, `demo-messages` in the Messages format,
/// `demo-responses` in the Responses format, and `demo-embedding`, which returns vectors.
fn config_text(listen: SocketAddr, admin: SocketAddr, vendor: SocketAddr) -> String {
    let chat =
        r#"{ input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }"#;
    let messages =
        r#"{ input = "1.00", cached_input = "0.10", output = "5.00", cache_write = "1.25" }"#;
    format!(
        r#"
listen = "{listen}"
base_url = "http://{listen}/v1"
[admin]
listen = "{admin}"
key = "${{DEMO_ADMIN_KEY}}"
[ledger]
url = "memory:"
[[rate.source]]
fixed = "90.50"
[tariff]
sell_rate_multiplier = "1.15"
[[vendor]]
name = "scripted-chat"
format = "chat"
url = "http://{vendor}/v1"
key = "${{DEMO_VENDOR_KEY}}"
[[vendor]]
name = "scripted-messages"
format = "messages"
url = "http://{vendor}"
key = "${{DEMO_VENDOR_KEY}}"
[[vendor]]
name = "scripted-responses"
format = "responses"
url = "http://{vendor}/v1"
key = "${{DEMO_VENDOR_KEY}}"
[[model]]
id = "demo-chat"
family = "Demo"
usdt_mtok = {chat}
output_tokens_max = 32000
routes = [ {{ vendor = "scripted-chat", model = "scripted-1", cost_usdt_mtok = {chat} }} ]
[[model]]
id = "demo-messages"
family = "Demo"
usdt_mtok = {messages}
output_tokens_max = 64000
routes = [ {{ vendor = "scripted-messages", model = "scripted-1", cost_usdt_mtok = {messages} }} ]
[[model]]
id = "demo-embedding"
family = "Demo"
kind = "embedding"
usdt_mtok = {{ input = "0.02" }}
routes = [ {{ vendor = "scripted-chat", model = "scripted-embedding", cost_usdt_mtok = {{ input = "0.02" }} }} ]
[[model]]
id = "demo-responses"
family = "Demo"
usdt_mtok = {chat}
output_tokens_max = 32000
routes = [ {{ vendor = "scripted-responses", model = "scripted-1", cost_usdt_mtok = {chat} }} ]
"#
    )
}

/// Runs the demonstration until the process is stopped by a signal.
///
/// # Errors
/// If a port cannot be bound.
pub async fn run(listen: SocketAddr) -> anyhow::Result<()> {
    let vendor = ScriptedVendor::start().await;
    let vendor = vendor.context("cannot start the scripted vendor")?;
    let admin_key = SecretKey::generate();
    // The ports are bound before the configuration is written, because the configuration contains the addresses. They
    // stay bound: if a port were released and bound again later, an outgoing connection could take it in between.
    let public = bind(listen).context("listen")?;
    let admin = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let text = config_text(public.local_addr()?, admin.local_addr()?, vendor.address());
    let config = Config::parse(&text, &|name| match name {
        "DEMO_ADMIN_KEY" => Some(admin_key.expose().to_owned()),
        "DEMO_VENDOR_KEY" => Some("vendor-key-of-the-demo".to_owned()),
        _ => None,
    })
    .map_err(|errors| anyhow::anyhow!("the demo's own configuration is invalid: {errors}"))?;

    let (lines, lines_in) = mpsc::channel(1024);
    let sockets = InheritedSockets {
        public: Some(public),
        admin: Some(admin),
    };
    let gateway = Gateway::build_on(&config, sockets, move |event| match event {
        // If the queue is full, the line about this call is dropped, because nobody can read that many lines.
        Event::Settled {
            settlement,
            settled,
        } => {
            drop(lines.try_send(((*settlement).clone(), **settled)));
        }
        other => log_event(other),
    })
    .await?;
    let key = funded_key(gateway.store()).await?;
    greet(&gateway, &admin_key, &key);
    let stop = until_told_to_stop();
    tokio::select! {
        stopped = stop => stopped?,
        () = print_calls(gateway.store().clone(), lines_in) => {}
    }
    gateway.drain().await
}

/// Runs only the scripted vendor until the process is stopped by a signal. An operator can test a configuration against
/// this vendor.
///
/// # Errors
/// If the port cannot be bound.
pub async fn run_vendor(listen: SocketAddr) -> anyhow::Result<()> {
    let vendor = ScriptedVendor::start_at(listen).await;
    let vendor = vendor.with_context(|| busy(listen))?;
    let url = format!("http://{}", vendor.address());
    println!(
        r#"vendor: {url}

A scripted vendor (no real model), which accepts any key and any model. To use it, write into your configuration:

  [[vendor]]
  format = "chat"                  # embeddings too
  url = "{url}/v1"

  [[vendor]]
  format = "messages"
  url = "{url}"

  [[vendor]]
  format = "responses"
  url = "{url}/v1"

{SCRIPT}

Ctrl-C stops.
"#
    );
    until_told_to_stop().await
}

/// The description of the scripted vendor that is printed at the start.
const SCRIPT: &str = "\
The scripted vendor repeats your text, and calls a tool named get_weather if you offer one. It fails if your text\n\
contains one of these words: vendor-400, vendor-429 or vendor-500 (it answers with this status), or vendor-cut (a stream\n\
breaks off in the middle; an answer that is not streamed is complete).";

fn busy(listen: SocketAddr) -> String {
    format!("cannot listen on {listen}: choose another address with --listen")
}

fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).with_context(|| busy(listen))
}

async fn funded_key(store: &AnyLedger) -> anyhow::Result<SecretKey> {
    let account: AccountId = ACCOUNT.parse()?;
    let secret = SecretKey::generate();
    store.create_account(&account, "Demo").await?;
    let entry = Entry {
        id: "demo".into(),
        amount: FUNDS,
        reason: None,
    };
    store.enter(&account, &entry).await?;
    let mut record = secret.record("demo-key".parse()?, account);
    record.name = "demo".into();
    store.create_key(&record, Ceilings::NONE).await?;
    Ok(secret)
}

/// Prints commands that try out the gateway. The form of the first four lines is fixed, because scripts parse them.
fn greet(gateway: &Gateway, admin_key: &SecretKey, key: &SecretKey) {
    let url = format!("http://{}", gateway.address());
    let admin = gateway
        .admin_address()
        .map(|address| format!("http://{address}"));
    let admin = admin.unwrap_or_default();
    let (key, admin_key) = (key.expose(), admin_key.expose());
    let program = std::env::args().next().unwrap_or_else(|| "tollgate".into());
    println!(
        r#"url: {url}
key: {key}
admin: {admin}
admin-key: {admin_key}

The gateway runs with a scripted vendor (no real model). The key's account has {FUNDS} ₽ of play money, which
is lost when this process ends. Try it:

  curl {url}/v1/chat/completions -H 'authorization: Bearer {key}' -H 'content-type: application/json' \
    -d '{{"model":"demo-chat","messages":[{{"role":"user","content":"Привет"}}]}}'

  curl -N {url}/v1/messages -H 'x-api-key: {key}' -H 'anthropic-version: 2023-06-01' \
    -H 'content-type: application/json' \
    -d '{{"model":"demo-messages","max_tokens":100,"stream":true,"messages":[{{"role":"user","content":"Привет"}}]}}'

  curl {url}/v1/embeddings -H 'authorization: Bearer {key}' -H 'content-type: application/json' \
    -d '{{"model":"demo-embedding","input":"Привет"}}'

  curl {url}/v1/responses -H 'authorization: Bearer {key}' -H 'content-type: application/json' \
    -d '{{"model":"demo-responses","input":"Привет"}}'

  curl {url}/v1/tollgate/models     # the price list, without a key

  In a browser:
    {url}/           the price list
    {url}/usage      what the key has spent: sign in with the key above
    {admin}/console    the operators' console: sign in with the admin key above

  # OpenAI SDK, with model "demo-chat":
  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}
  # Anthropic SDK, with model "demo-messages":
  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}
  # Claude Code:
  ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} ANTHROPIC_DEFAULT_HAIKU_MODEL=demo-messages \
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 claude -p 'Привет' --model demo-messages
  # The account, as an operator sees it:
  TOLLGATE_ADMIN_URL={admin} TOLLGATE_ADMIN_KEY={admin_key} \
    {program} account show demo

{SCRIPT}

Each charged call is printed here in one line: its number, model, tokens in → out, charge, the account's balance after
the call, and (estimated) if the vendor reported no usage. Ctrl-C stops.
"#
    );
}

async fn print_calls(store: AnyLedger, mut lines: mpsc::Receiver<(Settlement, Settled)>) {
    while let Some((settlement, settled)) = lines.recv().await {
        let balance = match store.account(&settlement.account).await {
            Ok(account) => account.balance_rub.to_string(),
            Err(_) => "?".to_owned(),
        };
        let usage = settlement.item.usage;
        let estimated = match settlement.item.estimated {
            true => "  (estimated)",
            false => "",
        };
        println!(
            "{}  {}  {} → {} tokens  charge {} ₽  balance {balance} ₽{estimated}",
            settlement.number,
            settlement.item.model,
            usage.input_total(),
            usage.output,
            settled.charged,
        );
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::reserve::memory::MemoryLedger;

    use super::*;

    #[tokio::test]
    async fn demo_key_shows_its_creation_time() {
        let store = AnyLedger::Memory(MemoryLedger::new());
        funded_key(&store).await.unwrap();
        let key = store.key(&"demo-key".parse().unwrap()).await.unwrap();
        assert!(key.record.created_at_ms > 1_700_000_000_000);
    }
}
