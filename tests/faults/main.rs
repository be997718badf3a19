//! The fault catalogue: cases that inject a fault into real processes, end the fault, drain the gateways and audit the
//! ledger. The verdict of a case compares the vendor's log with the ledger.
//!
//! `cargo test --test faults` runs the quick cases and prints a table. With `-- NAME…`, it runs the cases whose names
//! contain one of the words. With `-- --long`, it also runs the long cases. `-- --list` lists the cases.
//!
//! # How to write a fault case
//!
//! ```ignore
//! pub(crate) fn cases() -> Vec<Case> {
//!     vec![
//!         Case::new("4", "redis stops for 5 s", || stopped()),            // async, need not be Send
//!         Case::new("4", "three primaries, one gone", || gone()).long(),   // only with --long
//!         Case::new("1", "kill -9 sweep", || sweep()).alone(),             // measures time
//!     ]
//! }
//!
//! async fn stopped() -> Verdict {
//!     // Every gateway is a process of its own, behind a proxy on each of its edges.
//!     let world = Plan::over(LedgerKind::Redis)
//!         .gateways(2)
//!         .edit("call_seconds = 900", "call_seconds = 5") // text of `plan::config_text`
//!         .start()
//!         .await;
//!     world.load(8, 50).await;                    // calls of all kinds over all gateways, answered
//!     let load = world.load_in_background(8, 200);
//!     world.redis().stop_signal();                // inject
//!     tokio::time::sleep(Duration::from_secs(5)).await;
//!     world.redis().continue_signal();            // heal
//!     load.await_all().await;
//!     world.stated(Bound::nothing_lost());        // the default
//!     world.verdict().await                       // drain, audit, compare
//! }
//! ```
//!
//! - [`Plan`] describes the processes of a case. `over` chooses the ledger and `gateways` the number of gateways;
//!   `start` starts them all. `edit` replaces text of the configuration, `rubles` sets the account's first payment,
//!   `nofile` the limit of open files, `leases` enables leases, `shells` sets how gateways are started, `redis_args`
//!   sets options of Redis, and `patience` the maximum duration of the drain.
//! - [`World`] contains the running processes of a case: `gateway`, `redis`, `replica`, `sentinels`, `cluster`, and the
//!   proxies `client_proxy`, `vendor_proxy` and `redis_proxy` (only for a ledger on one address). `account` creates an
//!   account with a key, and `client` and `client_of` return callers. `admin` sends a request to the admin API. `load`,
//!   `load_in_background` and `load_until_told` make many calls.
//! - At the end of a case, `World::heal` ends all faults, and `World::verdict` drains, audits and compares. Before
//!   that, `expect` sets the charge of a call, `stated` the bound on losses, and `fault_at` the time of a fault that
//!   affects all gateways.
//! - [`process::GatewayProcess`] is one gateway. `kill9`, `stop`, `cont` and `term` send signals to it. `restart`
//!   starts it again, `wait_exit` waits for its exit, and `says` waits for a log line.
//! - [`proxy::Proxy`] injects faults into connections. `set` changes how bytes flow in one direction, `refuse` and
//!   `reset` affect connections, and `heal` ends all these faults. `trap` sets a trap, which acts the next time that
//!   one of its needles passes: `sprung` waits for this, and `open` releases the data that the trap holds.
//!   `proxy::script("reserve")` returns needles for a script of the ledger.
//! - [`client::Client`] makes calls. `call` creates one, whose methods set options such as `plain` or `tokens`. `ask`
//!   reads the response to its end, `ask_in_background` does so in a task, `open` reads event by event, and `raw`
//!   leaves the socket to the case.
//! - [`vendor_log::VendorLog`] shows which part of each response has reached a gateway. `open_gate` lets a waiting
//!   vendor continue, and `wait_served`, `wait_asked` and `wait_told` wait for progress.
//! - [`support::shop::Shop`] is a payment provider on a real socket, which `payment_faults` puts behind a proxy. A
//!   receiver of events is a `ScriptedVendor` behind a proxy, as in `event_faults`.
//! - [`steps`] contains steps that several groups of cases share, for example `midway`: calls that hold money while
//!   their vendors wait.
//!
//! The input of each call has a unique length, and the vendor reports exactly this number of tokens. So the field
//! `usage.input` of a receipt identifies its call, whether the usage was reported by the vendor or estimated.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a test binary has no public API"
)]
#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "tests unwrap what must be there and are given JSON as it is written"
)]
#![allow(
    dead_code,
    reason = "the framework's parts are there for all cases to come"
)]

mod client; // callers, well-behaved ones and others
mod judge; // the end of a case: drain, audit, comparison
mod load; // calls of all kinds, many at a time
mod machine; // how late the machine is
mod plan; // the parts of a world
mod process; // a gateway as a process
mod proxy; // TCP with faults
mod responses; // answers of a responses vendor
mod servers; // servers of the ledger
mod steps; // steps that several groups share
mod table; // cases, their selection by the command line, the printed table
mod vendor_log; // what the vendor served, token by token
mod verdict; // comparison of the vendor's log with the ledger
mod world; // gateways, vendor, ledger and the wires between them

#[path = "../support/mod.rs"]
mod support; // shared: the config's text, the binary as a process, Redis

mod event_faults; // group 8: receivers of events, and their gateways
mod gateway_faults; // group 1: the gateway is killed, stopped, out of files
mod key_faults; // group 9: idempotency keys, groups, concurrency and rates, and gateways that are killed
mod lease_faults; // group 6: leases
mod leaving_clients; // group 2: the client leaves
mod ledger_faults; // group 5: storms, caps, broken files
mod payment_faults; // group 7: notifications of providers, and gateways that are killed while they handle them
mod redis_faults; // group 4: Redis down, slow, emptied, promoted

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut cases = gateway_faults::cases();
    cases.extend(leaving_clients::cases());
    cases.extend(redis_faults::cases());
    cases.extend(ledger_faults::cases());
    cases.extend(lease_faults::cases());
    cases.extend(payment_faults::cases());
    cases.extend(event_faults::cases());
    cases.extend(key_faults::cases());
    table::run(cases)
}
