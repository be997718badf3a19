//! Group 2: the client disconnects at every step of a call, for every pair of formats. It pays for the part that was
//! delivered, or for the complete response if the gateway reads the vendor's response to its end. It pays once, and no
//! hold is left. The same rules apply if the vendor's response breaks off.

use std::{iter, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{sleep, timeout},
};
use tollgate_layers::call::Format;

use crate::{
    client::Client,
    table::{Case, cases},
    vendor_log::{Call, Gate},
    verdict::{Charge, Verdict},
    world::{LedgerKind, Plan},
};

const LEDGERS: [LedgerKind; 2] = [LedgerKind::Sqlite, LedgerKind::Redis];
const FORMATS: [Format; 3] = [Format::Chat, Format::Messages, Format::Responses];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ledger in LEDGERS {
        let named = |fault: &str| format!("client {fault}, {}", ledger.name());
        cases.extend(cases! {
            "2" named("leaves before the headers") => before_the_headers(ledger);
            "2" named("leaves after the first chunk") => after_the_first_chunk(ledger);
            "2" named("leaves before the last event") => before_the_last_event(ledger);
            "2" named("leaves after the last event") => after_the_last_event(ledger);
            "2" format!("the vendor breaks off midway, {}", ledger.name()) => vendor_breaks_off(ledger);
            "2" named("leaves at any moment") => at_any_moment(ledger);
            "2" named("half-closes") => half_closes(ledger);
            "2" named("reads a byte a second") => reads_slowly(ledger), long;
        });
    }
    cases
}

/// Creates two streams for each pair of formats. After the client has disconnected, the gateway cancels the vendor's
/// response to the first stream, and reads the response to the second stream to its end.
fn streams(client: &Client) -> Vec<Call> {
    let pairs = FORMATS
        .iter()
        .flat_map(|vendor| FORMATS.map(|caller| (*vendor, caller)));
    pairs
        .flat_map(|(vendor, caller)| {
            let call = || client.call(vendor).from(caller);
            [call(), call().drained()]
        })
        .collect()
}

/// The client disconnects before the head of the response. If the gateway then cancels the stream, the client pays for
/// no output. Every other response is read to its end and paid in full.
async fn before_the_headers(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    let plain = streams(&client).into_iter().map(Call::plain);
    for call in streams(&client).into_iter().chain(plain) {
        let call = call.gate(Gate::Head);
        let socket = client.raw(&call).await.unwrap();
        world.vendor().wait_asked(&call).await;
        drop(socket);
        if call.stream && !call.drained {
            world.expect(&call, Charge::Tokens(0));
        } else {
            world.vendor().open_gate(&call);
            world.expect(&call, Charge::Full);
        }
        world.round();
    }
    world.verdict().await
}

async fn after_the_first_chunk(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    for call in streams(&client) {
        let call = call.gate(Gate::Token(3));
        let mut open = client.open(&call).await.unwrap();
        open.read_tokens(3).await;
        drop(open);
        if call.drained {
            world.vendor().open_gate(&call);
            world.expect(&call, Charge::Full);
        } else {
            world.expect(&call, Charge::Tokens(3));
        }
        world.round();
    }
    world.verdict().await
}

/// Everything except the last event was delivered. The call counts as complete.
async fn before_the_last_event(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    for call in streams(&client) {
        let call = call.gate(Gate::Last);
        let mut open = client.open(&call).await.unwrap();
        open.read_tokens(10).await;
        match call.format {
            Format::Chat | Format::Messages => world.vendor().wait_told(&call).await,
            Format::Responses => world.vendor().wait_said(&call).await,
        }
        drop(open);
        world.vendor().open_gate(&call);
        world.expect(&call, Charge::Full);
        world.round();
    }
    world.verdict().await
}

async fn vendor_breaks_off(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    for call in streams(&client) {
        let call = call.cut(3);
        let outcome = client.ask(&call).await;
        assert!(!outcome.whole, "{call:?} looks whole: {}", outcome.text());
        world.expect(&call, Charge::Tokens(3));
        world.round();
    }
    world.verdict().await
}

async fn after_the_last_event(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    for call in streams(&client) {
        let mut open = client.open(&call).await.unwrap();
        open.read_last_event().await;
        drop(open);
        world.expect(&call, Charge::Full);
        world.round();
    }
    world.verdict().await
}

/// A hundred clients disconnect, each of them slightly later than the previous one.
async fn at_any_moment(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    let mut leaving = JoinSet::new();
    let kinds = iter::repeat_with(|| streams(&client)).flatten();
    for (turn, call) in kinds.take(100).enumerate() {
        let call = call.tokens(20).gap(Duration::from_millis(4));
        let call = if turn % 5 == 0 { call.plain() } else { call };
        // If the vendor has reported usage, the usage is charged; otherwise, an estimate is charged. So any amount up
        // to the full cost is correct.
        world.expect(&call, Charge::Any);
        let client = client.clone();
        leaving.spawn(async move {
            let stay = Duration::from_millis(turn as u64);
            let _ = timeout(stay, client.ask(&call)).await;
        });
        world.round();
    }
    while let Some(left) = leaving.join_next().await {
        left.unwrap();
    }
    world.verdict().await
}

/// The client closes its sending side and continues to read. It gets the complete response.
async fn half_closes(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    for call in streams(&client) {
        let call = call.tokens(20).gap(Duration::from_millis(5));
        let mut socket = client.raw(&call).await.unwrap();
        world.vendor().wait_asked(&call).await;
        socket.shutdown().await.unwrap();
        let mut read = Vec::new();
        let ended = timeout(Duration::from_secs(10), socket.read_to_end(&mut read)).await;
        assert!(ended.is_ok(), "the connection stays open");
        world.expect(&call, Charge::Full);
        world.round();
    }
    world.verdict().await
}

/// A client reads one byte per second, and disconnects after a while.
async fn reads_slowly(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let client = world.client(0);
    let mut slow = JoinSet::new();
    for call in [streams(&client), streams(&client)].concat() {
        let call = call.tokens(4000);
        world.expect(&call, Charge::Any);
        let client = client.clone();
        slow.spawn(async move {
            let mut socket = client.raw(&call).await.unwrap();
            for _ in 0..40 {
                if !matches!(socket.read(&mut [0]).await, Ok(1)) {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
        });
        world.round();
    }
    while let Some(left) = slow.join_next().await {
        left.unwrap();
    }
    world.verdict().await
}
