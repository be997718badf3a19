//! Test calls to a vendor without a running gateway: one plain call and one stream.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tollgate_layers::{
    Error,
    call::{Attempt, Format, Operation, Priced},
    error::{VendorAnswered, VendorUnreached},
    model::{Model, ModelKind, Route},
    parse,
    price::{CallTimes, Currency, PriceList},
    upstream::Upstream,
    usage::Meter,
};
use tower::ServiceExt;

use crate::{
    catalog::prices::{BasePrices, Markup},
    config::{Config, ModelConfig, Tariff},
    edge::router::BoxedService,
    text::{causes::chain, similar::hint, time::now_ms},
};

/// A function that makes the service for calls to one vendor.
pub(crate) type OneVendor = fn(Upstream) -> BoxedService<Attempt>;

/// The maximum number of output tokens of a test call: the lowest maximum that vendors of every format accept.
const OUTPUT_TOKENS: u64 = 16;
const CALL_TIME_MAX: Duration = Duration::from_secs(60);
/// The maximum number of characters of a vendor's response that are shown.
const TEXT_CHARS_MAX: usize = 40;

/// Returns the first route to a vendor. `model` is the model's id or the vendor's name of the model; `None` matches any
/// model.
///
/// # Errors
/// An error if no model has a route to the vendor.
pub(crate) fn target<'c>(
    config: &'c Config,
    vendor: &str,
    model: Option<&str>,
) -> Result<(&'c ModelConfig, &'c Arc<Route>), String> {
    let models = &config.live.models;
    let is_meant = |it: &ModelConfig, route: &Route| {
        *route.vendor.name == *vendor
            && model.is_none_or(|model| it.id == model || route.model == model)
    };
    let found = models.iter().find_map(|it| {
        let route = it.routes.iter().find(|route| is_meant(it, route))?;
        Some((it, route))
    });
    found.ok_or_else(|| {
        let routes = models.iter().flat_map(|model| &model.routes);
        let names = routes.map(|route| &*route.vendor.name);
        let problem = match model {
            Some(model) => format!("no model {model:?} has a route to the vendor {vendor:?}"),
            None => format!("no model has a route to the vendor {vendor:?}"),
        };
        problem + &hint(vendor, names)
    })
}

/// Makes the test calls of each route, and describes each result as JSON. `result` is `ok` or `failed`; a failed call
/// also has `problem` and `advice`.
pub(crate) async fn calls(
    one_vendor: OneVendor,
    targets: &[(&ModelConfig, &Arc<Route>)],
) -> Vec<Value> {
    let service = one_vendor(Upstream::new(CALL_TIME_MAX));
    let mut calls = Vec::new();
    for (model, route) in targets {
        for stream in [false, true] {
            if stream && model.kind == ModelKind::Embedding {
                continue;
            }
            calls.push(call(&service, model, route, stream).await);
        }
    }
    calls
}

/// Makes one call and describes its result as JSON.
async fn call(
    service: &BoxedService<Attempt>,
    model: &ModelConfig,
    route: &Arc<Route>,
    stream: bool,
) -> Value {
    let meter = Meter::default();
    let began = Instant::now();
    let answer = timeout(CALL_TIME_MAX, answer(service, model, route, stream, &meter));
    let answer = answer.await.unwrap_or(Err(Error::VendorTimeout {
        awaited: "end of the answer",
    }));
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let reading = meter.read();
    let mut shown = json!({
        "vendor": &*route.vendor.name, "model": route.model, "ms": ms,
        "call": match (model.kind, stream) {
            (ModelKind::Embedding, _) => "embedding",
            (_, true) => "stream",
            (_, false) => "plain",
        },
    });
    match answer {
        Ok(text) => {
            shown["result"] = "ok".into();
            shown["answer"] = text.into();
        }
        Err(error) => {
            shown["result"] = "failed".into();
            shown["problem"] = chain(&error).into();
            shown["advice"] = advice(&error, route).into();
        }
    }
    if let Some(usage) = reading.usage {
        shown["input"] = usage.input_total().into();
        shown["output"] = usage.output.into();
        let (vendor, model_there) = (&*route.vendor.name, route.model.as_str());
        if let Some(prices) = base_prices(model) {
            let times = CallTimes::at(now_ms());
            let (charge, cost) =
                prices.charge_of(usage, &reading.served, &times, vendor, model_there);
            let known = model.route_costs.iter();
            let mut known = known.filter(|it| (&*it.vendor, &*it.model) == (vendor, model_there));
            let known = known.next_back().map(|it| it.base.currency);
            let field = match known.unwrap_or(model.base.currency) {
                Currency::Usdt => "cost_usdt",
                Currency::Rub => "cost_rub",
            };
            shown[field] = cost.unwrap_or(charge.cost).to_string().into();
        }
    }
    shown
}

/// Returns the text of the vendor's response.
async fn answer(
    service: &BoxedService<Attempt>,
    model: &ModelConfig,
    route: &Arc<Route>,
    stream: bool,
    meter: &Meter,
) -> Result<String, Error> {
    let is_embedding = model.kind == ModelKind::Embedding;
    let (operation, body) = if is_embedding {
        let body = json!({ "model": model.id, "input": "Hello" });
        (Operation::Embeddings, body)
    } else {
        let body = json!({
            "model": model.id, "messages": [{ "role": "user", "content": "Answer with one word: ok" }],
            "max_completion_tokens": OUTPUT_TOKENS, "stream": stream,
        });
        (Operation::Chat, body)
    };
    let call = parse::call(operation, &Bytes::from(body.to_string()), 10)?;
    let priced = Priced {
        call: Arc::new(call),
        model: Arc::new(
            Model::new(&*model.id, model.output_tokens_max.max(OUTPUT_TOKENS)).kind(model.kind),
        ),
        prices: base_prices(model)
            .unwrap_or_else(|| PriceList::from(tollgate_layers::price::Price::default())),
        output_tokens: OUTPUT_TOKENS,
        meter: meter.clone(),
    };
    let attempt = Attempt {
        priced,
        route: route.speaking(Format::Chat),
        credential: 0,
    };
    let res = service.clone().oneshot(Request::new(attempt)).await?;
    let body = res.into_body().collect().await?.to_bytes();
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = if stream {
        streamed_text(&body)
    } else if is_embedding {
        let numbers = answer["data"][0]["embedding"].as_array();
        format!("{} numbers", numbers.map_or(0, Vec::len))
    } else {
        let text = answer["choices"][0]["message"]["content"].as_str();
        text.unwrap_or_default().to_owned()
    };
    let text: String = text.chars().take(TEXT_CHARS_MAX).collect();
    Ok(text.replace(|c: char| c.is_control(), " "))
}

/// Returns the text of a stream of the Chat Completions format.
fn streamed_text(body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let texts = events.filter_map(|event| {
        let text = event["choices"][0]["delta"]["content"].as_str();
        text.map(str::to_owned)
    });
    texts.collect()
}

/// Returns the model's base prices as they are configured: not converted to rubles, and without the multiplier.
fn base_prices(model: &ModelConfig) -> Option<PriceList> {
    let markup = Markup {
        tariff: Tariff::AT_COST,
        version: 0,
    };
    markup.rubles(&BasePrices::from(model), Decimal::ONE)
}

/// Returns advice for the operator: what to change in the settings or at the vendor.
fn advice(error: &Error, route: &Route) -> String {
    let model = &route.model;
    match error {
        Error::VendorKeyRefused {
            status: StatusCode::PAYMENT_REQUIRED,
        } => "top up the account at the vendor".to_owned(),
        Error::VendorKeyRefused {
            status: StatusCode::FORBIDDEN,
        } => format!(
            "allow the key to call the model {model:?}, or call from a country that the vendor serves (proxy)"
        ),
        Error::VendorKeyRefused { .. } => "check the vendor's key or login".to_owned(),
        Error::VendorLimit { .. } => "raise the limit at the vendor, or try again later".to_owned(),
        Error::VendorUnavailable(cause) => {
            if let Some(answered) = cause.downcast_ref::<VendorAnswered>() {
                return match answered.status {
                    StatusCode::NOT_FOUND => {
                        format!("check the vendor's url and path, and the route's model {model:?}")
                    }
                    _ => "try again later; the vendor reports an internal fault".to_owned(),
                };
            }
            match cause.downcast_ref::<VendorUnreached>() {
                Some(VendorUnreached(text)) if text.starts_with("login: ") => {
                    "check the vendor's login".to_owned()
                }
                Some(VendorUnreached(text)) if text.contains("certificate") => {
                    "set ca_file to the PEM file of the authority that issued the vendor's certificate".to_owned()
                }
                Some(_) => "check the vendor's url and proxy, and the firewall".to_owned(),
                None => "try again later; the connection to the vendor broke".to_owned(),
            }
        }
        Error::VendorTimeout { .. } => {
            "check the vendor's url and proxy, or try again later".to_owned()
        }
        Error::VendorRefused { .. } => {
            "check the model's fields, such as output_field, system_role and sampling".to_owned()
        }
        Error::VendorBroken(_) => {
            "check the vendor's format and url: the response is not in this format".to_owned()
        }
        _ => "the problem text names the cause".to_owned(),
    }
}
