//! The results of a load while it runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{connection::CallError, histogram::Histogram};

/// The results so far, shared by all connections of a load and by its report.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Results>>);

/// The results of a load, updated while it runs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Results {
    /// The number of calls that were answered with 200, to the end and without an error event.
    pub answered: u64,
    /// The number of calls that failed: every call that is not in `answered`.
    pub failed: u64,
    /// The number of calls by the status of their answer, without the calls in `errors`.
    pub statuses: BTreeMap<u16, u64>,
    /// The number of calls that failed otherwise than by a status, by [`CallError::kind`].
    pub errors: BTreeMap<&'static str, u64>,
    /// The error of the first failed call.
    pub first_failure: Option<String>,
    /// Time from the moment at which a call was due to the end of its answer. All histograms here cover answered calls
    /// only.
    pub whole: Histogram,
    /// Time from the moment at which a call was due to the first piece of its answer's body.
    pub first_chunk: Histogram,
    /// Time from a piece of a body to the next piece of the same body.
    pub between_chunks: Histogram,
    /// The durations that [`super::Call::each`] adds.
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
            results
                .first_failure
                .get_or_insert_with(|| error.to_string());
        });
    }

    fn with<R>(&self, work: impl FnOnce(&mut Results) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The times at which the pieces of an answer's body arrived.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    first: Option<Instant>,
    last: Option<Instant>,
    gaps: Vec<Duration>,
    /// Durations that [`super::Call::each`] has measured.
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
    async fn time_to_the_first_piece_and_pauses_between_pieces_are_measured() {
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
