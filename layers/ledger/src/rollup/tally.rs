//! Calls of one account, added up where they are read: most of a page are of the same hour, key and model, and what is
//! left of them is one row.

use super::{HOUR_MS, Sums, Words, sums::Counted};
use crate::account::IdError;

/// Sums of calls by the hour, with the words of an account's sums.
#[derive(Clone, Debug, Default)]
pub struct Tally(Vec<(u64, Words, Sums)>);

impl Tally {
    /// Adds a call.
    ///
    /// # Errors
    /// When its key's id is none.
    pub fn add(&mut self, call: &Counted<'_>) -> Result<(), IdError> {
        let hour_ms = call.at_ms - call.at_ms % HOUR_MS;
        let at = match self.find(|at_ms, words| at_ms == hour_ms && call.is_of(words)) {
            Some(at) => at,
            None => {
                let words = call.words()?;
                // Of a group that is none, nothing is left in them.
                let found = self.find(|at_ms, known| at_ms == hour_ms && *known == words);
                found.unwrap_or_else(|| {
                    self.0.push((hour_ms, words, Sums::default()));
                    self.0.len() - 1
                })
            }
        };
        self.0[at].2.count(call);
        Ok(())
    }

    /// The newest first: a journal is read in the order of time.
    fn find(&self, is_it: impl Fn(u64, &Words) -> bool) -> Option<usize> {
        let mut rows = self.0.iter();
        rows.rposition(|(at_ms, words, _)| is_it(*at_ms, words))
    }

    /// When an hour begins, what the calls are of, and what they come to.
    pub fn rows(&self) -> impl Iterator<Item = &(u64, Words, Sums)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        money::MicroRub,
        usage::{End, Usage},
    };

    fn call<'a>(at_ms: u64, key: &'a str, group: Option<&'a str>) -> Counted<'a> {
        Counted {
            at_ms,
            key,
            group,
            model: "m",
            vendor: "v",
            endpoint: None,
            end: End::Finished,
            estimated: false,
            usage: Usage::default(),
            charged_rub: MicroRub::new(3),
            loss_rub: MicroRub::ZERO,
            vendor_cost_rub: None,
            took_ms: (None, None),
        }
    }

    #[test]
    fn calls_of_the_same_hour_and_words_are_one_row() {
        let mut tally = Tally::default();
        for (at_ms, key, group) in [
            (1, "k1", None),
            (HOUR_MS - 1, "k1", None),
            (HOUR_MS, "k1", None),
            (HOUR_MS, "k2", None),
            (2, "k1", Some("g1")),
            (3, "k1", Some("g1")),
            // Money that is booked is counted, whatever stands for its group.
            (4, "k1", Some("no group!")),
            (5, "k1", Some("no group!")),
        ] {
            tally.add(&call(at_ms, key, group)).unwrap();
        }
        let rows: Vec<_> = tally
            .rows()
            .map(|(at_ms, words, sums)| {
                let of = (words.key.as_deref().unwrap(), words.group.as_deref());
                (*at_ms, of, sums.calls, sums.charged_micro)
            })
            .collect();
        assert_eq!(
            rows,
            [
                (0, ("k1", None), 4, 12),
                (HOUR_MS, ("k1", None), 1, 3),
                (HOUR_MS, ("k2", None), 1, 3),
                (0, ("k1", Some("g1")), 2, 6),
            ]
        );
        assert!(tally.add(&call(1, "no key!", None)).is_err());
    }
}
