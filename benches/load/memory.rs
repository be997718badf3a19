//! Measures the memory of an idle process, and the additional memory of each stream that is open but silent.
//!
//! Each round starts new processes, so that no memory is left from the round before. The streams are HTTP/1.1
//! connections. The vendor sends the first chunk of each stream and then nothing. Separate processes, called holders,
//! keep the streams open.

use std::{fs, io, net::SocketAddr, thread, time::Duration};

use anyhow::{Context as _, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio::runtime::{self, Runtime};
use tollgate::load::{Connection, Origin, Prepared, Record, next};
use tollgate_layers::call::Format;

use crate::{
    child::Child,
    fixtures::{
        Canned,
        results::{figure, figures, median},
        short_request,
    },
    options::{HolderRole, Ledger, Options, RoleName},
    report::Report,
    role,
    scenario::{Scenario, ScenarioName},
    target::{Target, ledgers},
};

/// The numbers of open streams at which memory is measured. The requested maximum is measured as well.
const STREAMS: [u32; 3] = [0, 100, 1000];
/// The number of files that a proxy has open in addition to the two connections per stream.
const FILES_BESIDE: u32 = 100;
/// The number of streams that a holder opens at the same time.
const OPENED_TOGETHER: usize = 64;
/// The pause before a measurement, after which the memory of the processes no longer changes.
const REST: Duration = Duration::from_secs(1);

/// Measures the memory of the bare proxy and of the first requested gateway.
pub(crate) fn run(runtime: &Runtime, options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let most = streams_max(options.streams)?;
    let mut counts: Vec<u32> = STREAMS.into_iter().filter(|count| *count < most).collect();
    counts.push(most);
    let ledger = ledgers(options)?[0];
    let mut rounds: [Vec<Vec<Footprint>>; 2] = Default::default();
    for number in 0..options.rounds as usize {
        for turn in 0..rounds.len() {
            let index = (number + turn) % rounds.len();
            let ledger = (index == 1).then_some(ledger);
            let seen = round(runtime, ledger, &counts)?;
            eprintln!("memory {}/{}: {seen:?}", number + 1, options.rounds);
            rounds[index].push(seen);
        }
    }
    println!("{HEAD}");
    let mut results = Vec::new();
    for (target, rounds) in ["bare", ledger.name()].into_iter().zip(&rounds) {
        for (place, streams) in counts.iter().enumerate() {
            let line = line(target, *streams, rounds, place);
            println!("{}", text(&line));
            results.push(line);
        }
    }
    report.add(ScenarioName::Memory, &results);
    Ok(())
}

/// Returns the requested number of streams, or fewer if the system's limit of open files does not allow that many.
fn streams_max(wanted: u32) -> anyhow::Result<u32> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|line| line.split_ascii_whitespace().nth(1))
        .context("no limit of open files in /proc/self/limits")?;
    // The limit of open files may be the word "unlimited" instead of a number.
    let files = files.parse().unwrap_or(u32::MAX);
    let allowed = files.saturating_sub(FILES_BESIDE) / 2 / 100 * 100;
    ensure!(
        allowed >= 100,
        "memory: a process may open {files} files here: raise the limit (ulimit -Hn)"
    );
    if allowed < wanted {
        eprintln!("memory: {allowed} streams: a process may open {files} files here, two for each");
    }
    Ok(wanted.min(allowed))
}

/// The memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    /// The resident memory, including pages that are shared with other processes (RSS).
    rss: u64,
    /// The proportional resident memory (PSS): a page that n processes share counts as 1/n of a page.
    pss: u64,
}

impl Footprint {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let bytes = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
            Some(kilobytes * 1024)
        };
        let missing = || io::Error::from(io::ErrorKind::InvalidData);
        Ok(Self {
            rss: bytes("Rss:").ok_or_else(missing)?,
            pss: bytes("Pss:").ok_or_else(missing)?,
        })
    }
}

/// Starts a target, opens more and more streams through it, and measures its memory at each number of streams.
fn round(
    runtime: &Runtime,
    ledger: Option<Ledger>,
    counts: &[u32],
) -> anyhow::Result<Vec<Footprint>> {
    let vendor = Child::start(RoleName::Vendor, &[])?;
    let mut target = match ledger {
        None => Target::bare(vendor.address()?)?,
        Some(ledger) => Target::gateway(vendor.address()?, ledger)?,
    };
    // The idle process is measured after it has served some calls, as in practice.
    drop(runtime.block_on(target.warm(&Scenario::plain(), 1, &Record::default()))?);
    let (mut open, mut holders, mut seen) = (0, Vec::new(), Vec::new());
    for count in counts {
        if *count > open {
            holders.push(hold(&target, count - open)?);
            open = *count;
        }
        thread::sleep(REST);
        seen.push(Footprint::of(
            target.pid().context("a proxy of the bench")?,
        )?);
    }
    // The target is stopped before the holders (the client processes). In the other order, the target would first have
    // to close thousands of connections.
    drop(target);
    Ok(seen)
}

/// Starts a holder: a process that opens `streams` streams and keeps them open.
fn hold(target: &Target, streams: u32) -> anyhow::Result<Child> {
    let (to, open) = (target.address.to_string(), streams.to_string());
    let path = target.path(Canned::Hold);
    let args = [
        ("--to", to.as_str()),
        ("--path", path.as_str()),
        ("--key", target.key()),
        ("--open", open.as_str()),
    ];
    let holder = Child::start(RoleName::Holder, &args)?;
    ensure!(
        holder.reported("open")? == open,
        "not all streams were opened"
    );
    Ok(holder)
}

/// Runs a holder: opens its streams and keeps them until the bench ends.
pub(crate) fn play(given: &HolderRole<'_>) -> anyhow::Result<()> {
    role::play(&mut runtime::Builder::new_current_thread(), async {
        let canned = Canned::Hold;
        let (host, body) = (
            given.to.to_string(),
            short_request(Format::Chat, canned.name(), true),
        );
        let call = Prepared::post(&host, given.path, Format::Chat, given.key, body)?;
        let held: Vec<_> = stream::iter(0..given.open)
            .map(|_| open(given.to, &call))
            .buffer_unordered(OPENED_TOGETHER)
            .try_collect()
            .await?;
        role::say("open", &held.len());
        role::ready();
        role::until_told_to_stop().await;
        Ok(())
    })
}

/// Opens one stream and waits for its first chunk.
async fn open(to: SocketAddr, call: &Prepared) -> anyhow::Result<impl Sized> {
    let mut connection = Connection::open(&Origin::Loopback(to)).await?;
    let mut body = connection.begin(call).await?;
    ensure!(
        next(&mut body).await?.is_some(),
        "a stream ended that should stay open"
    );
    Ok((connection, body))
}

/// The results of all rounds at one number of streams.
fn line(target: &str, streams: u32, rounds: &[Vec<Footprint>], place: usize) -> Value {
    let rss: Vec<f64> = rounds.iter().map(|seen| seen[place].rss as f64).collect();
    let pss: Vec<f64> = rounds.iter().map(|seen| seen[place].pss as f64).collect();
    let mut line = json!({
        "target": target,
        "streams": streams,
        "rss_bytes": figure(median(rss.iter().copied())),
        "pss_bytes": figure(median(pss.iter().copied())),
        "rounds": { "rss_bytes": figures(rss), "pss_bytes": figures(pss) },
    });
    if streams > 0 {
        // The memory per stream is the process's memory with the streams, minus its memory without them, divided by the
        // number of streams.
        let grown = |seen: &Vec<Footprint>| seen[place].rss as f64 - seen[0].rss as f64;
        let each = median(rounds.iter().map(grown)) / f64::from(streams);
        line["bytes_per_stream"] = figure(each);
    }
    line
}

const HEAD: &str = "\
scenario     target               streams     RSS MB   KB/stream";

fn text(line: &Value) -> String {
    let figure = |name: &str, unit: f64| line[name].as_f64().unwrap_or_default() / unit;
    format!(
        "{:<12} {:<20} {:>7.0} {:>10.1} {:>11.1}",
        "memory",
        line["target"].as_str().unwrap_or_default(),
        figure("streams", 1.0),
        figure("rss_bytes", 1e6),
        figure("bytes_per_stream", 1024.0),
    )
}
