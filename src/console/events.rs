//! The events page: the emitted events, their receivers, and the dead letters.

use askama::Template;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use tollgate_layers::reserve::ledger::AccountView;
use tollgate_ledger::happening::Happening;

use super::{
    Answer, Visit,
    api::{Failed, Refused, separate_faults},
    form::Form,
    pages::{Frame, status_of, written},
    views::facts,
};
use crate::text::percent::encoded;

/// The number of events that a page shows.
const SHOWN_MAX: usize = 50;
/// The number of event numbers that one request scans if there are filters. A page makes at most `LOOKS_MAX` requests.
const LOOKED_AT: u64 = 1000;
const LOOKS_MAX: usize = 10;
/// The number of a receiver's dead letters that are shown, latest first.
const DEAD_SHOWN_MAX: usize = 20;
const FILTERS: [&str; 2] = ["kind", "account"];

#[derive(Deserialize)]
struct Events {
    events: Vec<Told>,
    last: u64,
}

/// An event. The fields that only events of its kind have are in `more`.
#[derive(Deserialize)]
struct Told {
    number: u64,
    at: String,
    kind: String,
    account: Option<String>,
    key: Option<String>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Told {
    /// Returns the event's further fields, with their names.
    fn says(&self) -> Vec<(String, String)> {
        let mut more = Vec::new();
        for (name, value) in self.more.iter().filter(|(name, _)| *name != "at_ms") {
            facts(name, value, &mut more);
        }
        for (name, _) in &mut more {
            *name = name.replace('_', " ").replace(" rub", ", ₽");
        }
        more
    }
}

#[derive(Deserialize)]
struct Receiver {
    name: String,
    way: String,
    to: String,
    status: String,
    kinds: Vec<String>,
    accounts: Vec<String>,
    after: u64,
    failures: u64,
    next_at: Option<String>,
    error: Option<String>,
    taken_at: Option<String>,
    dead: usize,
    /// The receiver's latest dead letters.
    #[serde(skip)]
    letters: Vec<Letter>,
}

#[derive(Deserialize)]
struct Letter {
    dead_at: String,
    error: String,
    event: Told,
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsHtml<'a> {
    page: Frame<'a>,
    form: &'a Form,
    accounts: Vec<AccountView>,
    kinds: &'static [&'static str],
    events: Vec<Told>,
    /// The query of the page with older events; empty if this page has the oldest stored event.
    older: String,
    receivers: Vec<Receiver>,
}

/// Returns the refusal to show if an event was sent to a receiver again and the receiver did not accept it.
pub(super) fn not_taken(answer: &Value) -> Option<Refused> {
    let why = answer["error"].as_str()?;
    Some(Refused {
        status: StatusCode::BAD_GATEWAY,
        text: format!(
            "The receiver did not accept event {}, which remains undelivered: {why}",
            answer["number"]
        ),
    })
}

impl Visit {
    pub(super) async fn events(&self, problem: Option<&Refused>) -> Result<Answer, Failed> {
        let mut receivers: Vec<Receiver> = self.api.list("/admin/v1/receivers").await??;
        for receiver in receivers.iter_mut().filter(|receiver| receiver.dead > 0) {
            let path = format!("/admin/v1/receivers/{}/dead", encoded(&receiver.name));
            // A receiver that was just removed from the configuration shows no dead letters.
            let mut dead: Vec<Letter> = self.api.list(&path).await?.unwrap_or_default();
            dead.sort_by_key(|letter| std::cmp::Reverse(letter.event.number));
            dead.truncate(DEAD_SHOWN_MAX);
            receiver.letters = dead;
        }
        let (mut events, mut older, mut wrong) = (Vec::new(), None, None);
        match separate_faults(self.latest_events().await)? {
            Ok(found) => (events, older) = found,
            Err(refused) => wrong = Some(refused),
        }
        let problem = problem.or(wrong.as_ref());
        let older = older.map(|before| {
            let filters = self.filters().query(&FILTERS);
            format!("{filters}&before={before}")
        });
        let html = EventsHtml {
            page: self.frame("Events", "Events", problem),
            form: self.filters(),
            accounts: self.offered_accounts().await?,
            kinds: &Happening::KINDS,
            events,
            older: older.unwrap_or_default(),
            receivers,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Returns the filters in the page's query. After a posted form there are no filters, so all events are shown.
    fn filters(&self) -> &Form {
        const NONE: &Form = &Form::EMPTY;
        if self.posted { NONE } else { &self.form }
    }

    /// Returns the latest events that match the filters, and the number from which the next page searches backwards.
    /// The API reads only forwards, so each request begins further back by as many numbers as one request can read.
    async fn latest_events(&self) -> Result<(Vec<Told>, Option<u64>), Failed> {
        let form = self.filters();
        let filters = form.query(&FILTERS);
        let reach = if filters.is_empty() {
            SHOWN_MAX as u64
        } else {
            LOOKED_AT
        };
        let ask = async |after: u64, limit: u64| {
            let path = format!("/admin/v1/events?after={after}&limit={limit}&{filters}");
            self.api.get::<Events>(&path).await
        };
        let last = ask(0, 1).await??.last;
        let before = form.get("before").parse().ok();
        let mut until = before.map_or(last, |before: u64| before.saturating_sub(1).min(last));
        let mut shown: Vec<Told> = Vec::new();
        for _ in 0..LOOKS_MAX {
            if until == 0 || shown.len() >= SHOWN_MAX {
                break;
            }
            let after = until.saturating_sub(reach);
            let events = ask(after, reach).await??.events;
            let found = events.into_iter().filter(|event| event.number <= until);
            let mut found: Vec<Told> = found.collect();
            found.reverse();
            shown.append(&mut found);
            until = after;
        }
        if shown.len() > SHOWN_MAX {
            shown.truncate(SHOWN_MAX);
            until = shown.last().map_or(until, |event| event.number - 1);
        }
        Ok((shown, (until > 0).then_some(until + 1)))
    }
}
