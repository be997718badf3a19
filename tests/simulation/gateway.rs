//! A gateway's process in the simulation: the real layer, settler and outbox, with a simulated ledger, disk and vendor.
//! The process runs the same loops as a real gateway.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::Request;
use http_body::Body;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tollgate_layers::{
    error::Error,
    reserve::{
        Event, Reserve, ReserveLayer, Settler, SettlerSettings,
        ledger::Ledger,
        outbox::{Outbox, OutboxSettings},
    },
};
use tollgate_ledger::leases::{LeaseCounts, Leases};
use tower::{Layer, ServiceExt};

use crate::{
    disk::SimLog,
    leases::{keeps_leases, leases_of},
    ledger::SimLedger,
    net::{Name, ms},
    plan::{CallPlan, EPOCH_MS, TTL},
    slices::GatewayLedger,
    vendor::{ByTheToken, Order, Short, Vendor},
    world::{Life, Sabotage, Sim},
};

/// The interval at which the gateway checks whether its ledger is still on the same server.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// The interval at which the gateway sweeps expired holds.
pub(crate) const EXPIRE_EVERY: Duration = Duration::from_secs(5);

type Front = Reserve<Vendor, GatewayLedger, ByTheToken>;

/// A running gateway.
pub(crate) struct Process {
    pub(crate) number: u32,
    gateway: usize,
    sim: Arc<Sim>,
    life: Life,
    tasks: JoinSet<()>,
    outbox: GatewayLedger,
    settler: Settler,
    front: Front,
    status: Arc<Status>,
    leases: Option<Arc<Leases>>,
}

#[derive(Default)]
struct Status {
    recovered: AtomicBool,
    /// The number of the last server to which the gateway has replayed its outbox.
    epoch: AtomicU64,
}

impl Process {
    /// Waits for the ledger, and starts a process with the outbox that the previous process has left.
    pub(crate) async fn start(sim: &Arc<Sim>, gateway: usize) -> Self {
        let number = sim.disks[gateway].process();
        let life = Life::default();
        let status = Arc::new(Status::default());
        status.epoch.store(sim.epoch(gateway), Ordering::Relaxed);

        let leases = leases_of(sim, gateway, number);
        let ledger = SimLedger {
            sim: Arc::clone(sim),
            gateway,
            leases: leases.clone(),
        };
        let log = SimLog {
            sim: Arc::clone(sim),
            gateway,
            process: number,
        };
        let settings = OutboxSettings {
            calls_max: sim.plan.outbox_calls_max,
            ..OutboxSettings::default()
        };
        let clock = {
            let sim = Arc::clone(sim);
            move || EPOCH_MS + sim.now()
        };
        let outbox = Outbox::open_by_clock(ledger, log, settings, clock)
            .await
            .expect("the simulated log can be read");
        let (settler, settler_task) = Settler::new(
            outbox.clone(),
            SettlerSettings::default(),
            reporter(Arc::clone(sim)),
        );
        let vendor = Vendor {
            sim: Arc::clone(sim),
            life: life.clone(),
            ledger: outbox.clone(),
        };
        let tariff = ByTheToken {
            sim: Arc::clone(sim),
        };
        let front = ReserveLayer::new(outbox.clone(), tariff, settler.clone(), TTL).layer(vendor);

        let mut tasks = JoinSet::new();
        tasks.spawn(settler_task.run());
        if let Some(leases) = leases.clone() {
            let ledger = SimLedger {
                sim: Arc::clone(sim),
                gateway,
                leases: None,
            };
            tasks.spawn(async move { leases.tend(&ledger).await });
        }
        tasks.spawn(recover(
            Arc::clone(sim),
            outbox.clone(),
            Arc::clone(&status),
        ));
        tasks.spawn(watch(
            Arc::clone(sim),
            gateway,
            outbox.clone(),
            Arc::clone(&status),
        ));
        tasks.spawn(expire(outbox.clone()));
        sim.note(|| format!("{} starts", Name(gateway)));
        Self {
            number,
            gateway,
            sim: Arc::clone(sim),
            life,
            tasks,
            outbox,
            settler,
            front,
            status,
            leases,
        }
    }

    /// Starts a task for a client that makes this call.
    pub(crate) fn call(&mut self, plan: CallPlan) {
        self.tasks
            .spawn(client(Arc::clone(&self.sim), self.front.clone(), plan));
    }

    /// Kills the gateway: none of its tasks continues, and dropping the tasks has no effect.
    pub(crate) fn crash(mut self) {
        self.find_panics();
        self.life.end();
        self.tasks.abort_all();
    }

    /// Returns whether all calls are settled on the ledger's current server.
    pub(crate) fn is_idle(&self) -> bool {
        self.settler.running() == 0
            && self.outbox.backlog().calls == 0
            && self.status.recovered.load(Ordering::Relaxed)
            && self.status.epoch.load(Ordering::Relaxed) == self.sim.epoch(self.gateway)
            && self.lease_counts().open == 0
    }

    fn lease_counts(&self) -> LeaseCounts {
        let leases = self.leases.as_ref();
        leases.map(|leases| leases.counts()).unwrap_or_default()
    }

    /// Reports a breach for each task that has panicked, and for each lease that was lost in a run in which no lease
    /// may be lost.
    pub(crate) fn find_panics(&mut self) {
        let lost = self.lease_counts().lost;
        if lost > 0 && keeps_leases(self.sim.plan.kind) {
            self.sim
                .breach(format!("{} has lost {lost} leases", Name(self.gateway)));
        }
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended {
                self.sim
                    .breach(format!("a task of {} died: {error}", Name(self.gateway)));
            }
        }
    }
}

fn reporter(sim: Arc<Sim>) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    move |event| match event {
        Event::Settled {
            settlement,
            settled,
        } => {
            let number = settlement.number;
            sim.note(|| format!("settled  {} {settled:?}", Short(number)));
            sim.reported(number);
        }
        Event::Released { number } => {
            sim.note(|| format!("released {}", Short(*number)));
            sim.reported(*number);
        }
        _ => {}
    }
}

async fn recover(sim: Arc<Sim>, outbox: GatewayLedger, status: Arc<Status>) {
    outbox.recover(&reporter(sim)).await;
    status.recovered.store(true, Ordering::Relaxed);
}

async fn watch(sim: Arc<Sim>, gateway: usize, outbox: GatewayLedger, status: Arc<Status>) {
    loop {
        sleep(WATCH_EVERY).await;
        if !sim.reaches(gateway) {
            continue;
        }
        let epoch = sim.epoch(gateway);
        if epoch == status.epoch.load(Ordering::Relaxed) {
            outbox.confirmed();
        } else if sim.sabotage == Some(Sabotage::NoReplay) || outbox.replay().await.is_ok() {
            sim.note(|| format!("{} has told ledger {epoch} again", Name(gateway)));
            status.epoch.store(epoch, Ordering::Relaxed);
        }
    }
}

async fn expire(outbox: GatewayLedger) {
    loop {
        sleep(EXPIRE_EVERY).await;
        // If this request fails, the next sweep sends it again.
        drop(outbox.expire().await);
    }
}

/// Makes a call as a client. The client's task also does the gateway's work on the call.
async fn client(sim: Arc<Sim>, front: Front, plan: CallPlan) {
    let number = plan.number;
    let leaves_at = plan.leaves_after.map(|after| Instant::now() + ms(after));
    let mut req = Request::new(Order::new(plan));
    req.extensions_mut().insert(number);
    let mut answer = pin!(front.oneshot(req));
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        () = at(leaves_at) => {
            sim.note(|| format!("client   {} leaves before the answer", Short(number)));
            return;
        }
    };
    let body = match answer {
        Ok(answer) => answer.into_body(),
        Err(error) => {
            sim.note(|| format!("client   {} is told: {error}", Short(number)));
            if holds_nothing(&error) {
                sim.log(number, |call| call.refused = true);
            }
            return;
        }
    };
    let mut body = pin!(body);
    loop {
        tokio::select! {
            biased;
            frame = poll_fn(|cx| body.as_mut().poll_frame(cx)) => {
                if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                    return;
                }
            }
            () = at(leaves_at) => {
                sim.note(|| format!("client   {} leaves", Short(number)));
                return;
            }
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Returns whether the ledger has refused the hold or was not called. In both cases, there is no hold that must be
/// ended.
const fn holds_nothing(error: &Error) -> bool {
    matches!(
        error,
        Error::KeyUnknown
            | Error::KeyDisabled
            | Error::AccountSuspended
            | Error::AccountEmpty
            | Error::CeilingUsedUp(_)
            | Error::TooManyCalls { .. }
            | Error::DoesNotFit { .. }
            | Error::Internal(_)
            | Error::Overloaded
    )
}
