//! The tariff of model calls: tokens at the rates of the call's snapshot.

use std::sync::Arc;

use http::Request;
use serde::{Deserialize, Serialize};

use super::{Bill, Quote, Tariff, ledger::Item};
use crate::{
    call::{InputSize, Priced},
    error::{Error, Problem},
    facts::Caller,
    model::Model,
    money::MicroRub,
    price::{Asked, Bound, Class, PriceList},
    session::SessionId,
    usage::{Bounds, Counted, ESTIMATE_BYTES, End, Reading},
};

/// How a request's text is turned into a bound of its input tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum HoldMode {
    /// 1.5 bytes a token: no ordinary text has fewer (base64, the densest, has 1.8).
    #[default]
    Usual,
    /// 1 byte a token: no byte-level tokenizer can do worse.
    Strict,
}

/// Tokens that formats add around each message, each tool, and the whole.
const MESSAGE_TOKENS: u64 = 8;
const TOOL_TOKENS: u64 = 64;
const CALL_TOKENS: u64 = 512;
/// Bytes of an inline document, as sent, for one token.
const DOCUMENT_BYTES: u64 = 7;
/// No model takes more, where the catalog does not say.
const CONTEXT_TOKENS_MAX: u64 = 10_000_000;

/// Holds by the size of the input and the ceiling of the output; charges by the usage.
#[derive(Clone, Copy, Debug)]
pub struct ByTokens {
    mode: HoldMode,
    image_tokens: u64,
    document_tokens: u64,
}

impl ByTokens {
    /// Image and document bytes are not text: each part holds a constant number of tokens.
    #[must_use]
    pub const fn new(mode: HoldMode, image_tokens: u64, document_tokens: u64) -> Self {
        Self {
            mode,
            image_tokens,
            document_tokens,
        }
    }

    /// The bound of input tokens that the hold is computed with.
    fn input_bound(&self, input: &InputSize, context: Option<u64>) -> u64 {
        let text = match self.mode {
            HoldMode::Usual => input.text_bytes.saturating_mul(2).div_ceil(3),
            HoldMode::Strict => input.text_bytes,
        };
        let parts = input.images.saturating_mul(self.image_tokens)
            + input.documents.saturating_mul(self.document_tokens);
        // Text that alone is past the context window is not cut down to it: whoever takes it has a
        // larger one.
        (text + overhead(input) + parts).min(context.unwrap_or(u64::MAX).max(text))
    }

    /// What no honest usage exceeds. Text is at least a byte a token; what else there is can weigh
    /// anything up to the context window.
    fn input_limit(&self, input: &InputSize, context: Option<u64>) -> u64 {
        let text = input.text_bytes + overhead(input);
        if input.images + input.documents == 0 {
            return text;
        }
        text.max(context.unwrap_or(CONTEXT_TOKENS_MAX))
    }

    /// The input of a call whose vendor never said.
    fn input_estimate(&self, input: &InputSize, bound: u64) -> u64 {
        let documents = input.documents.saturating_mul(self.document_tokens);
        let parts = input.images.saturating_mul(self.image_tokens)
            + documents.min(input.binary_bytes / DOCUMENT_BYTES);
        let text = input.text_bytes / ESTIMATE_BYTES + input.messages * MESSAGE_TOKENS;
        (text + parts).clamp(1, bound.max(1))
    }
}

const fn overhead(input: &InputSize) -> u64 {
    CALL_TOKENS + input.messages * MESSAGE_TOKENS + input.tools * TOOL_TOKENS
}

impl Tariff<Priced> for ByTokens {
    type Bill = TokenBill;

    fn quote(&self, req: &Request<Priced>) -> Result<Quote<TokenBill>, Error> {
        let Caller(key) = Caller::of(req)?;
        let Priced {
            call,
            model,
            prices,
            output_tokens,
            meter,
        } = req.body();
        let input_bound = self.input_bound(&call.input, model.input_tokens_max);
        // What is held for is what may come: a call that may be dear is not sold at the cheap price, though it might
        // turn out to be short enough.
        if let Some(max) = model
            .input_tokens_priced_max
            .filter(|max| input_bound > *max)
        {
            let problem = Problem::InputUnpriced {
                tokens: input_bound,
                max,
            };
            return Err(Error::invalid("messages", problem));
        }
        let mut asked = call
            .asks
            .as_ref()
            .map_or_else(Asked::default, |asks| *asks.asked());
        *asked.classes.get_mut(Class::InputImage) = call.input.images;
        let bound = prices.bound(input_bound, &asked);
        let cost = |output: u64| bound.cost(input_bound, output.saturating_mul(call.choices));
        let want = cost(*output_tokens);
        // The client's own ceiling is held in full; ours gives way where funds are short.
        let least = match call.output_tokens {
            Some(_) => want,
            None => cost(model.output_tokens_min.min(*output_tokens)),
        };
        Ok(Quote {
            account: key.account.clone(),
            key: key.id.clone(),
            want,
            least,
            meter: meter.clone(),
            finish_without_client: !call.stream,
            tells_cost: call.usage_asked,
            bill: TokenBill {
                prices: prices.clone(),
                bound,
                model: Arc::clone(model),
                bounds: Bounds {
                    input_bound,
                    input_limit: self.input_limit(&call.input, model.input_tokens_max),
                    input_estimate: self.input_estimate(&call.input, input_bound),
                    output_bound: output_tokens.saturating_mul(call.choices),
                    output_limit: model.output_tokens_max.saturating_mul(call.choices),
                    calls_max: Some(asked.classes.get(Class::WebSearchCall)).filter(|max| *max > 0),
                    cache_write: call.asks.as_ref().and_then(|asks| asks.cache_write()),
                },
                session: call.session.clone(),
            },
        })
    }

    fn granted(&self, req: &mut Request<Priced>, bill: &mut TokenBill, held: MicroRub) {
        let priced = req.body_mut();
        if priced.call.output_tokens.is_none() {
            let choices = priced.call.choices.max(1);
            let bounds = &mut bill.bounds;
            let paid_for = bill.bound.output_tokens_for(held, bounds.input_bound) / choices;
            priced.output_tokens = priced.output_tokens.min(paid_for).max(1);
            bounds.output_bound = priced.output_tokens.saturating_mul(choices);
        }
        // Whoever reads an answer without usage can put in what will be charged.
        priced.meter.charge_within(bill.bounds);
    }
}

/// What is kept of a model call to charge it.
#[derive(Debug)]
pub struct TokenBill {
    prices: PriceList,
    bound: Bound,
    model: Arc<Model>,
    bounds: Bounds,
    session: Option<SessionId>,
}

impl Bill for TokenBill {
    /// Finished calls cost what the vendor says, within what is possible. Calls that broke off or
    /// were left cost the input and the output seen, estimated where the vendor has not said. Where
    /// nothing was delivered and nothing reported, only a client that left pays, for the input.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        if !reading.dispatched {
            return None;
        }
        let end = reading.end.unwrap_or(End::ClientLeft);
        let delivered = reading.text_bytes > 0 || end == End::Finished;
        let left = end == End::ClientLeft || reading.client_gone;
        if reading.usage.is_none() && !delivered && !left {
            return None;
        }
        let Counted {
            usage,
            estimated,
            bounded,
        } = self.bounds.count(reading);
        if usage.is_zero() {
            return None;
        }
        let vendor = reading.vendor.as_deref().unwrap_or_default();
        let vendor_model = reading.vendor_model.as_deref().unwrap_or_default();
        let (charge, vendor_cost_rub) =
            self.prices
                .charge_of(usage, &reading.served, vendor, vendor_model);
        let item = Item {
            model: self.model.id.clone(),
            vendor: vendor.to_owned(),
            usage: charge.usage,
            price: Some(charge.price),
            estimated,
            bounded,
            unpriced: charge.unpriced || reading.unknown,
            vendor_cost_rub,
            end,
            session: self.session.clone(),
        };
        Some((charge.cost, item))
    }
}

impl TokenBill {
    /// The input tokens that the hold pays for, whatever their class.
    #[must_use]
    pub const fn input_tokens_max(&self) -> u64 {
        self.bounds.input_bound
    }

    /// The output tokens that the hold pays for, all choices together.
    #[must_use]
    pub const fn output_tokens_max(&self) -> u64 {
        self.bounds.output_bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        price::{Price, Rate},
        usage::Usage,
    };

    fn bill() -> TokenBill {
        let rate = Rate::new(1_000_000);
        let prices = PriceList::from(Price {
            input: rate,
            cached_input: rate,
            output: rate,
            cache_write: rate,
            version: 1,
            exchange_rate: "1".into(),
            ..Price::default()
        });
        TokenBill {
            bound: prices.bound(100, &Asked::default()),
            prices,
            model: Arc::new(Model {
                id: "m".into(),
                family: "f".into(),
                output_tokens_max: 50,
                output_tokens_min: 1,
                output_tokens_default: None,
                input_tokens_max: None,
                input_tokens_priced_max: None,
                sticky: false,
                routes: vec![],
            }),
            bounds: Bounds {
                input_bound: 100,
                input_limit: 150,
                input_estimate: 20,
                output_bound: 50,
                output_limit: 60,
                ..Bounds::default()
            },
            session: Some("s-1".parse().unwrap()),
        }
    }

    fn usage(input: u64, output: u64) -> Option<Usage> {
        Some(Usage {
            input,
            output,
            ..Usage::default()
        })
    }

    #[test]
    fn a_call_costs_what_decisions_say() {
        let reading = |usage, text_bytes, end| Reading {
            dispatched: true,
            usage,
            text_bytes,
            end,
            vendor: Some("answered".into()),
            ..Reading::default()
        };
        let (done, cut, error) = (
            Some(End::Finished),
            Some(End::VendorCut),
            Some(End::VendorError),
        );
        // name, reading, charge in micro-rubles, estimated
        for (name, reading, charge) in [
            ("never sent", Reading::default(), None),
            (
                "finished",
                reading(usage(10, 5), 16, done),
                Some((15, false)),
            ),
            (
                "finished, usage beyond the hold",
                reading(usage(120, 5), 16, done),
                Some((125, false)),
            ),
            (
                "finished, absurd usage",
                reading(usage(1 << 60, 1 << 60), 16, done),
                Some((150, true)),
            ),
            (
                "finished, no usage",
                reading(None, 16, done),
                Some((24, true)),
            ),
            (
                "finished, zero usage",
                reading(usage(0, 0), 16, done),
                Some((24, true)),
            ),
            (
                "finished, output zero and empty",
                reading(usage(10, 0), 0, done),
                Some((10, false)),
            ),
            (
                "client left at once",
                reading(None, 0, None),
                Some((20, true)),
            ),
            (
                "client left, input known",
                reading(usage(10, 1), 16, None),
                Some((14, true)),
            ),
            (
                "vendor failed before anything",
                reading(None, 0, error),
                None,
            ),
            (
                "vendor failed with usage",
                reading(usage(10, 1), 0, error),
                Some((11, false)),
            ),
            (
                "vendor cut after text",
                reading(None, 16, cut),
                Some((24, true)),
            ),
        ] {
            let charged = bill().charge(&reading).map(|(cost, item)| {
                assert_eq!(item.vendor, "answered", "{name}");
                assert_eq!(item.bounded, name == "finished, absurd usage", "{name}");
                assert_eq!(item.session.as_deref(), Some("s-1"), "{name}");
                (cost.micro(), item.estimated)
            });
            assert_eq!(charged, charge, "{name}");
        }
    }
}
