//! Reads the usage of a plain response.

use bytes::Bytes;

use super::note;
use crate::{
    call::Format,
    error::Error,
    formats::{
        chat::meter::{Chat, Embeddings},
        errors::{broken, vendor_error},
        messages::meter::Messages,
        metering::{Plain, as_text, with_member},
        responses::meter::Responses,
    },
    json::{members, within},
    passthrough::note_text,
    price::Label,
    text_size::TextSize,
    usage::{End, Meter},
    vendor_usage::{VendorUsage, is_error, tier},
};

/// Reads a plain response, and records its usage in the meter. If the usage that will be charged differs from the usage
/// in the response, returns the response with the charged usage.
///
/// # Errors
/// An error if the body is not a JSON object, if it reports an error, or if it has neither content nor counted tokens.
pub fn plain(format: Format, bytes: &[u8], meter: &Meter) -> Result<Option<Bytes>, Error> {
    match format {
        Format::Chat => read::<Chat>(bytes, meter),
        Format::Messages => read::<Messages>(bytes, meter),
        Format::Responses => read::<Responses>(bytes, meter),
    }
}

/// Reads an embeddings response as [`plain`] reads a Chat Completions response. An embeddings response has usage and no
/// text.
///
/// # Errors
/// An error if the body is not a JSON object, if it reports an error, or if it has neither vectors nor counted tokens.
pub fn embeddings(bytes: &[u8], meter: &Meter) -> Result<Option<Bytes>, Error> {
    read::<Embeddings>(bytes, meter)
}

fn read<F: Plain>(bytes: &[u8], meter: &Meter) -> Result<Option<Bytes>, Error> {
    let json = as_text(bytes);
    let [usage, error, service_tier, content] =
        members(&json, &["usage", "error", "service_tier", F::CONTENT]).map_err(broken)?;
    let stated = usage.filter(|usage| *usage != "null");
    let counts = stated.and_then(|usage| F::usage(usage, &json));
    let tier = service_tier.map(tier).unwrap_or_default();
    let error = error.filter(|error| is_error(error));
    if let Some(error) = F::refused(&json, content).or_else(|| error.map(vendor_error)) {
        note_error(counts, tier, meter);
        return Err(error);
    }
    let is_missing =
        |content: &str| !content.starts_with('[') || (!F::MAY_BE_EMPTY && is_empty_array(content));
    if content.is_none_or(is_missing) {
        counted_at_least(counts)?;
    }
    // The text is counted only if the vendor has not counted the output.
    let text = match counts {
        Some(counts) if counts.usage.output_total() > 0 => TextSize::default(),
        _ => F::text(&json),
    };
    meter.update(|reading| {
        note(counts, tier, reading);
        reading.unknown |= counts.is_none() && F::ran_tools(&json);
        reading.output_counted = counts.is_some() || !F::HAS_OUTPUT;
        reading.suspect = counts.is_none_or(|counts| counts.suspect);
        note_text(&text, reading);
        reading.end = Some(End::Finished);
    });
    // Callers compute their spending from the usage in a response. So it must be the charged usage.
    let charged = meter.counted().filter(|counted| counted.estimated);
    Ok(charged.map(|charged| {
        let old = usage.map(|usage| within(json.as_bytes(), usage));
        with_member(bytes, old.as_ref(), &F::write_usage(&charged.usage))
    }))
}

fn is_empty_array(json: &str) -> bool {
    let inner = json
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim_ascii().is_empty())
}

/// Accepts a response without content only if the vendor counted tokens for it, because the vendor bills these tokens.
fn counted_at_least(counts: Option<VendorUsage>) -> Result<(), Error> {
    match counts {
        Some(counts) if !counts.usage.is_zero() => Ok(()),
        _ => Err(broken(
            "the response has neither content nor counted tokens",
        )),
    }
}

/// Records the tokens that the vendor counted although it returned an error, so that they are charged. An error without
/// counted tokens is free.
fn note_error(counts: Option<VendorUsage>, tier: Label, meter: &Meter) {
    let Some(counts) = counts.filter(|counts| !counts.usage.is_zero()) else {
        return;
    };
    meter.update(|reading| {
        note(Some(counts), tier, reading);
        reading.output_counted = true;
        reading.suspect = counts.suspect;
        reading.end = Some(End::VendorError);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::usage::{Bounds, InputEstimate, Usage};

    fn read(format: Format, usage: &str) -> (Option<Usage>, bool) {
        let meter = Meter::default();
        let body = format!("{{\"choices\":[{{}}],\"content\":[],\"usage\":{usage}}}");
        plain(format, body.as_bytes(), &meter).unwrap();
        (meter.read().usage, meter.read().suspect)
    }

    #[test]
    fn empty_error_field_of_a_response_is_ignored() {
        let plain = |error: &str| {
            let body = format!(
                r#"{{"choices":[],"error":{error},"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#
            );
            plain(Format::Chat, body.as_bytes(), &Meter::default())
        };
        for error in ["null", "{}", r#""""#, "false"] {
            plain(error).unwrap();
        }
        for error in [r#"{"message":"no"}"#, r#""no""#, "true", "[]"] {
            plain(error).unwrap_err();
        }
    }

    #[test]
    fn error_in_the_only_choice_is_the_error_of_the_response() {
        const WORDS: &str = r#"{"code":502,"message":"gone"}"#;
        let choice = |index: u8, error: &str| {
            format!(r#"{{"index":{index},"message":{{"content":"\"error\""}},"error":{error}}}"#)
        };
        for (choices, is_error) in [
            (choice(0, WORDS), true),
            (choice(0, "null"), false),
            (format!("{},{}", choice(0, WORDS), choice(1, "null")), false),
        ] {
            let answer = format!(
                r#"{{"choices":[{choices}],"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#
            );
            let read = super::plain(Format::Chat, answer.as_bytes(), &Meter::default());
            assert_eq!(read.is_err(), is_error, "{answer}");
        }
    }

    #[test]
    fn chat_usage_counts_each_token_once() {
        for (usage, classes, suspect) in [
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#,
                [10, 0, 0, 5],
                false,
            ),
            (
                r#"{"prompt_tokens":4020,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":4012}}"#,
                [8, 0, 4012, 8],
                false,
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4}"#,
                [6, 4, 0, 5],
                false,
            ),
            // The vendor counts reasoning in addition to the completion.
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":115,"completion_tokens_details":{"reasoning_tokens":100}}"#,
                [10, 0, 0, 105],
                false,
            ),
            // The vendor counts reasoning as a part of the completion.
            (
                r#"{"prompt_tokens":10,"completion_tokens":105,"total_tokens":115,"completion_tokens_details":{"reasoning_tokens":100}}"#,
                [10, 0, 0, 105],
                false,
            ),
            (
                r#"{"prompt_tokens":-5,"completion_tokens":5}"#,
                [0, 0, 0, 5],
                true,
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":null}"#,
                [10, 0, 0, 0],
                true,
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":11}}"#,
                [10, 11, 0, 5],
                true,
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":11}}"#,
                [0, 10, 0, 5],
                true,
            ),
        ] {
            let [input, cached_input, cache_write, output] = classes;
            let expected = Usage {
                input,
                cached_input,
                cache_write,
                output,
                ..Usage::default()
            };
            assert_eq!(
                read(Format::Chat, usage),
                (Some(expected), suspect),
                "{usage}"
            );
        }
        assert_eq!(read(Format::Chat, "null"), (None, true));
        assert_eq!(read(Format::Chat, "\"x\""), (None, true));
    }

    #[test]
    fn messages_usage_excludes_the_cache_from_the_input() {
        let usage = r#"{"input_tokens":3,"cache_creation_input_tokens":2,"cache_read_input_tokens":1,"output_tokens":9}"#;
        let expected = Usage {
            input: 3,
            cached_input: 1,
            cache_write: 2,
            output: 9,
            ..Usage::default()
        };
        assert_eq!(read(Format::Messages, usage), (Some(expected), false));
    }

    fn bounds() -> Bounds {
        Bounds {
            input_bound: 100,
            input_limit: 150,
            input_estimate: Some(Arc::new(InputEstimate {
                tokens: 20,
                ..InputEstimate::default()
            })),
            output_bound: 50,
            output_limit: 60,
            ..Bounds::default()
        }
    }

    #[test]
    fn response_without_valid_usage_gets_the_charged_usage_and_is_otherwise_unchanged() {
        const CHAT: &str = r#""choices":[{"message":{"content":"abcdefgh\u0436"}}]"#;
        const MESSAGES: &str = r#""content":[{"type":"text","text":"abcdefgh\u0436"}]"#;
        const RESPONSES: &str = r#""output":[{"content":[{"type":"output_text","text":"abcdefgh\u0436"}]}],"instructions":"no text""#;
        for (format, text) in [
            (Format::Chat, CHAT),
            (Format::Messages, MESSAGES),
            (Format::Responses, RESPONSES),
        ] {
            // The texts of a response before and after its usage. Each response is tested without usage and with usage.
            let without = [
                (format!("{{{text}"), "}".to_owned()),
                (format!(" {{\"id\" : 1.000 ,{text}"), " }\r\n".to_owned()),
            ];
            let with = [
                (format!("{{{text},\"usage\":"), "}".to_owned()),
                (
                    "{\"x\":{\"usage\":null}, \"us\\u0061ge\" : ".to_owned(),
                    format!(" ,{text}}}\n"),
                ),
            ];
            let mut answers: Vec<_> = without
                .iter()
                .map(|(before, after)| ([before, after.as_str()].concat(), before, after, true))
                .collect();
            for nonsense in [
                "null",
                "{}",
                "[]",
                "\"x\"",
                r#"{"prompt_tokens":null}"#,
                r#"{"prompt_tokens":"9","completion_tokens":"5","input_tokens":-1}"#,
            ] {
                let answer =
                    |(before, after)| (format!("{before}{nonsense}{after}"), before, after);
                let with = with.iter().map(|(before, after)| answer((before, after)));
                answers.extend(with.map(|(answer, before, after)| (answer, before, after, false)));
            }
            for (answer, before, after, is_new) in answers {
                let meter = Meter::default();
                meter.charge_within(bounds());
                let reported = plain(format, answer.as_bytes(), &meter).unwrap().unwrap();
                let reported = String::from_utf8(reported.to_vec()).unwrap();
                let usage = reported.strip_prefix(before.as_str()).unwrap();
                let usage = usage.strip_suffix(after.as_str()).unwrap();
                let usage = match is_new {
                    true => usage.strip_prefix(",\"usage\":").unwrap(),
                    false => usage,
                };
                let expected = match format {
                    Format::Chat => {
                        r#"{"prompt_tokens":20,"completion_tokens":N,"total_tokens":T,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":0}}"#
                    }
                    Format::Messages => {
                        r#"{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":N}"#
                    }
                    Format::Responses => {
                        r#"{"input_tokens":20,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":N,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":T}"#
                    }
                };
                let output = TextSize::of("abcdefghж").tokens();
                let expected = expected
                    .replace('N', &output.to_string())
                    .replace('T', &(20 + output).to_string());
                assert_eq!(usage, expected, "{answer}");
            }
        }
    }

    #[test]
    fn usage_written_into_a_response_parses_as_the_charged_usage() {
        const COUNTS: [u64; 4] = [0, 7, 120, u64::MAX];
        let usages = COUNTS.iter().flat_map(|input| {
            let rest = COUNTS
                .iter()
                .flat_map(|cached| COUNTS.map(|output| (*cached, output)));
            rest.map(|(cached, output)| (*input, cached, output))
        });
        for (input, cached, output) in usages {
            for (format, usage) in [
                (
                    Format::Chat,
                    format!(
                        r#"{{"prompt_tokens":{input},"completion_tokens":{output},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
                    ),
                ),
                (
                    Format::Messages,
                    format!(
                        r#"{{"input_tokens":{input},"cache_creation_input_tokens":{cached},"output_tokens":{output}}}"#
                    ),
                ),
            ] {
                let answer = format!(
                    r#"{{"choices":[{{}}],"content":[{{"text":"abcde"}}],"usage":{usage}}}"#
                );
                let meter = Meter::default();
                meter.charge_within(bounds());
                let reported = plain(format, answer.as_bytes(), &meter).unwrap();
                let charged = meter.counted().unwrap();
                assert_eq!(reported.is_some(), charged.estimated, "{answer}");
                let again = Meter::default();
                let reported = reported.unwrap_or(answer.into());
                plain(format, &reported, &again).unwrap();
                assert_eq!(again.read().usage, Some(charged.usage), "{reported:?}");
                assert!(!again.read().suspect, "{reported:?}");
            }
        }
    }

    #[test]
    fn usage_is_replaced_even_in_a_response_with_a_truncated_character() {
        for (before, after) in [
            (&b"{\"choices\":[\"a\xD0\"],\"usage\":"[..], &b"}"[..]),
            (b"{\"usage\":", b",\"choices\":[\"\xF0\x9F\"]}"),
        ] {
            let meter = Meter::default();
            meter.charge_within(bounds());
            let answer = [before, b"null", after].concat();
            let reported = plain(Format::Chat, &answer, &meter).unwrap().unwrap();
            assert!(
                reported.starts_with(before) && reported.ends_with(after),
                "{reported:?}"
            );
            assert!(
                reported[before.len()..].starts_with(b"{\"prompt_tokens\":20,"),
                "{reported:?}"
            );
        }
        let meter = Meter::default();
        meter.charge_within(bounds());
        let reported = plain(Format::Messages, b" {\"content\":[] } ", &meter)
            .unwrap()
            .unwrap();
        assert!(
            reported.starts_with(b" {\"content\":[],\"usage\":{\"input_tokens\":20,"),
            "{reported:?}"
        );
        assert!(
            reported.ends_with(b"\"output_tokens\":0} } "),
            "{reported:?}"
        );
    }

    #[test]
    fn response_without_a_hold_is_forwarded_unchanged() {
        let plain = |answer: &str| plain(Format::Chat, answer.as_bytes(), &Meter::default());
        assert_eq!(plain(r#"{"choices":[{}]}"#).unwrap(), None);
    }

    #[test]
    fn empty_response_is_valid_only_if_its_usage_counts_output() {
        for (format, empty, counted) in [
            (
                Format::Chat,
                &[
                    "{}",
                    r#"{"choices":null}"#,
                    r#"{"choices":[ ]}"#,
                    r#"{"choices":{}}"#,
                ][..],
                r#"{"prompt_tokens":3,"completion_tokens":0}"#,
            ),
            (
                Format::Messages,
                &["{}", r#"{"content":null}"#],
                r#"{"input_tokens":3,"output_tokens":0}"#,
            ),
            (
                Format::Responses,
                &["{}", r#"{"output":null}"#],
                r#"{"input_tokens":3,"output_tokens":0}"#,
            ),
        ] {
            for empty in empty {
                let with = |usage: &str| {
                    let comma = if *empty == "{}" { "" } else { "," };
                    let answer = empty.strip_suffix('}').unwrap();
                    format!("{answer}{comma}\"usage\":{usage}}}")
                };
                let reported = |answer: &str| {
                    let meter = Meter::default();
                    let reported = plain(format, answer.as_bytes(), &meter);
                    (reported, meter.read().end)
                };
                for nothing in ["null", "{}", &counted.replace('3', "0")] {
                    for answer in [(*empty).to_owned(), with(nothing)] {
                        let (reported, end) = reported(&answer);
                        assert!(matches!(reported, Err(Error::VendorBroken(_))), "{answer}");
                        assert_eq!(end, None, "{answer}");
                    }
                }
                let (reported, end) = reported(&with(counted));
                assert_eq!((reported.unwrap(), end), (None, Some(End::Finished)));
            }
        }
    }

    #[test]
    fn embeddings_without_data_are_valid_only_if_tokens_were_counted() {
        for answer in [
            "{}",
            r#"{"data":null}"#,
            r#"{"data":[]}"#,
            r#"{"usage":{"prompt_tokens":0}}"#,
        ] {
            let reported = embeddings(answer.as_bytes(), &Meter::default());
            assert!(matches!(reported, Err(Error::VendorBroken(_))), "{answer}");
        }
        for answer in [r#"{"data":[{}]}"#, r#"{"usage":{"prompt_tokens":3}}"#] {
            embeddings(answer.as_bytes(), &Meter::default()).unwrap();
        }
    }

    #[test]
    fn errors_and_bodies_that_are_not_json_are_not_valid_responses() {
        let meter = Meter::default();
        let error = plain(Format::Chat, br#"{"error":{"message":"no"}}"#, &meter).unwrap_err();
        assert!(matches!(error, Error::VendorUnavailable(_)));
        assert!(matches!(
            plain(Format::Chat, b"<html>", &meter),
            Err(Error::VendorBroken(_))
        ));
        assert_eq!(meter.read().end, None);
    }

    #[test]
    fn response_without_usage_keeps_its_service_tier_for_the_price() {
        for (format, answer) in [
            (
                Format::Chat,
                r#"{"service_tier":"priority","choices":[{"message":{"content":"a"}}]}"#,
            ),
            (
                Format::Responses,
                r#"{"service_tier":"priority","output":[],"usage":null}"#,
            ),
        ] {
            let meter = Meter::default();
            // Without a hold, the meter has no charged usage to write into the response.
            drop(plain(format, answer.as_bytes(), &meter));
            let served = meter.read().served;
            assert_eq!(served.service_tier.as_str(), "priority", "{answer}");
        }
    }
}
