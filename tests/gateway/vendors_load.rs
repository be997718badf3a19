//! Tests of vendors under load: a vendor that is killed, a vendor whose thousand streams stall, and a vendor that sends
//! more than the clients read.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use futures_util::future::join_all;
use http::Response;
use hyper::body::Incoming;
use tokio::time::sleep;

use crate::{fleet::Fleet, prelude::*};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vendor_killed_under_load_fails_no_plain_call() {
    const CALLERS: usize = 30;
    let mut fleet = Fleet::start(Setup::default(), 2, |_| String::new(), |_| String::new()).await;
    let key = fleet.world.key().await;
    let killed = fleet.others.pop().unwrap();
    // A call takes 20 ms at each vendor, so some calls are in flight when the vendor is killed.
    let slow = |received: &tollgate::demo::vendor::Received| {
        let reply = tollgate::demo::script::polite(received);
        reply.with_step(0, Step::Wait(Duration::from_millis(20)))
    };
    killed.script(slow);
    fleet.world.vendor.script(slow);
    let (over, body) = (AtomicBool::new(false), chat_body("x"));
    let caller = || async {
        let mut answers = Vec::new();
        while !over.load(Ordering::Relaxed) {
            answers.push(fleet.world.chat(&key, &body).await);
        }
        answers
    };
    let murder = async {
        eventually("both have calls", async || {
            (killed.open() > 3 && fleet.world.vendor.open() > 3).then_some(())
        })
        .await;
        let before = killed.received().len();
        drop(killed);
        // Meanwhile, the breaker tests the dead vendor once, without success.
        sleep(Duration::from_millis(2_500)).await;
        over.store(true, Ordering::Relaxed);
        before
    };
    let (answers, before) = tokio::join!(join_all((0..CALLERS).map(|_| caller())), murder);
    let answers: Vec<_> = answers.into_iter().flatten().collect();
    assert!(before > 3, "load before and after");
    assert!(answers.len() > before + CALLERS, "load before and after");
    for answer in &answers {
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(!answer.failed);
    }
    // All calls cost the same. Each was charged once, whichever vendor answered it.
    let receipt = fleet.world.receipt(&answers[0].number()).await;
    let spent = micro(&fleet.world.settled(&key).await["spent_rub"]);
    let calls = i64::try_from(answers.len()).unwrap();
    assert_eq!(spent, micro(&receipt["charged_rub"]) * calls);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vendor_killed_under_load_interrupts_only_streams_that_had_started() {
    const CALLERS: usize = 20;
    let mut fleet = Fleet::start(Setup::default(), 2, |_| String::new(), |_| String::new()).await;
    let key = fleet.world.key().await;
    let killed = fleet.others.pop().unwrap();
    let reply = Reply::stream(events(Op::Chat, &["раз ", "два"], 9, 2))
        .with_step(1, Step::Wait(Duration::from_millis(30)))
        .with_step(0, Step::Wait(Duration::from_millis(30)));
    for vendor in [&killed, &fleet.world.vendor] {
        let reply = reply.clone();
        vendor.script(move |_| reply.clone());
    }
    let (dead, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let body = with(chat_body("x"), json!({ "stream": true }));
    let caller = || async {
        let (mut whole, mut cut) = (0, 0);
        while !over.load(Ordering::Relaxed) {
            let res = fleet
                .world
                .send(fleet.world.chat_request(&key, &body))
                .await;
            assert_eq!(res.status(), 200);
            let begun_before = !dead.load(Ordering::SeqCst);
            let text = rest(&mut res.into_body()).await;
            if text.ends_with("data: [DONE]\n\n") {
                whole += 1;
            } else {
                assert!(begun_before, "a stream that began later is whole: {text}");
                assert!(text.contains("\"error\""), "it says that it is not: {text}");
                cut += 1;
            }
        }
        (whole, cut)
    };
    let murder = async {
        eventually("both have calls", async || {
            (killed.open() > 3 && fleet.world.vendor.open() > 3).then_some(())
        })
        .await;
        drop(killed);
        // The gateway may still forward data that the vendor sent before it was killed.
        sleep(Duration::from_millis(100)).await;
        dead.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(1)).await;
        over.store(true, Ordering::Relaxed);
    };
    let (counts, ()) = tokio::join!(join_all((0..CALLERS).map(|_| caller())), murder);
    let whole: usize = counts.iter().map(|(whole, _)| whole).sum();
    let cut: usize = counts.iter().map(|(_, cut)| cut).sum();
    assert!(whole > CALLERS, "{whole} whole, {cut} cut");
    assert!(cut <= CALLERS, "{whole} whole, {cut} cut");
    fleet.world.settled(&key).await;
}

/// Returns whether this process runs only this test. If it runs other tests, too, runs this test in a child process
/// with the highest limit of open files, because each stream needs four sockets.
fn alone(test: &str) -> bool {
    const ALONE: &str = "TOLLGATE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let run = Command::new("sh")
        .args(["-c", "ulimit -n \"$(ulimit -Hn)\"; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&run.stdout);
    let failed = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{reported}\n{failed}");
    assert!(
        reported.contains("1 passed"),
        "there is no such test: {reported}"
    );
    false
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Returns the resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// Opens this number of streams, and reads the first word of each.
async fn open(world: &World, key: &Key, count: usize) -> Vec<Response<Incoming>> {
    let mut streams = Vec::new();
    for op in BOTH {
        let body: Value = with(op.body("x"), json!({ "stream": true }));
        // The streams are opened 25 at a time, because the queue of the listener is short.
        for _ in 0..count / 2 / 25 {
            let opened = (0..25).map(|_| async {
                let mut res = world.send(op.request(world, key, &body)).await;
                assert_eq!(res.status(), 200);
                next_text(res.body_mut()).await.unwrap();
                res
            });
            streams.extend(join_all(opened).await);
        }
    }
    streams
}

#[test]
fn thousand_stalled_streams_use_little_and_constant_memory() {
    if !alone("vendors_load::thousand_stalled_streams_use_little_and_constant_memory") {
        return;
    }
    const KIB_PER_STREAM_MAX: u64 = 256;
    runtime().block_on(async {
        let (world, key) = Setup::default()
            .edit(
                "[ledger]",
                "[limits]\nconnections_per_address_max = 10000\n[ledger]",
            )
            .start_with_key()
            .await;
        let go = Arc::new(Notify::new());
        let held = Arc::clone(&go);
        world.vendor.script(move |received| {
            let op = if received.path.contains("/messages") {
                Op::Messages
            } else {
                Op::Chat
            };
            let at = begun(op);
            Reply::stream(events(op, &["раз ", "два"], 9, 2))
                .with_step(at, Step::Hold(Arc::clone(&held)))
        });
        let few = open(&world, &key, 100).await;
        let before = resident();
        let many = open(&world, &key, 900).await;
        let after = resident();
        assert_eq!(world.vendor.open(), 1000);
        let each = after.saturating_sub(before) / 900;
        assert!(each <= KIB_PER_STREAM_MAX, "{each} KiB for each stream");
        // During this time, the gateway sends pings, which must not need memory.
        sleep(Duration::from_secs(11)).await;
        let grown = resident().saturating_sub(after);
        assert!(
            grown <= after / 10,
            "{grown} KiB more than {after} while nothing happens"
        );
        let account = world.account(&key).await;
        assert_ne!(account["held_rub"], "0.00", "{account}");

        go.notify_waiters();
        for mut stream in few.into_iter().chain(many) {
            let text = rest(stream.body_mut()).await;
            assert!(text.contains("два"), "{text}");
        }
        assert_eq!(world.settled(&key).await["held_rub"], "0.00");
    });
}

#[test]
fn data_that_a_slow_client_does_not_read_stays_at_the_vendor() {
    if !alone("vendors_load::data_that_a_slow_client_does_not_read_stays_at_the_vendor") {
        return;
    }
    const STREAMS: usize = 50;
    const EVENT_BYTES: usize = 60_000;
    const EVENTS: usize = 500;
    // The bound on the memory of a stream. It includes the buffers of hyper, of the scripted vendor and of the client,
    // which are all in this process, but not the socket buffers of the kernel.
    const KIB_PER_STREAM_MAX: u64 = 3 * 1024;
    runtime().block_on(async {
        let (world, key) = Setup::default()
            .edit(
                "[ledger]",
                "[limits]\nconnections_per_address_max = 10000\n[ledger]",
            )
            .start_with_key()
            .await;
        world.vendor.script(move |received| {
            let op = if received.path.contains("/messages") {
                Op::Messages
            } else {
                Op::Chat
            };
            // All events share the same bytes, so the vendor itself needs no memory for them.
            let reported = events(op, &["x".repeat(EVENT_BYTES).as_str()], 9, 2);
            let word = begun(op) - 1;
            let mut steps: Vec<Step> = reported[..word]
                .iter()
                .map(|event| Step::Send(event.clone().into()))
                .collect();
            let event = Bytes::from(reported[word].clone());
            steps.extend((0..EVENTS).map(|_| Step::Send(event.clone())));
            steps.extend(
                reported[word + 1..]
                    .iter()
                    .map(|event| Step::Send(event.clone().into())),
            );
            Reply::raw(200, "text/event-stream", steps)
        });
        let before = resident();
        let streams = open(&world, &key, STREAMS).await;
        // A complete stream has 30 MB. The gateway may store only a small part of it.
        let mut last = 0;
        eventually("nothing moves any more", async || {
            let now = resident();
            let still = now <= last + 256;
            last = now;
            sleep(Duration::from_millis(500)).await;
            still.then_some(())
        })
        .await;
        assert_eq!(
            world.vendor.open(),
            STREAMS,
            "the vendor waits with the rest"
        );
        let each = resident().saturating_sub(before) / STREAMS as u64;
        assert!(each <= KIB_PER_STREAM_MAX, "{each} KiB for each stream");
        drop(streams);
        world.settled(&key).await;
    });
}
