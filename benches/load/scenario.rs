//! What is sent, how, and what is measured of the answers.

use bytes::Bytes;
use clap::ValueEnum;
use tollgate_layers::call::Format;

use crate::fixtures::{Canned, messages_request, short_request};

/// The scenarios by name, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ScenarioName {
    /// Plain calls, as many as go through.
    Plain,
    /// Plain calls at 500 a second: what the gateway adds when it is not busy.
    Paced,
    /// Streams of 100 chunks that are there at once, as many as go through.
    Stream,
    /// Streams at a steady pace, 100 a second begun at random moments: time to the first byte.
    FirstByte,
    /// The same streams: how long a chunk is under way.
    ChunkDelay,
    /// Plain calls of the messages format with a request of 76 KB, as many as go through.
    BigBody,
    /// Streams from one format to the other, beside the vendor's own stream passed through.
    Translated,
    /// Plain calls at more and more a second: latency and CPU time against the rate.
    Rate,
    /// Streams that stay open: memory of the idle process and of each stream.
    Memory,
    /// Plain calls through one gateway, then through two on the same Redis.
    TwoGateways,
}

/// How a scenario is run.
pub(crate) enum Kind {
    /// The same load on the bare proxy and on each gateway.
    Compared(Scenario),
    Translated,
    Rate,
    Memory,
    TwoGateways,
}

/// One load.
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
    /// So many times as long as a round is otherwise: p99 wants calls.
    pub(crate) rounds_long: u32,
}

/// When the next call is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// On each connection when the last one is answered.
    WhenAnswered,
    /// So many each second, whether or not the earlier ones are answered.
    PerSecond(u32),
    /// As many, at moments that are random and the same each time: streams begun evenly would send
    /// their chunks in step, and what is measured of a chunk would be a burst's.
    AtRandom(u32),
}

/// What is taken down of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    /// From the request to the answer's last byte.
    Whole,
    /// From the request to the first byte of the answer's body.
    FirstByte,
    /// Of each chunk: from the vendor to here.
    ChunkDelay,
}

impl ScenarioName {
    /// As [`ValueEnum`] reads it, and the results file.
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
            Self::TwoGateways => "two_gateways",
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
            Self::TwoGateways => return Kind::TwoGateways,
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
    /// Plain calls, as many as go through.
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

    /// Plain calls, so many a second.
    pub(crate) fn at_rate(calls: u32) -> Self {
        Self {
            name: ScenarioName::Rate.name(),
            pace: Pace::PerSecond(calls),
            // A slow pace has few calls.
            rounds_long: if calls <= 500 { 2 } else { 1 },
            ..Self::plain()
        }
    }

    /// A vendor's stream to a caller of a format, as many as go through.
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
