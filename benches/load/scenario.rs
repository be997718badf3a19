//! What is sent, how, and what is measured of the answers.

use bytes::Bytes;
use clap::ValueEnum;
use tollgate_layers::call::Format;

use crate::fixtures::{Canned, chat_request, messages_request};

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
    /// Streams at a steady pace, 100 begun each second: time to the first byte.
    FirstByte,
    /// The same streams: how long a chunk is under way.
    ChunkDelay,
    /// Plain calls of the messages format with a request of 76 KB, as many as go through.
    BigBody,
}

/// One scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The vendor's answer.
    pub(crate) canned: Canned,
    pub(crate) body: Bytes,
    pub(crate) pace: Pace,
    pub(crate) measure: Measure,
}

/// When the next call is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// On each connection when the last one is answered.
    WhenAnswered,
    /// So many each second, whether or not the earlier ones are answered.
    PerSecond(u32),
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
    pub(crate) fn scenario(self) -> Scenario {
        let (name, canned, pace, measure) = match self {
            Self::Plain => ("plain", Canned::Plain, Pace::WhenAnswered, Measure::Whole),
            Self::Paced => ("paced", Canned::Plain, Pace::PerSecond(500), Measure::Whole),
            Self::Stream => ("stream", Canned::Stream, Pace::WhenAnswered, Measure::Whole),
            Self::FirstByte => (
                "first_byte",
                Canned::Drip,
                Pace::PerSecond(100),
                Measure::FirstByte,
            ),
            Self::ChunkDelay => (
                "chunk_delay",
                Canned::Drip,
                Pace::PerSecond(100),
                Measure::ChunkDelay,
            ),
            Self::BigBody => (
                "big_body",
                Canned::Messages,
                Pace::WhenAnswered,
                Measure::Whole,
            ),
        };
        let body = match canned {
            Canned::Messages => messages_request(canned.name()),
            Canned::Plain => chat_request(canned.name(), false),
            Canned::Stream | Canned::Drip => chat_request(canned.name(), true),
        };
        Scenario {
            name,
            canned,
            body,
            pace,
            measure,
        }
    }
}

impl Scenario {
    /// Where a gateway takes the calls.
    pub(crate) const fn gateway_path(&self) -> &'static str {
        match self.canned.format() {
            Format::Chat => "/v1/chat/completions",
            Format::Messages => "/v1/messages",
        }
    }
}
