//! Simulates the network between gateways, operators and the ledger's server. Depending on the seed, messages are
//! delayed, reordered, lost and repeated.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{sleep_until, timeout},
};
use tollgate_layers::reserve::{book::Command, ledger::LedgerError};

use crate::{
    plan::{ASK_TIMEOUT, Ms, about, bits_of},
    random::Random,
    server::{Answer, Ask},
    world::{Sabotage, Sim, lock},
};

/// The sender number of a request that does not come from a gateway.
pub(crate) const OPERATOR: usize = usize::MAX;
/// The time after which the sender of a lost message gets an error, if it gets one. It is longer than the sender's
/// timeout.
const SILENCE_MS: Ms = 2 * ASK_TIMEOUT.as_millis() as Ms;

/// All messages that are in transit.
#[derive(Debug, Default)]
pub(crate) struct Net {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// The events by their time. Events of the same time are in the order in which they were sent.
    events: BTreeMap<(Ms, u64), Event>,
    sent: u64,
    requests: usize,
    /// How often each request was sent. Each repetition has a separate random fate.
    requested: HashMap<(u64, u64), u64>,
}

type Back = oneshot::Sender<Answer>;

#[derive(Debug)]
enum Event {
    Request {
        from: usize,
        ask: Ask,
        fate: Random,
        /// Where the response is sent. `None` for the second copy of a repeated message, because no sender waits for a
        /// response to it.
        back: Option<Back>,
    },
    Answer {
        from: usize,
        answer: Answer,
        back: Back,
        /// The number of the server that must still be in use when the response arrives; `None` if the response of any
        /// server is accepted.
        epoch: Option<u64>,
    },
    /// The message is lost: its sender gets no response.
    Silence(Back),
    /// The second part of a request that a sabotage has split into two steps.
    Act(Command),
}

impl Sim {
    /// Sends a request to the server. `from` is the number of the gateway, or `OPERATOR`.
    pub(crate) async fn ask(&self, from: usize, ask: Ask) -> Result<Answer, LedgerError> {
        let (back, answer) = oneshot::channel();
        self.send(from, ask, back);
        match timeout(ASK_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(LedgerError::Unavailable("the connection broke".into())),
            Err(_) => Err(LedgerError::Unavailable("no answer in time".into())),
        }
    }

    /// Returns whether messages between `from` and the server arrive at present.
    pub(crate) fn reaches(&self, from: usize) -> bool {
        let (plan, now) = (&self.plan, self.now());
        let away = plan.away.iter().any(|window| window.contains(now));
        let cut = plan
            .partitions
            .iter()
            .any(|(gateway, window)| *gateway == from && window.contains(now));
        !away && !cut
    }

    /// Returns whether no message to the server is in transit.
    pub(crate) fn net_is_idle(&self) -> bool {
        lock(&self.net.queue).requests == 0
    }

    /// Delivers messages. Never completes.
    pub(crate) async fn deliver(&self) {
        loop {
            let next = lock(&self.net.queue)
                .events
                .first_key_value()
                .map(|(at, _)| *at);
            match next {
                None => self.net.changed.notified().await,
                Some((at, _)) if at > self.now() => {
                    tokio::select! {
                        biased;
                        () = self.net.changed.notified() => {}
                        () = sleep_until(self.moment(at)) => {}
                    }
                }
                Some(_) => self.deliver_next(),
            }
        }
    }

    fn deliver_next(&self) {
        let event = {
            let mut queue = lock(&self.net.queue);
            let event = queue.events.pop_first().map(|(_, event)| event);
            if let Some(Event::Request { .. } | Event::Act(_)) = &event {
                queue.requests -= 1;
            }
            event
        };
        match event {
            None => {}
            // By this time, the sender has stopped waiting.
            Some(Event::Silence(back)) => drop(back),
            Some(Event::Act(command)) => {
                let ask = Ask::Step(command);
                let now = self.now();
                lock(&self.server).carry_out(now, OPERATOR, &ask, self.sabotage);
            }
            Some(Event::Request {
                from,
                ask,
                fate,
                back,
            }) => self.arrive(from, &ask, fate, back),
            Some(Event::Answer {
                from,
                answer,
                back,
                epoch,
            }) => {
                let changed =
                    epoch.is_some_and(|epoch| lock(&self.server).epoch(from, self.now()) != epoch);
                if !changed && self.reaches(from) {
                    // The sender may have stopped waiting, and then no task receives the response.
                    drop(back.send(answer));
                }
            }
        }
    }

    fn send(&self, from: usize, ask: Ask, back: Back) {
        let mut fate = self.fate(from, &ask);
        self.note(|| format!("{} asks: {ask}", Name(from)));
        let operator = from == OPERATOR;
        if !self.reaches(from) || (!operator && self.loses(&mut fate)) {
            self.note(|| format!("{} asks in vain: {ask}", Name(from)));
            self.lose(&mut fate, back);
            return;
        }
        let network = self.plan.network;
        if !operator && self.faulty() && fate.chance(network.twice) {
            let delay = fate.between(0, 1_500);
            self.request(delay, from, ask.clone(), fate.clone(), None);
        }
        let delay = self.delay(&mut fate, operator);
        self.request(delay, from, ask, fate, Some(back));
    }

    fn arrive(&self, from: usize, ask: &Ask, mut fate: Random, back: Option<Back>) {
        if !self.reaches(from) {
            if let Some(back) = back {
                self.lose(&mut fate, back);
            }
            return;
        }
        let now = self.now();
        let (answer, lag, epoch) = {
            let mut server = lock(&self.server);
            let answer = match ask {
                // The hold is checked now and made later. Between the two steps, other commands may run.
                Ask::Step(command @ Command::Reserve(_))
                    if self.sabotage == Some(Sabotage::SkipAtomicity) =>
                {
                    self.push(fate.between(1, 60), Event::Act(command.clone()));
                    Answer::Step(server.only_look(now, command))
                }
                _ => server.carry_out(now, from, ask, self.sabotage),
            };
            (answer, server.replica_lag(), server.epoch(from, now))
        };
        self.note(|| format!("ledger   {ask} of {}: {answer:?}", Name(from)));
        let Some(back) = back else { return };
        let operator = from == OPERATOR;
        if !operator && self.loses(&mut fate) {
            self.note(|| format!("{} does not hear of it", Name(from)));
            self.lose(&mut fate, back);
            return;
        }
        // An operator gets the response only when the replica has the change.
        let durable = match lag {
            Some(lag) if operator && now < self.plan.heal => lag,
            _ => 0,
        };
        let event = Event::Answer {
            from,
            answer,
            back,
            epoch: (durable > 0).then_some(epoch),
        };
        let delay = durable + self.delay(&mut fate, operator);
        self.push(delay, event);
    }

    fn faulty(&self) -> bool {
        self.now() < self.plan.heal
    }

    fn loses(&self, fate: &mut Random) -> bool {
        self.faulty() && fate.chance(self.plan.network.lost)
    }

    fn delay(&self, fate: &mut Random, operator: bool) -> Ms {
        let network = self.plan.network;
        let far = self.plan.leases.as_ref().map_or(0, |leases| leases.far);
        // The gateway of an operator is nearer, so its responses overtake those of the other gateways.
        let far = if operator { far / 3 } else { far };
        far + if !operator && self.faulty() && fate.chance(network.slow) {
            fate.between(0, network.slow_ms_max)
        } else {
            fate.between(0, 4)
        }
    }

    /// Loses a message. Later the sender either gets an error, or gets nothing and times out.
    fn lose(&self, fate: &mut Random, back: Back) {
        if fate.chance(400) {
            self.push(SILENCE_MS, Event::Silence(back));
        }
    }

    fn request(&self, delay: Ms, from: usize, ask: Ask, fate: Random, back: Option<Back>) {
        let request = Event::Request {
            from,
            ask,
            fate,
            back,
        };
        self.push(delay, request);
    }

    fn push(&self, delay: Ms, event: Event) {
        let at = self.now() + delay;
        let mut queue = lock(&self.net.queue);
        if matches!(event, Event::Request { .. } | Event::Act(_)) {
            queue.requests += 1;
        }
        queue.sent += 1;
        let sent = queue.sent;
        queue.events.insert((at, sent), event);
        drop(queue);
        self.net.changed.notify_one();
    }

    /// Returns the random fate of a message. It depends only on the content of the message, so that other messages do
    /// not change it.
    fn fate(&self, from: usize, ask: &Ask) -> Random {
        let (step, about) = match ask {
            Ask::Expire => (0, from as u64),
            Ask::Turn(turn) => (12, bits_of(turn.lease)),
            Ask::Recall(_) => (13, from as u64),
            Ask::Leases(_) => (14, from as u64),
            Ask::Step(command) => match about(command) {
                (_, Some(number)) => (1 + order_of(command), bits_of(number)),
                (_, None) => (1 + order_of(command), from as u64),
            },
        };
        let mut queue = lock(&self.net.queue);
        let times = queue.requested.entry((step, about)).or_insert(0);
        *times += 1;
        Random::of(self.plan.seed, &[3, step, about, *times])
    }
}

const fn order_of(command: &Command) -> u64 {
    match command {
        Command::SetAccount { .. } => 0,
        Command::SetKey { .. } => 1,
        Command::Enter { .. } => 2,
        Command::Reserve(_) => 3,
        Command::Settle { .. } => 4,
        Command::Release { .. } => 5,
        Command::Extend { .. } => 6,
        Command::Probe { .. } => 7,
        Command::Expire { .. } => 8,
        Command::SetGroup { .. } => 9,
        Command::Bind { .. } => 10,
        Command::Adjust(_) => 11,
    }
}

/// The number of a sender. It is displayed as the sender's name in the trace.
pub(crate) struct Name(pub(crate) usize);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == OPERATOR {
            f.write_str("operator")
        } else {
            write!(f, "gateway{}", self.0)
        }
    }
}

/// Returns a duration of this number of milliseconds.
pub(crate) const fn ms(millis: Ms) -> Duration {
    Duration::from_millis(millis)
}
