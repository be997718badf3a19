//! Collects the results of a load while it runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{connection::CallError, histogram::Histogram};

/// The results of a load so far. All connections of the load write to it, and the report reads it.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Results>>);

/// The results of a load: counts, and histograms of durations.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Results {
    /// How many calls were answered: with status 200, to the end, and without an error event.
    pub answered: u64,
    /// How many calls failed. A call that is not in `answered` has failed.
    pub failed: u64,
    /// How many calls had a response with each status; calls in `errors` are not included.
    pub statuses: BTreeMap<u16, u64>,
    /// How many calls failed for another reason than their status, by [`CallError::kind`].
    pub errors: BTreeMap<&'static str, u64>,
    /// The error of the call that failed first.
    pub first_failure: Option<String>,
    /// Time from the moment at which a call was due to the end of its response. This and all other histograms cover
    /// only answered calls.
    pub whole: Histogram,
    /// Time from the moment at which a call was due to the first piece of its response's body.
    pub first_chunk: Histogram,
    /// Time between two consecutive pieces of the same response.
    pub between_chunks: Histogram,
    /// The durations that the function [`super::Call::each`] has measured.
    pub own: Histogram,
}

impl Record {
    /// Returns a copy of the results so far.
    #[must_use]
    pub fn results(&self) -> Results {
        self.with(|results| results.clone())
    }

    /// Returns how many calls have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.with(|results| results.answered + results.failed)
    }

    pub(super) fn answered(&self, due: Instant, chunks: &Chunks) {
        let whole = due.elapsed();
        self.with(|results| {
            results.answered += 1;
            *results.statuses.entry(200).or_default() += 1;
            results.whole.record(whole);
            if let Some(first) = chunks.first {
                results.first_chunk.record(first.duration_since(due));
            }
            for gap in &chunks.gaps {
                results.between_chunks.record(*gap);
            }
            for delay in &chunks.own {
                results.own.record(*delay);
            }
        });
    }

    pub(super) fn failed(&self, error: &CallError) {
        self.with(|results| {
            results.failed += 1;
            match error.status() {
                Some(status) => *results.statuses.entry(status.as_u16()).or_default() += 1,
                None => *results.errors.entry(error.kind()).or_default() += 1,
            }
            let first = &mut results.first_failure;
            first.get_or_insert_with(|| error.to_string());
        });
    }

    fn with<R>(&self, work: impl FnOnce(&mut Results) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The times at which the pieces of one response's body arrived.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    first: Option<Instant>,
    last: Option<Instant>,
    gaps: Vec<Duration>,
    /// The durations that [`super::Call::each`] has measured in one response.
    pub(super) own: Vec<Duration>,
}

impl Chunks {
    pub(super) fn arrived(&mut self) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        if let Some(last) = self.last.replace(now) {
            self.gaps.push(now - last);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_to_the_first_piece_of_a_stream_and_pauses_between_pieces_are_measured() {
        let (record, due, mut chunks) = (Record::default(), Instant::now(), Chunks::default());
        for ms in [50, 2, 7] {
            advance(Duration::from_millis(ms)).await;
            chunks.arrived();
        }
        record.answered(due, &chunks);
        record.failed(&CallError::Empty);
        let results = record.results();
        assert_eq!((results.answered, results.failed), (1, 1));
        assert_eq!(results.errors, [("empty answer", 1)].into());
        assert_eq!(results.first_chunk.max(), Duration::from_millis(50));
        assert_eq!(results.between_chunks.count(), 2);
        assert_eq!(results.between_chunks.max(), Duration::from_millis(7));
        assert_eq!(results.whole.max(), Duration::from_millis(59));
    }
}
