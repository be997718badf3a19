//! `tollgate load`: sends calls to a gateway as any client would, and reports latencies, statuses and failures.

mod report;

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Method, Uri};
use serde_json::{Value, json};
use tokio::time::{Instant, interval};
use tollgate_layers::call::Format;

use super::{failure::Failure, progress::Progress, show};
use crate::load::{
    Call, CallError, Client, Connection, Failures, Origin, Pace, Prepared, Record, Terms,
};

pub(super) const HELP: &str = "\
Examples:
  export TOLLGATE_KEY=tg-…                                       one of the gateway's keys, with money on its account
  tollgate load --url http://127.0.0.1:8080                      4 connections, 10 seconds, at most 1000 calls
  tollgate load --url https://gateway.example/v1 --stream --rate 20 --seconds 60
                                                                 20 streams a second, whether or not earlier ones are done
  tollgate load --url http://127.0.0.1:8080 --request mine.ndjson --calls-max 100000 --connections 64
                                                                 your own requests, one per line, sent in turn
  tollgate load --url http://127.0.0.1:8080 --failed-max 1% --json >load.json
                                                                 for a pipeline: exit code 1 if more than 1 % failed

Try it against a gateway that costs nothing: run `tollgate demo` and use the key that it prints.

A call is answered if its status is 200 and its body ends without an error event. Latency runs from the moment at \
which a call is due, so a stall counts for every call that it delays. A call to a gateway that refuses connections is a \
failed call; the load continues, and connects again.

Exit codes: 0 done; 1 more calls failed than --failed-max allows, or no call was answered; 64 the command line is wrong; \
65 the file of --request has a mistake; 69 the gateway cannot be reached at the start; 74 the file cannot be read.";

#[derive(Args, Debug)]
pub(super) struct LoadArgs {
    /// The gateway's address, with or without /v1
    #[arg(long, value_parser = address)]
    url: Uri,
    /// A key of the gateway. Prefer the environment variable: other users of the machine can see command lines
    #[arg(long, env = "TOLLGATE_KEY", hide_env_values = true)]
    key: String,
    /// The operation that each call uses
    #[arg(long, value_enum, default_value = "chat")]
    operation: Operation,
    /// The model to call; default: the first one that the key may call
    #[arg(long)]
    model: Option<String>,
    /// File with the bodies of the requests, which are sent unchanged: one JSON object, or one per line, sent in turn
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "stream", "max_tokens"])]
    request: Option<PathBuf>,
    /// Send calls that request a stream
    #[arg(long)]
    stream: bool,
    /// Maximum output tokens of each call
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_tokens: u32,
    /// Number of connections; on each, the next call is sent when the previous one has ended
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Calls per second, sent when they are due whether or not earlier calls have ended; instead of --connections
    #[arg(long, value_name = "N", conflicts_with = "connections", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// For how many seconds calls are sent
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: u64,
    /// Maximum number of calls, because each call may cost money
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    calls_max: u64,
    /// Maximum seconds that a call may take
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    timeout: u64,
    /// Maximum failed calls for exit code 0: a number, or a share like 1%
    #[arg(long, value_name = "N|P%", default_value = "0", value_parser = FailedMax::parse)]
    failed_max: FailedMax,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    Chat,
    Messages,
    Responses,
    Embeddings,
}

impl Operation {
    const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
        }
    }

    /// Returns the format that decides in which header the key is sent.
    const fn format(self) -> Format {
        match self {
            Self::Messages => Format::Messages,
            Self::Chat | Self::Responses | Self::Embeddings => Format::Chat,
        }
    }

    fn body(self, args: &LoadArgs, model: &str) -> Value {
        let (text, max, stream) = ("Say yes.", args.max_tokens, args.stream);
        match self {
            Self::Chat | Self::Messages => json!({
                "model": model,
                "max_tokens": max,
                "messages": [{ "role": "user", "content": text }],
                "stream": stream,
            }),
            Self::Responses => json!({
                "model": model,
                "max_output_tokens": max,
                "input": text,
                "stream": stream,
                "store": false,
            }),
            Self::Embeddings => json!({ "model": model, "input": text }),
        }
    }
}

/// The maximum of failed calls for exit code 0.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FailedMax {
    Calls(u64),
    Percent(f64),
}

impl FailedMax {
    fn parse(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_suffix('%') {
            None => text.parse().ok().map(Self::Calls),
            Some(percent) => percent
                .parse()
                .ok()
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(Self::Percent),
        };
        parsed.ok_or_else(|| "give a number of calls, or a share like 1%".to_owned())
    }

    fn allows(self, failed: u64, calls: u64) -> bool {
        match self {
            Self::Calls(max) => failed <= max,
            Self::Percent(max) => failed as f64 * 100.0 <= max * calls as f64,
        }
    }
}

impl std::fmt::Display for FailedMax {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Calls(max) => write!(f, "{max}"),
            Self::Percent(max) => write!(f, "{max} %"),
        }
    }
}

pub(super) async fn load(args: &LoadArgs) -> Result<(), Failure> {
    let endpoint = Endpoint::new(&args.url);
    let prepared = match &args.request {
        Some(file) => requests(file)?,
        None => {
            let model = model(args, &endpoint).await?;
            vec![args.operation.body(args, &model).to_string()]
        }
    };
    let (path, format) = (args.operation.path(), args.operation.format());
    let post = |body| endpoint.post(path, format, &args.key, body);
    let prepared: Vec<_> = prepared.into_iter().map(post).collect::<Result<_, _>>()?;
    // The first call is sent alone. If the address, the key or the request is wrong, the mistake is thus reported only
    // once.
    let mut left = args.calls_max;
    endpoint.send(&prepared[0], |_| {}).await?;
    left -= 1;

    let record = Record::default();
    let timeout = Duration::from_secs(args.timeout);
    let call = Call {
        prepared,
        each: None,
    };
    let terms = Terms::new(Failures::AreCounted, left, timeout);
    let client = Client::new(endpoint.origin, Arc::new(call), terms, record.clone());
    let pace = args.rate.map_or(Pace::WhenAnswered, Pace::PerSecond);
    let began = Instant::now();
    let running = client.run(pace, args.connections, Duration::from_secs(args.seconds));
    tokio::select! {
        ran = running => ran.map_err(|error| Failure::Internal(error.to_string()))?,
        () = show_progress(&record, args.calls_max) => {}
        // After Ctrl-C, the results so far are reported.
        _ = tokio::signal::ctrl_c() => {}
    }
    let (results, elapsed) = (record.results(), began.elapsed());
    let report = report::json(&args.url, &results, elapsed);
    show::print(args.json, &report, |_| report::text(&results, elapsed))?;
    let calls = results.answered + results.failed;
    if args.failed_max.allows(results.failed, calls) && results.answered > 0 {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{} of {calls} calls failed, and --failed-max allows {}",
        results.failed, args.failed_max
    )))
}

/// Prints how many calls have ended, until the future is dropped.
async fn show_progress(record: &Record, calls_max: u64) {
    let mut progress = Progress::new("calls", Some(calls_max));
    let mut ticks = interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        progress.at(record.ended());
    }
}

/// Returns the request bodies in a file: one JSON object, or one JSON object per line.
fn requests(file: &std::path::Path) -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::Io(format!("cannot read {}: {error}", file.display())))?;
    if serde_json::from_str::<serde_json::Map<_, Value>>(&text).is_ok() {
        return Ok(vec![text]);
    }
    let mut bodies = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        serde_json::from_str::<serde_json::Map<_, Value>>(line).map_err(|error| {
            let (file, line) = (file.display(), index + 1);
            Failure::Data(format!("{file}:{line}: not a JSON object: {error}"))
        })?;
        bodies.push(line.to_owned());
    }
    if bodies.is_empty() {
        return Err(Failure::Data(format!("{}: no request", file.display())));
    }
    Ok(bodies)
}

/// Returns the model to call: the one that the options name, or else the first one that the key may call.
async fn model(args: &LoadArgs, endpoint: &Endpoint) -> Result<String, Failure> {
    if let Some(model) = &args.model {
        return Ok(model.clone());
    }
    let mut call = endpoint.post("/v1/models", Format::Chat, &args.key, String::new())?;
    call.method = Method::GET;
    let mut answer = Vec::new();
    endpoint
        .send(&call, |data| answer.extend_from_slice(data))
        .await?;
    let list: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let first = list["data"][0]["id"].as_str().map(str::to_owned);
    first.ok_or_else(|| {
        Failure::Refused("the gateway lists no model for this key: give one with --model".into())
    })
}

/// The gateway to which the calls are sent.
struct Endpoint {
    origin: Origin,
    url: Uri,
    /// The path of the gateway's URL before `/v1`, without a trailing slash.
    prefix: String,
}

impl Endpoint {
    fn new(url: &Uri) -> Self {
        let path = url.path().trim_end_matches('/');
        Self {
            origin: Origin::url(url.clone()),
            url: url.clone(),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        }
    }

    fn host(&self) -> &str {
        self.url
            .authority()
            .map_or("", |authority| authority.as_str())
    }

    fn post(
        &self,
        path: &str,
        format: Format,
        key: &str,
        body: String,
    ) -> Result<Prepared, Failure> {
        let host = self.host();
        let path = format!("{}{path}", self.prefix);
        Prepared::post(host, &path, format, key, body.into())
            .map_err(|error| Failure::Usage(format!("--url or --key: {error}")))
    }

    /// Sends a call. If the call fails, the command fails.
    async fn send(&self, call: &Prepared, each: impl FnMut(&Bytes)) -> Result<(), Failure> {
        let sent = async { Connection::open(&self.origin).await?.send(call, each).await };
        sent.await.map_err(|error| {
            let text = format!("{}{}: {error}", self.host(), call.uri);
            match error {
                CallError::Status(..) | CallError::Event(_) => Failure::Refused(text),
                _ => Failure::OutOfReach(text),
            }
        })
    }
}

fn address(text: &str) -> Result<Uri, String> {
    let url: Option<Uri> = text.parse().ok();
    url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.query().is_none())
        .ok_or_else(|| "give an address like https://gateway.example/v1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_calls_are_tolerated_up_to_a_number_or_a_percentage() {
        for (text, failed, calls, allowed) in [
            ("0", 0, 10, true),
            ("0", 1, 10, false),
            ("3", 3, 3, true),
            ("1%", 1, 100, true),
            ("1%", 2, 100, false),
            ("0.5%", 1, 200, true),
        ] {
            let max = FailedMax::parse(text).unwrap();
            assert_eq!(max.allows(failed, calls), allowed, "{text}");
        }
        for text in ["", "-1", "101%", "%", "many"] {
            assert!(FailedMax::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn request_file_is_one_json_object_or_one_object_per_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("requests");
        for (text, found) in [
            ("{\n\"a\": 1\n}\n", Ok(1)),
            ("{\"a\":1}\n\n{\"a\":2}\n", Ok(2)),
            ("{\"a\":1}\n[]\n", Err("requests:2: not a JSON object")),
            ("\n", Err("no request")),
        ] {
            fs::write(&file, text).unwrap();
            match (requests(&file), found) {
                (Ok(bodies), Ok(count)) => assert_eq!(bodies.len(), count),
                (Err(failure), Err(says)) => {
                    assert!(failure.text().contains(says), "{failure:?}");
                    assert_eq!(failure.code(), 65);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
