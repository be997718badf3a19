//! Finds calls without a receipt, and stores those that have ended, so that every gateway finds them.

use std::{cmp::Reverse, error::Error, time::Duration};

use tokio::time::Instant;
use tollgate_ledger::{
    BoxError,
    number::RequestNumber,
    unbooked::{UnbookedBounds, UnbookedCall, UnbookedPage, UnbookedQuery, UnbookedState},
};

use super::{
    call_record::{CallRecord, Calls},
    facts::millis,
    unbooked::call_of,
};

/// How often the calls that wait in memory are stored.
const STORE_EVERY: Duration = Duration::from_millis(250);
/// How often calls that are too many or too old are removed from the store, even if no new call is stored.
const REMOVE_EVERY: Duration = Duration::from_secs(60);

impl Calls {
    /// Returns the limits on stored calls without a receipt; `None` if such calls are not stored.
    pub(crate) fn unbooked_bounds(&self) -> Option<UnbookedBounds> {
        self.0.unbooked.store.as_ref().map(|store| store.bounds())
    }

    /// Returns the call without a receipt that has this number, if some gateway stored it, or this gateway still has it
    /// in memory.
    ///
    /// # Errors
    /// If the store did not answer.
    pub(crate) async fn unbooked(
        &self,
        number: RequestNumber,
    ) -> Result<Option<UnbookedCall>, BoxError> {
        let running = self.0.held.lock().get(&number).cloned();
        if let Some(record) = running {
            return Ok(Some(running_call(&record)));
        }
        let remembered = self.0.unbooked.select(|call| call.number == number).pop();
        match (&remembered, &self.0.unbooked.store) {
            (None, Some(store)) => store.find(number).await,
            _ => Ok(remembered),
        }
    }

    /// Returns a page of calls without a receipt: those in the store, and those in this gateway's memory, including
    /// calls in flight.
    ///
    /// # Errors
    /// If the store did not answer.
    pub(crate) async fn unbooked_page(
        &self,
        query: &UnbookedQuery,
    ) -> Result<UnbookedPage, BoxError> {
        let running: Vec<CallRecord> = self.0.held.lock().values().cloned().collect();
        let running = running.iter().map(running_call);
        let mut calls: Vec<UnbookedCall> = running.filter(|call| query.selects(call)).collect();
        calls.extend(self.0.unbooked.select(|call| query.selects(call)));
        // The store is read after the memory. So a call that is stored between the two reads is in both lists, and no
        // call is missed.
        let stored = match &self.0.unbooked.store {
            Some(store) => store.page(query).await?,
            None => UnbookedPage::default(),
        };
        Ok(merged(calls, stored, query.limit))
    }

    /// Stores ended calls without a receipt, a limited number at a time. Never returns.
    pub(crate) async fn store_unbooked(&self) {
        let unbooked = &self.0.unbooked;
        let Some(store) = &unbooked.store else {
            return std::future::pending().await;
        };
        let (mut removed_at, mut has_warned) = (Instant::now(), false);
        loop {
            tokio::time::sleep(STORE_EVERY).await;
            let mut stored = unbooked.store_some(&**store).await.map(drop);
            if stored.is_ok() && removed_at.elapsed() >= REMOVE_EVERY {
                removed_at = Instant::now();
                stored = store.write(&[]).await;
            }
            if let Err(error) = &stored
                && !has_warned
            {
                tracing::warn!(
                    error = &**error as &dyn Error,
                    "calls without a receipt cannot be stored at present"
                );
            }
            has_warned = stored.is_err();
        }
    }

    /// Stores the calls that still wait when the gateway stops. Gives up if the store takes longer than `patience`.
    pub(crate) async fn store_last_unbooked(&self, patience: Duration) {
        let unbooked = &self.0.unbooked;
        if let Some(store) = &unbooked.store {
            let all = async { while matches!(unbooked.store_some(&**store).await, Ok(1..)) {} };
            let _ = tokio::time::timeout(patience, all).await;
        }
        let left = unbooked.queues.lock().waiting.len();
        if left > 0 {
            tracing::warn!(calls = left, "calls without a receipt were not stored");
        }
    }
}

/// Merges calls from memory into a page of stored calls.
fn merged(mut calls: Vec<UnbookedCall>, stored: UnbookedPage, limit: usize) -> UnbookedPage {
    // Calls older than the end of this page are left for the next page, together with the older stored calls.
    calls.retain(|call| stored.next.is_none_or(|next| call.number >= next));
    calls.extend(stored.calls);
    calls.sort_by_key(|call| Reverse((call.number, call.state != UnbookedState::Running)));
    calls.dedup_by_key(|call| call.number);
    let mut next = stored.next;
    if calls.len() > limit {
        calls.truncate(limit);
        next = calls.last().map(|call| call.number);
    }
    UnbookedPage { calls, next }
}

fn running_call(record: &CallRecord) -> UnbookedCall {
    let whole_ms = millis(record.0.began.elapsed());
    call_of(record.0.number, record.path(), &record.lock(), whole_ms)
}

#[cfg(test)]
mod tests {
    use std::{ops::Range, sync::Arc};

    use futures_util::future::BoxFuture;
    use tollgate_ledger::unbooked::{SqliteUnbooked, UnbookedIndex, UnbookedStore};

    use super::*;
    use crate::observe::{
        metrics::Metrics,
        record::unbooked::{STRANGERS_MAX, WAITING_MAX},
    };

    fn call(account: Option<&str>) -> UnbookedCall {
        UnbookedCall {
            number: RequestNumber::now_v7(),
            state: UnbookedState::Refused,
            path: "/v1/messages".into(),
            account: account.map(|account| account.parse().unwrap()),
            key: account.map(|_| "k1".parse().unwrap()),
            model: None,
            session: None,
            vendor: None,
            status: Some(401),
            code: Some("account_empty".into()),
            field: None,
            error: None,
            whole_ms: 0,
        }
    }

    fn bounds() -> UnbookedBounds {
        UnbookedBounds {
            calls_max: 100_000,
            age_max: Duration::from_secs(3600),
        }
    }

    fn calls_in(store: Arc<dyn UnbookedStore>) -> Calls {
        Calls::stored(Arc::new(Metrics::new("tollgate")), None, Some(store))
    }

    /// A store that never answers.
    #[derive(Debug)]
    struct OutOfReach;

    impl UnbookedStore for OutOfReach {
        fn bounds(&self) -> UnbookedBounds {
            bounds()
        }
        fn write<'a>(&'a self, _: &'a [UnbookedCall]) -> BoxFuture<'a, Result<(), BoxError>> {
            Box::pin(async { Err("out of reach".into()) })
        }
        fn read<'a>(
            &'a self,
            _: UnbookedIndex<'a>,
            _: Range<RequestNumber>,
            _: usize,
        ) -> BoxFuture<'a, Result<Vec<UnbookedCall>, BoxError>> {
            Box::pin(async { Err("out of reach".into()) })
        }
    }

    #[tokio::test]
    async fn flood_of_unknown_keys_evicts_no_record_of_a_customers_call_and_is_not_stored() {
        let store: Arc<dyn UnbookedStore> = Arc::new(SqliteUnbooked::in_memory(bounds()));
        let calls = calls_in(Arc::clone(&store));
        let mine = call(Some("acme"));
        calls.0.unbooked.push(mine.clone());
        let strangers: Vec<UnbookedCall> = (0..2 * STRANGERS_MAX).map(|_| call(None)).collect();
        for stranger in &strangers {
            calls.0.unbooked.push(stranger.clone());
        }
        assert_eq!(
            calls.unbooked(mine.number).await.unwrap(),
            Some(mine.clone())
        );
        let all = UnbookedQuery::latest(2 * STRANGERS_MAX);
        let page = calls.unbooked_page(&all).await.unwrap();
        assert_eq!(page.calls.len(), STRANGERS_MAX + 1);
        calls.store_last_unbooked(Duration::MAX).await;
        let stored = store.page(&UnbookedQuery::latest(10)).await.unwrap();
        assert_eq!(stored.calls, [mine], "only the customer's call is stored");
        let first = calls.unbooked(strangers[0].number).await.unwrap();
        assert_eq!(first, None, "the oldest is forgotten");
        let last = strangers.last().unwrap();
        assert_eq!(
            calls.unbooked(last.number).await.unwrap().as_ref(),
            Some(last)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn call_records_that_exceed_the_queue_are_dropped_and_counted_while_the_store_is_down() {
        let calls = calls_in(Arc::new(OutOfReach));
        let flood = (0..WAITING_MAX / 2 + 3).map(|_| call(Some("acme")));
        let of_others = (0..WAITING_MAX / 2).map(|n| call(Some(&format!("a{}", n % 9))));
        let queued: Vec<UnbookedCall> = flood.chain(of_others).collect();
        for call in &queued {
            calls.0.unbooked.push(call.clone());
        }
        let storing = tokio::time::timeout(4 * STORE_EVERY, calls.store_unbooked());
        assert!(storing.await.is_err(), "the task tries again");
        let dropped = &calls.metrics().refused_calls_dropped;
        assert_eq!(dropped.get(), 3, "one account may have half of the queue");
        calls.0.unbooked.push(call(Some("a0")));
        assert_eq!(dropped.get(), 4, "the queue is full");
        for waiting in [&queued[0], queued.last().unwrap()] {
            let found = calls.unbooked(waiting.number).await.unwrap();
            assert_eq!(found.as_ref(), Some(waiting), "waiting calls are found");
        }
        let gone = queued[WAITING_MAX / 2 + 1].number;
        assert!(
            calls.unbooked(gone).await.is_err(),
            "only the store could have it"
        );
        assert!(
            calls
                .unbooked_page(&UnbookedQuery::latest(1))
                .await
                .is_err()
        );
    }

    /// If the store's page ends at a newer call, an older call in memory must wait for the next page.
    #[test]
    fn page_merges_calls_of_the_store_with_calls_in_memory_in_order() {
        let number = |n: u32| -> RequestNumber {
            format!("019aceb0-0000-7000-8000-00000000{n:04}")
                .parse()
                .unwrap()
        };
        let of = |numbers: &[u32]| -> Vec<UnbookedCall> {
            let calls = numbers.iter().map(|n| UnbookedCall {
                number: number(*n),
                ..call(None)
            });
            calls.collect()
        };
        for (remembered, stored, next, limit, shown, next_shown) in [
            (&[9, 3][..], &[8, 4][..], None, 9, &[9, 8, 4, 3][..], None),
            (&[3, 9], &[8, 4], Some(4), 9, &[9, 8, 4], Some(4)),
            (&[9, 8], &[8, 4], None, 2, &[9, 8], Some(8)),
            (&[5], &[], Some(6), 2, &[], Some(6)),
        ] {
            let stored = UnbookedPage {
                calls: of(stored),
                next: next.map(number),
            };
            let page = merged(of(remembered), stored, limit);
            let numbers: Vec<RequestNumber> = page.calls.iter().map(|call| call.number).collect();
            let expected: Vec<RequestNumber> = shown.iter().copied().map(number).collect();
            assert_eq!((numbers, page.next), (expected, next_shown.map(number)));
        }
    }
}
