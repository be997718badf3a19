//! The gateway as its callers, operators and vendors see it: real sockets, a scripted vendor, real
//! ledgers. One file for each kind of promise.

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

#[path = "../support/egress.rs"]
mod proxies; // a CONNECT proxy, a SOCKS5 proxy, a vendor with TLS

mod checks; // what a refusal looks like, and how money is read
mod fleet; // a gateway with several vendors for each model
mod harness; // a gateway, its scripted vendor and a client
mod ops; // both operations alike
mod replies; // what vendors say
mod secrets; // a net under all of it: no secret in logs, answers, files

// Shared with the other test binaries: the config's text, the binary as a process, Redis, the seed
#[path = "../support/mod.rs"]
mod support;

mod before_classes; // two versions on one Redis: this one beside the release before classes
mod call_log; // the line that each call leaves
mod call_story; // what is known of a call afterwards
mod ceilings; // what a key may spend in a day and in a month
mod commands; // exit codes, and what commands say when something is wrong
mod connect; // ready-made set-up of clients
mod console; // the operators' pages, and attacks on them
mod console_events; // their page of events and receivers
mod console_oidc; // signing in to them by a provider
mod console_prices; // what was in force when
mod cost; // what the caller is told of a call's cost
mod draining; // what a stop does to running calls
mod edge; // the binary and hand-written bytes, for the files below
mod edge_connections; // silent, slow and too many connections
mod edge_framing; // requests that no client would send, byte by byte
mod edge_h2; // floods of frames
mod edge_headers; // heads that are too large, and where no secret may turn up
mod edge_overload; // more than can be served, and keys that are guessed
mod edge_panics; // panics over real sockets
mod edge_random; // random and mutated bytes
mod edge_unread; // bodies that are refused before they were read
mod egress; // how vendors are reached: proxies, TLS, HTTP/2, closed connections, patience
mod embeddings; // vectors of texts: what they cost, byte for byte
mod estimate; // what a call would hold
mod evasion; // ways to get more than is paid for
mod events; // what is told of money, and how it is read
mod exchange_rate; // where the rubles for one USDT come from
mod export; // the whole ledger as text, and the audit of it
mod extra_paths; // models and money of a key, and the root
mod fragments; // streams in whatever pieces a vendor cuts them
mod groups; // keys that spend together, and how many of a key's calls are open at once
mod half_closed; // clients that send no more, and read on
mod holds; // what a call holds while it runs
mod idempotency; // calls that are sent again: one answer, one charge
mod import; // accounts and keys from a CSV file
mod leases; // what operators see of money that gateways hold by themselves
mod leaving; // when the client leaves, and how the call ends then
mod ledger; // what every store of money promises
mod ledger_copy; // all books from one store into another
mod ledger_leases; // gateways that hold money by themselves, over one server, Sentinels, a Cluster
mod ledger_properties; // random commands: stores against the book
mod limits; // requests a second, sizes of requests
mod messages_out; // events as mails and in chats
mod metrics; // what a scrape shows
mod money; // what a call costs
mod money_commands; // groups, owner keys, alerts, events: the commands, run
mod odd_usage; // whatever vendors say of the usage of any class
mod openapi; // the documents of both listeners
mod operators; // accounts, payments, receipts
mod operators_keys; // keys, from their secret to their end
mod order_of_checks; // which of two mistakes answers
mod owner_keys; // keys that look after their account's keys, and call nothing
mod page; // the price list for people
mod parallel; // two hundred calls on money for thirty-seven
mod passthrough; // what crosses between caller and vendor
mod payments; // money that customers bring by themselves: providers faked on real sockets
mod price_lists;
mod price_rules;
mod process; // signals and files of the binary
mod rates; // requests and tokens a minute of a key, over all gateways
mod receipts; // what a key's own calls cost
mod reconcile; // the books beside a vendor's own export
mod redis_down; // Redis dead, emptied, standing still
mod redis_failover; // Redis with replicas, under Sentinels, as a Cluster: one server gone, others there
mod reload; // another configuration, taken while calls run
mod responses; // the responses format between equals, by the numbers of its design
mod security; // SECURITY.md names tests that are there
mod smoke; // the shortest way through
mod sound;
mod spec_auth; // who is let in, and what the others are told
mod spec_catalog; // the price catalog
mod spec_chat; // the chat operation, field by field
mod spec_messages; // the messages operation, field by field
mod spending; // what a key has spent, and its latest receipts
mod statements; // an account's month, for its accountant
mod status_table; // what we refuse ourselves
mod status_vendor; // what vendors do wrong
mod streams; // events, byte for byte
mod tls; // TLS for callers, and its certificate
#[cfg(feature = "otel")]
mod traces; // spans, as a collector gets them
mod translation; // formats put into each other, through the whole gateway
mod translation_golden; // requests and what they become, file by file
mod unpriced; // what has no price, and what has one of its own
mod upgrade; // a new process takes over from an old one
mod usage; // usage that is not to be trusted
mod usage_page; // the page of a key's holder
mod usage_report; // usage, exports, audits: by the API and by the commands
mod vendors_choice; // which vendor a call goes to
mod vendors_failover; // the next vendor, before the first byte
mod vendors_load; // a vendor killed under load, and one that stalls with a thousand streams
mod webhooks; // events, sent to whoever wants them
