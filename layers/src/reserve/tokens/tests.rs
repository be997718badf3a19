use proptest::prelude::*;

use super::{
    bounds::{CALL_TOKENS, CONTEXT_TOKENS_MAX, INPUT_TOKENS, MESSAGE_TOKENS},
    *,
};
use crate::{
    call::InputSize,
    endpoint::Endpoint,
    model::{Route, Vendor},
    price::{
        Condition, Counts, Hours, Moment, PossibleTimes, Price, PriceList, Rate, Rates, RouteCost,
    },
    reserve::Bill,
    text_sample::TextSample,
    usage::{CoveredOutput, End, EstimateInput, InputEstimate, Reading, StoppedBy, Usage},
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
        held: MicroRub::MAX,
        bound: prices.bound(100, &Extras::default()),
        extras: Extras::default(),
        times: PossibleTimes {
            request_ms: 0,
            end_max_ms: u64::MAX,
        },
        prices,
        model: Arc::new(Model {
            id: "m".into(),
            family: "f".into(),
            kind: ModelKind::Chat,
            output_tokens_max: 50,
            output_tokens_min: 1,
            output_tokens_default: None,
            output_tokens_per_second_max: None,
            hold_grows: false,
            input_tokens_max: None,
            input_tokens_priced_max: None,
            sticky: false,
            routes: vec![],
        }),
        bounds: Bounds {
            input_bound: 100,
            input_limit: 150,
            input_estimate: Some(Arc::new(InputEstimate {
                tokens: 20,
                ..InputEstimate::default()
            })),
            output_bound: 50,
            output_limit: 60,
            ..Bounds::default()
        },
        session: Some("s-1".parse().unwrap()),
        stream: true,
        estimator: None,
        prefix: None,
        early: Arc::default(),
        stated: OnceLock::new(),
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
fn searches_that_were_not_requested_are_charged_at_most_up_to_the_hold() {
    // The input and the output together cost 30 µ₽, and each search costs 10 µ₽.
    let mut bill = bill();
    bill.prices = PriceList::from(Price {
        classes: Rates::default().with(Class::WebSearchCall, Some(Rate::new(10))),
        ..Price::clone(&bill.prices.usual)
    });
    for (held, extras, searches, cost) in [
        (1_000, None, 7, 100),
        (100, None, 7, 100),
        (99, None, 6, 90),
        (30, None, 0, 30),
        (20, None, 0, 30),
        // The request contains the web search tool, so its hold covers searches. Every search is charged.
        (20, Some(7), 7, 100),
    ] {
        bill.held = MicroRub::new(held);
        bill.bounds.calls_max = extras;
        let reported = usage(10, 20).map(|usage| Usage {
            classes: usage.classes.with(Class::WebSearchCall, 7),
            ..usage
        });
        let reading = Reading {
            dispatched: true,
            usage: reported,
            output_counted: true,
            end: Some(End::Finished),
            ..Reading::default()
        };
        let (charged, item) = bill.charge(&reading).unwrap();
        let counted = item.usage.classes.get(Class::WebSearchCall);
        assert_eq!(
            (counted, charged.micro()),
            (searches, cost),
            "{held} {extras:?}"
        );
        assert_eq!(item.bounded, searches < 7, "{held} {extras:?}");
    }
}

/// The vendor bills reasoning separately from output, and also each call.
#[test]
fn reasoning_and_each_call_are_charged_separately_if_they_have_prices_of_their_own() {
    let apart = Rates::default()
        .with(Class::OutputReasoning, Some(Rate::new(3_000_000)))
        .with(Class::RequestCall, Some(Rate::new(7)));
    let dear = |price: &Price| Price {
        classes: apart,
        ..price.clone()
    };
    let usual = Price::clone(&bill().prices.usual);
    let cost = RouteCost {
        vendor: "v".into(),
        model: "m".into(),
        prices: dear(&usual).into(),
    };
    // Columns: the prices; the charge of 10 input and 20 output tokens, 15 of them reasoning; the vendor's cost.
    for (prices, charged, cost) in [
        (PriceList::from(usual.clone()), 30, None),
        (PriceList::from(dear(&usual)), 10 + 5 + 45 + 7, None),
        (PriceList::from(usual).costs([cost]), 30, Some(67)),
    ] {
        let mut bill = bill();
        bill.bound = prices.bound(100, &bill.extras);
        bill.prices = prices;
        let reading = Reading {
            dispatched: true,
            vendor: Some("v".into()),
            vendor_model: Some("m".into()),
            usage: usage(10, 20),
            reasoning: 15,
            output_counted: true,
            end: Some(End::Finished),
            ..Reading::default()
        };
        let (total, item) = bill.charge(&reading).unwrap();
        assert_eq!(total.micro(), charged, "{item:?}");
        assert_eq!(item.vendor_cost_rub.map(MicroRub::micro), cost);
        assert_eq!(item.usage.output_total(), 20);
        assert!(!item.unpriced && total <= bill.bound.cost(10, 20));
    }
}

/// A call is quoted before the expensive hours. It ends in them or after them, at each of the moments that may decide
/// the price.
#[test]
fn charge_of_a_call_across_a_price_change_depends_on_the_configured_moment_and_fits_the_hold() {
    let begin = 1_795_996_800_000;
    let minute = |minute: u64| begin + minute * 60_000;
    for (moment, into, out_of) in [
        (Moment::Request, 150, 300),
        (Moment::FirstByte, 150, 300),
        (Moment::End, 300, 150),
    ] {
        // Columns: the minutes of the request, of the first byte and of the end; the charge.
        for (request, first_byte, end, cost) in [
            (50, 58, 61, into),
            (230, 239, 241, out_of),
            (50, 51, 52, 150),
            (100, 101, 102, 300),
        ] {
            let usual = bill().prices.usual;
            let double = Rate::new(2_000_000);
            let peak = Price {
                input: double,
                output: double,
                condition: Condition {
                    hours_utc: Hours::from_spans(&["01:00-04:00"]).unwrap(),
                    hours_at: moment,
                    ..Condition::default()
                },
                ..Price::clone(&usual)
            };
            let prices = PriceList::from(usual).rules([peak]);
            let times = PossibleTimes {
                request_ms: minute(request),
                end_max_ms: minute(request + 15),
            };
            let extras = Extras {
                times: Some(times),
                ..Extras::default()
            };
            let bound = prices.bound(100, &extras);
            let bill = TokenBill {
                prices,
                bound,
                extras,
                times,
                ..bill()
            };
            let reading = Reading {
                dispatched: true,
                usage: usage(100, 50),
                output_counted: true,
                first_byte_at_ms: Some(minute(first_byte)),
                end: Some(End::Finished),
                ..Reading::default()
            };
            let (charged, item) = bill.charge_at(&reading, minute(end)).unwrap();
            assert_eq!(charged.micro(), cost, "{moment:?} {request}");
            let named = item.price.unwrap().condition.has_time();
            assert_eq!(named, cost == 300, "{moment:?} {request}");
            assert!(bound.cost(100, 50) >= charged, "{moment:?} {request}");
            // Even if the clock was set far forward, the call costs at most its hold.
            let (charged, _) = bill.charge_at(&reading, minute(10 * 1440 + 90)).unwrap();
            assert!(bound.cost(100, 50) >= charged, "{moment:?} {request}");
        }
    }
}

#[test]
fn token_ids_in_embeddings_input_count_as_tokens_up_to_one_context_window_per_input() {
    let vectors = InputSize {
        inputs: 3,
        tokens: 300,
        text_bytes: 30,
        unsampled_milli: 7_900,
        ..InputSize::default()
    };
    let around = 3 * INPUT_TOKENS;
    // Columns: the hold mode, the context window, the expected bound in tokens.
    for (mode, context, bound) in [
        (HoldMode::Usual, None, 320 + around),
        (HoldMode::Strict, None, 330 + around),
        (HoldMode::Usual, Some(8192), 320 + around),
        // The bound of each input is the window: no input can be longer than the window, and every input may fill it.
        (HoldMode::Usual, Some(120), 360),
        // The text has more tokens than the window, so the model's window must be larger than the catalog states.
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
        let texts = TextSample::default();
        let estimator = InputEstimator::new(&tariff, &vectors, texts, 0, bound, None);
        assert_eq!(estimator.estimate().tokens, 300 + 7);
    }
}

#[test]
fn search_results_are_held_as_input_up_to_one_context_window_per_step() {
    let question = InputSize {
        messages: 1,
        text_bytes: 300,
        ..InputSize::default()
    };
    let alone = 200 + CALL_TOKENS + MESSAGE_TOKENS;
    // Columns: the number of searches; then in tokens the context window, the expected bound, the longest step, and the
    // limit.
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
        // No step can have more input than the context window has tokens.
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
fn hold_covers_the_vendors_minimum_output_if_the_requested_output_limit_is_lower() {
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
        // An output limit in the caller's own format is sent unchanged.
        (responses, &[responses], 1, 1),
        (responses, &[chat], 1, 1),
    ] {
        let model = sold_by(formats);
        assert_eq!(sent_at_most(caller, &model, tokens), held, "{formats:?}");
    }
    // A vendor is called in the caller's format if the vendor supports it, and otherwise in the vendor's first format.
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

/// Returns the caller whose account pays in these tests.
#[cfg(feature = "parse")]
pub(super) fn caller() -> Caller {
    use crate::key::{KeyDigest, KeyRecord};

    Caller(Arc::new(KeyRecord::new(
        "k".parse().unwrap(),
        "acme".parse().unwrap(),
        KeyDigest::new([0; 32]),
    )))
}

#[cfg(feature = "parse")]
#[test]
fn smallest_acceptable_hold_covers_the_output_limit_sent_to_the_vendor() {
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

#[cfg(feature = "parse")]
#[test]
fn hold_grows_only_if_the_call_can_be_stopped_at_any_moment() {
    use crate::{
        call::Operation,
        model::{OnDisconnect, Vendor},
        price::Rates,
    };

    let endpoint = http::Uri::from_static("https://vendor.example/v1");
    let vendor = |on_disconnect| {
        let key = Format::Chat.credential("key").unwrap();
        Vendor::new("v", Format::Chat, endpoint.clone(), key).on_disconnect(on_disconnect)
    };
    let model = || Model::new("m", 32_000).output_tokens_per_second_max(100);
    let model = || model().route(Route::new(vendor(OnDisconnect::Cancel), "x"));
    let growing = || model().hold_grows(true);
    let drained = growing().route(Route::new(vendor(OnDisconnect::Drain), "y"));
    let mut of_unknown_speed = growing();
    of_unknown_speed.output_tokens_per_second_max = None;
    let classes = Rates::default()
        .with(Class::WebSearchCall, Some(Rate::new(1)))
        .with(Class::OutputAudio, Some(Rate::new(1)));
    let prices = PriceList::from(Price {
        output: Rate::new(1_000_000),
        classes,
        ..Price::default()
    });
    let covered = |model: Model, key_grows: bool, fields: &str, held: Option<MicroRub>| {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Hello"}}]{fields}}}"#);
        let call = crate::parse::call(Operation::Chat, &body.into(), 100).unwrap();
        let output_tokens = call.output_tokens.unwrap_or(model.output_tokens_max);
        let mut req = Request::new(Priced {
            call: Arc::new(call),
            model: Arc::new(model),
            prices: prices.clone(),
            output_tokens,
            meter: crate::usage::Meter::default(),
        });
        let Caller(key) = caller();
        let mut key = KeyRecord::clone(&key);
        key.growing_holds = key_grows;
        req.extensions_mut().insert(Caller(Arc::new(key)));
        let tariff = ByTokens::new(HoldMode::Usual, 0, 0);
        let mut quote = tariff.quote(&req).unwrap();
        tariff.granted(&mut req, &mut quote.bill, held.unwrap_or(quote.want));
        let bounds = &quote.bill.bounds;
        let paid = quote
            .bill
            .bound
            .cost(bounds.input_bound, bounds.output_covered());
        assert!(paid <= held.unwrap_or(quote.want), "{fields}");
        (
            bounds.growing.is_some(),
            bounds.output_covered(),
            req.body().output_tokens,
        )
    };
    let stream = r#","stream":true"#;
    let of = |fields: &str| format!("{stream},{fields}");
    let (whole, grown) = ((false, 32_000, 32_000), (true, 4_096, 32_000));
    assert_eq!(covered(growing(), false, stream, None), grown);
    assert_eq!(covered(model(), true, stream, None), grown);
    assert_eq!(covered(model(), false, stream, None), whole);
    assert_eq!(covered(of_unknown_speed, true, stream, None), whole);
    assert_eq!(covered(drained, false, stream, None), whole);
    assert_eq!(covered(growing(), false, "", None), whole);
    let faster = growing().output_tokens_per_second_max(1_000);
    assert_eq!(covered(faster, false, stream, None), (true, 8_000, 32_000));
    for (fields, covers) in [
        (r#""max_tokens":9000"#, (true, 4_096, 9_000)),
        (r#""max_tokens":4096"#, (false, 4_096, 4_096)),
        (r#""max_tokens":9000,"n":2"#, (false, 18_000, 9_000)),
    ] {
        let found = covered(growing(), false, &of(fields), None);
        assert_eq!(found, covers, "{fields}");
    }
    let spoken = of(r#""modalities":["text","audio"],"audio":{"voice":"alloy","format":"pcm16"}"#);
    assert!(!covered(growing(), false, &spoken, None).0);
    // If the money does not suffice for the first slice, the output is limited to what it pays for, as for a hold that
    // does not grow.
    let little = Some(MicroRub::new(2_000));
    let (grows, output, sent) = covered(growing(), false, stream, little);
    assert!(!grows && output == sent && sent <= 2_000, "{output} {sent}");
}

#[test]
fn charge_is_as_documented_for_every_way_in_which_a_call_can_end() {
    let reading = |usage, text_bytes, end| Reading {
        dispatched: true,
        usage,
        text_bytes,
        text_tokens: text_bytes / 4,
        end,
        vendor: Some("answered".into()),
        ..Reading::default()
    };
    let (done, cut, error) = (
        Some(End::Finished),
        Some(End::VendorCut),
        Some(End::VendorError),
    );
    // Columns: the name of the case; what the meter recorded; the charge in micro-rubles, and whether it is estimated.
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
    /// After the vendor has counted the input, it may still generate any output that the request allows, and may lower
    /// its count of the input.
    #[test]
    fn lowered_hold_covers_the_charge(
        rates in prop::array::uniform4(0u64..10_000_000_000), dear in prop::array::uniform4(0u64..10_000_000_000),
        above in 0u64..3000, ruled in any::<bool>(), hour_rate in prop::option::of(0u64..10_000_000_000),
        input in prop::array::uniform4(0u64..1000), less in 0u64..1000, untold in 0u64..1000, hour in any::<bool>(),
        output in 0u64..1000, spare in 0u64..50, text_bytes in 0u64..10_000, output_counted in any::<bool>(),
        end in prop::sample::select(vec![None, Some(End::Finished), Some(End::VendorCut), Some(End::VendorError)]),
    ) {
        let price = |rates: [u64; 4], above| {
            let [input, cached_input, output, cache_write] = rates.map(Rate::new);
            let classes = Rates::default().with(Class::CacheWrite1h, hour_rate.map(Rate::new));
            let condition = Condition { above_input_tokens: above, ..Condition::default() };
            Price { input, cached_input, output, cache_write, classes, condition, ..Price::default() }
        };
        let prices = PriceList::from(price(rates, None));
        let prices = prices.rules(ruled.then(|| price(dear, Some(above))));
        let has_hour = hour && hour_rate.is_some();
        let extras = Extras {
            classes: Counts::default().with(Class::CacheWrite1h, u64::from(has_hour)),
            ..Extras::default()
        };
        let stated = Usage {
            input: input[0],
            cached_input: input[1],
            cache_write: input[2],
            output: 1,
            classes: Counts::default().with(Class::CacheWrite1h, if has_hour { input[3] } else { 0 }),
        };
        let input_bound = stated.input_total() + spare + 1;
        let output_bound = output.max(1) + spare;
        let early = Arc::new(EarlyCounts::default());
        early.record("v", "m", true);
        let bill = TokenBill {
            bound: prices.bound(input_bound, &extras),
            prices,
            extras,
            early,
            bounds: Bounds {
                input_bound,
                input_limit: input_bound,
                output_bound,
                output_limit: output_bound,
                cache_write: has_hour.then_some(Class::CacheWrite1h),
                ..Bounds::default()
            },
            ..bill()
        };
        let begun = Reading {
            dispatched: true,
            vendor: Some("v".into()),
            usage: Some(stated),
            cache_write_usual: untold.min(stated.cache_write),
            ..Reading::default()
        };
        let Some(most) = bill.cost_max(&begun) else {
            prop_assert_eq!(stated.input_total(), 0);
            return Ok(());
        };
        let reading = Reading {
            usage: Some(Usage { input: stated.input.saturating_sub(less), output, ..stated }),
            output_counted,
            text_bytes,
            text_tokens: text_bytes / 4,
            end,
            ..begun
        };
        if let Some((charged, _)) = bill.charge(&reading) {
            prop_assert!(charged <= most, "{charged:?} {most:?}");
        }
    }

    /// A vendor counts its input correctly, and may generate and report any output at any time. The ledger may refuse to
    /// raise the hold. The call may end at any moment.
    #[test]
    fn growing_hold_covers_the_charge(
        rates in prop::array::uniform4(0u64..10_000_000_000), dear in prop::array::uniform4(0u64..10_000_000_000),
        above in 0u64..2000, ruled in any::<bool>(), input in prop::array::uniform3(0u64..1000),
        spare in 0u64..50, first in 1u64..500, output_bound in 500u64..5_000, is_final in any::<bool>(),
        steps in prop::collection::vec((0u64..400, 0u64..400, any::<bool>(), any::<bool>(), any::<bool>()), 1..20),
    ) {
        let price = |rates: [u64; 4], above| {
            let [input, cached_input, output, cache_write] = rates.map(Rate::new);
            let condition = Condition { above_input_tokens: above, ..Condition::default() };
            Price { input, cached_input, output, cache_write, condition, ..Price::default() }
        };
        let prices = PriceList::from(price(rates, None));
        let prices = prices.rules(ruled.then(|| price(dear, Some(above))));
        let stated = Usage { input: input[0], cached_input: input[1], cache_write: input[2], output: 1, ..Usage::default() };
        let input_bound = stated.input_total() + spare + 1;
        let early = Arc::new(EarlyCounts::default());
        early.record("v", "m", is_final);
        let covered = Arc::new(CoveredOutput::new(100, first));
        let bill = TokenBill {
            bound: prices.bound(input_bound, &Extras::default()),
            prices,
            early,
            bounds: Bounds {
                input_bound,
                input_limit: input_bound,
                input_estimate: Some(Arc::new(InputEstimate { tokens: input_bound, ..InputEstimate::default() })),
                output_bound,
                output_limit: output_bound,
                growing: Some(Arc::clone(&covered)),
                ..Bounds::default()
            },
            ..bill()
        };
        let mut reading = Reading { dispatched: true, vendor: Some("v".into()), ..Reading::default() };
        let mut held = bill.cost_within(&reading, first).unwrap();
        for (text, lie, reports, raises, lowers) in steps {
            reading.text_tokens += text;
            reading.text_bytes += 4 * text;
            if reports {
                reading.usage = Some(Usage { output: reading.text_tokens + lie, ..stated });
                reading.output_counted = lie % 2 == 0;
            }
            for end in [None, Some(End::Finished), Some(End::ClientLeft), Some(End::VendorCut), Some(End::GatewayStopped)] {
                for stopped_by in [None, Some(StoppedBy::Balance)] {
                    let ended = Reading { end, stopped_by, ..reading.clone() };
                    if let Some((charged, item)) = bill.charge(&ended) {
                        prop_assert!(charged <= held, "{charged:?} {held:?} {item:?}");
                        prop_assert_eq!(item.stopped_by, stopped_by);
                    }
                }
            }
            if lowers && let Some(lower) = bill.cost_max(&reading) {
                held = held.min(lower);
            }
            if raises {
                let tokens = (covered.tokens() + text).min(output_bound);
                held = bill.cost_within(&reading, tokens).unwrap();
                covered.raise_to(tokens);
            }
        }
    }

    /// The vendor reports any usage that the request allows, and may omit parts of it.
    #[test]
    fn hold_covers_the_charge_for_requested_or_estimated_usage(
        rates in prop::array::uniform4(0u64..10_000_000_000), others in prop::array::uniform11(0u64..10_000_000_000),
        extras in prop::array::uniform4(any::<bool>()),
        input in prop::array::uniform5(0u64..1000), output in prop::array::uniform2(0u64..1000),
        spare in (0u64..50, 0u64..50), estimate in 1u64..1000, sound in 0u64..1000, text_bytes in 0u64..10_000,
        returned in any::<bool>(), output_counted in any::<bool>(), untold in 0u64..1000,
        end in prop::sample::select(vec![None, Some(End::Finished), Some(End::VendorCut), Some(End::VendorError)]),
    ) {
        let [has_sound, hour, speaks, draws] = extras;
        let none_unless = |requested: bool, count: u64| if requested { count } else { 0 };
        let class = |class, extras: bool| (class, u64::from(extras));
        let counts = |list: [(Class, u64); 4]| list.into_iter().collect::<crate::price::Counts>();
        let extras = Extras {
            classes: counts([
                class(Class::InputAudio, has_sound),
                class(Class::CacheWrite1h, hour),
                class(Class::OutputAudio, speaks),
                class(Class::OutputImage, draws),
            ]),
            ..Extras::default()
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
        let bound = prices.bound(input_bound, &extras);
        let bill = TokenBill {
            bound,
            prices,
            bounds: Bounds {
                input_bound,
                input_limit: input_bound,
                input_estimate: Some(Arc::new(InputEstimate {
                    tokens: estimate,
                    sound: none_unless(has_sound, sound.min(estimate)),
                    cached: untold,
                })),
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
            usage: returned.then_some(usage),
            cache_write_usual: untold.min(usage.cache_write),
            reasoning: untold,
            output_counted,
            text_bytes,
            text_tokens: text_bytes / 4,
            end,
            ..Reading::default()
        };
        let hold = bound.cost(input_bound, output_bound);
        if let Some((charged, item)) = bill.charge(&reading) {
            prop_assert!(charged <= hold, "{charged:?} {hold:?} {item:?}");
            prop_assert!(!item.unpriced);
            // Anybody can compute the charge again from the usage and the price on the receipt.
            prop_assert_eq!(item.price.unwrap().cost(&item.usage), charged);
        }
    }
}
