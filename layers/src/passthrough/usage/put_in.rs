//! Writes the charged usage into an answer, in each format.

use std::ops::Range;

use bytes::Bytes;

use crate::{call::Format, price::Class, usage::Usage};

/// Returns this answer, a JSON object, with this usage as its `usage`.
pub(super) fn with_usage(
    format: Format,
    answer: &[u8],
    old: Option<&Range<usize>>,
    usage: &Usage,
) -> Bytes {
    let Usage {
        input,
        cached_input,
        cache_write,
        classes,
        ..
    } = *usage;
    let output = usage.output_total();
    let [hour, half_day] = [Class::CacheWrite1h, Class::CacheWrite12h].map(|it| classes.get(it));
    let cached_parts = [Class::CachedInputAudio, Class::CachedInputImage];
    let [cached_sound, cached_image] = cached_parts.map(|it| classes.get(it));
    let fresh_parts = [Class::InputAudio, Class::InputImage];
    let [sound, image] = fresh_parts.map(|it| classes.get(it));
    let [spoken, drawn] = [Class::OutputAudio, Class::OutputImage].map(|it| classes.get(it));
    let searches = classes.get(Class::WebSearchCall);
    let cached_parts = cached_sound.saturating_add(cached_image);
    let cached_input = cached_input.saturating_add(cached_parts);
    let written = cache_write.saturating_add(hour).saturating_add(half_day);
    let some = |count: u64, text: String| if count > 0 { text } else { String::new() };
    let usage = match format {
        Format::Chat => {
            let prompt = usage.input_total();
            let total = prompt.saturating_add(output);
            let lives = some(
                half_day,
                format!(
                    ",\"cache_write_tokens_details\":{{\"ttl_30m_tokens\":{},\"ttl_12h_tokens\":{half_day}}}",
                    cache_write.saturating_add(hour)
                ),
            );
            let (all_sound, all_images) = (
                sound.saturating_add(cached_sound),
                image.saturating_add(cached_image),
            );
            let parts = some(all_sound, format!(",\"audio_tokens\":{all_sound}"))
                + &some(all_images, format!(",\"image_tokens\":{all_images}"))
                + &some(
                    cached_parts,
                    format!(
                        ",\"cached_tokens_details\":{{\"audio_tokens\":{cached_sound},\"image_tokens\":{cached_image}}}"
                    ),
                );
            let made = some(
                spoken.saturating_add(drawn),
                format!(
                    ",\"completion_tokens_details\":{{\"audio_tokens\":{spoken},\"image_tokens\":{drawn}}}"
                ),
            );
            let tools = some(searches, server_tool_use(searches));
            format!(
                "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output},\"total_tokens\":{total},\
                 \"prompt_tokens_details\":{{\"cached_tokens\":{cached_input},\
                 \"cache_write_tokens\":{written}{lives}{parts}}}{made}{tools}}}"
            )
        }
        Format::Messages => {
            let lives = some(
                hour,
                format!(
                    ",\"cache_creation\":{{\"ephemeral_5m_input_tokens\":{},\"ephemeral_1h_input_tokens\":{hour}}}",
                    cache_write.saturating_add(half_day)
                ),
            );
            let input = input.saturating_add(sound).saturating_add(image);
            let tools = some(searches, server_tool_use(searches));
            format!(
                "{{\"input_tokens\":{input},\"cache_creation_input_tokens\":{written},\
                 \"cache_read_input_tokens\":{cached_input},\"output_tokens\":{output}{lives}{tools}}}"
            )
        }
        Format::Responses => {
            let input = usage.input_total();
            let total = input.saturating_add(output);
            format!(
                "{{\"input_tokens\":{input},\"input_tokens_details\":{{\"cached_tokens\":{cached_input},\
                 \"cache_write_tokens\":{written}}},\"output_tokens\":{output},\
                 \"output_tokens_details\":{{\"reasoning_tokens\":0}},\"total_tokens\":{total}}}"
            )
        }
    };
    with_member(answer, old, &usage)
}

/// Returns this answer, a JSON object, with this value as its `usage`: in the range `old`, or as its last field.
pub(super) fn with_member(answer: &[u8], old: Option<&Range<usize>>, usage: &str) -> Bytes {
    if let Some(&Range { start, end }) = old {
        return [&answer[..start], usage.as_bytes(), &answer[end..]]
            .concat()
            .into();
    }
    let object = answer.trim_ascii_end();
    let brace = object.len().saturating_sub(1);
    let members = object[..brace].trim_ascii_end();
    let comma: &[u8] = if members.ends_with(b"{") { b"" } else { b"," };
    [
        members,
        comma,
        b"\"usage\":",
        usage.as_bytes(),
        &answer[members.len()..],
    ]
    .concat()
    .into()
}

fn server_tool_use(searches: u64) -> String {
    format!(",\"server_tool_use\":{{\"web_search_requests\":{searches}}}")
}
