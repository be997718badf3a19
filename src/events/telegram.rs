//! Sends an event as a Telegram bot's message: <https://core.telegram.org/bots/api#sendmessage>.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::{Value, json};
use tollgate_ledger::happening::Event;

use super::{
    webhook::{Sent, failed, in_time},
    words,
};
use crate::{
    config::TelegramConfig,
    net::https::{self, HttpsClient},
    text::causes::chain,
};

const PATIENCE: Duration = Duration::from_secs(15);
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The longest pause that the gateway accepts from Telegram's API before the next message.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// A receiver that gets events as a bot's messages in a Telegram chat.
pub(super) struct Telegram {
    /// The URL of the method `sendMessage`. It contains the bot's token, so it is secret.
    url: Uri,
    pub(super) chat: String,
    utc_offset_minutes: i32,
    client: HttpsClient,
}

impl Telegram {
    pub(super) fn new(config: &TelegramConfig) -> Self {
        Self {
            url: config.url.clone(),
            chat: config.chat.clone(),
            utc_offset_minutes: config.utc_offset_minutes,
            client: https::client_trusting(config.authorities.as_ref()),
        }
    }

    pub(super) async fn send(&self, event: &Event) -> Sent {
        in_time(PATIENCE, self.post(event)).await
    }

    async fn post(&self, event: &Event) -> Sent {
        let body = json!({
            "chat_id": self.chat,
            "text": words::text(event, self.utc_offset_minutes),
            "link_preview_options": { "is_disabled": true },
        });
        let req = Request::post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .expect("the configuration has checked the address");
        let res = match self.client.request(req).await {
            Ok(res) => res,
            Err(error) => return failed(format!("no answer: {}", chain(&error))),
        };
        let status = res.status();
        let body = Limited::new(res.into_body(), ANSWER_BYTES_MAX);
        let body = body.collect().await.map(|body| body.to_bytes());
        let body = body.unwrap_or_default();
        reported(status, &serde_json::from_slice(&body).unwrap_or_default())
    }
}

fn reported(status: StatusCode, answer: &Value) -> Sent {
    if status.is_success() && answer["ok"] == true {
        return Sent::Taken;
    }
    let words = answer["description"].as_str().unwrap_or_default();
    let words: String = words.chars().take(200).collect();
    let seconds = answer["parameters"]["retry_after"].as_u64();
    Sent::Failed {
        why: format!("answered {status} {}", words.replace(char::is_control, " ")),
        retry_after: seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX)),
    }
}

impl fmt::Debug for Telegram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telegram")
            .field("chat", &self.chat)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telegram_message_counts_as_delivered_only_if_ok_is_true_in_the_response() {
        let of =
            |status: u16, answer: Value| reported(StatusCode::from_u16(status).unwrap(), &answer);
        assert_eq!(of(200, json!({ "ok": true, "result": {} })), Sent::Taken);
        for (status, answer, seconds) in [
            (200, json!("<html>"), None),
            (
                400,
                json!({ "ok": false, "description": "Bad Request: chat not found" }),
                None,
            ),
            (
                429,
                json!({ "ok": false, "parameters": { "retry_after": 7 } }),
                Some(7),
            ),
            (
                429,
                json!({ "ok": false, "parameters": { "retry_after": 999_999 } }),
                Some(3600),
            ),
        ] {
            let Sent::Failed { why, retry_after } = of(status, answer) else {
                panic!("{status}");
            };
            assert!(why.contains(&status.to_string()), "{why}");
            assert_eq!(retry_after, seconds.map(Duration::from_secs));
        }
    }
}
