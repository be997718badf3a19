//! A chat vendor's answer as a responses answer, plain and streamed.

use bytes::{Bytes, BytesMut};

use super::{asked::Asked, usage::Counts, writer::Writer};
use crate::{
    error::Error,
    json::decoded_len,
    sse::Event,
    stream_progress::StreamProgress,
    translate::{
        messages::{
            Calls, ChatAnswer, Kind, Said, Stop, Tally, is_comment, model, stop,
            text::{given, hash},
            tool_id, vendor_error,
        },
        wire::broken,
    },
};

/// Puts a chat answer into the responses format.
///
/// # Errors
/// [`Error::VendorBroken`]: it is no answer; [`Error::VendorUnavailable`]: it is an error.
pub fn chat_answer(body: &[u8], asked: Asked) -> Result<Bytes, Error> {
    let mut answer: ChatAnswer<'_> = serde_json::from_slice(body).map_err(broken)?;
    answer.check(body)?;
    let tally = answer.tally();
    let model = model(answer.model);
    let choice = answer.choice().ok_or_else(|| broken("no choices"))?;
    let mut reading = Reading::new(asked, true);
    let mut out = BytesMut::with_capacity(body.len() + 512);
    reading.begin(model.get(), body, &mut out);
    let stop = stop(choice.finish_reason)?;
    let said = choice
        .message
        .or(choice.delta)
        .ok_or_else(|| broken("a choice without a message"))?;
    reading.said(said, &mut out)?;
    reading.usage = tally;
    reading.stop = stop.or(Some(Stop::EndTurn));
    reading.finish(&mut out)?;
    Ok(out.freeze())
}

/// Turns a chat stream's events into those of a responses stream, each as it comes: items may be open
/// together, so that none waits for another. The exceptions are a tool call, for its name, and the
/// arguments of a tool that takes free text, which stands inside them.
///
/// The format repeats an answer at its end, so a stream keeps all of it, 4 MiB at most; one that would need
/// more is refused as broken.
#[derive(Debug)]
pub struct ChatEvents {
    reading: Reading,
    /// What the vendor said in an answer's place. An answer without a reason has ended for this one.
    complaint: Option<Error>,
    done: bool,
    ended: bool,
}

impl ChatEvents {
    /// For one stream.
    #[must_use]
    pub fn new(asked: Asked) -> Self {
        Self {
            reading: Reading::new(asked, false),
            complaint: None,
            done: false,
            ended: false,
        }
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> StreamProgress {
        self.reading.writer.progress()
    }

    /// Takes the next event and writes what it comes to, which may be nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: it is no chunk, or more would be kept than may;
    /// [`Error::VendorUnavailable`]: it is the vendor's error.
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

    /// The vendor's stream has ended: writes what is still owed, once.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: it ended in the middle.
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
        // One vendor's first chunk has neither a choice nor an id: it is about the prompt.
        if !reading.writer.begun() && (choice.is_some() || given(chunk.id).is_some()) {
            reading.begin(model(chunk.model).get(), data, out);
        }
        let Some(choice) = choice else {
            return Ok(());
        };
        reading.said(choice.delta.or(choice.message).unwrap_or_default(), out)?;
        // Some vendors say it twice; the one that says more than that it is over is believed.
        let newer = stop(choice.finish_reason)?;
        if matches!(reading.stop, None | Some(Stop::EndTurn)) {
            reading.stop = newer.or(reading.stop);
        }
        Ok(())
    }
}

/// What has been read of an answer.
#[derive(Debug)]
struct Reading {
    writer: Writer,
    calls: Calls,
    /// The items of the calls, by their numbers; and of a call that has no name yet, what came of it.
    call_items: Vec<CallItem>,
    hash: u64,
    text_bytes: u64,
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
            text_bytes: 0,
            usage: None,
            stop: None,
        }
    }

    fn begin(&mut self, model: &str, answer: &[u8], out: &mut BytesMut) {
        self.hash = hash(answer);
        self.writer.begin(model, out);
    }

    fn said(&mut self, said: Said<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let Self {
            writer, text_bytes, ..
        } = self;
        said.each_text(|kind, piece| {
            *text_bytes += decoded_len(piece.as_bytes());
            match kind {
                Kind::Thinking => writer.thought(piece, out),
                Kind::Text => writer.text(false, piece, out),
                Kind::Refusal => writer.text(true, piece, out),
            }
        })?;
        for call in said.calls() {
            self.text_bytes += call.argument_bytes();
            let Some(piece) = self.calls.piece(&call)? else {
                continue;
            };
            self.calls.follow(&piece);
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
                let made = tool_id(self.hash, number);
                let id = call.id.as_deref().unwrap_or(&made);
                let index = self.writer.begin_call(id, name, out)?;
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
        let tally = self
            .usage
            .unwrap_or_else(|| Tally::estimated(self.text_bytes));
        let (usage, reasoning) = tally.parts();
        let counts = Counts::of_usage(usage, reasoning);
        let stop = self.stop.unwrap_or(Stop::EndTurn);
        self.writer.finish(stop, &counts, out);
        Ok(())
    }
}
