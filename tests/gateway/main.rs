//! Tests of the gateway as callers, operators and vendors see it, with real sockets, a scripted vendor and real
//! ledgers. Each file tests one kind of promise.

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

mod checks; // the shape of refusals, and parsing of money
mod fleet; // a gateway with several vendors for each model
mod harness; // a gateway, its scripted vendor and a client
mod ops; // both operations with the same code
mod prelude; // the names that most files use
mod replies; // vendors' answers
mod secrets; // a check of all of it: no secret in logs, answers, files

// These modules are shared with other test binaries: the text of configurations, the binary as a process, Redis, random
// seeds.
#[path = "../support/mod.rs"]
mod support;

mod browsers; // pages of other origins
mod cabinet; // the pages of accounts' members, and attacks on them
mod cabinet_playground; // calls of members in the playground, and attacks on them
mod caching; // cache hits at vendors in a growing conversation
mod call_log; // the log line of each call
mod call_story; // details of a call afterwards
mod ceilings; // daily and monthly ceilings of a key
mod commands; // exit codes and error texts of commands
mod connect; // ready-made configuration of clients
mod console; // the operators' pages, and attacks on them
mod console_configuration; // their forms for the configuration file, and attacks on these
mod console_events; // their page of events and receivers
mod console_oidc; // sign-in to them by a provider
mod console_people; // invitations of operators, and payments of all accounts
mod console_prices; // tariff versions over time
mod cost; // the cost of a call in its answer
mod draining; // effects of a stop on running calls
mod edge; // the binary and hand-written bytes, for the files below
mod edge_connections; // silent, slow and too many connections
mod edge_framing; // requests that no client library would send, byte by byte
mod edge_h2; // floods of frames
mod edge_headers; // oversized heads, and where no secret may appear
mod edge_overload; // more load than can be served, and guessed keys
mod edge_panics; // panics over real sockets
mod edge_random; // random and mutated bytes
mod edge_unread; // bodies that are refused before they are read
mod egress; // connections to vendors: proxies, TLS, HTTP/2, closed connections, timeouts
mod embeddings; // vectors of texts: what they cost, byte for byte
mod estimate; // what a call would hold
mod evasion; // attempts to get more than is paid for
mod events; // events of money, and how they are read
mod exchange_rate; // sources of the exchange rate
mod export; // the whole ledger as text, and the audit of it
mod extra_paths; // models and money of a key, and the root
mod fragments; // streams in any pieces that a vendor may cut
mod functions; // vendors with functions in place of tools
mod groups; // keys that spend together, and concurrency of keys
mod growing_holds; // holds that grow with the output of their streams
mod half_closed; // clients that close their sending side and keep reading
mod holds; // the hold of a running call
mod idempotency; // repeated calls: one answer, one charge
mod import; // accounts and keys from a CSV file
mod invoices; // invoices for companies, and their payments
mod leases; // leases as operators see them
mod leaving; // disconnecting clients, and how their calls end
mod leaving_half; // leaving a stream costs no more than staying
mod ledger; // the contract of every store
mod ledger_copy; // all books from one store into another
mod ledger_leases; // leases over one server, Sentinels, a Cluster
mod ledger_properties; // random commands: stores against the book
mod limits; // requests per second, sizes of requests
mod load_command; // `tollgate load`: counts, exit codes, a gateway that restarts
mod logins; // tokens and signatures for vendors, and their headers, paths and queries
mod messages_out; // events as mails and in chats
mod metrics; // content of a scrape
mod money; // cost of a call
mod money_commands; // groups, owner keys, alerts, events: the commands, run
mod odd_usage; // arbitrary usage reports of any class
mod openapi; // the documents of both listeners
mod operators; // accounts, payments, receipts
mod operators_keys; // keys, from their secret to their end
mod order_of_checks; // which of two mistakes is answered
mod owner_keys; // keys that manage their account's keys, and cannot call
mod page; // the price list for people
mod parallel; // two hundred calls on money for thirty-seven
mod passthrough; // data forwarded between caller and vendor
mod payments; // payments by customers: providers faked on real sockets
mod price_classes;
mod price_currencies;
mod price_hours;
mod price_lists;
mod price_rules;
mod process; // signals and files of the binary
mod rates; // requests and tokens per minute of a key, over all gateways
mod receipts; // the cost of a key's own calls
mod reconcile; // the books compared with a vendor's own export
mod redis_down; // Redis dead, emptied, stopped
mod redis_failover; // Redis with replicas, under Sentinels, as a Cluster: one server lost, others available
mod refused_calls; // calls without a receipt, after a restart and on other gateways
mod released; // what released versions wrote is read
mod reload; // another configuration, taken while calls run
mod responses; // the responses format with vendors of the same format, by the numbers of its design
mod security; // the tests named in SECURITY.md exist
mod shrinking_holds; // holds that are lowered by what vendors have counted
mod smoke; // the shortest path through the gateway
mod sound;
mod sound_holds; // no call costs more than it held
mod spec_auth; // who is admitted, and the refusals of the others
mod spec_catalog; // the price catalog
mod spec_chat; // the chat operation, field by field
mod spec_messages; // the messages operation, field by field
mod spending; // a key's spending, and its latest receipts
mod statements; // an account's month, for its accountant
mod status_table; // refusals by the gateway
mod status_vendor; // faults of vendors
mod streams; // events, byte for byte
mod tls; // TLS for callers, and its certificate
mod tool_tasks; // tasks of several turns on vendors that require their state back
mod traces; // spans, as a collector gets them
mod translation; // translation through the whole gateway
mod translation_golden; // requests and their translations, file by file
mod unpriced; // usage without a price, and with its own price
mod upgrade; // a new process takes over from an old one
mod usage; // implausible usage
mod usage_page; // the page of a key's holder
mod usage_report; // usage, exports, audits: by the API and by the commands
mod vendor_test; // calls of a vendor by command
mod vendors_choice; // the choice of a vendor
mod vendors_failover; // the next vendor, before the first byte
mod vendors_load; // a vendor killed under load, and one that stalls with a thousand streams
mod webhooks; // events, delivered to receivers
