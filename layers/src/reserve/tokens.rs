//! The tariff of model calls. It charges tokens at the rates that applied when the call began.

mod bill;
mod bounds;
mod estimate;

use std::{
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::Request;
use serde::{Deserialize, Serialize};

pub use self::bill::TokenBill;
use self::{bounds::InputBound, estimate::InputEstimator};
use super::{
    Quote, Tariff,
    cached_shares::CachedShares,
    early::EarlyCounts,
    growth,
    prefixes::{Known, PREFIXES_MAX, Prefix, Prefixes},
};
use crate::{
    call::{Format, Priced},
    error::{Error, Problem},
    facts::{Caller, RequestNumber},
    key::{KeyId, KeyRecord},
    model::{Model, ModelKind, OnDisconnect, Route},
    money::MicroRub,
    price::{Class, Extras, PossibleTimes},
    setting::Setting,
    unix_time::unix_ms,
    usage::{Bounds, CoveredOutput},
};

/// The maximum number of input tokens that a hold assumes for a text, by the text's number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum HoldMode {
    /// At most one token per 1.5 bytes. Ordinary text has more bytes per token; base64 has the fewest, 1.49.
    #[default]
    Usual,
    /// At most one token per byte. No byte-level tokenizer has more tokens.
    Strict,
}

/// The input tokens that are held for each web search, unless the configuration sets a number. Anthropic's example of a
/// call with one search has 14 573 input tokens, of which all but 105 are written to the cache and read from it again
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/web-search-tool>).
const SEARCH_TOKENS: u64 = 15_000;

/// The number of tokens that are held for a full-size image by default.
const IMAGE_TOKENS: u64 = 5_000;
/// The number of tokens that are held for a document by default.
const DOCUMENT_TOKENS: u64 = 50_000;

/// A tariff that holds the cost of the input's upper bound and of the maximum output, and charges the cost of the
/// actual usage.
#[derive(Clone, Debug)]
pub struct ByTokens {
    mode: HoldMode,
    image_tokens: u64,
    document_tokens: u64,
    search_tokens: u64,
    call_time_max: Setting<Duration>,
    cached_shares: Arc<CachedShares>,
    prefixes: Option<Arc<Prefixes>>,
    early: Arc<EarlyCounts>,
}

/// Uses the gateway's defaults: [`HoldMode::Usual`], 5 000 tokens for an image, 50 000 for a document and 15 000 for a
/// web search.
impl Default for ByTokens {
    fn default() -> Self {
        Self::new(HoldMode::default(), IMAGE_TOKENS, DOCUMENT_TOKENS)
    }
}

impl ByTokens {
    /// Creates a tariff that holds `image_tokens` for a full-size image, and fewer for smaller images. For a document
    /// it holds `document_tokens`, or more if the document's pages and bytes require more.
    #[must_use]
    pub fn new(mode: HoldMode, image_tokens: u64, document_tokens: u64) -> Self {
        Self {
            mode,
            image_tokens,
            document_tokens,
            search_tokens: SEARCH_TOKENS,
            call_time_max: Duration::MAX.into(),
            cached_shares: Arc::default(),
            prefixes: Prefixes::new(PREFIXES_MAX).map(Arc::new),
            early: Arc::default(),
        }
    }

    /// Sets how many input tokens are held for each web search that the request allows. The default is 15 000.
    #[must_use]
    pub fn search_tokens(mut self, tokens: u64) -> Self {
        self.search_tokens = tokens;
        self
    }

    /// Sets the maximum time that a call can take after its hold was quoted. If a price depends on when a call ends,
    /// the hold suffices for each price within that time. By default, it suffices for each price of the whole week.
    #[must_use]
    pub fn call_time_max(mut self, time: impl Into<Setting<Duration>>) -> Self {
        self.call_time_max = time.into();
        self
    }

    /// Returns the times at which a call that is quoted now may end. The call begins at the time in its request number,
    /// which is also the time on the receipt.
    fn possible_times<B>(&self, req: &Request<B>) -> PossibleTimes {
        let now_ms = unix_ms();
        let number = req.extensions().get::<RequestNumber>();
        let request_ms = number.map_or(now_ms, RequestNumber::unix_ms);
        let longest = u64::try_from(self.call_time_max.get().as_millis()).unwrap_or(u64::MAX);
        PossibleTimes {
            request_ms,
            end_max_ms: now_ms.saturating_add(longest),
        }
    }

    /// Sets the number of conversations for which the vendor's count of the input is remembered; 32 768 by default. If
    /// a request continues such a conversation, the hold covers the remembered count and the bound of the new text.
    /// With 0, each hold covers the bound of the whole request.
    #[must_use]
    pub fn conversations_max(mut self, conversations: usize) -> Self {
        self.prefixes = Prefixes::new(conversations).map(Arc::new);
        self
    }

    /// Returns the call's conversation, if a vendor's count of it can bound a longer conversation: the vendor must
    /// receive the caller's bytes with nothing added, and all routes must lead to the same model.
    fn prefix(&self, key: &KeyId, priced: &Priced) -> Option<(Prefix, Option<Known>)> {
        let Priced { call, model, .. } = priced;
        let prefixes = self.prefixes.as_ref()?;
        let (first, others) = model.routes.split_first()?;
        let asks = call.asks.as_ref().map(|asks| asks.extras().classes);
        let has_searches = asks.is_some_and(|classes| classes.get(Class::WebSearchCall) > 0);
        let is_passed = |route: &Arc<Route>| {
            route.model == first.model && route.vendor.speaking(call.format).format == call.format
        };
        if has_searches || call.input.documents_unseen > 0 || !is_passed(first) {
            return None;
        }
        if !others.iter().all(is_passed) {
            return None;
        }
        prefixes.read(key, &model.id, &first.model, call)
    }
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
        let asks = call.asks.as_ref();
        let mut extras = asks.map_or_else(Extras::default, |asks| *asks.extras());
        let times = self.possible_times(req);
        extras.times = Some(times);
        let sound = extras.classes.get(Class::InputAudio);
        if call.input.documents_unseen > 0 && model.input_tokens_max.is_none() {
            let field = call.asks.as_ref().and_then(|asks| asks.unseen());
            let field = field.unwrap_or_default().to_owned();
            return Err(Error::invalid(field, Problem::SizeUnseen));
        }
        let InputBound {
            tokens: by_bytes,
            longest_step,
        } = self.input_bound(&call.input, &extras.classes, model.input_tokens_max);
        // The upper bound is compared, because the actual number of tokens is not known yet. So a call that may be too
        // long is refused even if its input turns out to be short.
        let priced_max = model.input_tokens_priced_max;
        if let Some(max) = priced_max.filter(|max| longest_step > *max) {
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
        let (prefix, known) = self.prefix(&key.id, req.body()).unzip();
        let known = known.flatten();
        let input_bound = known.map_or(by_bytes, |known| {
            let parts = self.parts_bound(&call.input, &extras.classes, model.input_tokens_max);
            by_bytes.min(self.continued_bound(known, parts))
        });
        // Vendors also bill the pages of a document as images.
        let images = call.input.images.saturating_add(call.input.documents);
        *extras.classes.get_mut(Class::InputImage) = images;
        let bound = prices.bound(input_bound, &extras);
        let cost = |output: u64| bound.cost(input_bound, output.saturating_mul(call.choices));
        let output_tokens = sent_at_most(call.format, model, *output_tokens);
        let growing = growing_output(req.body(), key, &extras, output_tokens);
        let want = cost(growing.as_ref().map_or(output_tokens, |it| it.tokens()));
        // An output limit that the client has set is held in full, or the hold grows to it. Without such a limit, the
        // hold may be smaller if money is short.
        let least = match call.output_tokens {
            Some(_) => want,
            None => {
                let ceiling = model.output_tokens_min.min(output_tokens);
                want.min(cost(sent_at_most(call.format, model, ceiling)))
            }
        };
        let session = call.session.as_ref();
        let conversation =
            session.map(|session| self.cached_shares.conversation(&key.id, session, &model.id));
        let estimator = Arc::new(InputEstimator::new(
            self,
            &call.input,
            call.texts.clone(),
            sound,
            input_bound,
            conversation,
        ));
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
                held: want,
                prices: prices.clone(),
                bound,
                extras,
                times,
                model: Arc::clone(model),
                bounds: Bounds {
                    input_bound,
                    input_limit: self.input_limit(
                        &call.input,
                        &extras.classes,
                        model.input_tokens_max,
                    ),
                    input_estimate: Some(Arc::clone(&estimator) as _),
                    output_bound: output_tokens.saturating_mul(call.choices),
                    growing: growing.map(Arc::new),
                    output_limit: model.output_tokens_max.saturating_mul(call.choices),
                    calls_max: Some(extras.classes.get(Class::WebSearchCall))
                        .filter(|max| *max > 0),
                    // A cache lifetime without a price is not requested from the vendor.
                    cache_write: call.asks.as_ref().and_then(|asks| {
                        let priced = |class: &Class| prices.usual.classes.get(*class).is_some();
                        asks.cache_write().filter(priced)
                    }),
                    output_class: call.asks.as_ref().and_then(|asks| asks.output_class()),
                },
                session: call.session.clone(),
                stream: call.stream,
                estimator: Some(estimator),
                prefix: std::iter::zip(self.prefixes.clone(), prefix).next(),
                early: Arc::clone(&self.early),
                stated: OnceLock::new(),
                endpoint: call.endpoint(),
            },
        })
    }

    fn granted(&self, req: &mut Request<Priced>, bill: &mut TokenBill, held: MicroRub) {
        let wanted = mem::replace(&mut bill.held, held);
        let priced = req.body_mut();
        let bounds = &mut bill.bounds;
        if held < wanted {
            // Money is already short, so the output is limited to what the hold pays for.
            bounds.growing = None;
        }
        if priced.call.output_tokens.is_none() && bounds.growing.is_none() {
            let choices = priced.call.choices.max(1);
            let paid_for = bill.bound.output_tokens_for(held, bounds.input_bound) / choices;
            priced.output_tokens = priced.output_tokens.min(paid_for).max(1);
            let sent = sent_at_most(priced.call.format, &priced.model, priced.output_tokens);
            bounds.output_bound = sent.saturating_mul(choices);
        }
        // If a response has no usage, layers below add it. They need these bounds to report the usage that will be
        // charged.
        priced.meter.charge_within(bill.bounds.clone());
    }
}

/// Returns the output that the hold covers at first; `None` if the hold does not grow. A hold grows only if the call
/// can be stopped at any moment without further cost: the response is a stream of one choice with only text, and all
/// vendors of the model stop generating when a call is cancelled. The whole output must also be more than the first
/// slice.
fn growing_output(
    priced: &Priced,
    key: &KeyRecord,
    extras: &Extras,
    output_tokens: u64,
) -> Option<CoveredOutput> {
    let Priced { call, model, .. } = priced;
    let rate = model
        .output_tokens_per_second_max
        .filter(|_| model.hold_grows || key.growing_holds)?;
    let is_cancelled = |route: &Arc<Route>| route.vendor.on_disconnect == OnDisconnect::Cancel;
    let has_text_alone = extras.classes.get(Class::WebSearchCall) == 0
        && extras.classes.get(Class::OutputAudio) == 0
        && extras.classes.get(Class::OutputImage) == 0;
    let may_stop = call.stream && call.choices == 1 && has_text_alone;
    let first = growth::slice(rate);
    (may_stop && first < output_tokens && model.routes.iter().all(is_cancelled))
        .then(|| CoveredOutput::new(rate, first))
}

/// Returns the highest output limit that a vendor of the model may get instead of `output_tokens`. Some vendors refuse
/// low limits, and translation to their format raises a lower limit to their minimum.
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
mod tests;
