//! Steps that several groups of cases share: calls that wait in the middle of their responses, refusals, and starts
//! that fail.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use http::{Method, StatusCode};
use redis::FromRedisValue;
use serde_json::Value;
use tokio::{
    io::AsyncReadExt,
    time::{Instant, sleep, timeout},
};
use tollgate_layers::call::Format;

use crate::{
    client::{Asked, Client},
    process::GatewayProcess,
    support::redis::RedisServer,
    vendor_log::{Call, Gate},
    verdict::{Charge, Verdict},
    world::{LedgerKind, World},
};

pub const FORMATS: [Format; 2] = [Format::Chat, Format::Messages];
/// The maximum time until a gateway without its ledger refuses a call. The gateway waits at most twice for half a
/// second; the rest is for a busy machine.
pub const REFUSED_WITHIN: Duration = Duration::from_secs(3);
/// The maximum time until a process has noticed a fault, has started, or has ended.
pub const SOON: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Makes calls of each kind, and waits until they are settled. After that, connections are open and the server has
/// loaded the scripts.
pub async fn warm_up(world: &World) {
    let loaded = world.load(4, 12).await;
    assert_eq!(loaded.answered, 12, "{loaded:?}");
    world.settled().await;
}

/// Creates one call of each format, streamed and not streamed.
pub fn each_kind(client: &Client) -> Vec<Call> {
    FORMATS
        .into_iter()
        .flat_map(|format| [client.call(format), client.call(format).plain()])
        .collect()
}

/// Calls that hold money and whose vendors wait: in streams after five tokens, in other calls before the first byte.
pub struct Midway(Vec<(Call, Asked)>);

/// Starts a call of each kind. Waits until the vendor of each call waits.
pub async fn midway(world: &World, client: &Client) -> Midway {
    let mut calls = Vec::new();
    for format in FORMATS {
        let stream = client.call(format).gate(Gate::Token(5));
        let plain = client.call(format).plain().gate(Gate::Head);
        calls.extend([stream, plain].map(|call| (call.clone(), client.ask_in_background(&call))));
    }
    for (call, _) in &calls {
        if call.stream {
            world.vendor().wait_served(call, 5).await;
        } else {
            world.vendor().wait_asked(call).await;
        }
    }
    Midway(calls)
}

impl Midway {
    /// Lets the vendors finish their responses. The calls are charged in full even if the ledger fails meanwhile.
    pub async fn end(self, world: &World) -> Vec<Call> {
        for (call, _) in &self.0 {
            world.vendor().open_gate(call);
            world.expect(call, Charge::Full);
        }
        let mut ended = Vec::new();
        for (call, requested) in self.0 {
            let outcome = requested.outcome().await;
            assert!(outcome.answered(), "{call:?}: {}", outcome.text());
            ended.push(call);
        }
        ended
    }
}

/// The record that a gateway's outbox has of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// The number of output tokens in the recorded settlement.
    pub output: u64,
    /// Whether it is recorded that the hold was changed.
    pub adjusted: bool,
    /// Whether it is recorded that the call has ended.
    pub ended: bool,
}

/// Returns the paths of the files that SQLite keeps next to its file: the write-ahead log, and the index of this log.
pub fn beside(path: &Path) -> [PathBuf; 2] {
    ["-wal", "-shm"].map(|end| {
        let mut path = path.as_os_str().to_owned();
        path.push(end);
        path.into()
    })
}

/// Returns the calls that are recorded in a gateway's local file and in its write-ahead log, by their number of input
/// tokens. A kill of the process changes neither file.
fn written_down(world: &World, gateway: usize) -> BTreeMap<u64, Written> {
    let path = world.dir().join(match world.plan.ledger {
        LedgerKind::Sqlite => "books.db".to_owned(),
        _ => format!("outbox-{gateway}.db"),
    });
    let [log, _] = beside(&path);
    let mut found: BTreeMap<u64, Written> = BTreeMap::new();
    for file in [path, log] {
        let bytes = fs::read(file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        for (at, mark) in text.match_indices("\"usage\":{\"input\":") {
            let usage = &text[at + mark.len()..];
            let output = usage.split_once("\"output\":").map(|(_, rest)| rest);
            let (Some(input), Some(output)) = (number(usage), output.and_then(number)) else {
                continue;
            };
            let record = usage.split("{\"number\"").next().unwrap_or_default();
            let before = &text[..at];
            let row = before.rfind("{\"number\"").map(|at| &before[..at]);
            let written = found.entry(input).or_default();
            written.output = written.output.max(output);
            written.adjusted |= record.contains("\"held_at_end_rub\"");
            written.ended |= row.is_some_and(|row| row.ends_with("settle"));
        }
    }
    found
}

/// Returns the decimal number at the beginning of a text.
fn number(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit())?;
    text[..end].parse().ok()
}

/// Waits until `is_enough` accepts a gateway's record of each of these calls. From then on, the record survives a kill
/// of the process.
pub async fn written(
    world: &World,
    gateway: usize,
    calls: impl IntoIterator<Item = &Call>,
    is_enough: impl Fn(Written) -> bool,
) {
    let until = Instant::now() + SOON;
    let mut inputs: Vec<u64> = calls.into_iter().map(Call::input).collect();
    loop {
        let found = written_down(world, gateway);
        inputs.retain(|input| !found.get(input).is_some_and(|written| is_enough(*written)));
        if inputs.is_empty() {
            return;
        }
        assert!(
            Instant::now() < until,
            "gateway {gateway} does not write {inputs:?} down: {found:?}"
        );
        sleep(LOOK_EVERY).await;
    }
}

/// A response as it was received on the wire.
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<String>,
    pub took: Duration,
    pub text: String,
}

/// Sends a call, and reads its response.
pub async fn answer(client: &Client, call: &Call) -> Answer {
    let began = Instant::now();
    let mut socket = client.raw(call).await.unwrap();
    let mut read = Vec::new();
    let ended = timeout(Duration::from_secs(30), socket.read_to_end(&mut read)).await;
    assert!(ended.is_ok(), "half a minute without an answer");
    let text = String::from_utf8_lossy(&read).into_owned();
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    Answer {
        status: text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_default(),
        retry_after: head
            .lines()
            .find_map(|line| line.strip_prefix("retry-after: "))
            .map(str::to_owned),
        took: began.elapsed(),
        text,
    }
}

/// Checks that calls of both formats soon get 503 with a `retry-after` header, and that no vendor receives them
/// (invariants I6, I9 and I13). Returns the time that the slower call took.
pub async fn nothing_sold(world: &World, client: &Client) -> Duration {
    let mut slowest = Duration::ZERO;
    for call in FORMATS.map(|format| client.call(format)) {
        let answer = answer(client, &call).await;
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert!(answer.retry_after.is_some(), "{}", answer.text);
        assert!(answer.took < REFUSED_WITHIN, "{:?}", answer.took);
        assert_eq!(world.vendor().requested(&call), 0, "I6");
        world.expect(&call, Charge::Nothing);
        slowest = slowest.max(answer.took);
    }
    slowest
}

/// Waits until a call is served again.
pub async fn serves(client: &Client) {
    let until = Instant::now() + SOON;
    loop {
        let outcome = client.ask(&client.call(Format::Chat)).await;
        if outcome.answered() {
            return;
        }
        let output = outcome.text();
        assert!(Instant::now() < until, "it does not serve again: {output}");
        sleep(LOOK_EVERY).await;
    }
}

/// Waits until a gateway reports that it is not ready, for a reason that contains these words.
pub async fn not_ready(world: &World, gateway: usize, words: &str) {
    let until = Instant::now() + SOON;
    loop {
        let output = world.admin(gateway, Method::GET, "/readyz", None).await;
        if let Ok((StatusCode::SERVICE_UNAVAILABLE, answer)) = &output
            && answer["reason"]
                .as_str()
                .is_some_and(|reason| reason.contains(words))
        {
            return;
        }
        assert!(
            Instant::now() < until,
            "gateway {gateway} does not say {words:?}: {output:?}"
        );
        sleep(LOOK_EVERY).await;
    }
}

/// Checks that a start fails with an error that contains these words. Returns how long the start took.
pub async fn fails_to_start(gateway: &GatewayProcess, words: &[&str]) -> Duration {
    let (before, began) = (gateway.log().len(), Instant::now());
    gateway.spawn();
    let status = gateway.wait_exit(SOON).await;
    let took = began.elapsed();
    assert!(status.is_some_and(|status| !status.success()), "{status:?}");
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        let output = gateway.log().split_off(before).join("\n");
        if words.iter().all(|word| output.contains(word)) {
            return took;
        }
        assert!(Instant::now() < until, "it should say {words:?}: {output}");
        sleep(LOOK_EVERY).await;
    }
}

/// Checks that the gateway ends without an error after SIGTERM.
pub async fn stops_well(gateway: &GatewayProcess, limit: Duration) {
    gateway.term();
    let status = gateway.wait_exit(limit).await;
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

/// Sends a request to a gateway's admin API, which must succeed. Returns the response.
pub async fn reported(
    world: &World,
    gateway: usize,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Value {
    match world.admin(gateway, method, path, body).await {
        Ok((status, answer)) if status.is_success() => answer,
        other => panic!("{path}: {other:?}"),
    }
}

/// Sends a command to a Redis server, which must succeed.
pub async fn ask<T: FromRedisValue>(server: &RedisServer, words: &[&str]) -> T {
    match server.ask(words).await {
        Ok(answer) => answer,
        Err(error) => panic!("{words:?}: {error}"),
    }
}

/// Returns the verdict of a case whose fault cannot be injected on this machine.
pub fn skipped(why: impl std::fmt::Display) -> Verdict {
    println!("skipped: {why}");
    Verdict {
        notes: vec![format!("skipped: {why}")],
        ..Verdict::default()
    }
}

/// Runs a program of the operating system.
pub fn run(tool: &str, args: &[&str]) -> Result<String, String> {
    match Command::new(tool).args(args).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Err(format!(
            "{tool}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("{tool}: {error}")),
    }
}

/// Shell text for [`crate::plan::Plan::shells`]. With it, a write beyond the file size limit fails and does not kill
/// the process.
pub const SURVIVES_FILE_LIMIT: &str = "trap '' XFSZ; exec \"$0\" \"$@\"";

/// Limits the size of the files of a process. `None` removes the limit.
pub fn limit_files(gateway: &GatewayProcess, bytes: Option<u64>) -> Result<(), String> {
    let pid = gateway.pid().ok_or("it does not run")?.to_string();
    let bytes = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
    run("prlimit", &["--pid", &pid, &format!("--fsize={bytes}:")]).map(drop)
}

pub fn size_of(path: &Path) -> u64 {
    path.metadata().map_or(0, |data| data.len())
}
