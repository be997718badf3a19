//! `tollgate event`: the events that the ledger has emitted; `tollgate account alert`: the alert levels at which it
//! emits events about low balances.

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
    show::{self, Cell, rows, table},
};

const EVENTS: &str = "/admin/v1/events";
/// The number of events that the command shows without `--after`.
const LAST: usize = 50;
/// How many event numbers one request scans for events that pass the filters.
const PLACES: u64 = 1000;
/// How long (s) one long poll of `--follow` waits for new events.
const WAIT_SECONDS: u64 = 20;

#[derive(Debug, Subcommand)]
pub(super) enum EventCommand {
    /// Show what happened to money, oldest first; without --after, the last 50
    ///
    /// Every event has a number, which increases by one. --kind takes several kinds, separated by commas.
    #[command(
        after_help = "Examples:\n  tollgate event list --account acme --kind balance_low,ceiling_reached\n  \
                      tollgate event list --after 0 --json | jq '.events[] | select(.kind == \"top_up\")'\n  \
                      tollgate event list --follow --json"
    )]
    List(ListArgs),
    /// Show the receivers of events and their state
    #[command(
        visible_alias = "webhooks",
        after_help = "A receiver is active, failing while deliveries to it are retried, or stopped: it has answered \
                      410, or an operator has stopped it.\n\nExample:\n  tollgate event receivers"
    )]
    Receivers,
    /// Show a receiver's dead letters: events that it did not accept within the whole retry time
    #[command(after_help = "Example:\n  tollgate event dead crm")]
    Dead {
        /// The receiver's name in the configuration
        receiver: String,
    },
    /// Send events to a receiver again, now, with the ids that they had
    ///
    /// Any event that is still kept can be sent, whether the receiver accepted it before or not. A dead letter that is
    /// accepted is removed from the list. Stops at the first event that is not accepted.
    #[command(
        after_help = "Examples:\n  tollgate event replay crm 17 18\n  tollgate event replay crm --dead"
    )]
    Replay {
        /// The receiver's name in the configuration
        receiver: String,
        /// The events' numbers
        #[arg(value_name = "PLACE", required_unless_present = "dead")]
        numbers: Vec<u64>,
        /// All its dead letters, oldest first
        #[arg(long, conflicts_with = "numbers")]
        dead: bool,
    },
    /// Stop sending to a receiver; its events wait
    #[command(after_help = "Example:\n  tollgate event stop crm")]
    Stop {
        /// The receiver's name in the configuration
        receiver: String,
    },
    /// Send to a stopped or failing receiver again, at once, beginning with the events that wait
    #[command(after_help = "Example:\n  tollgate event resume crm")]
    Resume {
        /// The receiver's name in the configuration
        receiver: String,
    },
}

const RECEIVERS: &str = "/admin/v1/receivers";

/// The columns of a receiver in a list.
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
    /// Only events after this number; 0: all that are kept
    #[arg(long, value_name = "PLACE")]
    after: Option<u64>,
    /// At most this many
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// Only of this account
    #[arg(long)]
    account: Option<AccountId>,
    /// Only of these kinds
    #[arg(long, value_name = "KINDS")]
    kind: Option<String>,
    /// Keep printing new events; with --json, one per line
    #[arg(long)]
    follow: bool,
}

/// Arguments of `tollgate account alert`.
#[derive(Debug, Args)]
pub(super) struct AlertArgs {
    /// The account
    account: AccountId,
    /// Decimal rubles left; at most four levels
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = level, conflicts_with = "none")]
    at: Vec<MicroRub>,
    /// Emit no such events
    #[arg(long)]
    none: bool,
    /// For what is left under this key's ceilings, instead of the balance
    #[arg(long, value_parser = IdNotKey)]
    key: Option<KeyId>,
    /// For what is left under this group's ceilings, instead of the balance
    #[arg(long, conflicts_with = "key")]
    group: Option<GroupId>,
}

fn level(text: &str) -> Result<MicroRub, String> {
    let level = text
        .parse::<MicroRub>()
        .map_err(|error| error.to_string())?;
    match level > MicroRub::ZERO {
        true => Ok(level),
        false => Err("a level is more than 0 rubles; --none for no events".into()),
    }
}

pub(super) async fn event(admin: &AdminArgs, command: EventCommand) -> Result<(), Failure> {
    match command {
        EventCommand::List(args) => list(admin, &args).await,
        EventCommand::Receivers => {
            let answer = Client::new(admin)?
                .call(Method::GET, RECEIVERS, None)
                .await?;
            show::print(admin.json, &answer, |answer| {
                table(RECEIVER_ROW, rows(answer, "receivers"))
            })
        }
        EventCommand::Dead { receiver } => {
            let answer = dead(&Client::new(admin)?, &receiver).await?;
            show::print(admin.json, &answer, |answer| {
                table(DEAD_ROW, rows(answer, "dead"))
            })
        }
        EventCommand::Replay {
            receiver,
            numbers,
            dead,
        } => replay(admin, &receiver, numbers, dead).await,
        EventCommand::Stop { receiver } => set(admin, &receiver, "stopped").await,
        EventCommand::Resume { receiver } => set(admin, &receiver, "active").await,
    }
}

async fn dead(client: &Client, receiver: &str) -> Result<Value, Failure> {
    let path = format!("{RECEIVERS}/{}/dead", encoded(receiver));
    client.call(Method::GET, &path, None).await
}

async fn set(admin: &AdminArgs, receiver: &str, status: &str) -> Result<(), Failure> {
    let path = format!("{RECEIVERS}/{}", encoded(receiver));
    let answer = Client::new(admin)?
        .call(Method::PATCH, &path, Some(json!({ "status": status })))
        .await?;
    show::print(admin.json, &answer, |answer| {
        table(RECEIVER_ROW, std::slice::from_ref(answer))
    })
}

async fn replay(
    admin: &AdminArgs,
    receiver: &str,
    mut numbers: Vec<u64>,
    all_dead: bool,
) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    if all_dead {
        let answer = dead(&client, receiver).await?;
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
            let why = answer["error"].as_str().unwrap_or("not taken");
            return Err(Failure::Refused(format!("event {number}: {why}")));
        }
        show::print(admin.json, &answer, |_| {
            format!("event {number} is taken\n")
        })?;
    }
    if numbers.is_empty() && !admin.json {
        show::write("nothing to send\n")?;
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
        let after = next.ok_or_else(|| Failure::OutOfReach("an unknown answer".into()))?;
        let path = format!("{EVENTS}?after={after}&limit={limit}&wait={WAIT_SECONDS}{filters}");
        answer = client.call(Method::GET, &path, None).await?;
    }
}

/// Returns the answer that contains the last `limit` events that pass the filters. The API reads forwards only, so this
/// function searches pages from the end backwards, as far as events are kept.
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

/// Writes one line per event: number, time, kind, the account or key that it concerns, and the details of its kind.
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
            let value = match value {
                Value::String(text) => text.replace(char::is_control, "\u{fffd}"),
                value => value.to_string(),
            };
            text.push_str(&format!("  {name}={value}"));
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
                let text = format!("key {key} is not of account {}", args.account);
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
        let levels = levels.as_array().map_or(&[][..], Vec::as_slice);
        let levels: Vec<_> = levels
            .iter()
            .filter_map(|level| Some(format!("{} ₽", level.as_str()?)))
            .collect();
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
    fn alert_levels_of_account_keys_and_groups_are_shown() {
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
