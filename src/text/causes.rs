//! Formats an error and its causes in one line, for logs and for people.

use std::error::Error;

use tollgate_ledger::contract::{BookError, LedgerError};

/// Returns the texts of the error and its causes, outermost first. An error whose text only repeats its cause is left
/// out.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        // The next cause names the component that is out of reach and the reason, so this error's text adds nothing.
        if next.is_some() && says_only_out_of_reach(error) {
            continue;
        }
        let text = error.to_string();
        // If an error ends with the text of its cause, as many errors do, the cause is not repeated.
        if !texts.last().is_some_and(|last| last.ends_with(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

fn says_only_out_of_reach(error: &(dyn Error + 'static)) -> bool {
    matches!(
        error.downcast_ref::<LedgerError>(),
        Some(LedgerError::Unavailable(_))
    ) || matches!(
        error.downcast_ref::<BookError>(),
        Some(BookError::Unavailable(_))
    )
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Link {
        text: &'static str,
        source: io::Error,
    }

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.text)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.source)
        }
    }

    #[test]
    fn repeated_causes_of_an_error_are_left_out() {
        let refused = || io::Error::other("connection refused");
        let redis = Link {
            text: "Redis at a:1 is out of reach",
            source: refused(),
        };
        let once = "Redis at a:1 is out of reach: connection refused";
        assert_eq!(chain(&redis), once);
        assert_eq!(chain(&LedgerError::Unavailable(Box::new(redis))), once);
        let repeats = Link {
            text: "cannot connect: connection refused",
            source: refused(),
        };
        assert_eq!(chain(&repeats), "cannot connect: connection refused");
        let bare = LedgerError::Unavailable("it is closed".into());
        assert_eq!(chain(&bare), "it is closed");
    }
}
