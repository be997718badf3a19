//! The fault catalogue, against real processes: inject → heal → drain → audit. The verdict compares the vendor's log
//! with the ledger.
//!
//! `cargo test --test faults` runs the quick cases and prints a table; `-- NAME…` runs the cases whose
//! names contain one of the words; `-- --long` runs the long ones too; `-- --list` lists them.
//!
//! # How a case is written
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
//! - **[`Plan`]**: `over(LedgerKind::{Sqlite, Redis, RedisReplica, Sentinel, Cluster { primaries,
//!   replicas }})`, `.gateways(n)`, `.edit(from, to)`, `.rubles(n)` (the account's first payment),
//!   `.nofile(n)`, `.leases()`, `.shells(&[…])` (how gateways are started), `.redis_args(&[…])`, `.patience(d)` (of
//!   the drain), `.start()`.
//! - **[`World`]**: `gateway(i)`, `client_proxy(i)`, `redis_proxy(i)` (servers on one address only),
//!   `vendor_proxy(i)`, `redis()`, `replica()`, `sentinels()`, `cluster()`, `vendor()`, `client(i)`,
//!   `account(id, rubles) -> Key`, `client_of(i, &key)`, `admin(i, method, path, body)`, `load`,
//!   `load_in_background`, `load_until_told`, `settled()`, `line_of(&call)`, `exported()`,
//!   `ready(i, limit)`, `heal()`, `expect(&call, Charge)`, `stated(Bound)`,
//!   `fault_at(Instant)`, `round()`, `note(text)`, `verdict()`.
//! - **[`process::GatewayProcess`]**: `kill9()`, `stop()`, `cont()`, `term()`, `restart().await`,
//!   `wait_exit(limit).await`, `is_running()`, `says(begin, limit).await`, `log()`.
//! - **[`proxy::Proxy`]**: `set(Way, Flow)` with `Flow::{Pass, Delay, Stall, Discard, CutAfter}`,
//!   `refuse(bool)`, `reset()`, `heal()`, `set_target(address)`, `connections()`, and
//!   `trap(Way, needles, Then) -> Trap`, which acts the next time that one of the needles passes;
//!   `trap.sprung().await` waits until it did, `trap.open()` releases what it holds. Needles:
//!   `proxy::script("reserve")` for a ledger's script, `proxy::bytes(proxy::ANSWER_HEAD)` and `REQUEST`.
//! - **[`client::Client`]**: `call(Format)` with `.plain()`, `.tokens(n)`, `.gap(d)`, `.gate(Gate)`,
//!   `.drained()`, `.large()`, `.same_hold()`, `.once()`, `.from(Format)`, `.cut(n)`; `ask(&call).await -> Outcome`, `ask_in_background(&call) -> Asked`,
//!   `open(&call).await -> Open` (reads event by event), `raw(&call).await -> TcpStream` (the request was
//!   sent, the case controls the rest).
//! - **[`vendor_log::VendorLog`]**: `served(&call)`, `told(&call)`, `asked(&call)`, `open_gate(&call)`,
//!   `wait_served(&call, n).await`, `wait_asked(&call)`, `wait_told(&call)`.
//! - **[`support::shop::Shop`]**: a provider of payments on a real socket; `payment_faults` puts a proxy before it.
//!   Receivers of events are a `ScriptedVendor` behind a proxy: see `event_faults`.
//! - **[`steps`]**: `midway` (calls that hold money and wait) and its `end`, `nothing_sold`, `not_ready`,
//!   `serves`, `fails_to_start`, `stops_well`, `ask` (a Redis command), `told` (an admin call), `skipped`.
//!
//! Each call's input has a unique length, and the vendor reports exactly that number of tokens: a
//! receipt's `usage.input` names its call, whether the usage came from the vendor or was estimated.

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
