//! The endpoints at which charged calls are made.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The endpoint at which a call was made. The text form is the path after the version, for example `chat/completions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    #[serde(rename = "chat/completions")]
    ChatCompletions,
    /// `POST /v1/messages`.
    #[serde(rename = "messages")]
    Messages,
    /// `POST /v1/responses`.
    #[serde(rename = "responses")]
    Responses,
    /// `POST /v1/embeddings`.
    #[serde(rename = "embeddings")]
    Embeddings,
}

impl Endpoint {
    /// All endpoints, in the order in which they are displayed.
    pub const ALL: [Self; 4] = [
        Self::ChatCompletions,
        Self::Messages,
        Self::Responses,
        Self::Embeddings,
    ];

    /// Returns the name of the endpoint in receipts and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat/completions",
            Self::Messages => "messages",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not the name of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be one of chat/completions, messages, responses, embeddings")]
pub struct EndpointError;

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(word: &str) -> Result<Self, EndpointError> {
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.as_str() == word).ok_or(EndpointError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_round_trips_as_its_name() {
        for endpoint in Endpoint::ALL {
            let json = serde_json::to_string(&endpoint).unwrap();
            assert_eq!(json, format!("\"{endpoint}\""));
            assert_eq!(serde_json::from_str::<Endpoint>(&json).unwrap(), endpoint);
            assert_eq!(endpoint.as_str().parse(), Ok(endpoint));
            assert!(EndpointError.to_string().contains(endpoint.as_str()));
        }
        for other in ["", "Messages", "/v1/messages", "chat"] {
            assert_eq!(other.parse::<Endpoint>(), Err(EndpointError), "{other}");
        }
    }
}
