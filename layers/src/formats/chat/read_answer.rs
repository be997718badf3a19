//! Reads a response in the Chat Completions format.

use serde_json::value::RawValue;

use super::{
    super::turn::{
        Call, Counts, Emit, Event, Proof, Reader as Read, Stop, arguments, truncated, without_data,
    },
    answer_fields::{Answer, Kind, Said, ToolCall, stop},
    calls::{Calls, escaped, tool_id},
};
use crate::{
    error::Error,
    formats::{
        arguments::Lead,
        errors::unavailable,
        text::{Json, given, hash, inner, quoted, string},
        wire::broken,
    },
    sse,
};

const REASONING: u64 = 0;
const TEXT: u64 = 1;
/// The item number of a refusal in a plain response. In a stream, a refusal has the item number of the text.
const REFUSAL: u64 = 2;
/// The item number of the first tool call.
const CALLS: u64 = 3;

/// Reads a Chat Completions response. Only two things are delayed: a tool call, until its name arrives; and the stop
/// reason, until the usage arrives, which comes last.
///
/// A stream stores at most 4 MiB of ids and names of tool calls, and about 150 bytes for each of at most 1 024 tool
/// calls.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    created: u64,
    begun: bool,
    /// A hash of the message. Missing ids of tool calls are derived from it.
    hash: u64,
    /// The item number of the last text or reasoning. `None` if another item has begun since.
    open: Option<u64>,
    calls: Calls,
    usage: Option<Counts>,
    stop: Option<Stop>,
    /// An error message that the vendor sent instead of a chunk. It becomes the error of the stream if the stream ends
    /// without a finish reason.
    complaint: Option<Error>,
    done: bool,
    ended: bool,
}

impl Reader {
    /// Creates the reader of one response. `created` is the current time in Unix seconds.
    pub(crate) fn new(created: u64) -> Self {
        Self {
            created,
            ..Self::default()
        }
    }

    fn begin(
        &mut self,
        (id, model): (Option<&RawValue>, Option<&RawValue>),
        data: &[u8],
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        self.begun = true;
        let id: Json<'_> = match id {
            Some(id) if given(Some(id)).is_some() => Json::Borrowed(id),
            _ => string(&format!("msg_{:x}{:016x}", self.created, hash(data))),
        };
        self.hash = hash(id.get().as_bytes());
        let model = match model {
            Some(model) if inner(model).is_some() => Json::Borrowed(model),
            _ => quoted(&[]),
        };
        let (id, model) = (id.get(), model.get());
        emit(Event::Begin { id, model })
    }

    fn chunk(&mut self, data: &[u8], emit: Emit<'_>) -> Result<(), Error> {
        let mut chunk = Answer::chunk(data)?;
        chunk.check(data)?;
        if let Some(newer) = chunk.counts() {
            // If an earlier usage object had counts, a later one whose counts are all 0 is ignored, as in the meter.
            let counts = newer.total() > 0 || self.usage.is_none();
            self.usage = Some(newer).filter(|_| counts).or(self.usage);
        }
        self.complaint = chunk.complaint(data).or(self.complaint.take());
        let choice = chunk.choice();
        // One vendor begins with a chunk about the prompt. That chunk has neither a choice nor an id, and does not
        // begin the response.
        if !self.begun && (choice.is_some() || given(chunk.id).is_some()) {
            self.begin((chunk.id, chunk.model), data, emit)?;
        }
        let Some(choice) = choice else {
            return Ok(());
        };
        let reported = choice.delta.or(choice.message).unwrap_or_default();
        self.state(&reported, emit)?;
        reported.each_text(|kind, piece| self.text(kind, piece, emit))?;
        for call in reported.calls() {
            self.call(&call, emit)?;
        }
        // Some vendors send two finish reasons. A specific reason replaces the reason for an ordinary end.
        let newer = stop(choice.finish_reason)?;
        if matches!(self.stop, None | Some(Stop::EndTurn)) {
            self.stop = newer.or(self.stop);
        }
        Ok(())
    }

    fn state(&self, reported: &Said<'_>, emit: Emit<'_>) -> Result<(), Error> {
        match reported.state() {
            None => Ok(()),
            Some((field, details)) => emit(Event::Proof(REASONING, Proof::State(field, details))),
        }
    }

    fn text(&mut self, kind: Kind, piece: &str, emit: Emit<'_>) -> Result<(), Error> {
        let (item, event) = match kind {
            Kind::Thinking => (REASONING, Event::Reasoning(REASONING, false, piece)),
            Kind::Text => (TEXT, Event::Text(TEXT, false, piece)),
            Kind::Refusal => (TEXT, Event::Text(TEXT, true, piece)),
        };
        self.turn_to(Some(item), emit)?;
        emit(event)
    }

    /// Ends the open text or reasoning, unless it is the given item.
    fn turn_to(&mut self, item: Option<u64>, emit: Emit<'_>) -> Result<(), Error> {
        match std::mem::replace(&mut self.open, item) {
            Some(before) if Some(before) != item => emit(Event::Done(before, true)),
            _ => Ok(()),
        }
    }

    fn call(&mut self, call: &ToolCall<'_>, emit: Emit<'_>) -> Result<(), Error> {
        let Some(piece) = self.calls.piece(call)? else {
            return Ok(());
        };
        let (number, fault) = (piece.number, piece.fault);
        let item = CALLS + number as u64;
        if let Some(signature) = piece.signature {
            let id = self.calls.get(number).id(self.hash, number);
            emit(Event::Proof(item, Proof::CallSignature(&id, signature)))?;
        }
        let mut waited = String::new();
        if !self.calls.get(number).begun {
            if self.calls.get(number).name.is_none() {
                return self.calls.wait(&piece);
            }
            self.turn_to(None, emit)?;
            waited = self.calls.begin(number);
            let call = self.calls.get(number);
            let call = Call {
                id: &call.id(self.hash, number),
                name: call.name.as_deref().unwrap_or_default(),
                custom: false,
            };
            emit(Event::Call { item, call })?;
        }
        for piece in [&waited, piece.stored, &piece.arguments] {
            if !piece.is_empty() {
                emit(Event::Arguments { item, piece, fault })?;
            }
        }
        if self.calls.get(number).complete() {
            emit(Event::Done(item, true))?;
        }
        Ok(())
    }

    /// Reads one tool call of a plain response.
    fn whole_call(&self, number: usize, call: &ToolCall<'_>, emit: Emit<'_>) -> Result<(), Error> {
        let item = CALLS + number as u64;
        let function = call.function.as_ref();
        let function = function.ok_or_else(|| broken("a tool call has no function"))?;
        let name =
            given(function.name).ok_or_else(|| broken("a tool call has no function name"))?;
        let made = tool_id(self.hash, number);
        let id = given(call.id).unwrap_or(&made);
        if let Some(signature) = call.signature() {
            emit(Event::Proof(item, Proof::CallSignature(id, signature)))?;
        }
        let custom = false;
        let call = Call { id, name, custom };
        emit(Event::Call { item, call })?;
        let whole = function.arguments.map(escaped).unwrap_or_default();
        let mut lead = Lead::default();
        let (stored, rest) = lead.take(&whole);
        for piece in [stored, rest, lead.cut()] {
            arguments(item, piece, emit)?;
        }
        Ok(())
    }

    fn finish(&mut self, emit: Emit<'_>) -> Result<(), Error> {
        self.ended = true;
        emit(Event::Stop(self.stop.unwrap_or(Stop::EndTurn)))?;
        emit(Event::End(self.usage.unwrap_or_default()))
    }
}

impl Read for Reader {
    fn event(&mut self, event: &sse::Event, emit: Emit<'_>) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        let (name, data) = event.parts();
        let Some(data) = data else {
            return without_data(event, emit);
        };
        match data.trim_ascii() {
            b"" => Ok(()),
            b"[DONE]" => {
                self.done = true;
                self.end(emit)
            }
            data if name == b"error" => Err(unavailable(&String::from_utf8_lossy(data))),
            data => self.chunk(data, emit),
        }
    }

    fn end(&mut self, emit: Emit<'_>) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        if self.stop.is_none()
            && let Some(error) = self.complaint.take()
        {
            return Err(error);
        }
        if !self.done && self.stop.is_none() {
            return Err(truncated());
        }
        if !self.begun {
            return Err(broken("the stream has no choice with content"));
        }
        if !self.stop.is_some_and(Stop::was_cut) && !self.calls.whole() {
            let why = "the stream ended within the arguments of a tool call";
            return Err(broken(why));
        }
        if !self.calls.named() {
            return Err(broken("a tool call has no function name"));
        }
        for (number, piece) in self.calls.cut() {
            arguments(CALLS + number as u64, piece, emit)?;
        }
        self.finish(emit)
    }

    fn answer(&mut self, body: &[u8], emit: Emit<'_>) -> Result<(), Error> {
        let mut answer = Answer::chunk(body)?;
        answer.check(body)?;
        self.usage = answer.counts();
        let (reported, stop) = answer.whole()?;
        self.stop = stop;
        self.begin((answer.id, answer.model), body, emit)?;
        self.state(&reported, emit)?;
        let mut texts = <[String; 3]>::default();
        reported.each_text(|kind, piece| {
            texts[kind as usize].push_str(piece);
            Ok(())
        })?;
        let [reasoning, text, refusal] = &texts;
        if !reasoning.is_empty() {
            self.text(Kind::Thinking, reasoning, emit)?;
        }
        for (item, piece) in [(TEXT, text), (REFUSAL, refusal)] {
            if !piece.is_empty() {
                self.turn_to(Some(item), emit)?;
                emit(Event::Text(item, item == REFUSAL, piece))?;
            }
        }
        self.turn_to(None, emit)?;
        for (number, call) in reported.calls().iter().enumerate() {
            self.whole_call(number, call, emit)?;
        }
        self.finish(emit)
    }
}
