//! Measures whether every page is answered fast enough if the ledger has millions of receipts.
//!
//! Usage: `cargo bench --bench pages [-- sqlite redis --receipts N --refused N --accounts N …]`. The argument `--help`
//! lists all options.
//!
//! The bench fills a ledger, rolls its journals up, and starts a gateway on it. Then it requests each page, and each
//! API route that reads receipts, one after another. It exits with status 1 if the slowest response of any page or
//! route exceeds the bound. `benches/README.md` explains what is measured.

#[path = "../../fixtures/mod.rs"]
mod fixtures;

mod filled;
mod portal;
mod requested;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use serde_json::json;
use tokio::{net::TcpListener, time::Instant};
use tollgate::{Gateway, config::Config};

use crate::{
    filled::Filled,
    fixtures::{
        results::{figure, keep, machine},
        support::{config::ConfigText, process::ADMIN_KEY, redis::RedisServer},
    },
    requested::Visitor,
};

// The same allocator as in the `tollgate` binary.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Requests every page of a gateway that has many receipts.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The ledgers to measure. By default both are measured.
    #[arg(value_enum)]
    stores: Vec<Store>,
    /// The number of receipts. One account has a fifth of them. A twentieth of them is in the last hour.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub(crate) receipts: u64,
    /// The number of accounts.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) accounts: u64,
    /// The number of days over which the receipts are distributed.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=390))]
    pub(crate) days: u64,
    /// The number of calls without a receipt. One account has a fifth of them.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) refused: u64,
    /// The maximum time until a response is complete, in milliseconds.
    #[arg(long, default_value_t = 200)]
    bound_ms: u64,
    /// The number of times that each page is requested.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The `ledger.url` of a ledger that an earlier run has filled. It is not filled again.
    #[arg(long)]
    filled: Option<String>,
    /// The folder of the ledger's file during the run. It needs about 600 bytes of disk space per receipt.
    #[arg(long)]
    folder: Option<PathBuf>,

    /// An argument that cargo passes to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Store {
    Sqlite,
    Redis,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if cfg!(debug_assertions) {
        eprintln!("pages: not an optimised build; use `cargo bench`");
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let stores = match options.stores.as_slice() {
        [] => vec![Store::Sqlite, Store::Redis],
        some => some.to_vec(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut in_time = true;
    for store in stores {
        in_time &= runtime.block_on(run(&options, store))?;
    }
    Ok(match in_time {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn run(options: &Options, store: Store) -> anyhow::Result<bool> {
    let folder = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let server;
    let (url, filled) = match (store, &options.filled) {
        (_, Some(url)) => (url.clone(), Filled::before(options)),
        (Store::Sqlite, None) => {
            let file = folder.path().join("ledger.db");
            let filled = Filled::file(options, &file).await?;
            (format!("sqlite:{}", file.display()), filled)
        }
        (Store::Redis, None) => {
            server = RedisServer::start().await;
            (server.url(), Filled::redis(options, &server.url()).await?)
        }
    };
    let (name, bytes) = match url.strip_prefix("sqlite:") {
        Some(file) => ("sqlite", std::fs::metadata(file)?.len()),
        None => ("redis", memory_of(&url).await?),
    };
    eprintln!("pages: {name} has {} MB", bytes / 1_000_000);
    let text = ConfigText::over(&url)
        .ledger(&format!("refused_calls_max = {}", options.refused.max(1)))
        .ledger("refused_calls_days = 400")
        .admin()
        .outbox(&folder.path().join("outbox.db"))
        .chat_and_messages("127.0.0.1:9".parse()?, "", "")
        .text();
    let mails = TcpListener::bind("127.0.0.1:0").await?;
    let portal = format!(
        "[cabinet]\nserver = \"smtp://{}\"\nfrom = \"Tollgate <noreply@example.com>\"\n",
        mails.local_addr()?
    );
    let text = text + &portal;
    let env = |name: &str| match name {
        "ADMIN_KEY" => Some(ADMIN_KEY.to_owned()),
        "VENDOR_KEY" => Some("sk-vendor-key-of-the-benches".to_owned()),
        _ => None,
    };
    let config = Config::parse(&text, &env)
        .unwrap_or_else(|errors| panic!("the benches' own config: {errors}"));
    let gateway = Gateway::build(&config, |_| {}).await?;
    let visitor = Visitor::sign_in(&gateway, &filled, &mails).await?;
    let begun = Instant::now();
    let receipts = visitor.check(filled.receipts).await?;
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("pages: all sums are what was written ({seconds:.1} s)");
    println!(
        "\n{name}, {receipts} receipts and {} refused calls of {} accounts in {} days\n",
        options.refused, options.accounts, options.days
    );
    println!("| page | first, ms | median, ms | slowest, ms |\n|---|---|---|---|");
    let bound = Duration::from_millis(options.bound_ms);
    let (mut in_time, mut results) = (true, Vec::new());
    for page in visitor.pages(&filled) {
        let mut times = Vec::new();
        for _ in 0..options.runs {
            times.push(visitor.time(&page).await?);
        }
        let first = times[0];
        times.sort_unstable();
        let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
        let late = if slowest > bound { " **late**" } else { "" };
        in_time &= slowest <= bound;
        // Replaces those parts of a path that differ from run to run, so that the results of several runs can be
        // compared.
        let path = page.path.split('/').map(|part| match part {
            number if number.len() == 36 => "<number>",
            month if page.path.contains("/statements/") && month.len() == 7 => "<month>",
            part => part,
        });
        let path: Vec<&str> = path.collect();
        results.push(json!({
            "page": path.join("/"),
            "first_ms": figure(first.as_secs_f64() * 1e3),
            "median_ms": figure(median.as_secs_f64() * 1e3),
            "slowest_ms": figure(slowest.as_secs_f64() * 1e3),
        }));
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
        println!(
            "| `{}` | {} | {} | {}{late} |",
            page.path,
            ms(first),
            ms(median),
            ms(slowest)
        );
    }
    gateway.drain().await?;
    let run = json!({
        "run": machine(),
        "receipts": receipts,
        "refused": options.refused,
        "accounts": options.accounts,
        "days": options.days,
        "runs": options.runs,
        "bound_ms": options.bound_ms,
        "bytes": bytes,
        "results": results,
    });
    keep("pages.json", [(name.to_owned(), run)])?;
    Ok(in_time)
}

/// Returns the memory that a Redis server uses for its data, in bytes.
async fn memory_of(url: &str) -> anyhow::Result<u64> {
    let client = redis::Client::open(url)?;
    let mut conn = client.get_multiplexed_async_connection().await?;
    let info: String = redis::cmd("INFO")
        .arg("memory")
        .query_async(&mut conn)
        .await?;
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    Ok(used.unwrap_or_default().trim().parse()?)
}
