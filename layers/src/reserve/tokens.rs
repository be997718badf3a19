//! The tariff of model calls: tokens at the rates of the call's snapshot.

use std::sync::Arc;

use http::Request;
use serde::{Deserialize, Serialize};

use super::{Bill, Quote, Tariff, ledger::Item};
use crate::{
    call::{Format, InputSize, Priced},
    endpoint::Endpoint,
    error::{Error, Problem},
    facts::Caller,
    model::{Model, ModelKind},
    money::MicroRub,
    price::{Asked, Bound, Class, Counts, PriceList},
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
/// What a model for embeddings puts around each input: its marks, and instructions of its own.
const INPUT_TOKENS: u64 = 32;
/// Bytes of an inline document, as sent, for one token.
const DOCUMENT_BYTES: u64 = 7;
/// No model takes more, where the catalog does not say.
const CONTEXT_TOKENS_MAX: u64 = 10_000_000;
/// What a search of the web brings, where nobody says otherwise. Anthropic's example of a call with one has 14 573 tokens
/// of input, all but 105 of them written to the cache and read from it again
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/web-search-tool>).
const SEARCH_TOKENS: u64 = 15_000;

/// Holds by the size of the input and the ceiling of the output; charges by the usage.
#[derive(Clone, Copy, Debug)]
pub struct ByTokens {
    mode: HoldMode,
    image_tokens: u64,
    document_tokens: u64,
    search_tokens: u64,
}

impl ByTokens {
    /// Image and document bytes are not text: each part holds a constant number of tokens.
    #[must_use]
    pub const fn new(mode: HoldMode, image_tokens: u64, document_tokens: u64) -> Self {
        Self {
            mode,
            image_tokens,
            document_tokens,
            search_tokens: SEARCH_TOKENS,
        }
    }

    /// What a search of the web brings that the vendor runs is input as well: each that a request allows holds so many
    /// tokens, 15 000 otherwise.
    #[must_use]
    pub const fn search_tokens(mut self, tokens: u64) -> Self {
        self.search_tokens = tokens;
        self
    }

    /// The bound of input tokens that the hold is computed with. `apart` is what the request asks for that is billed apart.
    fn input_bound(&self, input: &InputSize, apart: &Counts, context: Option<u64>) -> InputBound {
        let text = match self.mode {
            HoldMode::Usual => input.text_bytes.saturating_mul(2).div_ceil(3),
            HoldMode::Strict => input.text_bytes,
        } + input.tokens;
        let parts = (input.images.saturating_mul(self.image_tokens)
            + input.documents.saturating_mul(self.document_tokens))
        .saturating_add(apart.get(Class::InputAudio));
        // Each input has the window for itself. Text that alone is past it is not cut down to it: whoever takes it
        // has a larger one.
        let window = context.map_or(u64::MAX, |tokens| {
            tokens.saturating_mul(input.inputs.max(1)).max(text)
        });
        let first = (text + overhead(input)).saturating_add(parts);
        let searches = apart.get(Class::WebSearchCall);
        if searches == 0 {
            let tokens = first.min(window);
            return InputBound {
                tokens,
                longest_step: tokens,
            };
        }
        // Behind each search all is read again, with what all searches until then have found.
        let steps = steps(apart);
        let found = |times: u64| times.saturating_mul(self.search_tokens);
        let all_steps = first.saturating_mul(steps);
        InputBound {
            tokens: all_steps
                .saturating_add(found(searches.saturating_mul(steps) / 2))
                .min(window.saturating_mul(steps)),
            longest_step: first.saturating_add(found(searches)).min(window),
        }
    }

    /// What no honest usage exceeds. Text is at least a byte a token; what else there is can weigh
    /// anything up to the context window.
    fn input_limit(&self, input: &InputSize, apart: &Counts, context: Option<u64>) -> u64 {
        let text = input.text_bytes + input.tokens + overhead(input);
        let steps = steps(apart);
        if input.images + input.documents + apart.get(Class::InputAudio) == 0 && steps == 1 {
            return text;
        }
        let context = context.unwrap_or(CONTEXT_TOKENS_MAX);
        text.max(context.saturating_mul(steps))
    }

    /// The input of a call whose vendor never said.
    fn input_estimate(&self, input: &InputSize, sound: u64, bound: u64) -> u64 {
        let documents = input.documents.saturating_mul(self.document_tokens);
        let parts = input.images.saturating_mul(self.image_tokens)
            + documents.min(input.binary_bytes / DOCUMENT_BYTES);
        let text = input.text_bytes / ESTIMATE_BYTES + input.messages * MESSAGE_TOKENS;
        (text + input.tokens + parts)
            .saturating_add(sound)
            .clamp(1, bound.max(1))
    }
}

/// The most input tokens that a call can be billed for, as far as a hold foresees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InputBound {
    /// Those of all its steps.
    tokens: u64,
    /// Those of the longest of them: what a vendor's window and its prices of long calls are for.
    longest_step: u64,
}

/// How often the vendor may read the input for one call: once, and again behind each search that it runs.
const fn steps(apart: &Counts) -> u64 {
    apart.get(Class::WebSearchCall).saturating_add(1)
}

const fn overhead(input: &InputSize) -> u64 {
    if input.inputs > 0 {
        return input.inputs * INPUT_TOKENS;
    }
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
        let mut asked = call
            .asks
            .as_ref()
            .map_or_else(Asked::default, |asks| *asks.asked());
        let sound = asked.classes.get(Class::InputAudio);
        let InputBound {
            tokens: input_bound,
            longest_step,
        } = self.input_bound(&call.input, &asked.classes, model.input_tokens_max);
        // What is held for is what may come: a call that may be dear is not sold at the cheap price, though it might
        // turn out to be short enough.
        if let Some(max) = model
            .input_tokens_priced_max
            .filter(|max| longest_step > *max)
        {
            let problem = Problem::InputUnpriced {
                tokens: longest_step,
                max,
            };
            let field = match (call.kind, call.format) {
                (ModelKind::Embedding, _) | (_, Format::Responses) => "input",
                (ModelKind::Chat, Format::Chat | Format::Messages) => "messages",
            };
            return Err(Error::invalid(field, problem));
        }
        *asked.classes.get_mut(Class::InputImage) = call.input.images;
        let bound = prices.bound(input_bound, &asked);
        let cost = |output: u64| bound.cost(input_bound, output.saturating_mul(call.choices));
        let output_tokens = sent_at_most(call.format, model, *output_tokens);
        let want = cost(output_tokens);
        // The client's own ceiling is held in full; ours gives way where funds are short.
        let least = match call.output_tokens {
            Some(_) => want,
            None => {
                let ceiling = model.output_tokens_min.min(output_tokens);
                cost(sent_at_most(call.format, model, ceiling))
            }
        };
        Ok(Quote {
            account: key.account.clone(),
            key: key.id.clone(),
            want,
            least,
            meter: meter.clone(),
            finish_without_client: !call.stream,
            tells_cost: call.usage_asked,
            has_output: call.kind == ModelKind::Chat,
            bill: TokenBill {
                prices: prices.clone(),
                bound,
                model: Arc::clone(model),
                bounds: Bounds {
                    input_bound,
                    input_limit: self.input_limit(
                        &call.input,
                        &asked.classes,
                        model.input_tokens_max,
                    ),
                    input_estimate: self.input_estimate(&call.input, sound, input_bound),
                    sound_estimate: sound.min(input_bound),
                    output_bound: output_tokens.saturating_mul(call.choices),
                    output_limit: model.output_tokens_max.saturating_mul(call.choices),
                    calls_max: Some(asked.classes.get(Class::WebSearchCall)).filter(|max| *max > 0),
                    cache_write: call.asks.as_ref().and_then(|asks| asks.cache_write()),
                    output_class: call.asks.as_ref().and_then(|asks| asks.output_class()),
                },
                session: call.session.clone(),
                endpoint: call.endpoint(),
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
            let sent = sent_at_most(priced.call.format, &priced.model, priced.output_tokens);
            bounds.output_bound = sent.saturating_mul(choices);
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
    endpoint: Endpoint,
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
        let delivered = reading.text_bytes > 0 || end == End::Finished || reading.answered;
        let left = end == End::ClientLeft || reading.client_gone;
        let nothing_counted = reading.usage.is_none_or(|usage| usage.is_zero());
        if nothing_counted && !delivered && !left {
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
            endpoint: Some(self.endpoint),
            // Whoever holds the money has the clock.
            timeline: None,
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

/// The highest ceiling that a vendor of the model may be sent for this one: some take none so low, and get a higher
/// one where the call is put into their format.
fn sent_at_most(caller: Format, model: &Model, output_tokens: u64) -> u64 {
    let routes = model.routes.iter();
    let formats = routes.map(|route| route.vendor.speaking(caller).format);
    let others = formats.filter(|format| *format != caller);
    others.fold(output_tokens, |sent, format| {
        sent.max(format.output_tokens_min())
    })
}

#[cfg(test)]
#[cfg(all(feature = "parse", feature = "passthrough"))]
mod body_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        model::{Route, Vendor},
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
                kind: ModelKind::Chat,
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
            endpoint: Endpoint::Messages,
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
    fn what_came_as_tokens_counts_as_such_and_each_input_has_the_window_for_itself() {
        let vectors = InputSize {
            inputs: 3,
            tokens: 300,
            text_bytes: 30,
            ..InputSize::default()
        };
        let around = 3 * INPUT_TOKENS;
        // mode, window, bound
        for (mode, context, bound) in [
            (HoldMode::Usual, None, 320 + around),
            (HoldMode::Strict, None, 330 + around),
            (HoldMode::Usual, Some(8192), 320 + around),
            // No input is longer than the window, and all of them may be as long.
            (HoldMode::Usual, Some(120), 360),
            // Whoever takes more has a larger one.
            (HoldMode::Usual, Some(10), 320),
        ] {
            let tariff = ByTokens::new(mode, 0, 0);
            let found = tariff.input_bound(&vectors, &Counts::default(), context);
            assert_eq!(
                (found.tokens, found.longest_step),
                (bound, bound),
                "{context:?}"
            );
            let limit = tariff.input_limit(&vectors, &Counts::default(), context);
            assert_eq!(limit, 330 + around);
            assert_eq!(tariff.input_estimate(&vectors, 0, bound), 300 + 30 / 4);
        }
    }

    #[test]
    fn what_searches_bring_is_input_and_each_step_of_a_call_has_the_window_for_itself() {
        let question = InputSize {
            messages: 1,
            text_bytes: 300,
            ..InputSize::default()
        };
        let alone = 200 + CALL_TOKENS + MESSAGE_TOKENS;
        // searches, window, bound, longest step, limit
        for (searches, context, bound, longest, limit) in [
            (
                0,
                Some(2000),
                alone,
                alone,
                300 + CALL_TOKENS + MESSAGE_TOKENS,
            ),
            (1, Some(2000), 2 * alone + 1000, alone + 1000, 4000),
            (2, Some(6000), 3 * alone + 3000, alone + 2000, 18_000),
            // No step is longer than the window.
            (5, Some(2000), 12_000, 2000, 12_000),
            (5, Some(700), 4200, 700, 4200),
            (
                1,
                None,
                2 * alone + 1000,
                alone + 1000,
                2 * CONTEXT_TOKENS_MAX,
            ),
            (u64::MAX, None, u64::MAX, u64::MAX, u64::MAX),
        ] {
            let apart = Counts::default().with(Class::WebSearchCall, searches);
            let tariff = ByTokens::new(HoldMode::Usual, 0, 0).search_tokens(1000);
            let found = tariff.input_bound(&question, &apart, context);
            let bound = InputBound {
                tokens: bound,
                longest_step: longest,
            };
            assert_eq!(found, bound, "{searches} {context:?}");
            let found = tariff.input_limit(&question, &apart, context);
            assert_eq!(found, limit, "{searches} {context:?}");
        }
    }

    #[test]
    fn r62_a_ceiling_that_a_vendor_would_refuse_is_held_as_it_is_raised() {
        let sold_by = |formats: &[Format]| {
            let model = Model::new("m", 4096);
            formats.iter().fold(model, |model, format| {
                let endpoint = http::Uri::from_static("https://vendor.example/v1");
                let key = format.credential("key").unwrap();
                model.route(Route::new(Vendor::new("v", *format, endpoint, key), "x"))
            })
        };
        let (chat, responses) = (Format::Chat, Format::Responses);
        for (caller, formats, tokens, held) in [
            (chat, &[chat][..], 1, 1),
            (chat, &[chat, responses], 1, 16),
            (Format::Messages, &[responses], 15, 16),
            (chat, &[responses], 17, 17),
            // Its own format's ceiling is the caller's business.
            (responses, &[responses], 1, 1),
            (responses, &[chat], 1, 1),
        ] {
            let model = sold_by(formats);
            assert_eq!(sent_at_most(caller, &model, tokens), held, "{formats:?}");
        }
        // A vendor of both is sent the caller's own, else its first.
        for (first, other, caller, held) in [
            (responses, chat, chat, 1),
            (responses, chat, responses, 1),
            (responses, chat, Format::Messages, 16),
            (chat, responses, Format::Messages, 1),
        ] {
            let endpoint = http::Uri::from_static("https://vendor.example/v1");
            let key = || first.credential("key").unwrap();
            let vendor = Vendor::new("v", first, endpoint.clone(), key());
            let vendor = vendor.also(other, endpoint, [key()]);
            let model = Model::new("m", 4096).route(Route::new(vendor, "x"));
            let sent = sent_at_most(caller, &model, 1);
            assert_eq!(sent, held, "{first:?}, {other:?}, {caller:?}");
        }
    }

    /// Whose account pays.
    #[cfg(feature = "parse")]
    pub(super) fn caller() -> Caller {
        use crate::key::{KeyDigest, KeyRecord, KeyStatus};

        Caller(Arc::new(KeyRecord {
            id: "k".parse().unwrap(),
            account: "acme".parse().unwrap(),
            digest: KeyDigest::new([0; 32]),
            prefix: "tg-x…".into(),
            name: String::new(),
            status: KeyStatus::Active,
            models: vec![],
            addresses: vec![],
            requests_per_second: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            group: None,
            concurrency: None,
            idempotency: false,
            expires_at_ms: None,
            created_at_ms: 0,
            changed_at_ms: 0,
        }))
    }

    #[cfg(feature = "parse")]
    #[test]
    fn the_least_that_is_held_pays_for_the_ceiling_that_is_sent() {
        let endpoint = http::Uri::from_static("https://vendor.example/v1");
        let key = Format::Responses.credential("key").unwrap();
        let vendor = Vendor::new("v", Format::Responses, endpoint, key);
        let mut model = Model::new("m", 4096).route(Route::new(vendor, "x"));
        model.output_tokens_min = 1;
        let body = bytes::Bytes::from_static(
            br#"{"model":"m","messages":[{"role":"user","content":"Hello"}]}"#,
        );
        let call = crate::parse::call(crate::call::Operation::Chat, &body, 100).unwrap();
        let mut req = Request::new(Priced {
            call: Arc::new(call),
            model: Arc::new(model),
            prices: bill().prices,
            output_tokens: 4096,
            meter: crate::usage::Meter::default(),
        });
        req.extensions_mut().insert(caller());
        let tariff = ByTokens::new(HoldMode::Usual, 0, 0);
        let mut quote = tariff.quote(&req).unwrap();
        tariff.granted(&mut req, &mut quote.bill, quote.least);
        let bill = quote.bill;
        assert_eq!(bill.bounds.output_bound, 16);
        let most = bill
            .bound
            .cost(bill.bounds.input_bound, bill.bounds.output_bound);
        assert!(most <= quote.least, "{most:?} {:?}", quote.least);
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
                "vendor failed before anything, and had counted nothing",
                reading(usage(0, 0), 0, error),
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
            (
                "answered, and not deliverable",
                Reading {
                    answered: true,
                    ..reading(None, 0, cut)
                },
                Some((20, true)),
            ),
        ] {
            let charged = bill().charge(&reading).map(|(cost, item)| {
                assert_eq!(item.vendor, "answered", "{name}");
                assert_eq!(item.bounded, name == "finished, absurd usage", "{name}");
                assert_eq!(item.session.as_deref(), Some("s-1"), "{name}");
                assert_eq!(item.endpoint, Some(Endpoint::Messages), "{name}");
                (cost.micro(), item.estimated)
            });
            assert_eq!(charged, charge, "{name}");
        }
    }

    proptest! {
        /// Whatever an answer says within what the request can bring about, or leaves out.
        #[test]
        fn a_hold_is_never_below_the_charge_of_what_was_asked_for_or_estimated(
            rates in prop::array::uniform4(0u64..10_000_000_000), others in prop::array::uniform7(0u64..10_000_000_000),
            asked in prop::array::uniform4(any::<bool>()),
            input in prop::array::uniform5(0u64..1000), output in prop::array::uniform2(0u64..1000),
            spare in (0u64..50, 0u64..50), estimate in 1u64..1000, sound in 0u64..1000, text_bytes in 0u64..10_000,
            told in any::<bool>(), output_counted in any::<bool>(), untold in 0u64..1000,
            end in prop::sample::select(vec![None, Some(End::Finished), Some(End::VendorCut), Some(End::VendorError)]),
        ) {
            let [has_sound, hour, speaks, draws] = asked;
            let none_unless = |asked: bool, count: u64| if asked { count } else { 0 };
            let class = |class, asked: bool| (class, u64::from(asked));
            let counts = |list: [(Class, u64); 4]| list.into_iter().collect::<crate::price::Counts>();
            let asked = Asked {
                classes: counts([
                    class(Class::InputAudio, has_sound),
                    class(Class::CacheWrite1h, hour),
                    class(Class::OutputAudio, speaks),
                    class(Class::OutputImage, draws),
                ]),
                ..Asked::default()
            };
            let usage = Usage {
                input: input[0],
                cached_input: input[1],
                cache_write: input[2],
                output: output[0],
                classes: counts([
                    (Class::InputAudio, none_unless(has_sound, input[3])),
                    (Class::CacheWrite1h, none_unless(hour, input[4])),
                    (Class::OutputAudio, none_unless(speaks, output[1])),
                    (Class::OutputImage, none_unless(draws, output[1])),
                ]),
            };
            let [input, cached_input, output, cache_write] = rates.map(Rate::new);
            let classes = std::iter::zip(Class::ALL, others.map(|rate| Some(Rate::new(rate)))).collect();
            let prices = PriceList::from(Price { input, cached_input, output, cache_write, classes, ..Price::default() });
            let (input_bound, output_bound) = (usage.input_total() + spare.0 + 1, usage.output_total() + spare.1);
            let estimate = estimate.min(input_bound);
            let bound = prices.bound(input_bound, &asked);
            let bill = TokenBill {
                bound,
                prices,
                bounds: Bounds {
                    input_bound,
                    input_limit: input_bound,
                    input_estimate: estimate,
                    sound_estimate: none_unless(has_sound, sound.min(estimate)),
                    output_bound,
                    output_limit: output_bound,
                    cache_write: hour.then_some(Class::CacheWrite1h),
                    output_class: match (speaks, draws) {
                        (true, _) => Some(Class::OutputAudio),
                        (_, true) => Some(Class::OutputImage),
                        _ => None,
                    },
                    ..Bounds::default()
                },
                ..bill()
            };
            let reading = Reading {
                dispatched: true,
                usage: told.then_some(usage),
                cache_write_usual: untold.min(usage.cache_write),
                output_counted,
                text_bytes,
                end,
                ..Reading::default()
            };
            let hold = bound.cost(input_bound, output_bound);
            if let Some((charged, item)) = bill.charge(&reading) {
                prop_assert!(charged <= hold, "{charged:?} {hold:?} {item:?}");
                prop_assert!(!item.unpriced);
                // Anyone can reckon it again.
                prop_assert_eq!(item.price.unwrap().cost(&item.usage), charged);
            }
        }
    }
}
