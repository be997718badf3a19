//! The JSON of a line: to the byte what `tracing_subscriber` makes of it with its fields flattened, for a
//! fraction of the instructions. Each call has one.

use std::{
    cell::Cell,
    fmt::{self, Write as _},
    time::{Duration, SystemTime},
};

use serde::Serialize;
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

use crate::time_text::rfc3339;

/// One object for each event.
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
        // We have no spans. Some crates below us have, for whoever looks for a fault there.
        if event.parent().is_some() || cx.lookup_current().is_some() {
            return self.0.format_event(cx, writer, event);
        }
        // Taken and not borrowed: what is written may log on its own.
        let mut scratch = SCRATCH.take();
        scratch.write(event);
        let text = std::str::from_utf8(&scratch.line);
        let written = text.map_or(Err(fmt::Error), |text| writer.write_str(text));
        SCRATCH.set(scratch);
        written
    }
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const {
        Cell::new(Scratch {
            line: Vec::new(),
            stamp: Stamp {
                second: 0,
                text: String::new(),
            },
        })
    };
}

/// What a thread uses again for each of its lines.
#[derive(Default)]
struct Scratch {
    line: Vec<u8>,
    stamp: Stamp,
}

impl Scratch {
    fn write(&mut self, event: &Event<'_>) {
        let metadata = event.metadata();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let line = &mut self.line;
        line.clear();
        line.extend_from_slice(b"{\"timestamp\":\"");
        self.stamp.write(line, now.unwrap_or_default());
        line.extend_from_slice(b"\",\"level\":\"");
        line.extend_from_slice(metadata.level().as_str().as_bytes());
        line.push(b'"');
        event.record(&mut Fields(line));
        line.extend_from_slice(b",\"target\":\"");
        escape(line, metadata.target());
        line.extend_from_slice(b"\"}\n");
    }
}

/// RFC 3339 with microseconds. The calendar is asked once a second.
#[derive(Default)]
pub(super) struct Stamp {
    second: u64,
    /// The second, up to its fraction.
    text: String,
}

impl Stamp {
    /// Writes a time since 1970.
    pub(super) fn write(&mut self, line: &mut Vec<u8>, time: Duration) {
        if self.second != time.as_secs() || self.text.is_empty() {
            self.second = time.as_secs();
            self.text = rfc3339(self.second.saturating_mul(1000));
            self.text.truncate("2027-01-31T00:00:00".len());
        }
        let mut fraction = *b".000000Z";
        let mut micros = time.subsec_micros();
        for digit in fraction[1..7].iter_mut().rev() {
            *digit += (micros % 10) as u8;
            micros /= 10;
        }
        line.extend_from_slice(self.text.as_bytes());
        line.extend_from_slice(&fraction);
    }
}

/// Writes each field behind those before.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    fn name(&mut self, field: &Field) {
        self.0.extend_from_slice(b",\"");
        // As it stands in somebody's code: there is nothing to escape.
        self.0.extend_from_slice(field.name().as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn json(&mut self, field: &Field, value: &impl Serialize) {
        self.name(field);
        serde_json::to_writer(&mut *self.0, value).expect("a number, written to memory");
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.json(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.json(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.json(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.json(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.0.push(b'"');
        escape(self.0, value);
        self.0.push(b'"');
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name(field);
        self.0.push(b'"');
        // A value that breaks off is shown as far as it went.
        let _ = write!(Escaped(self.0), "{value:?}");
        self.0.push(b'"');
    }
}

/// Takes a text in pieces.
struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(self.0, text);
        Ok(())
    }
}

/// Writes the inside of a JSON string, as `serde_json` does.
fn escape(line: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    // To the end whatever is found, so that sixteen bytes are looked at together.
    let found = rest
        .iter()
        .fold(false, |found, byte| found | is_escaped(*byte));
    if found {
        while let Some(at) = rest.iter().position(|byte| is_escaped(*byte)) {
            line.extend_from_slice(&rest[..at]);
            push_escape(line, rest[at]);
            rest = &rest[at + 1..];
        }
    }
    line.extend_from_slice(rest);
}

const fn is_escaped(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

fn push_escape(line: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let letter = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            line.extend_from_slice(b"\\u00");
            line.push(DIGITS[usize::from(byte >> 4)]);
            line.push(DIGITS[usize::from(byte & 0xf)]);
            return;
        }
    };
    line.extend_from_slice(&[b'\\', letter]);
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

    /// What was written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        /// The one line, from its level on; its time is looked at and taken away.
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

    /// The line that an event makes, which must be that of `tracing_subscriber`.
    fn line(say: impl Fn()) -> String {
        let (ours, theirs) = (Written::default(), Written::default());
        let out = ours.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .json()
            .event_format(JsonLines::default())
            .with_writer(move || out.clone())
            .finish();
        with_default(log, &say);
        let out = theirs.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .json()
            .flatten_event(true)
            .with_writer(move || out.clone())
            .finish();
        with_default(log, &say);
        assert_eq!(ours.line(), theirs.line());
        ours.line()
    }

    #[test]
    fn any_text_is_escaped_as_serde_json_does_it() {
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
            let said = line(|| {
                tracing::info!(
                    text,
                    displayed = %text,
                    debugged = ?text,
                    owned = String::from(text),
                    "said: {text}"
                );
            });
            let said: Value = serde_json::from_str(&format!("{{{}", &said[1..])).unwrap();
            assert_eq!(said["text"], text);
            assert_eq!(said["displayed"], text);
            assert_eq!(said["debugged"], format!("{text:?}"));
            assert_eq!(said["owned"], text);
            assert_eq!(said["message"], format!("said: {text}"));
        }
    }

    #[test]
    fn values_that_are_no_text_are_written_as_ever_and_what_is_none_is_left_out() {
        let cause = io::Error::other("out of \"order\"");
        let said = line(|| {
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
        assert!(said.contains("\"some\":1.25") && !said.contains("none"));
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
            f64::MAX,
            f64::NAN,
            f64::INFINITY,
        ] {
            line(|| tracing::info!(number));
        }
    }

    #[test]
    fn every_level_and_target_is_named() {
        line(|| tracing::error!("e"));
        line(|| tracing::warn!("w"));
        line(|| tracing::debug!("d"));
        line(|| tracing::trace!("t"));
        let said = line(|| tracing::info!(target: "au\"dit", what = "key.create"));
        assert_eq!(
            said,
            ",\"level\":\"INFO\",\"what\":\"key.create\",\"target\":\"au\\\"dit\"}\n"
        );
    }

    #[test]
    fn the_spans_of_other_crates_are_there_and_nothing_is_where_there_are_none() {
        let said = line(|| {
            let outer = tracing::info_span!("outer", id = 1);
            outer.in_scope(|| tracing::info!("inside"));
        });
        assert!(said.contains("\"spans\":[{"), "{said}");
        let said = line(|| {
            let parent = tracing::info_span!("parent");
            tracing::info!(parent: &parent, "below");
        });
        assert!(said.contains("\"name\":\"parent\""), "{said}");
        assert!(!line(|| tracing::info!("alone")).contains("span"));
    }

    #[test]
    fn a_time_has_its_microseconds_whatever_was_written_before() {
        let mut stamp = Stamp::default();
        for (seconds, nanos, expected) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (0, 999, "1970-01-01T00:00:00.000000Z"),
            (1_801_439_999, 1_000, "2027-01-31T23:59:59.000001Z"),
            (1_801_439_999, 999_999_999, "2027-01-31T23:59:59.999999Z"),
            (1_801_440_000, 20_304_000, "2027-02-01T00:00:00.020304Z"),
            (1_801_439_999, 500_000_000, "2027-01-31T23:59:59.500000Z"),
        ] {
            let mut text = Vec::new();
            stamp.write(&mut text, Duration::new(seconds, nanos));
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }
}
