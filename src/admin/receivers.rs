//! Endpoints for receivers of events: their state, and events that could not be delivered.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use tollgate_layers::key::AccountId;

use super::{
    Admin, Answer, Right,
    fields::Fields,
    ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::fields::either,
    events::{DeliveryState, Receiver, Replayed, Shown},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/receivers" => list_receivers;
    patch "/admin/v1/receivers/{receiver}" => change_receiver;
    get "/admin/v1/receivers/{receiver}/dead" => list_dead;
    post "/admin/v1/receivers/{receiver}/replays" => replay .needs(Right::Support);
};

/// The subject of refusals by the ledger.
const SUBJECT: &str = "receivers";

impl Admin {
    async fn list_receivers(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let mut answers = Vec::new();
        let receivers = self.dispatcher.receivers();
        for receiver in receivers.iter() {
            let notes = self.dispatcher.receiver_store(receiver);
            let state = notes.state().await.or_refuse(SUBJECT)?;
            let state = state.map(|(_, state)| state).unwrap_or_default();
            let dead = notes.dead_count().await.or_refuse(SUBJECT)?;
            answers.push(ReceiverAnswer::new(receiver, state, dead));
        }
        ok(&BTreeMap::from([("receivers", answers)]))
    }

    async fn change_receiver(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let receiver = self.receiver(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["status"])?;
        let status = either([("active", false), ("stopped", true)]);
        let stopped = fields.required("status", status)?;
        let state = self.dispatcher.stop(&receiver, stopped).await;
        let state = state.or_refuse_change(SUBJECT)?;
        let what = match stopped {
            true => "receiver.stop",
            false => "receiver.resume",
        };
        tracing::info!(target: "audit", who = who.name(), what, receiver = receiver.name);
        let dead = self.dispatcher.receiver_store(&receiver).dead_count().await;
        let dead = dead.or_refuse(SUBJECT)?;
        ok(&ReceiverAnswer::new(&receiver, state, dead))
    }

    async fn list_dead(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let receiver = self.receiver(request.named())?;
        let letters = self.dispatcher.receiver_store(&receiver).dead().await;
        let letters = letters.or_refuse(SUBJECT)?;
        let letters: Vec<_> = letters
            .iter()
            .map(|letter| DeadAnswer {
                dead_at: rfc3339(letter.dead_ms),
                error: &letter.error,
                event: Shown::from(&letter.event),
            })
            .collect();
        ok(&BTreeMap::from([("dead", letters)]))
    }

    async fn replay(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let receiver = self.receiver(request.named())?;
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, &["number"])?;
        let number = fields.required("number", |value| {
            let number = value.as_u64().filter(|number| *number > 0);
            number.ok_or_else(|| "must be the number of an event".to_owned())
        })?;
        let replayed = self.dispatcher.replay(&receiver, number).await;
        let replayed = replayed.or_refuse_change(SUBJECT)?;
        tracing::info!(target: "audit", who = who.name(), what = "receiver.replay", receiver = receiver.name, number, ?replayed);
        let error = match replayed {
            Replayed::Accepted => None,
            Replayed::Failed(why) => Some(why),
            Replayed::Unknown => {
                let text = format!("event {number} is not stored any more, or does not exist yet");
                return Err(Refusal::NotFound(text));
            }
            Replayed::Excluded => {
                let name = &receiver.name;
                let problem = format!("the filter of receiver {name} excludes event {number}");
                return Err(Refusal::invalid("number", problem));
            }
        };
        ok(&ReplayAnswer {
            number,
            delivered: error.is_none(),
            error,
        })
    }

    fn receiver(&self, name: &str) -> Result<Arc<Receiver>, Refusal> {
        let none = "no such receiver: `tollgate event receivers` (GET /admin/v1/receivers) lists the receivers";
        let found = self.dispatcher.receiver(name);
        found.ok_or_else(|| Refusal::NotFound(none.into()))
    }
}

#[derive(Serialize)]
struct ReceiverAnswer<'a> {
    name: &'a str,
    way: &'static str,
    /// Host of the receiver's address, or another part of the address that is not secret.
    to: String,
    status: &'static str,
    kinds: &'a [&'static str],
    accounts: &'a [AccountId],
    after: u64,
    failures: u32,
    failing_since: Option<String>,
    next_at: Option<String>,
    error: Option<String>,
    taken_at: Option<String>,
    dead: usize,
}

impl<'a> ReceiverAnswer<'a> {
    fn new(receiver: &'a Receiver, state: DeliveryState, dead: usize) -> Self {
        let (way, to) = receiver.way();
        let status = match state {
            DeliveryState { stopped: true, .. } => "stopped",
            DeliveryState { failures: 1.., .. } => "failing",
            _ => "active",
        };
        Self {
            name: &receiver.name,
            way,
            to: to.to_owned(),
            status,
            kinds: &receiver.filter.kinds,
            accounts: &receiver.filter.accounts,
            after: state.after,
            failures: state.failures,
            failing_since: state.failing_since_ms.map(rfc3339),
            next_at: (state.next_ms > 0).then(|| rfc3339(state.next_ms)),
            error: state.error,
            taken_at: state.taken_ms.map(rfc3339),
            dead,
        }
    }
}

#[derive(Serialize)]
struct DeadAnswer<'a> {
    dead_at: String,
    error: &'a str,
    event: Shown<'a>,
}

#[derive(Serialize)]
struct ReplayAnswer {
    number: u64,
    delivered: bool,
    error: Option<String>,
}
