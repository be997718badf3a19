//! Defines the scenarios: which calls are sent, at which pace, and what is measured in the responses.

use bytes::Bytes;
use clap::ValueEnum;
use tollgate_layers::call::Format;

use crate::fixtures::{Canned, messages_request, short_request};

/// The scenarios in the order in which they run. Their names are used on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ScenarioName {
    /// Sends as many plain calls as the target can serve.
    Plain,
    /// Sends 500 plain calls per second. This shows the time that the gateway adds when it is not busy.
    Paced,
    /// Opens as many streams as the target can serve. Each has 100 chunks, which the vendor sends at once.
    Stream,
    /// Opens 100 streams per second, at random moments. The chunks of a stream are sent at a steady pace. Measures the
    /// time to the first byte.
    FirstByte,
    /// Opens the same streams as `FirstByte`. Measures the delay of each chunk.
    ChunkDelay,
    /// Sends as many plain Messages calls as the target can serve, each with a request of 76 KB.
    BigBody,
    /// Opens streams that are translated from one format to another. They are compared with streams of the same vendor
    /// that are passed through.
    Translated,
    /// Sends plain calls at increasing rates. Measures latency and CPU time at each rate.
    Rate,
    /// Opens streams that stay open. Measures the memory of the idle process and of each stream.
    Memory,
    /// Sends plain calls through other proxies and gateways, too (`benches/peers install`). Runs only if its name is
    /// given.
    Peers,
}

/// How the targets of a scenario are measured.
pub(crate) enum Kind {
    /// The same load is put on the bare proxy and on each gateway.
    Compared(Scenario),
    Translated,
    Rate,
    Memory,
    Peers(Scenario),
}

/// A load on a target: which calls are sent, at which pace, and what is measured in the responses.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The response that the vendor returns to each call.
    pub(crate) canned: Canned,
    /// The format of the calls.
    pub(crate) caller: Format,
    pub(crate) body: Bytes,
    pub(crate) pace: Pace,
    pub(crate) measure: Measure,
    /// The length of a round, as a multiple of the usual length. A scenario with few calls per second needs longer
    /// rounds, because a 99th percentile needs many calls.
    pub(crate) rounds_long: u32,
}

/// The condition under which the next call is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// On each connection, the next call is sent as soon as the previous call is answered.
    WhenAnswered,
    /// This number of calls is sent per second, whether or not earlier calls are answered.
    PerSecond(u32),
    /// This number of calls is sent per second, at random moments that are the same in each run. If streams began at
    /// even intervals, their chunks would be sent at the same moments, and the measured delay would be that of a burst.
    AtRandom(u32),
}

/// The time that is measured for each response of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    /// The time from the request to the last byte of the response.
    Whole,
    /// The time from the request to the first byte of the response's body.
    FirstByte,
    /// For each chunk, the time from its sending by the vendor to its arrival at the client.
    ChunkDelay,
}

impl ScenarioName {
    /// The scenario's name on the command line and in the results file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Paced => "paced",
            Self::Stream => "stream",
            Self::FirstByte => "first_byte",
            Self::ChunkDelay => "chunk_delay",
            Self::BigBody => "big_body",
            Self::Translated => "translated",
            Self::Rate => "rate",
            Self::Memory => "memory",
            Self::Peers => "peers",
        }
    }

    pub(crate) fn kind(self) -> Kind {
        let (canned, pace, measure) = match self {
            Self::Plain => return Kind::Compared(Scenario::plain()),
            Self::Paced => {
                let paced = Scenario {
                    name: self.name(),
                    pace: Pace::PerSecond(500),
                    rounds_long: 4,
                    ..Scenario::plain()
                };
                return Kind::Compared(paced);
            }
            Self::Stream => (Canned::Stream, Pace::WhenAnswered, Measure::Whole),
            Self::FirstByte => (Canned::Drip, Pace::AtRandom(100), Measure::FirstByte),
            Self::ChunkDelay => (Canned::Drip, Pace::AtRandom(100), Measure::ChunkDelay),
            Self::BigBody => (Canned::Messages, Pace::WhenAnswered, Measure::Whole),
            Self::Translated => return Kind::Translated,
            Self::Rate => return Kind::Rate,
            Self::Memory => return Kind::Memory,
            Self::Peers => return Kind::Peers(Scenario::plain()),
        };
        Kind::Compared(Scenario {
            name: self.name(),
            canned,
            caller: canned.format(),
            body: match canned {
                Canned::Messages => messages_request(canned.name()),
                _ => short_request(canned.format(), canned.name(), true),
            },
            pace,
            measure,
            rounds_long: 1,
        })
    }
}

impl Scenario {
    /// As many plain calls as the target can serve.
    pub(crate) fn plain() -> Self {
        let canned = Canned::Plain;
        Self {
            name: ScenarioName::Plain.name(),
            canned,
            caller: canned.format(),
            body: short_request(canned.format(), canned.name(), false),
            pace: Pace::WhenAnswered,
            measure: Measure::Whole,
            rounds_long: 1,
        }
    }

    /// Plain calls, of which `calls` are sent per second.
    pub(crate) fn at_rate(calls: u32) -> Self {
        Self {
            name: ScenarioName::Rate.name(),
            pace: Pace::PerSecond(calls),
            // At a low rate, a round has few calls, so the round lasts twice as long.
            rounds_long: if calls <= 500 { 2 } else { 1 },
            ..Self::plain()
        }
    }

    /// As many streams as the target can serve, from a vendor of one format to a caller of the given format.
    pub(crate) fn translated(canned: Canned, caller: Format) -> Self {
        Self {
            name: ScenarioName::Translated.name(),
            canned,
            caller,
            body: short_request(caller, canned.name(), true),
            ..Self::plain()
        }
    }
}
