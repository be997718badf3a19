//! Translates a chat vendor's answer to a responses answer, plain and streamed.

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
/// [`Error::VendorBroken`]: the body is not a chat answer; [`Error::VendorUnavailable`]: it is an error.
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

/// Translates the events of a chat stream to those of a responses stream, each as it arrives. Several items may be open
/// at once, so none waits for another. Two things are delayed: a tool call until its name arrives, and the arguments of
/// a tool with free text, which is inside them.
///
/// The format repeats the answer at its end, so a stream stores all of it, at most 4 MiB; a stream that would need more
/// is refused.
#[derive(Debug)]
pub struct ChatEvents {
    reading: Reading,
    /// Message that the vendor sent instead of an answer. If the stream has no finish reason, it ended because of this.
    complaint: Option<Error>,
    done: bool,
    ended: bool,
}

impl ChatEvents {
    /// Creates the state of one stream.
    #[must_use]
    pub fn new(asked: Asked) -> Self {
        Self {
            reading: Reading::new(asked, false),
            complaint: None,
            done: false,
            ended: false,
        }
    }

    /// Returns the progress of the stream.
    pub(crate) fn progress(&self) -> StreamProgress {
        self.reading.writer.progress()
    }

    /// Writes the translation of the next event, which may be empty.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: the event is not a chunk; [`Error::AnswerTooLong`]: too much would have to be stored;
    /// [`Error::VendorUnavailable`]: the event is the vendor's error.
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

    /// Handles the end of the vendor's stream: writes what is missing, once.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: the stream was truncated.
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
        // One vendor's first chunk has neither a choice nor an id: it reports on the prompt.
        if !reading.writer.begun() && (choice.is_some() || given(chunk.id).is_some()) {
            reading.begin(model(chunk.model).get(), data, out);
        }
        let Some(choice) = choice else {
            return Ok(());
        };
        reading.said(choice.delta.or(choice.message).unwrap_or_default(), out)?;
        // Some vendors send two reasons; a more specific one replaces the plain end.
        let newer = stop(choice.finish_reason)?;
        if matches!(reading.stop, None | Some(Stop::EndTurn)) {
            reading.stop = newer.or(reading.stop);
        }
        Ok(())
    }
}

/// The progress of reading an answer.
#[derive(Debug)]
struct Reading {
    writer: Writer,
    calls: Calls,
    /// The calls' items, by call number; for a call without a name so far, its arguments.
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
