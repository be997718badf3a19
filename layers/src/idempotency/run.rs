//! Shares the response of an in-flight call among several readers. Each reader gets the response from its beginning.

use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::response::Parts;
use http_body::{Body, Frame, SizeHint};
use tollgate_ledger::idempotency::Digest;

use crate::{body::PolledFrame, error::Error, facts::RequestNumber, key::AccountId};

/// One account may use at most half of the limit for buffered bytes. So clients that stop reading block only their own
/// account.
const ACCOUNT_PARTS: u64 = 2;

/// The bytes of all buffered responses, in total and by account. A response stays in memory as long as somebody may
/// still read it.
#[derive(Debug, Default)]
pub(super) struct Buffered(Mutex<Bytewise>);

#[derive(Debug, Default)]
struct Bytewise {
    all: u64,
    accounts: HashMap<AccountId, u64>,
}

impl Buffered {
    fn lock(&self) -> MutexGuard<'_, Bytewise> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the bytes as buffered for the account. Returns whether the totals are within their limits.
    fn add(&self, account: &AccountId, bytes: u64, max: u64) -> bool {
        let mut buffered = self.lock();
        buffered.all += bytes;
        let all = buffered.all;
        // Usually the account already has an entry, so its id need not be cloned.
        let own = match buffered.accounts.get_mut(account) {
            Some(own) => {
                *own += bytes;
                *own
            }
            None => {
                buffered.accounts.insert(account.clone(), bytes);
                bytes
            }
        };
        all <= max && own <= max / ACCOUNT_PARTS
    }

    fn remove(&self, account: &AccountId, bytes: u64) {
        let mut buffered = self.lock();
        buffered.all = buffered.all.saturating_sub(bytes);
        if let Some(own) = buffered.accounts.get_mut(account) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                buffered.accounts.remove(account);
            }
        }
    }
}

/// An in-flight call with its buffered response. `A` is the type of the response's body.
pub(super) struct Run<A> {
    pub(super) fingerprint: Digest,
    pub(super) number: RequestNumber,
    account: AccountId,
    state: Mutex<State<A>>,
    /// The bytes of all responses that the layer buffers.
    buffered: Arc<Buffered>,
}

struct State<A> {
    head: Option<Parts>,
    chunks: Vec<Bytes>,
    bytes: u64,
    /// The length that the response declares for its body, if any.
    length: Option<u64>,
    stage: Stage<A>,
    /// Wakers of the tasks that wait for the next change of the response.
    wakers: BTreeMap<WaiterId, Waker>,
    /// The number of waiters that were registered so far. It becomes the id of the next waiter.
    waiters: WaiterId,
    readers: usize,
    first_has_left: bool,
}

/// The id of a registered waker. A reader that disconnects removes its waker by this id, because a waker keeps a whole
/// task in memory.
type WaiterId = u64;

enum Stage<A> {
    Running,
    Done,
    /// The response broke off. The first reader takes the error.
    Broken(Option<Error>),
    /// The response is too long to be buffered. One reader takes the unread body: the reader of the original call or,
    /// if its client has disconnected, another reader that has read all buffered chunks.
    TooLong(Option<A>),
}

impl<A> Run<A> {
    pub(super) fn new(
        fingerprint: Digest,
        number: RequestNumber,
        account: AccountId,
        buffered: Arc<Buffered>,
    ) -> Self {
        Self {
            fingerprint,
            number,
            account,
            state: Mutex::new(State {
                head: None,
                chunks: Vec::new(),
                bytes: 0,
                length: None,
                stage: Stage::Running,
                wakers: BTreeMap::new(),
                waiters: 0,
                readers: 0,
                first_has_left: false,
            }),
            buffered,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State<A>)) {
        let wakers = {
            let mut state = self.lock();
            change(&mut state);
            mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    /// Sets the head of the response, and wakes readers that wait for it.
    pub(super) fn begin(&self, head: Parts, length: Option<u64>) {
        self.change(|state| {
            state.head = Some(head);
            state.length = length;
        });
    }

    /// Adds a chunk to the buffer. Returns the chunk if it exceeds a limit.
    pub(super) fn push(&self, chunk: Bytes, bytes_max: u64, all_max: u64) -> Result<(), Bytes> {
        let bytes = chunk.len() as u64;
        let fits = self.buffered.add(&self.account, bytes, all_max);
        let mut refused = None;
        self.change(|state| {
            state.bytes += bytes;
            if state.bytes > bytes_max || !fits {
                refused = Some(chunk);
            } else {
                state.chunks.push(chunk);
            }
        });
        refused.map_or(Ok(()), Err)
    }

    /// Adds the chunk that exceeded the limit, and gives the unread body to one reader. If no reader is left, the body
    /// is dropped, which ends the call as a client disconnect does.
    pub(super) fn hand_over(&self, chunk: Bytes, rest: A) {
        let mut rest = Some(rest);
        self.change(|state| {
            state.chunks.push(chunk);
            state.stage = Stage::TooLong(rest.take_if(|_| state.readers > 0));
        });
    }

    pub(super) fn done(&self) {
        self.change(|state| state.stage = Stage::Done);
    }

    /// Ends the response with an error, unless the response has already ended.
    pub(super) fn broken(&self, error: Option<Error>) {
        self.change(|state| {
            if let Stage::Running = state.stage {
                state.stage = Stage::Broken(error);
            }
        });
    }

    pub(super) fn chunks(&self) -> Vec<Bytes> {
        self.lock().chunks.clone()
    }

    /// Waits for the head of the response and returns it; `None` if the call ended without a response.
    pub(super) async fn started(&self) -> Option<Parts> {
        let mut waiting = Waiting {
            run: self,
            waiter: None,
        };
        poll_fn(|cx| {
            let mut state = self.lock();
            match (&state.stage, &state.head) {
                (Stage::Broken(_), _) => Poll::Ready(None),
                (_, Some(head)) => Poll::Ready(Some(head.clone())),
                (_, None) => {
                    state.wait(&mut waiting.waiter, cx);
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A future's entry in the list of waiters. Dropping it removes the waker.
struct Waiting<'a, A> {
    run: &'a Run<A>,
    waiter: Option<WaiterId>,
}

impl<A> Drop for Waiting<'_, A> {
    fn drop(&mut self) {
        self.run.lock().leave(self.waiter);
    }
}

impl<A> State<A> {
    /// Registers the waker of this waiter, or replaces the waker that is registered.
    fn wait(&mut self, waiter: &mut Option<WaiterId>, cx: &Context<'_>) {
        let waiters = &mut self.waiters;
        let waiter = *waiter.get_or_insert_with(|| {
            *waiters += 1;
            *waiters
        });
        self.wakers.insert(waiter, cx.waker().clone());
    }

    fn leave(&mut self, waiter: Option<WaiterId>) {
        if let Some(waiter) = waiter {
            self.wakers.remove(&waiter);
        }
    }
}

impl<A> Drop for Run<A> {
    fn drop(&mut self) {
        let bytes = self.lock().bytes;
        self.buffered.remove(&self.account, bytes);
    }
}

/// A response body that reads the response of an in-flight call from its beginning.
pub(super) struct Reader<A> {
    run: Arc<Run<A>>,
    at: usize,
    read: u64,
    is_first: bool,
    /// The unread body, if this reader has taken it.
    rest: Option<A>,
    ended: bool,
    waiter: Option<WaiterId>,
}

impl<A> Reader<A> {
    /// Creates the reader for the client that made the call.
    pub(super) fn first(run: Arc<Run<A>>) -> Self {
        Self::new(run, true)
    }

    /// Creates a reader for a client that sent the same call again.
    pub(super) fn joined(run: Arc<Run<A>>) -> Self {
        Self::new(run, false)
    }

    fn new(run: Arc<Run<A>>, is_first: bool) -> Self {
        run.lock().readers += 1;
        Self {
            run,
            at: 0,
            read: 0,
            is_first,
            rest: None,
            ended: false,
            waiter: None,
        }
    }
}

impl<A: Body<Data = Bytes, Error = Error> + Unpin> Body for Reader<A> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if this.rest.is_none() {
            let run = Arc::clone(&this.run);
            let mut state = run.lock();
            if let Some(chunk) = state.chunks.get(this.at) {
                this.at += 1;
                this.read += chunk.len() as u64;
                return Poll::Ready(Some(Ok(Frame::data(chunk.clone()))));
            }
            let goes_on = this.is_first || state.first_has_left;
            let error = match &mut state.stage {
                Stage::Running => {
                    state.wait(&mut this.waiter, cx);
                    return Poll::Pending;
                }
                Stage::Done => {
                    this.ended = true;
                    return Poll::Ready(None);
                }
                Stage::TooLong(rest) if goes_on => {
                    this.rest = rest.take();
                    (this.rest.is_none()).then_some(Error::IdempotentAnswerGone)
                }
                Stage::TooLong(_) => Some(Error::IdempotentAnswerGone),
                Stage::Broken(error) => {
                    let error = error.take_if(|_| this.is_first);
                    Some(error.unwrap_or_else(|| {
                        Error::VendorBroken(
                            "this request joined a call whose response broke off".into(),
                        )
                    }))
                }
            };
            if let Some(error) = error {
                this.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
        }
        match &mut this.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        if let Some(rest) = &self.rest {
            return rest.is_end_stream();
        }
        let state = self.run.lock();
        self.ended || matches!(state.stage, Stage::Done) && self.at == state.chunks.len()
    }

    fn size_hint(&self) -> SizeHint {
        if let Some(rest) = &self.rest {
            return rest.size_hint();
        }
        let state = self.run.lock();
        let length = match state.stage {
            Stage::Done => Some(state.bytes),
            _ => state.length,
        };
        match length.and_then(|length| length.checked_sub(self.read)) {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

impl<A> Drop for Reader<A> {
    fn drop(&mut self) {
        let mut state = self.run.lock();
        state.leave(self.waiter);
        state.readers -= 1;
        state.first_has_left |= self.is_first;
        let was_last = state.readers == 0;
        // If this was the last reader, the body is dropped, which ends the call as a client disconnect does.
        let rest = match &mut state.stage {
            Stage::TooLong(rest) if was_last => rest.take(),
            _ => None,
        };
        drop(state);
        drop(rest);
    }
}

debug_fields!(impl[A] Reader<A> { number: run.number, at: at });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::AnswerBody;

    fn poll<F: Future>(future: Pin<&mut F>) -> bool {
        future
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    fn run(account: &str, buffered: &Arc<Buffered>) -> Arc<Run<AnswerBody>> {
        let (account, buffered) = (account.parse().unwrap(), Arc::clone(buffered));
        let number = RequestNumber::now_v7();
        Arc::new(Run::new(Digest([0; 32]), number, account, buffered))
    }

    #[test]
    fn stalled_readers_of_one_account_leave_buffer_memory_for_other_accounts() {
        let buffered = Arc::<Buffered>::default();
        let push = |run: &Run<AnswerBody>, bytes| {
            let chunk = Bytes::from(vec![0; bytes]);
            run.push(chunk, 60, 100).is_ok()
        };
        let mut stalled = Vec::new();
        for _ in 0..5 {
            let run = run("acme", &buffered);
            assert!(push(&run, 10));
            run.done();
            stalled.push(Reader::<AnswerBody>::first(run));
        }
        assert!(!push(&run("acme", &buffered), 1), "half of it");
        let other = run("beta", &buffered);
        assert!(push(&other, 40));
        assert!(push(&run("gamma", &buffered), 10));
        assert!(push(&other, 10));
        assert!(!push(&run("gamma", &buffered), 1), "all of it");
        drop((stalled, other));
        assert!(push(&run("acme", &buffered), 50));
        let left = buffered.lock();
        assert_eq!((left.all, left.accounts.len()), (0, 0));
    }

    /// Typically, the first client has timed out and has sent the call again.
    #[test]
    fn response_too_long_to_store_is_completed_for_its_remaining_reader() {
        let read = |reader: &mut Reader<AnswerBody>| {
            let polled = Pin::new(reader).poll_frame(&mut Context::from_waker(Waker::noop()));
            match polled {
                Poll::Ready(Some(Ok(frame))) => Ok(frame.into_data().unwrap()),
                Poll::Ready(Some(Err(error))) => Err(format!("{error:?}")),
                other => Err(format!("{other:?}")),
            }
        };
        for (first_leaves, before) in [(true, true), (true, false), (false, false)] {
            let run = run("acme", &Arc::default());
            let mut first = Some(Reader::first(Arc::clone(&run)));
            let (mut second, mut third) = (
                Reader::joined(Arc::clone(&run)),
                Reader::joined(Arc::clone(&run)),
            );
            if first_leaves && before {
                first = None;
            }
            run.push("a".into(), 1, 100).unwrap();
            let chunk = run.push("b".into(), 1, 100).unwrap_err();
            run.hand_over(chunk, crate::body::full("rest"));
            if first_leaves {
                first = None;
            }
            for reader in [&mut second, &mut third] {
                assert_eq!(read(reader).unwrap(), "a");
                assert_eq!(read(reader).unwrap(), "b");
            }
            match &mut first {
                Some(first) => {
                    assert!(read(&mut second).is_err());
                    assert_eq!(read(first).unwrap(), "a");
                    assert_eq!(read(first).unwrap(), "b");
                    assert_eq!(read(first).unwrap(), "rest");
                }
                None => assert_eq!(read(&mut second).unwrap(), "rest"),
            }
            assert!(
                read(&mut third)
                    .unwrap_err()
                    .contains("IdempotentAnswerGone")
            );
        }
        // If no reader is left, the unread body is dropped at once.
        let run = run("acme", &Arc::default());
        drop(Reader::first(Arc::clone(&run)));
        let chunk = run.push("b".into(), 0, 100).unwrap_err();
        let rest = Arc::new(());
        let watched = Arc::downgrade(&rest);
        let body = futures_util::stream::once(async move {
            drop(rest);
            Ok::<_, Error>(Frame::data(Bytes::new()))
        });
        run.hand_over(
            chunk,
            crate::body::boxed(http_body_util::StreamBody::new(Box::pin(body))),
        );
        assert!(watched.upgrade().is_none());
    }

    #[test]
    fn waker_of_a_disconnected_reader_is_removed_and_other_readers_are_woken() {
        let run = run("acme", &Arc::default());
        let waiting = || run.lock().wakers.len();
        {
            let (mut one, mut two) = (Box::pin(run.started()), Box::pin(run.started()));
            for _ in 0..3 {
                assert!(!poll(one.as_mut()) && !poll(two.as_mut()));
            }
            assert_eq!(waiting(), 2);
            // A single task polls two waiters. When one is dropped, the other stays registered.
            drop(one);
            assert_eq!(waiting(), 1);
        }
        assert_eq!(waiting(), 0);
        let (head, ()) = http::Response::new(()).into_parts();
        run.begin(head, None);
        let mut stays = Reader::joined(Arc::clone(&run));
        for _ in 0..100 {
            let mut leaves = Reader::joined(Arc::clone(&run));
            for reader in [&mut stays, &mut leaves] {
                let frame = Pin::new(reader);
                let polled = frame.poll_frame(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
            }
        }
        assert_eq!(waiting(), 1);
        drop(stays);
        assert_eq!(waiting(), 0);
    }
}
