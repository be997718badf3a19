//! Formats a log line as JSON, byte for byte as `tracing_subscriber` does with flattened fields; tests verify that.
//! `tracing_subscriber` builds a map of the fields and serializes it, which takes 1.93 µs for the line of a call; this
//! code takes 0.26 µs. Events inside spans are still formatted by `tracing_subscriber`.

use std::{
    cell::Cell,
    fmt::{self, Write as _},
    time::{Duration, SystemTime},
};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext,
        format::{self, Format, FormatEvent, FormatFields, Writer},
    },
    registry::LookupSpan,
};

use crate::text::time::rfc3339;

/// Writes each log event as a JSON object.
pub(super) struct JsonLines(Format<format::Json>);

impl Default for JsonLines {
    fn default() -> Self {
        Self(format::json().flatten_event(true))
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        cx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // The gateway has no spans. Some of its dependencies have spans, if an operator enables them to debug.
        if event.parent().is_some() || cx.lookup_current().is_some() {
            return self.0.format_event(cx, writer, event);
        }
        // The buffer is taken out of its cell, because formatting a value may log and then needs the cell.
        let mut scratch = SCRATCH.take();
        scratch.write(event);
        let written = writer.write_str(&scratch.line);
        SCRATCH.set(scratch);
        written
    }
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const {
        Cell::new(Scratch {
            line: String::new(),
            stamp: Stamp {
                second: 0,
                text: String::new(),
            },
        })
    };
}

/// Buffers that a thread reuses for each line.
#[derive(Default)]
struct Scratch {
    line: String,
    stamp: Stamp,
}

impl Scratch {
    fn write(&mut self, event: &Event<'_>) {
        let metadata = event.metadata();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let line = &mut self.line;
        line.clear();
        line.push_str("{\"timestamp\":\"");
        self.stamp.write(line, now.unwrap_or_default());
        line.push_str("\",\"level\":\"");
        line.push_str(metadata.level().as_str());
        line.push_str("\",\"");
        event.record(&mut Fields(line));
        line.push_str("target\":\"");
        escape(line, metadata.target());
        line.push_str("\"}\n");
    }
}

/// RFC 3339 timestamps with microseconds. The date is computed once per second.
#[derive(Default)]
pub(super) struct Stamp {
    second: u64,
    /// The formatted time up to the fraction of the second.
    text: String,
}

impl Stamp {
    /// Writes a time since 1970.
    pub(super) fn write(&mut self, line: &mut String, time: Duration) {
        if self.second != time.as_secs() || self.text.is_empty() {
            self.second = time.as_secs();
            self.text = rfc3339(self.second.saturating_mul(1000));
            self.text.truncate("2027-01-31T00:00:00".len());
            self.text.push('.');
        }
        line.push_str(&self.text);
        // A leading digit preserves leading zeros.
        let micros = 1_000_000 + u64::from(time.subsec_micros());
        line.push_str(&itoa::Buffer::new().format(micros)[1..]);
        line.push('Z');
    }
}

/// Writes each field, followed by the quote that opens the next field's name.
struct Fields<'a>(&'a mut String);

impl Fields<'_> {
    /// Writes a value in quotes.
    fn text(&mut self, field: &Field, write: impl FnOnce(&mut String)) {
        // A name from source code needs no escaping.
        self.0.push_str(field.name());
        self.0.push_str("\":\"");
        write(self.0);
        self.0.push_str("\",\"");
    }

    /// Writes a value without quotes.
    fn bare(&mut self, field: &Field, write: impl FnOnce(&mut String)) {
        self.0.push_str(field.name());
        self.0.push_str("\":");
        write(self.0);
        self.0.push_str(",\"");
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.bare(field, |line| match thousandths(value) {
            Some(count) => push_thousandths(line, count),
            None => line.push_str(&serde_json::to_string(&value).expect("a number is JSON")),
        });
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field, |line| {
            line.push_str(itoa::Buffer::new().format(value));
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.bare(field, |line| {
            line.push_str(itoa::Buffer::new().format(value));
        });
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, |line| {
            line.push_str(if value { "true" } else { "false" });
        });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, |line| escape(line, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, |line| {
            // If formatting a value fails, the text before the failure is logged.
            let _ = write!(Escaped(line), "{value:?}");
        });
    }
}

/// Returns the number in thousandths, if it is small and has at most three decimals, as durations have. With so few
/// digits the shortest representation is unique and need not be searched.
fn thousandths(value: f64) -> Option<u64> {
    let count = (value * 1000.0 + 0.5) as u64;
    let same = (count as f64 / 1000.0).to_bits() == value.to_bits();
    (same && count < 1_000_000_000_000_000).then_some(count)
}

/// Writes a number as `serde_json` does: with at least one decimal.
fn push_thousandths(line: &mut String, count: u64) {
    let (whole, fraction) = (count / 1000, count % 1000);
    let mut buffer = itoa::Buffer::new();
    line.push_str(buffer.format(whole));
    line.push('.');
    // A leading digit preserves leading zeros; trailing zeros are cut.
    let digits = buffer.format(1000 + fraction);
    let end = if fraction.is_multiple_of(100) {
        2
    } else if fraction.is_multiple_of(10) {
        3
    } else {
        4
    };
    line.push_str(&digits[1..end]);
}

/// Escapes a text that arrives in pieces.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(self.0, text);
        Ok(())
    }
}

/// Writes the inside of a JSON string, as `serde_json` does.
#[inline]
fn escape(line: &mut String, text: &str) {
    if is_any_escaped(text.as_bytes()) {
        escape_each(line, text);
    } else {
        line.push_str(text);
    }
}

/// Escapes character by character. The function is not inlined, because few texts need escaping.
#[cold]
fn escape_each(line: &mut String, mut rest: &str) {
    while let Some(at) = rest.bytes().position(is_escaped) {
        line.push_str(&rest[..at]);
        push_escape(line, rest.as_bytes()[at]);
        rest = &rest[at + 1..];
    }
    line.push_str(rest);
}

/// Checks eight bytes at a time; the last eight may overlap the eight before.
fn is_any_escaped(text: &[u8]) -> bool {
    let Some(last) = text.last_chunk::<8>() else {
        return text.iter().any(|byte| is_escaped(*byte));
    };
    let (words, _) = text.as_chunks::<8>();
    words.iter().any(|word| is_any_of_word_escaped(*word)) || is_any_of_word_escaped(*last)
}

/// Returns whether one of the bytes must be escaped. `less` sets the highest bit of each byte that is less than a
/// bound; with the bound 1 it finds zero bytes. A borrow can set a wrong bit only above a byte that is itself less than
/// the bound, so the result as a whole is right (Bit Twiddling Hacks, `hasless`).
const fn is_any_of_word_escaped(word: [u8; 8]) -> bool {
    const EACH: u64 = u64::MAX / 0xff;
    const fn less(word: u64, than: u8) -> u64 {
        word.wrapping_sub(EACH * than as u64) & !word & (EACH * 0x80)
    }
    let word = u64::from_le_bytes(word);
    let quote = less(word ^ (EACH * b'"' as u64), 1);
    let backslash = less(word ^ (EACH * b'\\' as u64), 1);
    (less(word, 0x20) | quote | backslash) != 0
}

const fn is_escaped(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

fn push_escape(line: &mut String, byte: u8) {
    let letter = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            // Writing to memory cannot fail.
            let _ = write!(line, "\\u{byte:04x}");
            return;
        }
    };
    line.push('\\');
    line.push(char::from(letter));
}

#[cfg(test)]
mod tests {
    use std::{
        error::Error,
        io,
        sync::{Arc, Mutex},
    };

    use serde_json::Value;
    use tracing::{Level, subscriber::with_default};

    use super::*;

    /// Collects the bytes that are written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        /// Returns the single line from its level on; the time is checked and removed.
        fn line(&self) -> String {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            assert!(
                text.ends_with('\n') && text.matches('\n').count() == 1,
                "{text}"
            );
            let line: Value = serde_json::from_str(&text).unwrap();
            let shape: String = line["timestamp"]
                .as_str()
                .unwrap()
                .chars()
                .map(|c| if c.is_ascii_digit() { '0' } else { c })
                .collect();
            assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
            text[text.find(",\"level\"").unwrap()..].to_owned()
        }
    }

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the line of an event, which must equal that of `tracing_subscriber`.
    fn line(log_it: impl Fn()) -> String {
        let (ours, theirs) = (Written::default(), Written::default());
        let out = ours.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .json()
            .event_format(JsonLines::default())
            .with_writer(move || out.clone())
            .finish();
        with_default(log, &log_it);
        let out = theirs.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .json()
            .flatten_event(true)
            .with_writer(move || out.clone())
            .finish();
        with_default(log, &log_it);
        assert_eq!(ours.line(), theirs.line());
        ours.line()
    }

    #[test]
    fn log_text_is_escaped_as_serde_json_does_it() {
        let controls: String = (0..=0x20).map(char::from).collect();
        let long = "щ".repeat(50_000);
        let late = format!("{long}\"");
        for text in [
            "",
            "plain",
            "\"",
            "\\",
            "a \"quoted\" path\\to/it",
            &controls,
            "\u{7f}\u{80}\u{2028}\u{feff}",
            "tg-AbC123… 0.0013 ₽ 😀",
            &long,
            &late,
        ] {
            let written = line(|| {
                tracing::info!(
                    text,
                    displayed = %text,
                    debugged = ?text,
                    owned = String::from(text),
                    "said: {text}"
                );
            });
            let written: Value = serde_json::from_str(&format!("{{{}", &written[1..])).unwrap();
            assert_eq!(written["text"], text);
            assert_eq!(written["displayed"], text);
            assert_eq!(written["debugged"], format!("{text:?}"));
            assert_eq!(written["owned"], text);
            assert_eq!(written["message"], format!("said: {text}"));
        }
    }

    #[test]
    fn log_values_other_than_text_are_written_unchanged_and_none_values_left_out() {
        let cause = io::Error::other("out of \"order\"");
        let written = line(|| {
            tracing::info!(
                least = i64::MIN,
                most = u64::MAX,
                wide = i128::MIN,
                small = 7_u8,
                yes = true,
                some = Some(1.25),
                none = None::<u64>,
                bytes = &[0_u8, 255][..],
                cause = &cause as &(dyn Error + 'static),
                "call"
            );
        });
        assert!(written.contains("\"some\":1.25") && !written.contains("none"));
        for number in [
            0.0,
            -0.0,
            1.0,
            0.1,
            1.234,
            123_456.789,
            1e-7,
            1e16,
            1e21,
            0.001,
            12.0,
            0.25,
            0.0005,
            1.2345,
            -1.5,
            0.1 + 0.2,
            100_000_000_000.001,
            999_999_999_999.999,
            1e12,
            9_007_199_254_740.992,
            f64::MIN_POSITIVE,
            f64::MAX,
            f64::NEG_INFINITY,
            f64::NAN,
            f64::INFINITY,
        ] {
            line(|| tracing::info!(number));
        }
    }

    #[test]
    fn duration_in_microseconds_is_written_as_milliseconds() {
        for micros in (0..2_000_u64).chain((1..90).map(|n| n * 33_333_333_333)) {
            let value = micros as f64 / 1000.0;
            let mut text = String::new();
            push_thousandths(&mut text, thousandths(value).unwrap());
            assert_eq!(text, serde_json::to_string(&value).unwrap());
        }
    }

    #[test]
    fn character_to_escape_is_found_at_every_position() {
        for length in 0..=20 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    for around in [0x20, b'!', b'#', b'[', b']', 0x7f, 0x80, 0xff] {
                        let mut text = vec![around; length];
                        text[at] = byte;
                        assert_eq!(is_any_escaped(&text), is_escaped(byte), "{text:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn log_line_names_its_level_and_target() {
        line(|| tracing::error!("e"));
        line(|| tracing::warn!("w"));
        line(|| tracing::debug!("d"));
        line(|| tracing::trace!("t"));
        let written = line(|| tracing::info!(target: "au\"dit", what = "key.create"));
        assert_eq!(
            written,
            ",\"level\":\"INFO\",\"what\":\"key.create\",\"target\":\"au\\\"dit\"}\n"
        );
    }

    #[test]
    fn spans_of_other_crates_are_logged_if_present() {
        let written = line(|| {
            let outer = tracing::info_span!("outer", id = 1);
            outer.in_scope(|| tracing::info!("inside"));
        });
        assert!(written.contains("\"spans\":[{"), "{written}");
        let written = line(|| {
            let parent = tracing::info_span!("parent");
            tracing::info!(parent: &parent, "below");
        });
        assert!(written.contains("\"name\":\"parent\""), "{written}");
        assert!(!line(|| tracing::info!("alone")).contains("span"));
    }

    #[test]
    fn log_time_has_microseconds_even_if_the_clock_goes_back() {
        let mut stamp = Stamp::default();
        for (seconds, nanos, expected) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (0, 999, "1970-01-01T00:00:00.000000Z"),
            (1_801_439_999, 1_000, "2027-01-31T23:59:59.000001Z"),
            (1_801_439_999, 999_999_999, "2027-01-31T23:59:59.999999Z"),
            (1_801_440_000, 20_304_000, "2027-02-01T00:00:00.020304Z"),
            (1_801_439_999, 500_000_000, "2027-01-31T23:59:59.500000Z"),
        ] {
            let mut text = String::new();
            stamp.write(&mut text, Duration::new(seconds, nanos));
            assert_eq!(text, expected);
        }
    }
}
