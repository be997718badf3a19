//! Gateways with leases on one server, with their tasks and clocks: what callers and operators see of them.

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
        Booked, JournalLine, JournalPages, KeyChange, Ledger, LedgerAdmin, Refusal, Settlement,
    },
    money::MicroRub,
    number::RequestNumber,
    redis::test_server::Server,
    testing::given::{HOUR, acme, correction, hold, key, micro, record, settlement, topup},
};

const PRICE: i64 = 10;

/// Gateways on one server, each with a connection and a task of its own.
struct Fleet {
    server: Server,
    gateways: Vec<RedisLedger>,
    tasks: JoinSet<()>,
}

impl Fleet {
    /// On an account with so much money and the key k1; a lease is taken with the first call.
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

    /// Callers at each gateway, one call after the other each, until each was refused in a row so often. Says how
    /// many calls were served.
    async fn serve_all(&self, callers: usize, refusals: usize) -> usize {
        let served = serve_at(&self.gateways, callers, refusals).await;
        served.into_iter().sum()
    }

    fn granted_from_leases(&self) -> u64 {
        let counts = self.gateways.iter().filter_map(RedisLedger::lease_counts);
        counts.map(|counts| counts.granted).sum()
    }

    /// All is given back and adds up; each call that was served has its receipt.
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

/// The same at these gateways, by gateway.
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

/// A call that costs what is held for it. Whether it was served.
async fn call(gateway: &RedisLedger) -> bool {
    match try_call(gateway).await {
        Ok(()) => true,
        Err(LedgerError::Refused(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// The same; what was charged was charged whole.
async fn try_call(gateway: &RedisLedger) -> Result<(), LedgerError> {
    let wish = Hold {
        number: RequestNumber::now_v7(),
        ttl: HOUR,
        ..hold(0, "k1", PRICE)
    };
    let reserved = gateway.reserve(&wish).await?;
    assert_eq!(reserved.held, micro(PRICE));
    let end = Settlement {
        number: wish.number,
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
async fn what_the_money_pays_for_is_served_and_nothing_beyond() {
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

/// Beyond its memory a server lends nothing: leases are given back, and hardly asked for. Ends are charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_out_of_memory_lends_nothing_more() {
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
    let (at, told) = refused_from.expect("it goes on selling");
    assert!(at + SOON / 2 < until, "it went on selling for long");
    let more = turns() - told;
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
async fn parallel_calls_on_money_for_ten_are_ten() {
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

/// I12: what an operator has forbidden is forbidden at all gateways once the command is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_forbade_is_granted_nowhere_once_that_is_acknowledged() {
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
        // One without leases waits for the others', too.
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
async fn a_correction_takes_what_leases_have_and_no_call_holds() {
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

/// A hold that may be less than it wants is not less because the rest is leased.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_less_because_the_rest_is_leased() {
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

/// Two with leases and one without: all that the money pays for is served, and each gets its share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_leases_is_not_starved() {
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

/// What others have leased and no call holds is held for its call, as soon as they hear of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_leases_gets_what_others_have_leased() {
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
        // There are leases again when the recall is over.
        sleep(Duration::from_millis(1_100)).await;
    }
    println!("waited for what others had leased: {waits:?}");
    fleet.ends_sound(200, money).await;
}

/// Those who ask for what a dead gateway has leased wait a while, and not once its time is over; what is free is theirs
/// meanwhile, and all of it when the lease has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_gateways_lease_keeps_nobody_waiting_for_long() {
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

/// What a dead gateway had leased pays for the calls that it left, and for nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_gateways_calls_are_paid_from_its_lease() {
    let money = 100_000;
    let mut fleet = Fleet::new(2, money).await;
    let dead = fleet.gateways.pop().unwrap();
    let mut left = Vec::new();
    while left.len() < 5 {
        let wish = Hold {
            number: RequestNumber::now_v7(),
            ..hold(0, "k1", PRICE)
        };
        dead.reserve(&wish).await.unwrap();
        let end = Settlement {
            number: wish.number,
            held: micro(PRICE),
            lease: dead.lease_of(wish.number, &wish.key),
            // The next process comes late.
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
    // All else is held by somebody.
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

/// A machine that was copied while it ran: the one that is heard first goes on, the other one grants nothing more.
#[tokio::test]
async fn a_second_owner_of_a_lease_is_fenced() {
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
    // The copy tells its next turn, which the lease's first owner has never heard of.
    let copied = Turn {
        step: Step::GoOn,
        before: open.this.clone(),
        this: "copy".into(),
        more: MicroRub::ZERO,
        ..open
    };
    ledger.turn(&copied).await.unwrap();
    let wish = hold(1, "k1", 60);
    lease.reserve(&wish, Now::default()).unwrap().unwrap();
    let turn = lease.turn(size(100), Now::default(), Uuid::now_v7());
    lease.answered(&turn, &ledger.turn(&turn).await.unwrap());
    assert!(lease.is_lost());
    assert_eq!(lease.reserve(&hold(2, "k1", 1), Now::default()), None);
    // What it had granted is paid from the lease.
    let mut told = lease
        .settle(&settlement(1, "k1", 60), Now::default())
        .unwrap();
    let turn = lease.turn(size(100), Now::default(), Uuid::now_v7());
    lease.answered(&turn, &ledger.turn(&turn).await.unwrap());
    let settled = told.try_recv().unwrap().unwrap();
    assert_eq!((settled.booked, settled.charged), (Booked::Held, micro(60)));
    lease.close_if_done();
    assert!(lease.is_closed());
    let stored = ledger.leases_of(&acme()).await.unwrap();
    assert_eq!(stored[0].held_rub, micro(40));
}

/// Nothing is granted when either of the gateway's clocks says that it is too late.
#[tokio::test]
async fn a_lease_grants_nothing_after_its_time() {
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
        // The machine slept.
        (at(1_100, 77_500), false),
        // The clock was set back.
        (at(1_400, 7), true),
    ]) {
        assert_eq!(
            lease.reserve(&hold(n, "k1", 1), now).is_some(),
            granted,
            "{now:?}"
        );
    }
}

/// How much work of the server a call is, beside one without a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_keys_calls_cost_the_server_less() {
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
    assert!(a_call <= 0.7 && without > 10.0, "{costs:?}");
    assert!(us < us_without, "{costs:?}");
    let served = usize::try_from(2 * calls).unwrap();
    fleet.ends_sound(served, money).await;
}

/// Commands that the server executed, those of scripts among them, and the time that scripts took, in µs.
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
