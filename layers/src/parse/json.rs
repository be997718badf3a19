//! Parses a body in one pass: checks the fields that the gateway reads, counts all others as input, and names invalid
//! fields.
//!
//! A [`Reader`] splits the JSON into tokens. A [`Shape`] defines which values a place in the body accepts. [`At`] has
//! the path of the place, so that an error can name its field, and its depth, so that nesting is bounded.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    ops::Range,
};

use memchr::memmem;

use super::DEPTH_MAX;
pub(super) use super::shapes::{Count, Flag, Off, OnlyDefault, OrNull, Refused, Text, Word};
use crate::{
    call::{Ask, Asks, InputSize, Turn, Turns},
    error::{Error, Problem},
    json::{NotJson, Reader, Str, Value},
    path::Path,
    text_sample::{Sampler, TextSample},
};

/// The results of reading one body, collected while it is read.
#[derive(Debug)]
pub(super) struct Cx {
    pub(super) messages_max: u64,
    size: RefCell<InputSize>,
    sampler: RefCell<Sampler>,
    asks: RefCell<Option<Box<Asks>>>,
    has_thinking: Cell<bool>,
    may_shorten: Cell<bool>,
    turns: RefCell<Turns>,
    /// Whether the positions of turns are recorded. A short body can be read again quickly, so its turns are not
    /// recorded.
    is_long: Cell<bool>,
}

/// The positions of turns are recorded only in bodies of at least this many bytes.
const LONG_BYTES: usize = 16 << 10;

impl Cx {
    pub(super) fn new(messages_max: u64) -> Self {
        Self {
            messages_max,
            size: RefCell::default(),
            sampler: RefCell::default(),
            asks: RefCell::default(),
            has_thinking: Cell::default(),
            may_shorten: Cell::default(),
            turns: RefCell::default(),
            is_long: Cell::default(),
        }
    }

    /// Reads the whole body as the value that `place` accepts.
    pub(super) fn read<P: Shape>(&self, body: &[u8], place: P) -> Result<P::Value, Error> {
        let text = simdutf8::compat::from_utf8(body)
            .map_err(|error| not_json(NotJson::at(body, error.valid_up_to())))?;
        self.sampler.replace(Sampler::for_body(body.len()));
        self.is_long.set(body.len() >= LONG_BYTES);
        let mut json = Reader::new(text);
        let at = At {
            cx: self,
            path: &Path::Root,
            depth: 0,
        };
        let mut read = at.value(&mut json, place);
        if read.is_ok()
            && let Err(error) = json.end()
        {
            read = Err(not_json(error));
        }
        read
    }

    /// Records that the conversation has thinking, which may be a capsule.
    pub(super) fn thought(&self) {
        self.has_thinking.set(true);
    }

    pub(super) fn has_thinking(&self) -> bool {
        self.has_thinking.get()
    }

    /// Records the position of the next turn of the conversation, if the body is long.
    pub(super) fn turn(&self, span: Range<usize>) {
        if self.is_long.get() {
            let text_bytes = self.size().text_bytes;
            let turn = Turn { span, text_bytes };
            self.turns.borrow_mut().each.push(turn);
        }
    }

    /// Records that the vendor may leave turns out, so that their count does not bound a longer conversation.
    pub(super) fn shortens(&self) {
        self.may_shorten.set(true);
    }

    /// Returns the recorded turns; `all` is the range of the array that contains them. Called after the whole body was
    /// read.
    pub(super) fn turns(&self, all: Range<usize>) -> Turns {
        match self.may_shorten.get() {
            true => Turns::default(),
            false => Turns {
                all,
                ..self.turns.take()
            },
        }
    }

    pub(super) fn size(&self) -> InputSize {
        *self.size.borrow()
    }

    /// Returns the requested features that are billed separately.
    pub(super) fn asks(&self) -> Option<Box<Asks>> {
        self.asks.take()
    }

    /// Returns the samples of all texts that were read.
    pub(super) fn texts(&self) -> TextSample {
        self.sampler.take().into()
    }

    /// Counts the text of a document, and adds the samples that were taken of it.
    pub(super) fn add_document_text(&self, bytes: u64, sampler: Sampler) {
        self.weigh(|size| size.text_bytes += bytes);
        self.sampler.borrow_mut().append(sampler);
    }

    pub(super) fn weigh(&self, change: impl FnOnce(&mut InputSize)) {
        change(&mut self.size.borrow_mut());
    }
}

#[cold]
fn not_json(NotJson { line, column }: NotJson) -> Error {
    Error::invalid("", Problem::NotJson(format!("{line}:{column}")))
}

/// A place in the body: the parser is at the value there.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    pub(super) cx: &'a Cx,
    path: &'a Path<'a>,
    /// The number of arrays and objects that contain this place.
    depth: usize,
}

impl At<'_> {
    /// Creates a 400 error that names this place.
    #[cold]
    pub(super) fn refuse(self, problem: Problem) -> Error {
        self.path.refuse(problem)
    }

    /// Creates a 400 error that names a field of the object at this place.
    #[cold]
    pub(super) fn refuse_field(self, field: &str, problem: Problem) -> Error {
        Path::Key(self.path, field).refuse(problem)
    }

    /// Reads the value of the field whose name was just read.
    pub(super) fn field<P: Shape>(
        self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<P::Value, Error> {
        let at = At {
            cx: self.cx,
            path: &Path::Key(self.path, key),
            depth: self.depth + 1,
        };
        at.value(object.json, place)
    }

    /// Reads the value of the field, and also returns the value's byte range in the body.
    pub(super) fn field_span<P: Shape>(
        self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(Range<usize>, P::Value), Error> {
        let start = object.at();
        let value = self.field(key, object, place)?;
        Ok((start..object.at(), value))
    }

    /// Counts the field's value as input, without decoding it, because it is forwarded as it is: even a number that
    /// fits no type is accepted.
    pub(super) fn weigh_field(self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        let value = self.weigh_proof(key, object)?;
        self.cx.sampler.borrow_mut().push(value);
        Ok(())
    }

    /// Counts a value that the model does not read as text, such as the signature of reasoning: the hold covers it, but
    /// an estimate leaves it out.
    pub(super) fn weigh_proof<'a>(
        self,
        key: &str,
        object: &mut Object<'_, 'a>,
    ) -> Result<&'a str, Error> {
        let (depth_max, start) = (DEPTH_MAX - (self.depth + 1), object.at());
        match object.json.skip(depth_max).map_err(not_json)? {
            Some(bytes) => {
                self.cx.weigh(|size| size.text_bytes += bytes);
                Ok(object.json.since(start))
            }
            None => Err(self.refuse_field(key, Problem::TooDeep(DEPTH_MAX))),
        }
    }

    /// Counts a text as input, and takes samples of it.
    pub(super) fn weigh_text(self, text: &Str<'_>) {
        self.cx.sampler.borrow_mut().push(text.raw());
        self.cx.weigh(|size| size.text_bytes += text.decoded_len());
    }

    /// Counts a field's name as input: some vendors show the whole object to the model as it is written.
    pub(super) fn weigh_name(self, key: &str) {
        self.cx.weigh(|size| size.add_unsampled(key.len() as u64));
    }

    /// Counts the field's value with its escapes if that is longer: translation to another format puts the value into a
    /// string, in which the characters of an escape are text.
    pub(super) fn weigh_written(self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        let (before, start) = (self.cx.size().text_bytes, object.at());
        self.weigh_field(key, object)?;
        let written = before + (object.at() - start) as u64;
        self.cx
            .weigh(|size| size.text_bytes = size.text_bytes.max(written));
        Ok(())
    }

    /// Counts the field's value as input, and then reads the same value as `place`, which does not count it again.
    pub(super) fn weigh_and_read<P: Shape<Value = ()>>(
        self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(), Error> {
        self.weigh_and_read_if(|_| true, key, object, place)
    }

    /// As [`At::weigh_and_read`], but reads the value only if it may contain this name, in any spelling with escapes.
    /// Few values contain the name. All other values, which may be large, need not be read twice.
    pub(super) fn weigh_and_read_if_it_names<P: Shape<Value = ()>>(
        self,
        name: &str,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(), Error> {
        let may_name = |value: &str| {
            has_in_any_case(value, name) || memmem::find(value.as_bytes(), b"\\u").is_some()
        };
        self.weigh_and_read_if(may_name, key, object, place)
    }

    fn weigh_and_read_if<P: Shape<Value = ()>>(
        self,
        worth: impl FnOnce(&str) -> bool,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(), Error> {
        let mut json = object.json.clone();
        self.weigh_field(key, object)?;
        if !worth(object.json.since(json.at())) {
            return Ok(());
        }
        let size = self.cx.size();
        let again = &mut Object {
            json: &mut json,
            first: false,
        };
        let sampler = self.cx.sampler.take();
        self.field(key, again, place)?;
        self.cx.sampler.replace(sampler);
        self.cx.weigh(|weighed| *weighed = size);
        Ok(())
    }

    /// Records that this place requests a feature that is billed separately.
    pub(super) fn ask(self, ask: Ask) {
        let mut asks = self.cx.asks.borrow_mut();
        let asks = asks.get_or_insert_default();
        asks.add(ask, || self.path.to_string());
    }

    /// Records that a field of the object at this place requests a feature that is billed separately.
    pub(super) fn ask_field(self, field: &str, ask: Ask) {
        let mut asks = self.cx.asks.borrow_mut();
        let asks = asks.get_or_insert_default();
        asks.add(ask, || Path::Key(self.path, field).to_string());
    }

    fn value<P: Shape>(self, json: &mut Reader<'_>, place: P) -> Result<P::Value, Error> {
        // Matched by reference, because each move of the value would copy all of its words.
        match &json.begin() {
            Ok(Value::Null) => place.null(self),
            Ok(Value::Boolean(value)) => place.boolean(self, *value),
            Ok(Value::Number(number)) => place.number(self, number),
            Ok(Value::String(text)) if text.is_text() => place.string(self, text),
            Ok(Value::String(_)) => Err(not_json(json.fault())),
            Ok(Value::Array | Value::Object) if self.depth >= DEPTH_MAX => {
                Err(self.refuse(Problem::TooDeep(DEPTH_MAX)))
            }
            Ok(Value::Array) => place.array(self, json),
            Ok(Value::Object) => place.object(self, Object { json, first: true }),
            Err(error) => Err(not_json(*error)),
        }
    }
}

/// The values that a place in the body accepts. Each method handles one type of value; by default, it rejects the type.
pub(super) trait Shape: Sized {
    type Value;
    const EXPECTED: &'static str;

    fn null(self, at: At<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn boolean(self, at: At<'_>, _: bool) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    /// Reads a number as it is written.
    fn number(self, at: At<'_>, _: &str) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn string(self, at: At<'_>, _: &Str<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    /// Called after the opening bracket; the implementation reads the elements with [`elements`].
    fn array(self, at: At<'_>, _: &mut Reader<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
}

/// Reads the elements of an array, each as the place that `each` returns. Returns the number of elements.
pub(super) fn elements<P: Shape>(
    at: At<'_>,
    json: &mut Reader<'_>,
    mut each: impl FnMut() -> P,
) -> Result<u64, Error> {
    let (mut first, mut count) = (true, 0);
    while json.element(&mut first).map_err(not_json)? {
        let element = At {
            cx: at.cx,
            path: &Path::Index(at.path, count),
            depth: at.depth + 1,
        };
        element.value(json, each())?;
        count += 1;
    }
    Ok(count as u64)
}

/// Reads the elements of an array, and passes each value, with its byte range in the body, to `seen`.
pub(super) fn spanned_elements<P: Shape>(
    at: At<'_>,
    json: &mut Reader<'_>,
    mut each: impl FnMut() -> P,
    mut seen: impl FnMut(Range<usize>, P::Value),
) -> Result<u64, Error> {
    let (mut first, mut count) = (true, 0);
    while json.element(&mut first).map_err(not_json)? {
        let start = json.at();
        let element = At {
            cx: at.cx,
            path: &Path::Index(at.path, count),
            depth: at.depth + 1,
        };
        let value = element.value(json, each())?;
        seen(start..json.at(), value);
        count += 1;
    }
    Ok(count as u64)
}

/// Computes which byte ranges to cut out of an array to remove some of its elements, so that single commas separate the
/// remaining elements.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    cuts: Vec<Range<usize>>,
    /// The end of the last element that is kept.
    stored: Option<usize>,
    /// The range of the elements to remove before the first element that is kept.
    leading: Option<Range<usize>>,
}

impl Cuts {
    /// Adds the next element; `goes` is true if it is to be removed.
    pub(super) fn element(&mut self, span: Range<usize>, goes: bool) {
        match (goes, self.stored, &mut self.leading) {
            // The comma before a removed element is removed with it.
            (true, Some(stored), _) => match self.cuts.last_mut() {
                Some(cut) if cut.start == stored => cut.end = span.end,
                _ => self.cuts.push(stored..span.end),
            },
            (true, None, Some(leading)) => leading.end = span.end,
            (true, None, leading) => *leading = Some(span),
            (false, ..) => {
                if let Some(leading) = self.leading.take() {
                    self.cuts.push(leading.start..span.start);
                }
                self.stored = Some(span.end);
            }
        }
    }

    /// Returns the ranges to cut out, in order.
    pub(super) fn done(mut self) -> Vec<Range<usize>> {
        self.cuts.extend(self.leading);
        self.cuts
    }
}

/// An object whose fields are being read one after another.
#[derive(Debug)]
pub(super) struct Object<'r, 'a> {
    json: &'r mut Reader<'a>,
    first: bool,
}

impl<'a> Object<'_, 'a> {
    /// Returns the next name; the caller must then read its value. `None` at the end of the object.
    pub(super) fn next_key(&mut self) -> Result<Option<Cow<'a, str>>, Error> {
        match &self.json.key(&mut self.first) {
            Ok(None) => Ok(None),
            Ok(Some(name)) if name.is_text() => Ok(Some(name.decoded())),
            Ok(Some(_)) => Err(not_json(self.json.fault())),
            Err(error) => Err(not_json(*error)),
        }
    }

    /// Returns the current offset in the body: after the opening brace, at the start of a value, or at its end.
    pub(super) fn at(&self) -> usize {
        self.json.at()
    }
}

/// Checks the names of an object: a name that the parser reads may occur only once, in any spelling with escapes.
#[derive(Debug)]
pub(super) struct Once {
    names: &'static [&'static str],
    /// A set of bits, one for the first letter of each name.
    initials: u32,
    seen: u64,
}

impl Once {
    /// Creates a check for at most 64 names.
    pub(super) const fn new(names: &'static [&'static str]) -> Self {
        assert!(names.len() <= u64::BITS as usize);
        let (mut initials, mut index) = (0, 0);
        while index < names.len() {
            initials |= Self::initial(names[index].as_bytes()[0]);
            index += 1;
        }
        Self {
            names,
            initials,
            seen: 0,
        }
    }

    /// Returns the bit of a letter; upper and lower case have the same bit.
    const fn initial(letter: u8) -> u32 {
        1 << (letter % 32)
    }

    /// Checks a name. Most names of a body begin with a letter that none of the checked names has, and are not
    /// compared.
    #[inline]
    pub(super) fn check(&mut self, at: At<'_>, key: &str) -> Result<(), Error> {
        match key.as_bytes().first() {
            Some(byte) if !byte.is_ascii() || self.initials & Self::initial(*byte) != 0 => {
                self.check_name(at, key)
            }
            _ => Ok(()),
        }
    }

    fn check_name(&mut self, at: At<'_>, key: &str) -> Result<(), Error> {
        let Some(index) = self.names.iter().position(|name| *name == key) else {
            return self.check_unread(at, key);
        };
        if self.seen & 1 << index != 0 {
            return Err(at.refuse_field(key, Problem::Duplicate));
        }
        self.seen |= 1 << index;
        Ok(())
    }

    /// Rejects a name that differs only by case from a name that the parser reads. Some vendors ignore case and use the
    /// last occurrence, so they would use a value that was not checked here.
    fn check_unread(&self, at: At<'_>, key: &str) -> Result<(), Error> {
        if folds(key) && self.names.iter().any(|name| folds_to(key, name)) {
            return Err(at.refuse_field(key, Problem::Unsupported));
        }
        Ok(())
    }
}

/// Returns whether folding the case of `key` changes it; the names that the parser reads are lower-case ASCII.
fn folds(key: &str) -> bool {
    key.bytes()
        .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii())
}

/// Returns whether `name`, which must contain an underscore, occurs in a text in any case, because some vendors ignore
/// case.
fn has_in_any_case(text: &str, name: &str) -> bool {
    // An underscore has no case, so a search for underscores finds every spelling of the name.
    let at = name.find('_').unwrap_or_default();
    memchr::memchr_iter(b'_', text.as_bytes()).any(|found| {
        let start = found.checked_sub(at);
        let word = start.and_then(|start| text.as_bytes().get(start..start + name.len()));
        word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// Returns whether `key` equals `name` if case is ignored. Two letters outside ASCII fold to ASCII letters: long s and
/// the Kelvin sign.
pub(super) fn folds_to(key: &str, name: &str) -> bool {
    let folded = key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(name.chars())
}
