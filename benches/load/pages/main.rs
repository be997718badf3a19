//! Does every page come in time when there are millions of receipts?
//!
//! `cargo bench --bench pages [-- sqlite redis --receipts N --accounts N --days N --bound-ms MS --runs N]`
//!
//! Fills a ledger as a copy does, rolls its journals up, starts a gateway on it, and asks for each page and each route
//! that reads receipts, one after the other. Ends with status 1 when the slowest answer of any of them takes longer than
//! the bound. `benches/README.md` says what is measured.

#[path = "../../fixtures/mod.rs"]
mod fixtures;

mod asked;
mod filled;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use tollgate::{Gateway, config::Config};

use crate::{
    asked::Visitor,
    filled::Filled,
    fixtures::support::{config::ConfigText, process::ADMIN_KEY, redis::RedisServer},
};

/// Asks for every page of a gateway that has many receipts.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// On which ledgers; both when none is named.
    #[arg(value_enum)]
    stores: Vec<Store>,
    /// How many receipts there are. A fifth of them is of one account, a twentieth in its last hour.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub(crate) receipts: u64,
    /// Of how many accounts.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) accounts: u64,
    /// Over how many days.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=390))]
    pub(crate) days: u64,
    /// How long an answer may take.
    #[arg(long, default_value_t = 200)]
    bound_ms: u64,
    /// How often each is asked for.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where the ledger's file is put for the time; it needs about 600 bytes a receipt.
    #[arg(long)]
    folder: Option<PathBuf>,

    /// What cargo says to every bench.
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
    let (name, url, filled) = match store {
        Store::Sqlite => {
            let file = folder.path().join("ledger.db");
            let filled = Filled::file(options, &file).await?;
            let bytes = std::fs::metadata(&file)?.len();
            eprintln!("pages: the file has {} MB", bytes / 1_000_000);
            ("sqlite", format!("sqlite:{}", file.display()), filled)
        }
        Store::Redis => {
            server = RedisServer::start().await;
            let filled = Filled::redis(options, &server.url()).await?;
            let info: String = server.ask(&["INFO", "memory"]).await?;
            let used = info
                .lines()
                .find_map(|line| line.strip_prefix("used_memory:"));
            let used: u64 = used.unwrap_or_default().trim().parse()?;
            eprintln!("pages: the server has {} MB", used / 1_000_000);
            ("redis", server.url(), filled)
        }
    };
    let text = ConfigText::over(&url)
        .admin()
        .outbox(&folder.path().join("outbox.db"))
        .chat_and_messages("127.0.0.1:9".parse()?, "", "")
        .text();
    let env = |name: &str| match name {
        "ADMIN_KEY" => Some(ADMIN_KEY.to_owned()),
        "VENDOR_KEY" => Some("sk-vendor-key-of-the-benches".to_owned()),
        _ => None,
    };
    let config = Config::parse(&text, &env)
        .unwrap_or_else(|errors| panic!("the benches' own config: {errors}"));
    let gateway = Gateway::build(&config, |_| {}).await?;
    let visitor = Visitor::sign_in(&gateway).await?;
    println!(
        "\n{name}, {} receipts of {} accounts in {} days\n",
        options.receipts, options.accounts, options.days
    );
    println!("| page | first, ms | median, ms | slowest, ms |\n|---|---|---|---|");
    let bound = Duration::from_millis(options.bound_ms);
    let mut in_time = true;
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
    Ok(in_time)
}
