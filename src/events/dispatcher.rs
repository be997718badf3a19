//! All receivers of events: their settings, their state, and what operators can do with them.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::task::JoinSet;
use tollgate_ledger::contract::BookError;
use uuid::Uuid;

use super::{
    delivery::Delivery,
    receiver::Receiver,
    state::{DeliveryState, ReceiverStore},
    tail::Tail,
    webhook::Sent,
};
use crate::{
    config::ReceiverConfig,
    observe::metrics::{Metrics, events::Outcome},
};

/// All receivers of events of a gateway. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Dispatcher {
    tail: Tail,
    receivers: Arc<ArcSwap<Vec<Arc<Receiver>>>>,
    owner: Arc<str>,
    metrics: Arc<Metrics>,
}

/// The result of sending an event to a receiver again, at an operator's request.
#[derive(Debug)]
pub(crate) enum Replayed {
    Accepted,
    Failed(String),
    /// The ledger does not have this event: it was dropped, or it never existed.
    Unknown,
    /// The receiver's filter excludes the event, so it was not sent.
    Excluded,
}

impl Dispatcher {
    pub(crate) fn new(tail: Tail, metrics: Arc<Metrics>) -> Self {
        Self {
            tail,
            receivers: Arc::default(),
            owner: Uuid::now_v7().to_string().into(),
            metrics,
        }
    }

    /// Replaces the receivers. Returns the tasks that deliver events to the new receivers; the deliveries stop when
    /// these tasks are dropped.
    pub(crate) fn replace(&self, configs: &[ReceiverConfig]) -> JoinSet<()> {
        let receivers = configs.iter().map(|config| Arc::new(Receiver::new(config)));
        let receivers: Vec<_> = receivers.collect();
        let mut tasks = JoinSet::new();
        for receiver in &receivers {
            let delivery = Delivery::new(
                self.tail.clone(),
                Arc::clone(receiver),
                Arc::clone(&self.owner),
                self.metrics.events.for_receiver(&receiver.name),
            );
            tasks.spawn(delivery.run());
        }
        self.receivers.store(Arc::new(receivers));
        tasks
    }

    /// Makes new receivers begin after the ledger's last event, so that they get only later events. If the ledger is
    /// out of reach, the new receivers begin when it can be reached again.
    pub(crate) async fn begin(&self) {
        for receiver in self.receivers().iter() {
            if let Err(error) = self.receiver_store(receiver).begin(&self.tail).await {
                tracing::warn!(receiver = receiver.name, %error, "the state of an event receiver could not be read yet");
            }
        }
    }

    /// Releases the leader leases of this gateway after its deliveries have ended, so that another gateway can send
    /// events immediately.
    pub(crate) async fn let_go(&self) {
        for receiver in self.receivers().iter() {
            let stored = self.receiver_store(receiver);
            // If the release fails, another gateway must wait until the leader lease expires.
            let _ = stored.lease(&self.owner, Duration::from_millis(1)).await;
        }
    }

    pub(crate) const fn tail(&self) -> &Tail {
        &self.tail
    }

    pub(crate) fn receivers(&self) -> Arc<Vec<Arc<Receiver>>> {
        self.receivers.load_full()
    }

    pub(crate) fn receiver(&self, name: &str) -> Option<Arc<Receiver>> {
        let receivers = self.receivers();
        receivers.iter().find(|one| one.name == name).cloned()
    }

    pub(crate) fn receiver_store(&self, receiver: &Receiver) -> ReceiverStore {
        ReceiverStore::new(&self.tail, &receiver.name)
    }

    /// Sends an event to a receiver again, immediately and with the event's original id.
    pub(crate) async fn replay(
        &self,
        receiver: &Receiver,
        number: u64,
    ) -> Result<Replayed, BookError> {
        let stored = self.receiver_store(receiver);
        let Some((event, letter)) = stored.event(number).await? else {
            return Ok(Replayed::Unknown);
        };
        // An event that the filter excludes is not sent, because it may concern another customer. A dead letter has
        // passed the filter before, so it is not checked again.
        if letter.is_none() && !receiver.filter.takes(&event) {
            return Ok(Replayed::Excluded);
        }
        let metrics = self.metrics.events.for_receiver(&receiver.name);
        let why = match receiver.send(&event).await {
            Sent::Taken => {
                metrics.count(Outcome::Delivered);
                if let Some(letter) = letter {
                    stored.forget(&letter).await?;
                }
                return Ok(Replayed::Accepted);
            }
            Sent::Gone => "answered 410 Gone".to_owned(),
            Sent::Failed { why, .. } => why,
        };
        metrics.count(Outcome::Failed);
        Ok(Replayed::Failed(why))
    }

    /// Stops or resumes the delivery to a receiver, on all gateways.
    pub(crate) async fn stop(
        &self,
        receiver: &Receiver,
        stopped: bool,
    ) -> Result<DeliveryState, BookError> {
        let stored = self.receiver_store(receiver);
        stored.begin(&self.tail).await?;
        let change = |state: &mut DeliveryState| match stopped {
            true => state.stopped = true,
            false => state.resume(),
        };
        stored.change(change).await
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test owns the tasks that it spawns"
)]
mod tests {
    use std::sync::Mutex;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tollgate_ledger::{
        contract::{EventStore, OnceEvent},
        happening::Happening,
        memory::MemoryLedger,
    };

    use super::*;
    use crate::{
        config::{WayConfig, WebhookConfig},
        ledger::AnyLedger,
    };

    /// Starts a receiver that answers every request with the status in the returned mutex, and records the ids of the
    /// events that it gets.
    async fn receiver(status: u16) -> (String, Arc<Mutex<u16>>, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (status, ids) = (
            Arc::new(Mutex::new(status)),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let (says, seen) = (Arc::clone(&status), Arc::clone(&ids));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = Vec::new();
                while !bytes.ends_with(b"}}") {
                    stream.read_buf(&mut bytes).await.unwrap();
                }
                let text = String::from_utf8(bytes).unwrap();
                let id = text
                    .lines()
                    .find_map(|line| line.strip_prefix("webhook-id: "));
                seen.lock().unwrap().push(id.unwrap().to_owned());
                let status = *says.lock().unwrap();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (url, status, ids)
    }

    fn hook(url: &str) -> ReceiverConfig {
        ReceiverConfig {
            name: "crm".into(),
            kinds: Vec::new(),
            accounts: Vec::new(),
            retry_max: Duration::ZERO,
            way: WayConfig::Webhook(WebhookConfig {
                url: url.parse().unwrap(),
                keys: vec![vec![7; 32]],
                authorities: None,
                allow_private: true,
                answer_timeout: Duration::from_secs(5),
            }),
        }
    }

    async fn emit(store: &AnyLedger, once: &str) {
        let event = OnceEvent {
            once: once.into(),
            account: None,
            key: None,
            what: Happening::RateStale { since_ms: 1 },
        };
        assert!(store.emit_once(&event).await.unwrap());
    }

    async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
        for _ in 0..1000 {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the awaited result did not come within 10 s");
    }

    #[tokio::test]
    async fn undelivered_event_is_a_dead_letter_until_it_is_replayed() {
        let (url, status, ids) = receiver(500).await;
        let store = AnyLedger::Memory(MemoryLedger::new());
        let tail = Tail::new(store.clone());
        let dispatcher = Dispatcher::new(tail.clone(), Arc::new(Metrics::new("tollgate")));
        let mut tasks = dispatcher.replace(&[hook(&url)]);
        tasks.spawn(tail.run());
        dispatcher.begin().await;
        for once in ["a", "b"] {
            emit(&store, once).await;
        }
        let crm = dispatcher.receiver("crm").unwrap();
        let stored = dispatcher.receiver_store(&crm);
        let dead = until(async || {
            let dead = stored.dead().await.unwrap();
            (dead.len() == 2).then_some(dead)
        })
        .await;
        assert_eq!([dead[0].event.number, dead[1].event.number], [1, 2]);
        assert!(dead[0].error.contains("500"), "{dead:?}");
        let failed = dispatcher.replay(&crm, 1).await.unwrap();
        assert!(matches!(failed, Replayed::Failed(_)), "{failed:?}");
        assert_eq!(stored.dead_count().await.unwrap(), 2);
        *status.lock().unwrap() = 204;
        let taken = dispatcher.replay(&crm, 1).await.unwrap();
        assert!(matches!(taken, Replayed::Accepted), "{taken:?}");
        assert_eq!(stored.dead().await.unwrap(), dead[1..]);
        let unknown = dispatcher.replay(&crm, 3).await.unwrap();
        assert!(matches!(unknown, Replayed::Unknown), "{unknown:?}");
        // After a dead letter, the delivery continues with later events.
        emit(&store, "c").await;
        dispatcher.stop(&crm, false).await.unwrap();
        until(async || {
            let (_, state) = stored.state().await.unwrap().unwrap();
            (state.after == 3 && state.taken_ms.is_some()).then_some(())
        })
        .await;
        let ids = ids.lock().unwrap().clone();
        let of_first = ids.iter().filter(|id| id.ends_with("_1")).count();
        assert!(
            of_first >= 3 && ids.last().unwrap().ends_with("_3"),
            "{ids:?}"
        );
    }

    #[tokio::test]
    async fn gateway_continues_event_delivery_of_another_gateway() {
        let (url, _, ids) = receiver(204).await;
        let store = AnyLedger::Memory(MemoryLedger::new());
        let start = async || {
            let tail = Tail::new(store.clone());
            let dispatcher = Dispatcher::new(tail.clone(), Arc::new(Metrics::new("tollgate")));
            let mut tasks = dispatcher.replace(&[hook(&url)]);
            tasks.spawn(tail.run());
            dispatcher.begin().await;
            (dispatcher, tasks)
        };
        emit(&store, "before there was a receiver").await;
        let (dispatcher, mut tasks) = start().await;
        emit(&store, "a").await;
        let stored = dispatcher.receiver_store(&dispatcher.receiver("crm").unwrap());
        until(async || {
            let (_, state) = stored.state().await.unwrap().unwrap();
            (state.after == 2).then_some(())
        })
        .await;
        tasks.shutdown().await;
        dispatcher.let_go().await;
        emit(&store, "b").await;
        let (_, mut tasks) = start().await;
        until(async || (ids.lock().unwrap().len() == 2).then_some(())).await;
        tasks.shutdown().await;
        let ids = ids.lock().unwrap().clone();
        assert!(ids[0].ends_with("_2") && ids[1].ends_with("_3"), "{ids:?}");
    }
}
