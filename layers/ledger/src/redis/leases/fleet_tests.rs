//! Tests several gateways with leases on one Redis server, with real tasks and clocks, from the view of callers and
//! operators.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use uuid::Uuid;

use super::*;
use crate::{
    account::KeyStatus,
    ceiling::Ceilings,
    contract::{
        Booked, GroupRecord, JournalLine, JournalPages, KeyChange, Ledger, LedgerAdmin, Refusal,
        Settlement,
    },
    leases::RECALL_WAIT,
    money::MicroRub,
    number::RequestNumber,
    redis::test_server::Server,
    testing::given::{HOUR, acme, correction, hold, key, micro, record, settlement, topup},
};

const PRICE: i64 = 10;

/// Gateways that share one server. Each has its own connection and lease task.
struct Fleet {
    server: Server,
    gateways: Vec<RedisLedger>,
    tasks: JoinSet<()>,
}

impl Fleet {
    /// Starts `count` gateways, and creates an account with `money` and the key k1. The first call takes a lease.
    async fn new(count: usize, money: i64) -> Self {
        let server = Server::start().await;
        let (mut gateways, mut tasks) = (Vec::new(), JoinSet::new());
        for n in 0..count {
            let settings = LeaseSettings {
                calls_per_second_min: 0,
                ..LeaseSettings::new(Duration::from_millis(500), format!("gateway {n}"))
            };
            let ledger = server.ledger().await.with_leases(settings);
            let tended = ledger.clone();
            tasks.spawn(async move { tended.tend_leases().await });
            gateways.push(ledger);
        }
        let first = &gateways[0];
        first.create_account(&acme(), "").await.unwrap();
        first.enter(&acme(), &topup("first", money)).await.unwrap();
        let record = record(&acme(), "k1", 1);
        first.create_key(&record, Ceilings::NONE).await.unwrap();
        Self {
            server,
            gateways,
            tasks,
        }
    }

    /// Runs `callers` callers at each gateway. A caller makes calls one after another until `refusals` calls in a row
    /// are refused. Returns the number of served calls.
    async fn serve_all(&self, callers: usize, refusals: usize) -> usize {
        let served = serve_at(&self.gateways, callers, refusals).await;
        served.into_iter().sum()
    }

    fn granted_from_leases(&self) -> u64 {
        let counts = self.gateways.iter().filter_map(RedisLedger::lease_counts);
        counts.map(|counts| counts.granted).sum()
    }

    /// Asserts that all leases were given back, that the sums in the books agree, and that each served call has a
    /// receipt.
    async fn ends_sound(mut self, served: usize, money: i64) {
        for gateway in &self.gateways {
            assert!(gateway.give_back().await, "{:?}", gateway.lease_counts());
        }
        let first = &self.gateways[0];
        assert_eq!(first.leases_of(&acme()).await.unwrap(), []);
        let view = first.account(&acme()).await.unwrap();
        let charged = i64::try_from(served).unwrap() * PRICE;
        assert_eq!(view.held_rub, MicroRub::ZERO);
        assert_eq!(view.balance_rub, micro(money - charged));
        assert_eq!(view.loss_rub, MicroRub::ZERO);
        assert_eq!(first.audit().await.unwrap().breaches, Vec::<String>::new());
        let mut receipts = HashSet::new();
        let books = first.books(&acme()).await.unwrap();
        let mut pages = JournalPages::up_to(&books);
        while let Some(lines) = pages.next(first).await.unwrap() {
            for line in lines {
                if let JournalLine::Call(receipt) = line {
                    assert_eq!(receipt.booked, Booked::Held);
                    assert!(receipts.insert(receipt.number), "charged twice");
                }
            }
        }
        assert_eq!(receipts.len(), served);
        self.tasks.shutdown().await;
    }
}

/// Runs callers at these gateways, as [`Fleet::serve_all`] does. Returns the number of served calls per gateway.
async fn serve_at(gateways: &[RedisLedger], callers: usize, refusals: usize) -> Vec<usize> {
    let mut calling = JoinSet::new();
    for (nth, gateway) in gateways.iter().enumerate() {
        for _ in 0..callers {
            let gateway = gateway.clone();
            calling.spawn(async move {
                let (mut served, mut refused) = (0, 0);
                while refused < refusals {
                    if call(&gateway).await {
                        (served, refused) = (served + 1, 0);
                    } else {
                        refused += 1;
                    }
                }
                (nth, served)
            });
        }
    }
    let mut by_gateway = vec![0; gateways.len()];
    for (nth, served) in calling.join_all().await {
        by_gateway[nth] += served;
    }
    by_gateway
}

/// Makes a call that costs the full amount held for it. Returns whether it was served.
async fn call(gateway: &RedisLedger) -> bool {
    match try_call(gateway).await {
        Ok(()) => true,
        Err(LedgerError::Refused(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Makes a call as [`call`] does, and asserts that its full cost was charged.
async fn try_call(gateway: &RedisLedger) -> Result<(), LedgerError> {
    let new_hold = Hold {
        number: RequestNumber::now_v7(),
        ttl: HOUR,
        ..hold(0, "k1", PRICE)
    };
    let reserved = gateway.reserve(&new_hold).await?;
    assert_eq!(reserved.held, micro(PRICE));
    let end = Settlement {
        number: new_hold.number,
        held: reserved.held,
        ..settlement(0, "k1", PRICE)
    };
    let settled = gateway.settle(&end).await.unwrap();
    assert_eq!(
        (settled.charged, settled.loss),
        (micro(PRICE), MicroRub::ZERO)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_with_leases_serves_exactly_the_calls_that_the_money_pays_for() {
    for (gateways, calls) in [(1, 10), (3, 10), (2, 3_000), (3, 3_000), (8, 3_000)] {
        let money = calls * PRICE;
        let fleet = Fleet::new(gateways, money).await;
        let served = fleet.serve_all(40, 2).await;
        assert_eq!(i64::try_from(served), Ok(calls), "{gateways} gateways");
        if calls > 1_000 {
            let granted = fleet.granted_from_leases();
            assert!(granted > 500, "{granted} of {calls} holds came from leases");
        }
        fleet.ends_sound(served, money).await;
    }
}

/// A server that is out of memory grants no leases, but still charges settlements. Gateways give their leases back, and
/// rarely request new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_granted_while_the_redis_server_is_out_of_memory() {
    const SOON: Duration = Duration::from_secs(3);
    let money = 10_000_000 * PRICE;
    let fleet = Fleet::new(1, money).await;
    let gateway = &fleet.gateways[0];
    let mut served = 0;
    while fleet.granted_from_leases() < 100 {
        served += usize::from(call(gateway).await);
    }
    let _: String = fleet.server.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let turns = || gateway.lease_counts().unwrap().turns;
    let (until, mut refused_from) = (Instant::now() + SOON, None);
    while Instant::now() < until {
        match try_call(gateway).await {
            Ok(()) => (served, refused_from) = (served + 1, None),
            Err(LedgerError::Unavailable(_)) => {
                refused_from.get_or_insert_with(|| (Instant::now(), turns()));
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    let (at, acknowledged) = refused_from.expect("the gateway serves further calls");
    assert!(
        at + SOON / 2 < until,
        "the gateway served further calls for too long"
    );
    let more = turns() - acknowledged;
    assert!(more < 50, "{more} turns in {SOON:?}");
    assert_eq!(gateway.leases_of(&acme()).await.unwrap(), []);
    let granted = fleet.granted_from_leases();
    let _: String = fleet.server.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    while fleet.granted_from_leases() < granted + 100 {
        served += usize::from(call(gateway).await);
    }
    fleet.ends_sound(served, money).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_for_ten_calls_serves_exactly_ten_of_many_parallel_calls() {
    let fleet = Fleet::new(3, 10 * PRICE).await;
    let mut calling = JoinSet::new();
    for n in 0..500 {
        let gateway = fleet.gateways[n % 3].clone();
        calling.spawn(async move { call(&gateway).await });
    }
    let served = calling
        .join_all()
        .await
        .into_iter()
        .filter(|served| *served)
        .count();
    assert_eq!(served, 10);
    fleet.ends_sound(served, 10 * PRICE).await;
}

/// Invariant I12: after an operator's command is acknowledged, no gateway grants a hold that the command forbids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_grants_a_hold_that_an_acknowledged_change_by_the_operator_forbids() {
    for what in ["suspend", "disable", "ceiling"] {
        let money = 10_000_000;
        let fleet = Fleet::new(3, money).await;
        let (acknowledged, served) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let mut calling = JoinSet::new();
        for gateway in &fleet.gateways {
            for _ in 0..8 {
                let (gateway, acknowledged) = (gateway.clone(), Arc::clone(&acknowledged));
                let served = Arc::clone(&served);
                calling.spawn(async move {
                    loop {
                        let late = acknowledged.load(Ordering::SeqCst);
                        if call(&gateway).await {
                            assert!(!late, "{what}: granted after the acknowledgement");
                            served.fetch_add(1, Ordering::SeqCst);
                        } else if late {
                            return;
                        }
                    }
                });
            }
        }
        while fleet.granted_from_leases() < 500 {
            sleep(Duration::from_millis(5)).await;
        }
        // An operator's command at a gateway without leases also waits until other gateways have given their leases
        // back.
        let without = fleet.server.ledger().await;
        let operator = if what == "disable" {
            &without
        } else {
            &fleet.gateways[0]
        };
        let (account, key) = (acme(), key("k1"));
        match what {
            "suspend" => {
                let changed = operator.change_account(&account, None, Some(true));
                changed.await.unwrap();
            }
            "disable" => {
                let change = KeyChange {
                    status: Some(KeyStatus::Disabled),
                    ..KeyChange::default()
                };
                operator.change_key(&key, &change).await.unwrap();
            }
            _ => {
                let change = KeyChange {
                    ceiling: Some(Some(micro(PRICE))),
                    ..KeyChange::default()
                };
                operator.change_key(&key, &change).await.unwrap();
            }
        }
        acknowledged.store(true, Ordering::SeqCst);
        calling.join_all().await;
        let served = served.load(Ordering::SeqCst);
        fleet.ends_sound(served, money).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn correction_can_deduct_leased_money_that_no_call_holds() {
    let money = 100_000;
    let fleet = Fleet::new(2, money).await;
    for gateway in &fleet.gateways {
        for _ in 0..200 {
            assert!(call(gateway).await);
        }
    }
    let left = money - 400 * PRICE;
    let first = &fleet.gateways[0];
    assert!(!first.leases_of(&acme()).await.unwrap().is_empty());
    first
        .enter(&acme(), &correction("all", -left))
        .await
        .unwrap();
    assert!(!call(first).await);
    fleet.ends_sound(400, money - left).await;
}

/// A call that would accept a smaller hold still gets its full hold, because leased money is recalled first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_gets_its_full_amount_from_recalled_leases() {
    let money = 100_000;
    let fleet = Fleet::new(2, money).await;
    for gateway in &fleet.gateways {
        for _ in 0..100 {
            assert!(call(gateway).await);
        }
    }
    let first = &fleet.gateways[0];
    assert!(!first.leases_of(&acme()).await.unwrap().is_empty());
    let left = money - 200 * PRICE;
    let all = Hold {
        least: micro(1),
        ..hold(7, "k1", 2 * money)
    };
    let reserved = first.reserve(&all).await.unwrap();
    assert_eq!(reserved.held, micro(left));
    first.release(all.number, &acme(), &all.key).await.unwrap();
    fleet.ends_sound(200, money).await;
}

/// Two gateways have leases, and a third gateway has none. All calls for which there is money are served, and each
/// gateway serves some of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_without_leases_is_not_starved_by_gateways_with_leases() {
    const CALLS: usize = 6_000;
    let money = i64::try_from(CALLS).unwrap() * PRICE;
    let fleet = Fleet::new(2, money).await;
    let without = fleet.server.ledger().await;
    let mut all = fleet.gateways.clone();
    all.push(without.clone());
    let served = serve_at(&all, 40, 2).await;
    println!("served of {CALLS}: {served:?}, the last one without leases");
    assert_eq!(served.iter().sum::<usize>(), CALLS);
    assert!(
        served.iter().all(|served| 10 * served > CALLS),
        "{served:?}"
    );
    fleet.ends_sound(CALLS, money).await;
}

/// A call gets money that other gateways have leased but not granted, as soon as these gateways receive the recall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_without_leases_gets_money_that_other_gateways_have_leased_but_not_granted() {
    let money = 100_000;
    let fleet = Fleet::new(2, money).await;
    let without = fleet.server.ledger().await;
    let mut waits = Vec::new();
    for round in 1..=5 {
        for gateway in &fleet.gateways {
            for _ in 0..20 {
                assert!(call(gateway).await);
            }
        }
        assert!(!without.leases_of(&acme()).await.unwrap().is_empty());
        let rest = hold(
            round,
            "k1",
            money - i64::try_from(round).unwrap() * 40 * PRICE,
        );
        let began = Instant::now();
        without.reserve(&rest).await.unwrap();
        waits.push(began.elapsed());
        without
            .release(rest.number, &acme(), &rest.key)
            .await
            .unwrap();
        // Gateways take leases again one second after the recall.
        sleep(Duration::from_millis(1_100)).await;
    }
    println!("waited for what others had leased: {waits:?}");
    fleet.ends_sound(200, money).await;
}

/// Calls that need the money of a dead gateway's lease are refused after a short wait. When the lease may not grant
/// holds any more, they are refused immediately. After the lease has expired, they get the money. Free money is always
/// available.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_in_a_dead_gateways_lease_is_available_after_the_lease_expires() {
    let money = 100_000;
    let mut fleet = Fleet::new(1, money).await;
    for _ in 0..100 {
        assert!(call(&fleet.gateways[0]).await);
    }
    let other = fleet.server.ledger().await;
    fleet.tasks.shutdown().await;
    let leases = other.leases_of(&acme()).await.unwrap();
    let leased: i64 = leases.iter().map(|lease| lease.held_rub.micro()).sum();
    assert!(leased > 0);
    let rest = money - 100 * PRICE;
    let all = hold(7, "k1", rest);
    let refused = async || {
        let began = Instant::now();
        let answer = other.reserve(&all).await;
        assert!(
            matches!(
                answer,
                Err(LedgerError::Refused(Refusal::DoesNotFit { .. }))
            ),
            "{answer:?}"
        );
        began.elapsed()
    };
    let first = refused().await;
    sleep(Duration::from_millis(600)).await;
    let later = refused().await;
    println!("refused after {first:?}, and after {later:?} when the lease grants nothing more");
    assert!(later < RECALL_WAIT, "{later:?}");
    let free = hold(8, "k1", rest - leased);
    assert_eq!(other.reserve(&free).await.unwrap().held, free.want);
    other
        .release(free.number, &acme(), &free.key)
        .await
        .unwrap();
    for lease in leases {
        let words = ["ZADD", "tg:{acme}:x", "XX", "1", &lease.number.to_string()];
        let _: i64 = fleet.server.ask(&words).await;
    }
    assert_eq!(other.reserve(&all).await.unwrap().held, all.want);
    assert_eq!(other.audit().await.unwrap().breaches, Vec::<String>::new());
}

/// A dead gateway's lease pays for the calls that this gateway left behind, and for no other calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_dead_gateway_are_charged_to_its_lease() {
    let money = 100_000;
    let mut fleet = Fleet::new(2, money).await;
    let dead = fleet.gateways.pop().unwrap();
    let mut left = Vec::new();
    while left.len() < 5 {
        let new_hold = Hold {
            number: RequestNumber::now_v7(),
            ..hold(0, "k1", PRICE)
        };
        dead.reserve(&new_hold).await.unwrap();
        let end = Settlement {
            number: new_hold.number,
            held: micro(PRICE),
            lease: dead.lease_of(new_hold.number, &new_hold.key),
            // The next process starts so late that a tombstone of the call could have expired, so the settlement is not
            // fresh.
            fresh: false,
            ..settlement(0, "k1", PRICE)
        };
        if end.lease.is_some() {
            left.push(end);
        } else {
            dead.settle(&end).await.unwrap();
        }
    }
    fleet.tasks.abort_all();
    drop(dead);
    let other = fleet.server.ledger().await;
    // Another call holds all other money of the account.
    let rest = Hold {
        least: MicroRub::ZERO,
        ..hold(7, "k1", money)
    };
    other.reserve(&rest).await.unwrap();
    for end in &left {
        let settled = other.settle(end).await.unwrap();
        assert_eq!(
            (settled.booked, settled.charged),
            (Booked::Held, micro(PRICE))
        );
        let again = other.settle(end).await.unwrap();
        assert!(again.repeated);
    }
    assert_eq!(other.audit().await.unwrap().breaches, Vec::<String>::new());
}

/// A machine was copied while it was running. Whichever copy's lease turn arrives first continues the lease. The other
/// copy grants no more holds.
#[tokio::test]
async fn lease_of_a_copied_machine_continues_on_only_one_of_the_copies() {
    use crate::leases::{
        Now, Step,
        lease::{Lease, Size},
    };
    let fleet = Fleet::new(1, 100_000).await;
    let ledger = &fleet.gateways[0];
    let size = |free| Size {
        free: micro(free),
        short_of: MicroRub::ZERO,
    };
    let mut lease = Lease::new(RequestNumber::now_v7(), &acme(), &key("k1"), 500);
    let open = lease.turn(size(100), Now::default(), Uuid::now_v7());
    lease.answered(&open, &ledger.turn(&open).await.unwrap());
    // A copy of the gateway's machine sends the lease's next turn, and the original machine does not notice this.
    let copied = Turn {
        step: Step::GoOn,
        before: open.this.clone(),
        this: "copy".into(),
        more: MicroRub::ZERO,
        ..open
    };
    ledger.turn(&copied).await.unwrap();
    let new_hold = hold(1, "k1", 60);
    lease.reserve(&new_hold, Now::default()).unwrap().unwrap();
    let turn = lease.turn(size(100), Now::default(), Uuid::now_v7());
    lease.answered(&turn, &ledger.turn(&turn).await.unwrap());
    assert!(lease.is_lost());
    assert_eq!(lease.reserve(&hold(2, "k1", 1), Now::default()), None);
    // A hold that the original machine has granted is still paid from the lease.
    let mut acknowledged = lease
        .settle(&settlement(1, "k1", 60), Now::default())
        .unwrap();
    let turn = lease.turn(size(100), Now::default(), Uuid::now_v7());
    lease.answered(&turn, &ledger.turn(&turn).await.unwrap());
    let settled = acknowledged.try_recv().unwrap().unwrap();
    assert_eq!((settled.booked, settled.charged), (Booked::Held, micro(60)));
    lease.close_if_done();
    assert!(lease.is_closed());
    let stored = ledger.leases_of(&acme()).await.unwrap();
    assert_eq!(stored[0].held_rub, micro(40));
}

/// A lease grants no hold if it has expired on either of the gateway's two clocks.
#[tokio::test]
async fn lease_grants_no_hold_once_it_has_expired_on_either_clock_of_the_gateway() {
    use crate::leases::{
        Now,
        lease::{Lease, Size},
    };
    let fleet = Fleet::new(1, 100_000).await;
    let size = Size {
        free: micro(100),
        short_of: MicroRub::ZERO,
    };
    let at = |steady, wall| Now { steady, wall };
    let mut lease = Lease::new(RequestNumber::now_v7(), &acme(), &key("k1"), 500);
    let open = lease.turn(size, at(1_000, 77_000), Uuid::now_v7());
    lease.answered(&open, &fleet.gateways[0].turn(&open).await.unwrap());
    for (n, (now, granted)) in (1..).zip([
        (at(1_499, 77_499), true),
        (at(1_500, 77_100), false),
        // The machine was suspended for longer than the lifetime of the lease.
        (at(1_100, 77_500), false),
        // Setting the wall clock back has no effect.
        (at(1_400, 7), true),
    ]) {
        assert_eq!(
            lease.reserve(&hold(n, "k1", 1), now).is_some(),
            granted,
            "{now:?}"
        );
    }
}

/// Compares the Redis server's work per call with a lease and without a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_reduce_the_number_of_redis_commands_for_a_busy_key() {
    const CALLERS: u64 = 64;
    const CALLS_EACH: u64 = 200;
    let calls = CALLERS * CALLS_EACH;
    let money = 100_000_000;
    let fleet = Fleet::new(1, money).await;
    let without = fleet.server.ledger().await;
    let mut costs = Vec::new();
    for gateway in [without, fleet.gateways[0].clone()] {
        let _: String = fleet.server.ask(&["CONFIG", "RESETSTAT"]).await;
        let began = Instant::now();
        let mut calling = JoinSet::new();
        for _ in 0..CALLERS {
            let gateway = gateway.clone();
            calling.spawn(async move {
                for _ in 0..CALLS_EACH {
                    assert!(call(&gateway).await);
                }
            });
        }
        calling.join_all().await;
        let stats: String = fleet.server.ask(&["INFO", "commandstats"]).await;
        let (commands, script_us) = cost(&stats);
        println!(
            "{commands} commands, {script_us} µs of scripts, {:?} for {calls} calls: {:?}",
            began.elapsed(),
            gateway.lease_counts()
        );
        costs.push((commands, script_us));
    }
    let [(commands_without, us_without), (commands, us)] = costs[..] else {
        panic!("{costs:?}")
    };
    let (a_call, without) = (
        commands as f64 / calls as f64,
        commands_without as f64 / calls as f64,
    );
    println!(
        "commands that the server executes for a call: {a_call:.2}, without leases {without:.2}"
    );
    // A turn is sent at intervals, so a slower machine sends more turns per call.
    assert!(without > 10.0 && a_call * 10.0 <= without, "{costs:?}");
    assert!(us < us_without, "{costs:?}");
    let served = usize::try_from(2 * calls).unwrap();
    fleet.ends_sound(served, money).await;
}

/// Returns how many commands the server has executed, including commands in scripts, and how long scripts ran, in µs.
fn cost(stats: &str) -> (u64, u64) {
    let (mut commands, mut script_us) = (0, 0);
    for line in stats.lines() {
        let Some((name, fields)) = line.split_once(":calls=") else {
            continue;
        };
        let (calls, rest) = fields.split_once(",usec=").unwrap();
        commands += calls.parse::<u64>().unwrap();
        if name.contains("eval") {
            script_us += rest.split(',').next().unwrap().parse::<u64>().unwrap();
        }
    }
    (commands, script_us)
}

/// The gateway's lease task is stopped as if the gateway was killed: the server receives no more of its lease turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_gateway_gives_back_the_leases_of_its_earlier_process() {
    let quiet = Duration::from_millis(600);
    let mut fleet = Fleet::new(1, 100_000).await;
    let killed = &fleet.gateways[0];
    while killed.lease_counts().unwrap().granted < 10 {
        assert!(call(killed).await);
    }
    let started = async |owner: &str| {
        let settings = LeaseSettings::new(Duration::from_millis(500), owner);
        fleet.server.ledger().await.with_leases(settings)
    };
    let (again, other) = (started("gateway 0").await, started("gateway 1").await);
    let calling = async {
        // A lease whose turns still arrive belongs to a running gateway, even if that gateway has this gateway's name.
        let until = Instant::now() + 2 * quiet;
        while Instant::now() < until {
            assert!(call(killed).await);
        }
    };
    let (taken, ()) = tokio::join!(again.give_back_left(quiet), calling);
    assert_eq!(taken.unwrap(), 0);
    fleet.tasks.shutdown().await;
    assert_eq!(other.give_back_left(quiet).await.unwrap(), 0);
    let held = async || again.account(&acme()).await.unwrap().held_rub;
    assert_ne!(held().await, MicroRub::ZERO);
    assert_eq!(again.give_back_left(quiet).await.unwrap(), 1);
    assert_eq!(held().await, MicroRub::ZERO);
    assert_eq!(again.leases_of(&acme()).await.unwrap(), []);
    assert_eq!(again.audit().await.unwrap().breaches, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreported_charges_of_a_key_do_not_count_for_a_group_that_it_joins_later() {
    let fleet = Fleet::new(1, 10_000_000).await;
    let gateway = &fleet.gateways[0];
    let group = GroupRecord {
        id: "g1".parse().unwrap(),
        name: "g1".into(),
        removed: false,
    };
    let account = acme();
    let made = gateway.create_group(&account, &group, Ceilings::NONE);
    made.await.unwrap();
    while gateway.lease_counts().unwrap().granted < 100 {
        assert!(call(gateway).await);
    }
    let mut ends = Vec::new();
    for _ in 0..60 {
        let new_hold = Hold {
            number: RequestNumber::now_v7(),
            ttl: HOUR,
            ..hold(0, "k1", PRICE)
        };
        let held = gateway.reserve(&new_hold).await.unwrap().held;
        ends.push(Settlement {
            number: new_hold.number,
            held,
            ..settlement(0, "k1", PRICE)
        });
    }
    let change = KeyChange {
        group: Some(Some(group.id.clone())),
        ..KeyChange::default()
    };
    // The calls ended before the operator's command, but their settlements have not reached the ledger yet.
    let settling = join_all(ends.iter().map(|end| gateway.settle(end)));
    let id = key("k1");
    let (settled, moved) = tokio::join!(settling, gateway.change_key(&id, &change));
    assert!(settled.iter().all(Result::is_ok), "{settled:?}");
    assert_eq!(moved.unwrap().record.group, Some(group.id));
    let groups = gateway.groups(&acme()).await.unwrap();
    assert_eq!(groups[0].spent_rub, MicroRub::ZERO);
    assert!(call(gateway).await);
    let groups = gateway.groups(&acme()).await.unwrap();
    assert_eq!(groups[0].spent_rub, micro(PRICE));
}
