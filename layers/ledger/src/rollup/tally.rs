//! Sums the calls of one account while they are read. Most calls on a page have the same hour, key and model, so they
//! become one row.

use super::{HOUR_MS, Sums, Words, sums::Counted};
use crate::account::IdError;

/// Sums of calls per hour, broken down by the same fields as the sums of an account.
#[derive(Clone, Debug, Default)]
pub struct Tally(Vec<(u64, Words, Sums)>);

impl Tally {
    /// Adds a call to its row.
    ///
    /// # Errors
    /// An [`IdError`] if the id of the call's key is invalid.
    pub fn add(&mut self, call: &Counted<'_>) -> Result<(), IdError> {
        let hour_ms = call.at_ms - call.at_ms % HOUR_MS;
        let at = match self.find(|at_ms, words| at_ms == hour_ms && call.is_of(words)) {
            Some(at) => at,
            None => {
                let words = call.words()?;
                // If the call's group is invalid, the row has no group. So the search for the call's own group did not
                // find the row.
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

    /// Returns the index of a row. Searches backwards from the newest row, because journals are read in the order of
    /// time.
    fn find(&self, is_it: impl Fn(u64, &Words) -> bool) -> Option<usize> {
        let mut rows = self.0.iter();
        rows.rposition(|(at_ms, words, _)| is_it(*at_ms, words))
    }

    /// Returns the rows: the beginning of the hour, the fields by which the calls are broken down, and their sums.
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
    fn calls_of_an_hour_with_the_same_key_and_model_are_summed_in_one_row() {
        let mut tally = Tally::default();
        for (at_ms, key, group) in [
            (1, "k1", None),
            (HOUR_MS - 1, "k1", None),
            (HOUR_MS, "k1", None),
            (HOUR_MS, "k2", None),
            (2, "k1", Some("g1")),
            (3, "k1", Some("g1")),
            // The charge is counted although its group is invalid.
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
