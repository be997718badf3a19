//! `tollgate ledger copy`: copies all accounts, keys and journals from one ledger into another. No gateway may
//! use either ledger during the copy.

use std::{error::Error, fmt::Display, path::PathBuf, time::Duration};

use clap::Args;
use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate_layers::{
    key::AccountId,
    money::MicroRub,
    redis_conn::RedisFault,
    reserve::{
        copy::{Comparison, CopyError, Source, Target, Totals, compare},
        ledger::{BookError, LedgerAdmin, OpenHold},
        redis::{RECEIPT_DAYS, RedisCopy, RedisLedger, RedisSettings},
        sqlite::{SqliteCopy, SqliteLedger},
    },
    upstream::check_authorities,
};

use super::{
    failure::Failure,
    progress::Progress,
    show::{self, Cell, counted, table},
};
use crate::{config::LedgerUrl, text::causes::chain};

pub(super) const HELP: &str = "\
First stop the gateways with SIGTERM, and wait until each has logged \"stopped\". If a gateway logs that \
charges are kept in its outbox, the source does not have these charges yet: start this gateway again and stop it once more. \
Keys keep working after the copy, because their digests are copied.

Examples:
  tollgate ledger copy --from sqlite:tollgate.db --to redis://127.0.0.1:6379/0
  tollgate ledger copy --from redis://127.0.0.1:6379/0 --to sqlite:tollgate.db
  FROM=redis://:secret@a:6379 TO=redis-cluster://:secret@b:7000 \\
    tollgate ledger copy --from '${FROM}' --to '${TO}'";

/// Options of `tollgate ledger copy`: the two ledgers, and what to do about open holds.
#[derive(Debug, Args)]
pub(super) struct CopyArgs {
    /// URL of the ledger to copy, as in ledger.url of a configuration; write a URL with a password as ${NAME} or
    /// file:/path
    #[arg(long, value_name = "URL")]
    from: String,
    /// URL of the empty ledger to fill: sqlite:PATH of a file that does not exist yet, or an empty Redis
    #[arg(long, value_name = "URL")]
    to: String,
    /// PEM file with the certificate authorities to trust for a Redis with TLS, instead of Mozilla's list
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Wait at most this many seconds for open holds to end. A hold expires limits.call_seconds plus
    /// ledger.hold_grace_seconds after it was made or renewed
    #[arg(
        long,
        value_name = "SECONDS",
        conflicts_with = "release",
        value_parser = clap::value_parser!(u64).range(1..=604_800)
    )]
    wait: Option<u64>,
    /// End all open holds without a charge
    #[arg(long)]
    release: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl CopyArgs {
    /// Returns the settings for the connection to a Redis. The certificate authorities are used only if the URL has
    /// TLS, because one of the two ledgers may not use TLS.
    fn redis(&self, url: &str) -> Result<RedisSettings, Failure> {
        let tls = url.starts_with("rediss");
        let mut settings = RedisSettings::default();
        if let Some(file) = self.ca_file.as_ref().filter(|_| tls) {
            let at = |problem: &dyn Display| format!("--ca-file {}: {problem}", file.display());
            let pem = std::fs::read(file).map_err(|error| Failure::Io(at(&error)))?;
            check_authorities(&pem).map_err(|error| Failure::Usage(at(&error)))?;
            settings.authorities = Some(pem.into());
        }
        Ok(settings)
    }
}

/// Interval at which the command checks whether the source's holds have ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn copy(args: &CopyArgs) -> Result<(), Failure> {
    let url = |flag: &str, text: &str| {
        let read = LedgerUrl::read(text);
        read.map_err(|problem| Failure::Usage(format!("{flag}: {problem}")))
    };
    let (from, to) = (url("--from", &args.from)?, url("--to", &args.to)?);
    match &from {
        LedgerUrl::Memory => Err(Failure::Usage(
            "--from: a ledger in memory can be read only by its own gateway".into(),
        )),
        LedgerUrl::Sqlite(path) => {
            // The check comes before the file is opened, because opening a missing file would create it.
            if !path.exists() {
                let problem = format!("--from: there is no file {}", path.display());
                return Err(Failure::Usage(problem));
            }
            let opened = SqliteLedger::open(path);
            let ledger = opened.map_err(|error| refused("--from", &error))?;
            let copied = into(&ledger, &to, args).await;
            ledger.close().await;
            copied
        }
        LedgerUrl::Redis(url) => {
            let opened = RedisLedger::connect(url, args.redis(url)?).await;
            let ledger = opened.map_err(|error| out_of_reach("--from", &error))?;
            let served = ledger.is_served_from().await;
            if served.map_err(|error| out_of_reach("--from", &error))? {
                return Err(Failure::Refused(
                    "--from: a gateway still serves from this ledger; stop all gateways first"
                        .into(),
                ));
            }
            into(&ledger, &to, args).await
        }
    }
}

async fn into<S: Source>(from: &S, to: &LedgerUrl, args: &CopyArgs) -> Result<(), Failure> {
    let accounts = from.accounts().await;
    let accounts = accounts.map_err(|error| out_of_reach("--from", &error))?;
    if accounts.is_empty() {
        return Err(Failure::Refused(
            "--from: the ledger has no accounts; is it the right one?".into(),
        ));
    }
    let ids: Vec<AccountId> = accounts.into_iter().map(|account| account.id).collect();
    let left_behind = settle_holds(from, &ids, args).await?;
    match to {
        LedgerUrl::Memory => Err(Failure::Usage(
            "--to: a ledger in memory would be lost when this command ends".into(),
        )),
        LedgerUrl::Sqlite(path) => {
            let begun = SqliteCopy::begin(path);
            let target = begun.map_err(|error| refused("--to", &*error))?;
            fill(from, target, ids.len(), left_behind, args.json).await
        }
        LedgerUrl::Redis(url) => {
            let begun = RedisCopy::begin(url, args.redis(url)?).await;
            let target = begun.map_err(|error| out_of_reach("--to", &error))?;
            fill(from, target, ids.len(), left_behind, args.json).await
        }
    }
}

/// Waits until no call holds money in the source; with `--release`, ends the holds without a charge instead. Returns
/// how many calls may still be charged: their charges are in a gateway's outbox and have not reached the source.
async fn settle_holds<S: Source>(
    from: &S,
    ids: &[AccountId],
    args: &CopyArgs,
) -> Result<u64, Failure> {
    let wait = args.wait.map(Duration::from_secs);
    let until = wait.map(|wait| Instant::now() + wait);
    loop {
        let open = holds(from, ids).await;
        let open = open.map_err(|error| out_of_reach("--from", &error))?;
        if open.is_empty() {
            break;
        }
        if args.release {
            for (account, hold) in &open {
                let released = from.release(hold.number, account, &hold.key).await;
                released.map_err(|error| out_of_reach("--from", &error))?;
            }
            continue;
        }
        if until.is_none_or(|until| Instant::now() >= until) {
            return Err(Failure::Refused(holds_open(&open)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let expired = from.expire().await;
        expired.map_err(|error| out_of_reach("--from", &error))?;
    }
    let mut unsettled = 0;
    for id in ids {
        let of_account = from.unsettled(id).await;
        unsettled += of_account.map_err(|error| out_of_reach("--from", &error))?;
    }
    Ok(unsettled)
}

async fn holds<S: Source>(
    from: &S,
    ids: &[AccountId],
) -> Result<Vec<(AccountId, OpenHold)>, BookError> {
    let mut open = Vec::new();
    for id in ids {
        let books = from.books(id).await?;
        open.extend(books.holds.into_iter().map(|hold| (id.clone(), hold)));
    }
    Ok(open)
}

fn holds_open(open: &[(AccountId, OpenHold)]) -> String {
    let held = open.iter().map(|(_, hold)| hold.held_rub);
    let held = held.fold(MicroRub::ZERO, MicroRub::plus_or_max);
    let (calls, first) = (counted(open.len() as u64, "hold"), &open[0].0);
    format!(
        "--from: {calls} still open, {held} ₽ in total, the first in account {first}. To settle the calls, start the gateways \
         again, stop them with SIGTERM, and check that no charges are kept in their outboxes. Or wait until the holds expire \
         (--wait 960), or end the holds without a charge (--release)"
    )
}

async fn fill<S: Source, T: Target>(
    from: &S,
    mut target: T,
    accounts: usize,
    left_behind: u64,
    json: bool,
) -> Result<(), Failure> {
    let mut progress = Progress::new("accounts", Some(accounts as u64));
    let copied = tollgate_layers::reserve::copy::copy(from, &mut target, |copied| {
        progress.at(copied.accounts)
    })
    .await;
    drop(progress);
    let copied = copied.map_err(|error| broken(&error))?;
    let written = |error: BookError| out_of_reach("--to", &error);
    let ledger = target.filled().await.map_err(written)?;
    let audit = LedgerAdmin::audit(&ledger).await.map_err(written)?;
    if !audit.breaches.is_empty() {
        return Err(Failure::Internal(format!(
            "the copy is not used, because its audit found breaches: {}",
            audit.breaches.join("; ")
        )));
    }
    let compared = compare(from, &ledger).await.map_err(written)?;
    if !compared.different.is_empty() {
        return Err(Failure::Refused(differs(&compared.different)));
    }
    target.publish(ledger).await.map_err(written)?;
    let answer = json!({
        "accounts": copied.accounts, "accounts_there_already": copied.there_already,
        "journal_lines": copied.lines, "unsettled_left_behind": left_behind,
        "from": totals(&compared.from), "to": totals(&compared.to),
    });
    show::print(json, &answer, |_| {
        text(&compared, copied.lines, left_behind)
    })
}

fn differs(accounts: &[AccountId]) -> String {
    let named: Vec<&str> = accounts.iter().map(|id| &**id).collect();
    format!(
        "the copy is not used, because source and target differ in these accounts: {}. Something wrote to the source \
         while it was copied, or the target already contained other books. Make sure that no gateway runs, empty the \
         target and copy again",
        named.join(", ")
    )
}

fn totals(totals: &Totals) -> Value {
    json!({
        "accounts": totals.accounts, "keys": totals.keys, "entered_rub": rubles(totals.entered),
        "balance_rub": rubles(totals.balance), "spent_rub": rubles(totals.spent), "loss_rub": rubles(totals.loss),
    })
}

/// Formats a sum over all accounts. The sum may exceed the maximum of one account, so it is not a `MicroRub`.
fn rubles(micro: i128) -> String {
    let (sign, micro) = (if micro < 0 { "-" } else { "" }, micro.unsigned_abs());
    format!("{sign}{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

fn text(compared: &Comparison, lines: u64, left_behind: u64) -> String {
    const ROW: &[Cell] = &[
        Cell::text("", "/what"),
        Cell::number("source", "/from"),
        Cell::number("target", "/to"),
    ];
    let (from, to) = (totals(&compared.from), totals(&compared.to));
    let rows: Vec<Value> = [
        ("accounts", "accounts"),
        ("keys", "keys"),
        ("paid in, ₽", "entered_rub"),
        ("balance, ₽", "balance_rub"),
        ("spent, ₽", "spent_rub"),
        ("loss, ₽", "loss_rub"),
    ]
    .into_iter()
    .map(|(what, field)| json!({ "what": what, "from": from[field], "to": to[field] }))
    .collect();
    let mut text = table(ROW, &rows);
    text.push_str(&format!(
        "ok: source and target are the same, and the audit found no breach; {} of journals copied (Redis keeps lines for {RECEIPT_DAYS} days)\n",
        counted(lines, "line")
    ));
    if left_behind > 0 {
        text.push_str(&format!(
            "the charges of {} are not in the copy: the source had not received them when the holds expired\n",
            counted(left_behind, "call")
        ));
    }
    text.push_str("Next: set ledger.url of every gateway to the target, and start no gateway on the source.\n");
    text
}

/// Returns the failure for a ledger that could not be opened.
fn refused(flag: &str, error: &(dyn Error + 'static)) -> Failure {
    Failure::Refused(format!("{flag}: {}", chain(error)))
}

/// Returns the failure for a ledger that did not respond.
fn out_of_reach(flag: &str, error: &(dyn Error + 'static)) -> Failure {
    let text = format!("{flag}: {}", chain(error));
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<RedisFault>() {
            // Redis did respond, so a retry would get the same response.
            Some(RedisFault::Url(_) | RedisFault::OtherData | RedisFault::Unexpected(_)) => break,
            Some(_) => return Failure::OutOfReach(text),
            None => next = error.source(),
        }
    }
    Failure::Refused(text)
}

fn broken(error: &CopyError) -> Failure {
    let text = chain(error);
    match error {
        CopyError::Broken(_) => Failure::OutOfReach(format!(
            "{text}; to continue the copy, run the command again"
        )),
        CopyError::Breach(_) => Failure::Data(format!("--from: {text}")),
        _ => Failure::Refused(format!("--from: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(from: &str, to: &str) -> CopyArgs {
        CopyArgs {
            from: from.into(),
            to: to.into(),
            ca_file: None,
            wait: None,
            release: false,
            json: false,
        }
    }

    #[tokio::test]
    async fn invalid_ledger_address_is_refused_without_printing_its_password() {
        for (from, to, code, says) in [
            ("memory:", "sqlite:b.db", 64, "--from: a ledger in memory"),
            (
                "mysql:a",
                "sqlite:b.db",
                64,
                "--from: must be memory:, sqlite:PATH",
            ),
            ("sqlite:no-such-file.db", "mysql:b", 64, "--to: must be"),
            (
                "sqlite:no-such-file.db",
                "sqlite:b.db",
                64,
                "--from: there is no file",
            ),
            (
                "redis://:hunter2@h",
                "sqlite:b.db",
                64,
                "contains a password",
            ),
        ] {
            let failure = copy(&args(from, to)).await.unwrap_err();
            let text = failure.text();
            assert!(
                failure.code() == code && text.contains(says) && !text.contains("hunter2"),
                "{from} {to}: {failure:?}"
            );
        }
    }

    #[test]
    fn sums_of_copied_ledgers_are_shown_to_the_micro_ruble() {
        assert_eq!(rubles(-1), "-0.000001");
        assert_eq!(rubles(1_500_000), "1.500000");
        let above_one_account = 10 * i128::from(MicroRub::MAX.micro());
        assert_eq!(rubles(above_one_account), "90071992547.409910");
    }
}
