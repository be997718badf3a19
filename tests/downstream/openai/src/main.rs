//! A program that calls a model with async-openai and pays for each call from a prepaid account. The vendor is an axum
//! server in this program, with prepared answers.

use std::{sync::Arc, time::Duration};

use async_openai::{
    Client,
    config::OpenAIConfig,
    types::chat::{
        ChatCompletionRequestUserMessage, ChatCompletionStreamOptions, CreateChatCompletionRequest,
        CreateChatCompletionRequestArgs,
    },
};
use axum::{Router, body::to_bytes, extract, response::IntoResponse, routing::post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};
use tollgate_layers::{
    Error,
    call::Format,
    ceiling::Ceilings,
    error::BoxError,
    key::{AccountId, KeyDigest, KeyId, KeyRecord},
    money::MicroRub,
    passthrough::metered::MeteredLayer,
    price::{Price, Rate},
    reserve::{
        Bill, Event, Quote, ReserveLayer, Settler, SettlerSettings, Tariff,
        ledger::{Entry, Item, LedgerAdmin},
        memory::MemoryLedger,
    },
    usage::{Meter, Reading, Usage},
};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let base = format!("http://{}/v1", listener.local_addr()?);
    let vendor = Router::new().route("/v1/chat/completions", post(answer));
    tasks.spawn(async move { drop(axum::serve(listener, vendor).await) });
    let config = OpenAIConfig::new()
        .with_api_base(base)
        .with_api_key("our key at the vendor");
    let openai = Client::with_config(config);

    let (sales, bot): (AccountId, KeyId) = ("sales".parse()?, "bot".parse()?);
    let ledger = MemoryLedger::new();
    ledger.create_account(&sales, "Sales").await?;
    let budget = Entry {
        id: "november".into(),
        amount: "0.10".parse()?,
        reason: None,
    };
    ledger.enter(&sales, &budget).await?;
    let key = KeyRecord::new(bot.clone(), sales.clone(), KeyDigest::new([7; 32]));
    ledger.create_key(&key, Ceilings::NONE).await?;

    let (ends, mut ended) = mpsc::channel(16);
    let report = move |event: &Event<'_>| drop(ends.try_send(line(event)));
    let (settler, settling) = Settler::new(ledger.clone(), SettlerSettings::default(), report);
    tasks.spawn(settling.run());

    let tariff = PerToken {
        account: sales.clone(),
        key: bot,
        price: Arc::new(Price {
            input: rubles_per_million(100),
            output: rubles_per_million(400),
            ..Price::default()
        }),
    };
    let minute = Duration::from_secs(60);
    let service = ServiceBuilder::new()
        .layer(ReserveLayer::new(ledger.clone(), tariff, settler, minute))
        .layer(MeteredLayer::new(Format::Chat, 1 << 20))
        .service_fn(move |req| complete(openai.clone(), req));

    for (question, output_tokens_max, stream) in [
        ("How often to measure?", 100, false),
        ("How often to measure?", 100, true),
        ("Say something forbidden", 100, false),
        ("Write a novel", 10_000, false),
    ] {
        let request = ask(question, output_tokens_max, stream)?;
        match service.clone().oneshot(Request::new(request)).await {
            Ok(answer) => {
                let bytes = answer.into_body().collect().await?.to_bytes();
                println!("{question}\n  {}", text(&bytes)?);
            }
            Err(Error::DoesNotFit { needs, free, .. }) => {
                // A refused call held nothing, so no end of its hold is reported.
                println!("{question}\n  refused: costs up to {needs} ₽, {free} ₽ are free");
                continue;
            }
            Err(Error::Internal(cause)) => println!("{question}\n  failed: {cause}"),
            Err(error) => return Err(error.into()),
        }
        let end = ended.recv().await.ok_or("the settler has ended")?;
        let left = ledger.account(&sales).await?.balance_rub;
        println!("  {end}, {left} ₽ left");
    }
    Ok(())
}

type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// The service under the layers. Calls the model with async-openai, and returns the response as bytes, from which
/// `MeteredLayer` reads the usage.
async fn complete(
    openai: Client<OpenAIConfig>,
    req: Request<CreateChatCompletionRequest>,
) -> Result<Response<AnswerBody>, BoxError> {
    let request = req.into_body();
    let (body, content_type) = if request.stream == Some(true) {
        let chunks = openai.chat().create_stream(request).await?;
        let events =
            chunks.map(|chunk| Ok(format!("data: {}\n\n", serde_json::to_string(&chunk?)?)));
        let end = stream::once(async { Ok("data: [DONE]\n\n".to_owned()) });
        let frames = events.chain(end).map(|event: Result<_, BoxError>| {
            event.map(|text| http_body::Frame::data(text.into()))
        });
        (StreamBody::new(frames).boxed_unsync(), "text/event-stream")
    } else {
        let answer = serde_json::to_vec(&openai.chat().create(request).await?)?;
        let body = Full::from(answer).map_err(|never| match never {});
        (body.boxed_unsync(), "application/json")
    };
    let mut answer = Response::new(body);
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(answer)
}

/// One account pays for every call, and the price depends on the tokens.
struct PerToken {
    account: AccountId,
    key: KeyId,
    price: Arc<Price>,
}

impl Tariff<CreateChatCompletionRequest> for PerToken {
    type Bill = Tokens;

    fn quote(&self, req: &Request<CreateChatCompletionRequest>) -> Result<Quote<Tokens>, Error> {
        let request = req.body();
        let json = serde_json::to_vec(request).map_err(|error| Error::Internal(error.into()))?;
        let most = Usage {
            // A token has at least one byte, so the request has at most as many input tokens as bytes.
            input: json.len() as u64,
            output: request.max_completion_tokens.unwrap_or(4096).into(),
            ..Usage::default()
        };
        let bill = Tokens {
            model: request.model.clone(),
            price: Arc::clone(&self.price),
            meter: Meter::default(),
        };
        let meter = bill.meter.clone();
        let most = self.price.cost(&most);
        let mut quote = Quote::new(self.account.clone(), self.key.clone(), most, bill);
        quote.meter = meter;
        Ok(quote)
    }

    /// Passes the call's meter to `MeteredLayer`, which counts the usage of the response.
    fn granted(
        &self,
        req: &mut Request<CreateChatCompletionRequest>,
        bill: &mut Tokens,
        _: MicroRub,
    ) {
        req.extensions_mut().insert(bill.meter.clone());
    }
}

struct Tokens {
    model: String,
    price: Arc<Price>,
    meter: Meter,
}

impl Bill for Tokens {
    /// Runs at the end of each call. A response without usage is free, like a failed call.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        let usage = reading.usage?;
        let mut item = Item::new(&self.model, "vendor", reading.end?);
        item.usage = usage;
        item.price = Some(Arc::clone(&self.price));
        Some((self.price.cost(&usage), item))
    }
}

const fn rubles_per_million(rubles: u64) -> Rate {
    Rate::new(rubles * 1_000_000)
}

/// Returns a line for the output: what a call was charged, or that it was free.
fn line(event: &Event<'_>) -> String {
    match event {
        Event::Settled { settlement, .. } => format!("charged {} ₽", settlement.cost),
        Event::Released { .. } => "free".to_owned(),
        other => format!("{other:?}"),
    }
}

fn ask(
    question: &str,
    output_tokens_max: u32,
    stream: bool,
) -> Result<CreateChatCompletionRequest, BoxError> {
    let mut request = CreateChatCompletionRequestArgs::default();
    request
        .model("small")
        .max_completion_tokens(output_tokens_max)
        .messages([ChatCompletionRequestUserMessage::from(question).into()]);
    if stream {
        request
            .stream(true)
            .stream_options(ChatCompletionStreamOptions {
                include_usage: Some(true),
                include_obfuscation: None,
            });
    }
    Ok(request.build()?)
}

/// Returns the text of a response, streamed or not.
fn text(answer: &[u8]) -> Result<String, BoxError> {
    let mut text = String::new();
    for line in str::from_utf8(answer)?.lines() {
        let json = line.strip_prefix("data: ").unwrap_or(line);
        if json.is_empty() || json == "[DONE]" {
            continue;
        }
        let answer: Value = serde_json::from_str(json)?;
        for part in ["message", "delta"] {
            let words = &answer["choices"][0][part]["content"];
            text.push_str(words.as_str().unwrap_or_default());
        }
    }
    Ok(text)
}

/// Responds as the vendor: refuses one kind of request, and gives all other requests the same response.
async fn answer(req: extract::Request) -> Result<impl IntoResponse, StatusCode> {
    let body = to_bytes(req.into_body(), 1 << 20).await;
    let body = body.map_err(|_| StatusCode::BAD_REQUEST)?;
    let request: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let usage = json!({"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17});
    let (status, content_type, body) = if body.windows(9).any(|word| word == b"forbidden") {
        let error =
            json!({"error": {"message": "against the rules", "type": "invalid_request_error"}});
        (
            StatusCode::BAD_REQUEST,
            "application/json",
            error.to_string(),
        )
    } else if request["stream"] == true {
        let chunk = |choices: Value, usage: Value| {
            let chunk = json!({
                "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "small",
                "choices": choices, "usage": usage,
            });
            format!("data: {chunk}\n\n")
        };
        let delta = |delta: Value, finish: Value| json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
        let stream = [
            chunk(
                delta(
                    json!({"role": "assistant", "content": "Measure "}),
                    Value::Null,
                ),
                Value::Null,
            ),
            chunk(
                delta(json!({"content": "seven times."}), Value::Null),
                Value::Null,
            ),
            chunk(delta(json!({}), json!("stop")), Value::Null),
            chunk(json!([]), usage),
            "data: [DONE]\n\n".to_owned(),
        ];
        (StatusCode::OK, "text/event-stream", stream.concat())
    } else {
        let message = json!({"role": "assistant", "content": "Measure seven times."});
        let answer = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": "small",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage,
        });
        (StatusCode::OK, "application/json", answer.to_string())
    };
    Ok((status, [(CONTENT_TYPE, content_type)], body))
}
