//! Translates a chat vendor's answer, plain or streamed, to the responses format.

use bytes::{Bytes, BytesMut};

use super::{asked::Asked, usage::Counts, writer::Writer};
use crate::{
    error::Error,
    sse::Event,
    stream_progress::StreamProgress,
    translate::{
        messages::{
            Calls, ChatAnswer, Kind, Said, Stop, Tally, is_comment, model, stop,
            text::{given, hash},
            vendor_error,
        },
        wire::broken,
    },
};

/// Translates a chat answer to a responses answer.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a chat answer; [`Error::VendorUnavailable`] if it is an error.
pub fn chat_answer(body: &[u8], asked: Asked) -> Result<Bytes, Error> {
    let mut answer = ChatAnswer::chunk(body)?;
    answer.check(body)?;
    let tally = answer.tally();
    let whole = answer.whole()?;
    let model = model(answer.model);
    let mut reading = Reading::new(asked, true);
    let mut out = BytesMut::with_capacity(body.len() + 512);
    reading.begin(model.get(), body, &mut out);
    let (said, stop) = whole;
    reading.said(said, &mut out)?;
    reading.usage = tally;
    reading.stop = stop.or(Some(Stop::EndTurn));
    reading.finish(&mut out)?;
    Ok(out.freeze())
}

/// Translates each event of a chat stream as it arrives. Several items may be open at once, so no item waits for
/// another. Only two things are delayed: a tool call until its name arrives, and the input of a tool with free text
/// until its arguments, which contain the text, are complete.
///
/// The last events repeat the whole answer, so a stream stores it, at most 4 MiB. A stream that would need more fails.
#[derive(Debug)]
pub struct ChatEvents {
    reading: Reading,
    /// An error message that the vendor sent instead of a chunk. If the stream has no finish reason, this is the error
    /// with which it ended.
    complaint: Option<Error>,
    done: bool,
    ended: bool,
}

impl ChatEvents {
    /// Creates the state of a stream that has not begun.
    #[must_use]
    pub fn new(asked: Asked) -> Self {
        Self {
            reading: Reading::new(asked, false),
            complaint: None,
            done: false,
            ended: false,
        }
    }

    /// Returns the position of the stream, for code that must end it early.
    pub(crate) fn progress(&self) -> StreamProgress {
        self.reading.writer.progress()
    }

    /// Translates the next event, and appends the result to `out`, perhaps nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not a chunk, [`Error::AnswerTooLong`] if the stream would have to store
    /// too much, [`Error::VendorUnavailable`] if the event is an error of the vendor.
    pub fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        let (name, data) = event.parts();
        let Some(data) = data else {
            if is_comment(event) {
                self.reading.writer.alive(out);
            }
            return Ok(());
        };
        match data.trim_ascii() {
            b"" => Ok(()),
            b"[DONE]" => {
                self.done = true;
                self.end(out)
            }
            data if name == b"error" => Err(vendor_error(&String::from_utf8_lossy(data))),
            data => self.chunk(data, out),
        }
    }

    /// Handles the end of the vendor's stream: writes the events that are still missing, once.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the stream was truncated.
    pub fn end(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        if self.reading.stop.is_none()
            && let Some(error) = self.complaint.take()
        {
            return Err(error);
        }
        if !self.done && self.reading.stop.is_none() {
            return Err(broken("the stream ended in the middle"));
        }
        if !self.reading.writer.begun() {
            return Err(broken("a stream without an answer"));
        }
        if !self.reading.stop.is_some_and(Stop::was_cut) && self.reading.writer.has_cut_arguments()
        {
            return Err(broken("tool arguments that end in the middle"));
        }
        self.ended = true;
        self.reading.finish(out)
    }

    fn chunk(&mut self, data: &[u8], out: &mut BytesMut) -> Result<(), Error> {
        let mut chunk = ChatAnswer::chunk(data)?;
        chunk.check(data)?;
        self.complaint = chunk.complaint(data).or(self.complaint.take());
        let reading = &mut self.reading;
        reading.usage = Tally::latest(reading.usage, chunk.tally());
        let choice = chunk.choice();
        // One vendor begins with a chunk about the prompt, which has neither a choice nor an id.
        if !reading.writer.begun() && (choice.is_some() || given(chunk.id).is_some()) {
            reading.begin(model(chunk.model).get(), data, out);
        }
        let Some(choice) = choice else {
            return Ok(());
        };
        reading.said(choice.delta.or(choice.message).unwrap_or_default(), out)?;
        // Some vendors send two finish reasons; a specific reason replaces the plain end of the answer.
        let newer = stop(choice.finish_reason)?;
        if matches!(reading.stop, None | Some(Stop::EndTurn)) {
            reading.stop = newer.or(reading.stop);
        }
        Ok(())
    }
}

/// The state of translating one answer.
#[derive(Debug)]
struct Reading {
    writer: Writer,
    calls: Calls,
    /// The item of each tool call, by the call's number. While a call has no name, its arguments so far.
    call_items: Vec<CallItem>,
    hash: u64,
    usage: Option<Tally>,
    stop: Option<Stop>,
}

#[derive(Debug)]
enum CallItem {
    Nameless(String),
    Item(usize),
}

impl Reading {
    fn new(asked: Asked, silent: bool) -> Self {
        Self {
            writer: Writer::new(asked, silent),
            calls: Calls::default(),
            call_items: Vec::new(),
            hash: 0,
            usage: None,
            stop: None,
        }
    }

    fn begin(&mut self, model: &str, answer: &[u8], out: &mut BytesMut) {
        self.hash = hash(answer);
        self.writer.begin(model, out);
    }

    fn said(&mut self, said: Said<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let writer = &mut self.writer;
        said.keep(&mut writer.state);
        said.each_text(|kind, piece| match kind {
            Kind::Thinking => writer.thought(piece, out),
            Kind::Text => writer.text(false, piece, out),
            Kind::Refusal => writer.text(true, piece, out),
        })?;
        for call in said.calls() {
            let Some(piece) = self.calls.piece(&call)? else {
                continue;
            };
            self.calls.follow(&piece);
            if let Some(signature) = piece.signature {
                let call = self.calls.get(piece.number);
                let id = call.id(self.hash, piece.number);
                self.writer.state.sign(&id, signature);
            }
            if piece.number == self.call_items.len() {
                self.call_items.push(CallItem::Nameless(String::new()));
            }
            self.call(piece.number, &piece.arguments, out)?;
        }
        Ok(())
    }

    fn call(&mut self, number: usize, arguments: &str, out: &mut BytesMut) -> Result<(), Error> {
        let call = self.calls.get(number);
        match (&mut self.call_items[number], &call.name) {
            (CallItem::Item(index), _) => self.writer.arguments(*index, arguments, out),
            (CallItem::Nameless(kept), None) => {
                kept.push_str(arguments);
                self.writer.keep(arguments.len())
            }
            (CallItem::Nameless(kept), Some(name)) => {
                let id = call.id(self.hash, number);
                let index = self.writer.begin_call(&id, name, out)?;
                let kept = std::mem::take(kept);
                self.call_items[number] = CallItem::Item(index);
                self.writer.arguments(index, &kept, out)?;
                self.writer.arguments(index, arguments, out)
            }
        }
    }

    fn finish(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        let nameless = |item: &CallItem| matches!(item, CallItem::Nameless(_));
        if self.call_items.iter().any(nameless) {
            return Err(broken("a tool call without a name"));
        }
        if !self.call_items.is_empty() {
            self.writer.write_state(out)?;
        }
        let tally = self.usage.unwrap_or_default();
        let (usage, reasoning) = tally.parts();
        let counts = Counts::of_usage(usage, reasoning);
        let stop = self.stop.unwrap_or(Stop::EndTurn);
        self.writer.finish(stop, &counts, out);
        Ok(())
    }
}
