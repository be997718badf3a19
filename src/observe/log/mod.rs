//! The log: JSON lines for a log collector, readable text on a terminal.

mod audited;
mod buffer;
mod json;

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::{
        FmtContext,
        format::{Format, FormatEvent, FormatFields, Writer},
        time::{FormatTime, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

pub(crate) use self::audited::{AuditLine, AuditedLayer, audited};
pub use self::buffer::Flush;
use self::json::JsonLines;
use crate::observe::record::TARGET;

/// Logs to standard error and writes each line immediately. `RUST_LOG` selects the lines, but audit lines are always
/// logged. If `calls` is [`Calls::Elsewhere`], only failed calls are logged.
///
/// # Panics
/// If a log was already set up.
pub fn to_stderr(calls: Calls) {
    let log = tracing_subscriber::registry().with(filter(calls));
    let log = log.with(AuditedLayer);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    if io::stderr().is_terminal() {
        let format = Terminal(tracing_subscriber::fmt::format());
        log.with(lines.with_ansi(true).event_format(format)).init();
    } else {
        let lines = lines.json().event_format(JsonLines::default());
        log.with(lines).init();
    }
}

/// Logs to standard error like [`to`], with a line for each call. On a terminal, each line is written immediately.
///
/// # Panics
/// If a log was already set up, or a thread cannot be spawned.
#[must_use = "the last lines are written when this is dropped"]
pub fn to_stderr_buffered() -> Option<Flush> {
    if io::stderr().is_terminal() {
        to_stderr(Calls::Here);
        return None;
    }
    Some(to(io::stderr()))
}

/// Logs JSON lines without delaying calls. `out` gets each line within 20 ms, and warnings and errors immediately. When
/// the returned guard is dropped, all remaining lines are written. `RUST_LOG` selects lines as for [`to_stderr`].
///
/// # Panics
/// If a log was already set up, or a thread cannot be spawned.
pub fn to(out: impl Write + Send + 'static) -> Flush {
    let (lines, flush) = buffer::start(out);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(lines)
        .json()
        .event_format(JsonLines::default());
    let log = tracing_subscriber::registry().with(filter(Calls::Here));
    log.with(AuditedLayer).with(lines).init();
    flush
}

/// Whether the gateway's log has a line for each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The gateway's log has a line for each call.
    Here,
    /// The program that embeds the gateway logs calls itself.
    Elsewhere,
}

fn filter(calls: Calls) -> Targets {
    let chosen = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = targets(&chosen).with_target("audit", LevelFilter::INFO);
    match calls {
        Calls::Here => filter,
        Calls::Elsewhere => filter.with_target("call", LevelFilter::WARN),
    }
}

/// Parses the levels in `RUST_LOG`, such as `warn,call=info`. An invalid part is ignored. The default is `info`.
fn targets(text: &str) -> Targets {
    let parts = text.split(',').map(str::trim);
    let readable = parts.filter(|part| !part.is_empty() && part.parse::<Targets>().is_ok());
    let readable: Vec<&str> = readable.collect();
    match readable.join(",").parse() {
        Ok(targets) if !readable.is_empty() => targets,
        _ => Targets::new().with_default(LevelFilter::INFO),
    }
}

/// Log format for a terminal: a line about a call is written as a sentence, and other events as `tracing_subscriber`
/// writes them.
struct Terminal(Format);

impl<S, N> FormatEvent<S, N> for Terminal
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
        let metadata = event.metadata();
        if metadata.target() != TARGET {
            return self.0.format_event(cx, writer, event);
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        SystemTime.format_time(&mut writer)?;
        writeln!(writer, " {:>5} {}", metadata.level(), fields.words())
    }
}

/// The fields of a log line about a call.
#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Formats a call as `01a1f9e4-… 200 /v1/messages small <- vendor, 9 -> 3 tokens, 0.000859 ₽, finished, 1.2 ms (own
    /// 0.3) acme tg-AbC123…`.
    fn words(&self) -> String {
        let mut words = String::new();
        let mut push = |lead: &str, value: &str| {
            if !value.is_empty() {
                words.push_str(lead);
                words.push_str(value);
            }
        };
        let value = |name: &str| self.get(name).unwrap_or_default();
        push("", value("number"));
        push(" ", value("status"));
        push(" ", value("path"));
        push(" ", value("model"));
        push(" <- ", value("vendor"));
        if value("streamed") == "true" {
            push(", ", "streamed");
        }
        if let Some(output) = self.get("output") {
            let classes = ["input", "cached_input", "cache_write"].into_iter();
            let counts = classes.filter_map(|class| value(class).parse::<u64>().ok());
            let input: u64 = counts.sum();
            push(", ", &format!("{input} -> {output} tokens"));
            if value("estimated") == "true" {
                push("", " (estimated)");
            }
            push(", ", &format!("{} ₽", value("charged_rub")));
            if !matches!(value("loss_rub"), "" | "0.00") {
                push(", ", &format!("{} ₽ lost", value("loss_rub")));
            }
        }
        push(", ", value("end"));
        if !matches!(value("booked"), "" | "held") {
            push(", booked ", value("booked"));
        }
        push(", ", value("code"));
        push(": ", value("error"));
        push(": ", value("cause"));
        if let Some(whole) = self.get("whole_ms") {
            push(", ", &format!("{whole} ms"));
            if let Some(own) = self.get("own_ms") {
                push("", &format!(" (own {own})"));
            }
        }
        push(", ", value("account"));
        push(" ", value("key"));
        words
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Control characters are replaced, so that text from a caller cannot look like another log line.
        let value = value.chars().map(|c| if c.is_control() { ' ' } else { c });
        self.0.push((field.name(), value.collect()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(fields: &[(&'static str, &str)]) -> String {
        let owned = fields
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        Fields(owned.collect()).words()
    }

    #[test]
    fn terminal_log_describes_a_call_in_one_line() {
        let charged = words(&[
            ("number", "01a1f9e4"),
            ("account", "acme"),
            ("key", "tg-AbC123…"),
            ("path", "/v1/messages"),
            ("status", "200"),
            ("model", "small"),
            ("vendor", "v"),
            ("streamed", "true"),
            ("input", "9"),
            ("cached_input", "2"),
            ("cache_write", "0"),
            ("output", "3"),
            ("estimated", "true"),
            ("charged_rub", "0.000859"),
            ("loss_rub", "0.00"),
            ("booked", "held"),
            ("end", "finished"),
            ("whole_ms", "1.25"),
            ("own_ms", "0.3"),
        ]);
        assert_eq!(
            charged,
            "01a1f9e4 200 /v1/messages small <- v, streamed, 11 -> 3 tokens (estimated), 0.000859 ₽, finished, \
             1.25 ms (own 0.3), acme tg-AbC123…"
        );
        let refused = words(&[
            ("number", "01a1f9e5"),
            ("path", "/v1/messages"),
            ("status", "401"),
            ("code", "invalid_api_key"),
            ("error", "unknown key"),
            ("whole_ms", "0.1"),
        ]);
        assert_eq!(
            refused,
            "01a1f9e5 401 /v1/messages, invalid_api_key: unknown key, 0.1 ms"
        );
    }
}
