//! Makes calls of one kind, one after another, on a single thread, so that the CPU instructions of a call can be
//! counted.
//!
//! `tests/instructions` runs this binary under callgrind, and compares the instructions of a call with
//! `benches/micro/instructions.toml`. The gateway is complete, from its listener to its HTTP client, with its ledger in
//! memory and its log in JSON. The caller and the vendor run on the same thread. With `--direct`, the same calls go to
//! the vendor without the gateway. The difference between both runs is the gateway's own cost.

#[path = "../fixtures/mod.rs"]
mod fixtures;

use std::{hint::black_box, io, net::SocketAddr};

use anyhow::ensure;
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use tokio::task::JoinSet;
use tollgate::{
    Gateway,
    load::{Connection, Origin, Prepared, next},
    node::log_event,
};
use tollgate_layers::call::Format;

use crate::fixtures::{
    Canned, config, funded_key, gateway_path, messages_request, one_thread, short_request,
    vendor::{Vendor, listen},
};

// The same allocator as in the `tollgate` binary.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes calls, so that tests/instructions can count their CPU instructions.
#[derive(Debug, Parser)]
struct Options {
    /// The kind of call. By default, one call of each kind is made, which checks that all kinds work.
    #[arg(value_enum)]
    kind: Option<Kind>,
    #[arg(long, default_value_t = 3)]
    calls: u32,
    /// Call the vendor without the gateway.
    #[arg(long)]
    direct: bool,
    /// An argument that cargo passes to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

/// The kinds of calls whose instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Kind {
    /// The response is JSON of 400 bytes.
    Plain,
    /// The response is 100 chunks that are passed through.
    Stream,
    /// The response is 100 chunks of a Chat Completions vendor, translated for a Messages caller.
    StreamToMessages,
    /// The response is 100 chunks of a Messages vendor, translated for a Chat Completions caller.
    StreamToChat,
    /// The response is 100 events of a Responses vendor that are passed through.
    ResponsesStream,
    /// The response is 100 chunks of a Chat Completions vendor, translated for a Responses caller.
    StreamToResponses,
    /// The response is 100 events of a Responses vendor, translated for a Chat Completions caller.
    ResponsesToChat,
    /// The response is 100 events of a Responses vendor, translated for a Messages caller.
    ResponsesToMessages,
    /// The response is 100 events of a Messages vendor, translated for a Responses caller.
    MessagesToResponses,
    /// The body of the request has 76 KB.
    BigBody,
}

impl Kind {
    /// Returns the vendor's response to this kind of call, and the format of the caller.
    const fn call(self) -> (Canned, Format) {
        match self {
            Self::Plain => (Canned::Plain, Format::Chat),
            Self::Stream => (Canned::Stream, Format::Chat),
            Self::StreamToMessages => (Canned::Stream, Format::Messages),
            Self::StreamToChat => (Canned::MessagesStream, Format::Chat),
            Self::ResponsesStream => (Canned::ResponsesStream, Format::Responses),
            Self::StreamToResponses => (Canned::Stream, Format::Responses),
            Self::ResponsesToChat => (Canned::ResponsesStream, Format::Chat),
            Self::ResponsesToMessages => (Canned::ResponsesStream, Format::Messages),
            Self::MessagesToResponses => (Canned::MessagesStream, Format::Responses),
            Self::BigBody => (Canned::Messages, Format::Messages),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Log lines are formatted, as in a running gateway, and then discarded.
    let _log = tollgate::observe::log::to(io::sink());
    let runtime = one_thread()?;
    if let Some(kind) = options.kind {
        return runtime.block_on(run(kind, options.direct, options.calls));
    }
    for kind in Kind::value_variants() {
        runtime.block_on(run(*kind, true, options.calls))?;
        runtime.block_on(run(*kind, false, options.calls))?;
    }
    println!("instructions: all calls were answered; tests/instructions counts what they cost");
    Ok(())
}

async fn run(kind: Kind, direct: bool, calls: u32) -> anyhow::Result<()> {
    let (listener, vendor) = listen().await?;
    let mut serving = JoinSet::new();
    serving.spawn(async move { Vendor::new().serve(listener).await });
    let (canned, caller) = kind.call();
    if direct {
        // The gateway calls a vendor in the vendor's own format, so a direct call uses the vendor's format, too.
        let format = canned.format();
        let body = body(canned, format);
        let host = vendor.to_string();
        let call = Prepared::post(&host, &canned.vendor_path(), format, NO_KEY, body)?;
        return send(vendor, &call, calls).await;
    }
    let gateway = Gateway::build(&config(vendor, "memory:"), log_event).await?;
    let key = funded_key(gateway.store(), "bench").await?;
    let host = gateway.address().to_string();
    let (path, body) = (gateway_path(caller), body(canned, caller));
    let call = Prepared::post(&host, path, caller, key.expose(), body)?;
    send(gateway.address(), &call, calls).await?;
    // The drain waits until all calls are settled, so the instructions of settlement are counted, too.
    gateway.drain().await
}

fn body(canned: Canned, caller: Format) -> Bytes {
    match canned {
        Canned::Messages => messages_request(canned.name()),
        _ => short_request(caller, canned.name(), canned != Canned::Plain),
    }
}

/// Makes the calls over one connection. The responses are read but not parsed. The work of parsing would depend on the
/// number of chunks, and the gateway sends fewer chunks than the vendor, so the difference to direct calls would be too
/// small.
async fn send(to: SocketAddr, call: &Prepared, calls: u32) -> anyhow::Result<()> {
    let mut connection = Connection::open(&Origin::Loopback(to)).await?;
    for _ in 0..calls {
        let mut answer = connection.begin(call).await?;
        let mut bytes = 0;
        while let Some(data) = next(&mut answer).await? {
            bytes += black_box(data).len();
        }
        ensure!(bytes > 0, "an answer was empty");
    }
    Ok(())
}

const NO_KEY: &str = "tg-000000000000000000000000000000000000000000000000";
