//! Scenarios: which calls are sent, at which pace, and what is measured in their answers.

use bytes::Bytes;
use clap::ValueEnum;
use tollgate_layers::call::Format;

use crate::fixtures::{Canned, messages_request, short_request};

/// The scenarios by name, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ScenarioName {
    /// Plain calls, as many as the target can serve.
    Plain,
    /// Plain calls at 500 per second: shows the time that the gateway adds when it is not busy.
    Paced,
    /// Streams of 100 chunks that are ready at once, as many as possible.
    Stream,
    /// Streams whose chunks are sent at a steady pace. 100 streams per second begin at random moments, and the time to
    /// the first byte is measured.
    FirstByte,
    /// The same streams as `FirstByte`; measures the delay of each chunk.
    ChunkDelay,
    /// Plain calls of the messages format with a request of 76 KB, as many as possible.
    BigBody,
    /// Streams translated from one format to another, compared with the same vendor's stream passed through.
    Translated,
    /// Plain calls at increasing rates: latency and CPU time against the rate.
    Rate,
    /// Streams that stay open: memory of the idle process and of each stream.
    Memory,
    /// Plain calls through other proxies and gateways too (`benches/peers install`). Runs only if it is named.
    Peers,
}

/// How a scenario is run.
pub(crate) enum Kind {
    /// The same load on the bare proxy and on each gateway.
    Compared(Scenario),
    Translated,
    Rate,
    Memory,
    Peers(Scenario),
}

/// A load: which calls are sent, at which pace, and what is measured in their answers.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The vendor's answer.
    pub(crate) canned: Canned,
    /// The format that the caller speaks.
    pub(crate) caller: Format,
    pub(crate) body: Bytes,
    pub(crate) pace: Pace,
    pub(crate) measure: Measure,
    /// The length of a round as a multiple of the usual length. Scenarios with few calls need longer rounds, because
    /// p99 needs many calls.
    pub(crate) rounds_long: u32,
}

/// When the next call is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// On each connection, as soon as the previous call is answered.
    WhenAnswered,
    /// This number per second, whether or not earlier calls are answered.
    PerSecond(u32),
    /// This number per second, at random moments that are the same in each run. If streams began at even intervals,
    /// their chunks would be sent at the same moments, and the measured delay would be that of a burst.
    AtRandom(u32),
}

/// The time that is measured for each answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    /// From the request to the answer's last byte.
    Whole,
    /// From the request to the first byte of the answer's body.
    FirstByte,
    /// For each chunk: from its sending by the vendor to its arrival at the client.
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
    /// Plain calls, as many as the target can serve.
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

    /// Plain calls at this number per second.
    pub(crate) fn at_rate(calls: u32) -> Self {
        Self {
            name: ScenarioName::Rate.name(),
            pace: Pace::PerSecond(calls),
            // At a low rate a round has few calls, so it lasts twice as long.
            rounds_long: if calls <= 500 { 2 } else { 1 },
            ..Self::plain()
        }
    }

    /// A vendor's stream to a caller of a format, as many as possible.
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
