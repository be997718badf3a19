//! A gateway that runs somewhere: the same loads, with real calls and so with bounds.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Uri};
use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate_layers::call::Format;

use crate::{
    client::{Call, Client, Seen, Terms},
    fixtures::{
        caller::{Connection, Origin, Prepared},
        gateway_path,
    },
    options::{Deployment, Options},
    report::{Latency, us},
    run::one_thread,
    scenario::{Measure, Pace, ScenarioName},
};

/// What can be asked of a gateway whose vendor is not ours.
const SCENARIOS: [ScenarioName; 4] = [
    ScenarioName::Plain,
    ScenarioName::Paced,
    ScenarioName::Stream,
    ScenarioName::FirstByte,
];

/// Runs the scenarios that were named, or all that can be, and prints a table. A first call that fails ends
/// it; each of the others has its part of the calls that may be made.
pub(crate) fn run(options: &Options, deployment: &Deployment<'_>) -> anyhow::Result<()> {
    let names = match options.named() {
        [] => &SCENARIOS[..],
        named => named,
    };
    if let Some(other) = names.iter().find(|name| !SCENARIOS.contains(name)) {
        bail!(
            "{} wants the bench's own vendor: with --url there are plain, paced, stream and first_byte",
            other.name()
        );
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    one_thread()?.block_on(load(options, deployment, names))
}

async fn load(
    options: &Options,
    deployment: &Deployment<'_>,
    names: &[ScenarioName],
) -> anyhow::Result<()> {
    let place = Place::of(deployment.url)?;
    let model = match deployment.model {
        Some(model) => model.to_owned(),
        None => first_model(&place, deployment).await?,
    };
    eprintln!(
        "load: {} calls at most, of {} output tokens at most, to {model} at {}",
        deployment.calls_max, deployment.max_tokens, deployment.url
    );
    // What is wrong with the address, the key or the model is said once, and costs nothing more.
    let left = deployment.calls_max.checked_sub(1);
    let mut left = left.context("--calls-max 0 leaves no call")?;
    let call = prepared(&place, deployment, &model, false)?;
    let mut connection = Connection::open(&place.origin)
        .await
        .with_context(|| format!("cannot connect to {}", deployment.url))?;
    connection.send(&call, |_| {}).await.context("first call")?;
    drop(connection);

    println!("{HEAD}");
    for (index, name) in names.iter().enumerate() {
        let (stream, pace, measure) = match name {
            ScenarioName::Paced => (false, Pace::PerSecond(deployment.rate), Measure::Whole),
            ScenarioName::Stream => (true, Pace::WhenAnswered, Measure::Whole),
            ScenarioName::FirstByte => (true, Pace::PerSecond(deployment.rate), Measure::FirstByte),
            _ => (false, Pace::WhenAnswered, Measure::Whole),
        };
        // A fast one leaves the others their part.
        let terms = Terms::bounded(left / (names.len() - index) as u64);
        let call = Arc::new(Call {
            prepared: prepared(&place, deployment, &model, stream)?,
            measure,
        });
        let client = Client::open(
            place.origin.clone(),
            call,
            terms,
            pace,
            options.connections(),
        )
        .await?;
        let began = Instant::now();
        let seen = client.run(pace, options.round() * options.rounds).await?;
        left -= seen.answered + seen.failed;
        println!("{}", text(*name, &seen, began.elapsed().as_secs_f64()));
        if let Some(failure) = seen.failure {
            eprintln!("load: {}: the first that failed: {failure}", name.name());
        }
    }
    Ok(())
}

/// Where a gateway is.
struct Place {
    origin: Origin,
    host: String,
    /// What stands before `/v1`, without a slash at its end.
    prefix: String,
}

impl Place {
    fn of(url: &Uri) -> anyhow::Result<Self> {
        let authority = url.authority().context("--url: give a host")?;
        let path = url.path().trim_end_matches('/');
        Ok(Self {
            origin: Origin::url(url.clone()),
            host: authority.to_string(),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        })
    }
}

fn prepared(
    place: &Place,
    deployment: &Deployment<'_>,
    model: &str,
    stream: bool,
) -> anyhow::Result<Prepared> {
    let body = json!({
        "model": model,
        "max_tokens": deployment.max_tokens,
        "messages": [{ "role": "user", "content": "Say yes." }],
        "stream": stream,
    });
    Prepared::post(
        &place.host,
        &format!("{}{}", place.prefix, gateway_path(deployment.format)),
        deployment.format,
        deployment.key,
        body.to_string().into(),
    )
}

/// The first model that the key may call.
async fn first_model(place: &Place, deployment: &Deployment<'_>) -> anyhow::Result<String> {
    let path = format!("{}/v1/models", place.prefix);
    let (format, key) = (Format::Chat, deployment.key);
    let mut call = Prepared::post(&place.host, &path, format, key, Bytes::new())?;
    call.method = Method::GET;
    let mut answer = Vec::new();
    let mut connection = Connection::open(&place.origin)
        .await
        .with_context(|| format!("cannot connect to {}", deployment.url))?;
    let listed = connection.send(&call, |data| answer.extend_from_slice(data));
    listed.await.with_context(|| format!("GET {path}"))?;
    let list: Value = serde_json::from_slice(&answer).with_context(|| format!("GET {path}"))?;
    let first = list["data"][0]["id"].as_str();
    let first = first.context("the key may call no model: name one with --model")?;
    Ok(first.to_owned())
}

const HEAD: &str = "\
scenario        calls   failed    calls/s     p50 ms     p99 ms";

fn text(name: ScenarioName, seen: &Seen, seconds: f64) -> String {
    let latency = Latency::of(seen.samples.clone());
    format!(
        "{:<12} {:>8} {:>8} {:>10.1} {:>10.1} {:>10.1}",
        name.name(),
        seen.answered + seen.failed,
        seen.failed,
        seen.answered as f64 / seconds,
        us(latency.p50) / 1e3,
        us(latency.p99) / 1e3,
    )
}
