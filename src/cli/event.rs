//! `tollgate event` (events and their receivers) and `tollgate account alert` (the levels at which the ledger emits
//! events).

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::{
    key::{AccountId, GroupId, KeyId},
    money::MicroRub,
};

use super::{
    AdminArgs,
    client::{Client, encoded},
    failure::Failure,
    key_id::IdNotKey,
    show::{self, Cell, plain, rows, table},
};

const EVENTS: &str = "/admin/v1/events";
/// How many of the last events the command shows if --after is not given.
const LAST: usize = 50;
/// How many event numbers one request covers, when the command searches for events that pass the filters.
const PLACES: u64 = 1000;
/// How long (s) one long poll of `--follow` waits for new events.
const WAIT_SECONDS: u64 = 20;

#[derive(Debug, Subcommand)]
pub(super) enum EventCommand {
    /// List events, oldest first; without --after, the last 50
    ///
    /// Event numbers increase by one. --kind accepts several kinds, separated by commas.
    #[command(
        after_help = "Examples:\n  tollgate event list --account acme --kind balance_low,ceiling_reached\n  \
                      tollgate event list --after 0 --json | jq '.events[] | select(.kind == \"top_up\")'\n  \
                      tollgate event list --follow --json"
    )]
    List(ListArgs),
    /// Show the receivers of events and their state
    #[command(
        visible_alias = "webhooks",
        after_help = "States of a receiver: active; failing, while deliveries to it are retried; stopped, after it has \
                      answered 410 or an operator has stopped it.\n\nExample:\n  tollgate event receivers"
    )]
    Receivers,
    /// Show a receiver's dead letters: events that the receiver did not accept within its retry time
    #[command(after_help = "Example:\n  tollgate event dead crm")]
    Dead(ReceiverArg),
    /// Send events to a receiver again, with their original ids
    ///
    /// An event can be sent again while the ledger stores it, even if the receiver has accepted it before. A dead
    /// letter is removed from the list when the receiver accepts it. The command stops at the first event that the
    /// receiver does not accept.
    #[command(
        after_help = "Examples:\n  tollgate event replay crm 17 18\n  tollgate event replay crm --dead"
    )]
    Replay {
        /// The receiver's name in the configuration
        receiver: String,
        /// The events' numbers
        #[arg(value_name = "PLACE", required_unless_present = "dead")]
        numbers: Vec<u64>,
        /// Send all dead letters of the receiver, oldest first
        #[arg(long, conflicts_with = "numbers")]
        dead: bool,
    },
    /// Stop sending events to a receiver; `tollgate event resume` sends the events that were held back
    #[command(after_help = "Example:\n  tollgate event stop crm")]
    Stop(ReceiverArg),
    /// Send events again to a receiver that is stopped or failing, beginning with the first undelivered event
    #[command(after_help = "Example:\n  tollgate event resume crm")]
    Resume(ReceiverArg),
}

#[derive(Debug, Args)]
pub(super) struct ReceiverArg {
    /// The receiver's name in the configuration
    receiver: String,
}

const RECEIVERS: &str = "/admin/v1/receivers";

/// Columns of a receiver in a list.
const RECEIVER_ROW: &[Cell] = &[
    Cell::text("receiver", "/name"),
    Cell::text("way", "/way"),
    Cell::text("to", "/to"),
    Cell::text("status", "/status"),
    Cell::number("after", "/after"),
    Cell::number("failures", "/failures"),
    Cell::text("next", "/next_at"),
    Cell::text("taken", "/taken_at"),
    Cell::number("dead", "/dead"),
    Cell::text("error", "/error"),
];

const DEAD_ROW: &[Cell] = &[
    Cell::number("place", "/event/number"),
    Cell::text("at", "/event/at"),
    Cell::text("kind", "/event/kind"),
    Cell::text("account", "/event/account"),
    Cell::text("given up", "/dead_at"),
    Cell::text("error", "/error"),
];

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Show only events with a number above this; 0 shows all stored events
    #[arg(long, value_name = "PLACE")]
    after: Option<u64>,
    /// Show at most this many events
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// Show only events of this account
    #[arg(long)]
    account: Option<AccountId>,
    /// Show only events of these kinds, separated by commas
    #[arg(long, value_name = "KINDS")]
    kind: Option<String>,
    /// Keep running and print new events; with --json, one event per line
    #[arg(long)]
    follow: bool,
}

/// Arguments of `tollgate account alert`.
#[derive(Debug, Args)]
pub(super) struct AlertArgs {
    /// Id of the account
    account: AccountId,
    /// An alert level in decimal rubles; repeat for up to four levels
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = level, conflicts_with = "none")]
    at: Vec<MicroRub>,
    /// Remove all alert levels
    #[arg(long)]
    none: bool,
    /// Compare the levels with the amount left under this key's ceilings, not with the balance
    #[arg(long, value_parser = IdNotKey)]
    key: Option<KeyId>,
    /// Compare the levels with the amount left under this group's ceilings, not with the balance
    #[arg(long, conflicts_with = "key")]
    group: Option<GroupId>,
}

fn level(text: &str) -> Result<MicroRub, String> {
    let level = text
        .parse::<MicroRub>()
        .map_err(|error| error.to_string())?;
    match level > MicroRub::ZERO {
        true => Ok(level),
        false => {
            Err("a level must be more than 0 rubles; to remove all levels, give --none".into())
        }
    }
}

pub(super) async fn event(admin: &AdminArgs, command: EventCommand) -> Result<(), Failure> {
    match command {
        EventCommand::List(args) => list(admin, &args).await,
        EventCommand::Receivers => {
            let text = |answer: &Value| table(RECEIVER_ROW, rows(answer, "receivers"));
            admin.request(Method::GET, RECEIVERS, None, text).await
        }
        EventCommand::Dead(ReceiverArg { receiver }) => {
            let path = dead_path(&receiver);
            let text = |answer: &Value| table(DEAD_ROW, rows(answer, "dead"));
            admin.request(Method::GET, &path, None, text).await
        }
        EventCommand::Replay {
            receiver,
            numbers,
            dead,
        } => replay(admin, &receiver, numbers, dead).await,
        EventCommand::Stop(ReceiverArg { receiver }) => set(admin, &receiver, "stopped").await,
        EventCommand::Resume(ReceiverArg { receiver }) => set(admin, &receiver, "active").await,
    }
}

fn dead_path(receiver: &str) -> String {
    format!("{RECEIVERS}/{}/dead", encoded(receiver))
}

async fn set(admin: &AdminArgs, receiver: &str, status: &str) -> Result<(), Failure> {
    let path = format!("{RECEIVERS}/{}", encoded(receiver));
    let body = json!({ "status": status });
    let text = |answer: &Value| table(RECEIVER_ROW, std::slice::from_ref(answer));
    admin.request(Method::PATCH, &path, Some(body), text).await
}

async fn replay(
    admin: &AdminArgs,
    receiver: &str,
    mut numbers: Vec<u64>,
    all_dead: bool,
) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    if all_dead {
        let path = dead_path(receiver);
        let answer = client.call(Method::GET, &path, None).await?;
        let letters = rows(&answer, "dead").iter();
        numbers = letters
            .filter_map(|letter| letter["event"]["number"].as_u64())
            .collect();
    }
    let path = format!("{RECEIVERS}/{}/replays", encoded(receiver));
    for number in &numbers {
        let body = json!({ "number": number });
        let answer = client.call(Method::POST, &path, Some(body)).await?;
        if answer["delivered"] != true {
            let why = answer["error"].as_str().unwrap_or("not accepted");
            return Err(Failure::Refused(format!("event {number}: {why}")));
        }
        show::print(admin.json, &answer, |_| {
            format!("the receiver accepted event {number}\n")
        })?;
    }
    if numbers.is_empty() && !admin.json {
        show::write("no dead letters, so nothing was sent\n")?;
    }
    Ok(())
}

async fn list(admin: &AdminArgs, args: &ListArgs) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let mut filters = String::new();
    if let Some(account) = &args.account {
        filters.push_str(&format!("&account={account}"));
    }
    if let Some(kind) = &args.kind {
        filters.push_str(&format!("&kind={}", encoded(kind)));
    }
    let limit = args.limit;
    let mut answer = match args.after {
        Some(after) => {
            let path = format!("{EVENTS}?after={after}&limit={limit}{filters}");
            client.call(Method::GET, &path, None).await?
        }
        None => latest(&client, limit, &filters).await?,
    };
    if !args.follow {
        return show::print(admin.json, &answer, |answer| lines(rows(answer, "events")));
    }
    loop {
        let events = rows(&answer, "events");
        if admin.json {
            let text: String = events.iter().map(|event| format!("{event}\n")).collect();
            show::write(&text)?;
        } else {
            show::write(&lines(events))?;
        }
        let next = answer["next_after"].as_u64();
        let after =
            next.ok_or_else(|| Failure::OutOfReach("the answer has no next_after".into()))?;
        let path = format!("{EVENTS}?after={after}&limit={limit}&wait={WAIT_SECONDS}{filters}");
        answer = client.call(Method::GET, &path, None).await?;
    }
}

/// Returns a page with the last `limit` events that pass the filters. The API reads only forwards, so this function
/// reads pages from the newest event back to the oldest stored one, until it has found `limit` events.
async fn latest(client: &Client, limit: u64, filters: &str) -> Result<Value, Failure> {
    let path = format!("{EVENTS}?limit=1");
    let mut answer = client.call(Method::GET, &path, None).await?;
    let oldest = answer["events"][0]["number"].as_u64();
    let last = answer["last"].as_u64().unwrap_or_default();
    let most = LAST.min(usize::try_from(limit).unwrap_or(LAST));
    let (mut until, mut found) = (last, Vec::new());
    while found.len() < most && until >= oldest.unwrap_or(u64::MAX) {
        let after = until.saturating_sub(PLACES);
        let path = format!("{EVENTS}?after={after}&limit={PLACES}{filters}");
        let mut events = rows(&client.call(Method::GET, &path, None).await?, "events").to_vec();
        events.retain(|event| {
            event["number"]
                .as_u64()
                .is_some_and(|number| number <= until)
        });
        events.append(&mut found);
        (found, until) = (events, after);
    }
    found.drain(..found.len().saturating_sub(most));
    answer["events"] = found.into();
    answer["next_after"] = last.into();
    Ok(answer)
}

/// Writes one line per event: number, time, kind, account, key, and the fields that only this kind of event has.
fn lines(events: &[Value]) -> String {
    events.iter().map(line).collect()
}

fn line(event: &Value) -> String {
    let word = |name: &str| event[name].as_str().unwrap_or("-");
    let mut text = format!(
        "{:>8}  {}  {:<15}  {:<12}  {:<8}",
        event["number"].as_u64().unwrap_or_default(),
        word("at"),
        word("kind"),
        word("account"),
        word("key"),
    );
    let known = ["number", "at", "at_ms", "kind", "account", "key"];
    for (name, value) in event.as_object().into_iter().flatten() {
        if !known.contains(&name.as_str()) {
            text.push_str(&format!("  {name}={}", plain(value)));
        }
    }
    format!("{}\n", text.trim_end())
}

pub(super) async fn alert(admin: &AdminArgs, args: &AlertArgs) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let path = match (&args.key, &args.group) {
        (None, None) => format!("/admin/v1/accounts/{}/alerts", args.account),
        (None, Some(group)) => format!("/admin/v1/accounts/{}/groups/{group}/alerts", args.account),
        (Some(key), _) => {
            let path = format!("/admin/v1/keys/{key}/alerts");
            let known = client.call(Method::GET, &path, None).await?;
            if known["account"] != *args.account {
                let text = format!("key {key} does not belong to account {}", args.account);
                return Err(Failure::Refused(text));
            }
            path
        }
    };
    let body = json!({ "levels_rub": args.at });
    let answer = if args.at.is_empty() && !args.none {
        client.call(Method::GET, &path, None).await?
    } else {
        client.call(Method::PUT, &path, Some(body)).await?
    };
    show::print(admin.json, &answer, alerts)
}

fn alerts(answer: &Value) -> String {
    let levels = |levels: &Value| {
        let levels = levels.as_array().into_iter().flatten();
        let levels = levels.filter_map(|level| Some(format!("{} ₽", level.as_str()?)));
        let levels: Vec<_> = levels.collect();
        match levels.is_empty() {
            true => "no events".to_owned(),
            false => format!("events at {}", levels.join(", ")),
        }
    };
    let named = ["key", "group", "account"]
        .into_iter()
        .find_map(|word| Some(format!("{word} {}", answer[word].as_str()?)));
    let mut text = format!(
        "{}: {}\n",
        named.unwrap_or_default(),
        levels(&answer["levels_rub"])
    );
    for (word, all) in [("key", "keys"), ("group", "groups")] {
        for (id, of_it) in answer[all].as_object().into_iter().flatten() {
            text.push_str(&format!("{word} {id}: {}\n", levels(of_it)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_shown_as_one_line() {
        let event = json!({
            "number": 7, "at": "2026-11-23T10:00:00Z", "at_ms": 1, "kind": "balance_low", "account": "acme",
            "level_rub": "200.00", "balance_rub": "199.50", "by": "a\nb",
        });
        assert_eq!(
            line(&event),
            "       7  2026-11-23T10:00:00Z  balance_low      acme          -         balance_rub=199.50  \
             by=a\u{fffd}b  level_rub=200.00\n"
        );
    }

    #[test]
    fn alert_levels_of_accounts_and_keys_and_groups_are_shown() {
        let answer = json!({
            "account": "acme", "levels_rub": [], "keys": { "k1": ["5.00", "1.00"] }, "groups": { "team": ["2.00"] },
        });
        assert_eq!(
            alerts(&answer),
            "account acme: no events\nkey k1: events at 5.00 ₽, 1.00 ₽\ngroup team: events at 2.00 ₽\n"
        );
        let answer = json!({ "account": "acme", "group": "team", "levels_rub": ["2.00"] });
        assert_eq!(alerts(&answer), "group team: events at 2.00 ₽\n");
    }
}
