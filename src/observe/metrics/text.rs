//! The two text formats in which metrics can be served.

use http::{HeaderMap, HeaderValue, header::ACCEPT};

/// The text format of the metrics in a scrape's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0, for clients that accept it, for example Prometheus.
    OpenMetrics,
    /// The classic Prometheus text format 0.0.4, which every client can read.
    Classic,
}

impl Format {
    /// Returns the format to serve, according to the `Accept` header of the request.
    pub(crate) fn asked_for(headers: &HeaderMap) -> Self {
        let names = |value: &HeaderValue| {
            let value = value.to_str().unwrap_or_default();
            value.contains("application/openmetrics-text")
        };
        if headers.get_all(ACCEPT).iter().any(names) {
            Self::OpenMetrics
        } else {
            Self::Classic
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Converts OpenMetrics to text format 0.0.4. In that format, a counter's family has the same name as its samples, and
/// there is no end marker.
pub(super) fn classic(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    // In a help line, the name of the metric depends on the metric's type. OpenMetrics writes the type after the help
    // line, so the help line is kept until the type is known.
    let mut help: Option<&str> = None;
    for line in text.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        if let Some(line) = line.strip_prefix("# HELP ") {
            help = Some(line);
            continue;
        }
        let kind = line.strip_prefix("# TYPE ");
        let Some((name, kind)) = kind.and_then(|kind| kind.split_once(' ')) else {
            classic.push_str(line);
            classic.push('\n');
            continue;
        };
        let suffix = if kind == "counter" { "_total" } else { "" };
        if let Some((_, words)) = help.take().and_then(|line| line.split_once(' ')) {
            classic.push_str(&format!("# HELP {name}{suffix} {words}\n"));
        }
        classic.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classic_prometheus_text_names_counters_with_the_suffix_total() {
        let text = "# HELP a A, counted.\n# TYPE a counter\na_total{x=\"1\"} 2\n\
                    # HELP b_seconds B.\n# TYPE b_seconds histogram\n# UNIT b_seconds seconds\n\
                    b_seconds_sum 0.5\n# HELP c C.\n# TYPE c gauge\nc 1\n# EOF\n";
        assert_eq!(
            classic(text),
            "# HELP a_total A, counted.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n\
             # HELP b_seconds B.\n# TYPE b_seconds histogram\nb_seconds_sum 0.5\n\
             # HELP c C.\n# TYPE c gauge\nc 1\n"
        );
    }

    #[test]
    fn openmetrics_is_served_on_request() {
        let requested = |accept: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            Format::asked_for(&headers)
        };
        assert_eq!(requested(None), Format::Classic);
        assert_eq!(requested(Some("*/*")), Format::Classic);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        assert_eq!(requested(Some(prometheus)), Format::OpenMetrics);
    }
}
