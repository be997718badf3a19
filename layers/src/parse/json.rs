//! Parses a body in one pass: checks the fields that are read, counts all others as input, and names invalid ones.
//!
//! A [`Reader`] tokenizes the JSON. A [`Shape`] defines which values a place accepts. [`At`] tracks the path of the
//! place, so that an error names its field, and its depth, so that nesting is bounded.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    ops::Range,
};

use memchr::memmem;

use super::DEPTH_MAX;
use crate::{
    call::{Ask, Asks, InputSize, Turn, Turns},
    error::{Error, Problem},
    json::{NotJson, Reader, Str, Value},
    path::Path,
    price::Label,
    text_sample::{Sampler, TextSample},
};

/// The results of one pass over a body.
#[derive(Debug)]
pub(super) struct Cx {
    pub(super) messages_max: u64,
    size: RefCell<InputSize>,
    sampler: RefCell<Sampler>,
    asks: RefCell<Option<Box<Asks>>>,
    has_thinking: Cell<bool>,
    may_shorten: Cell<bool>,
    turns: RefCell<Turns>,
    /// Whether the turns are located: a short body's are not worth it.
    is_long: Cell<bool>,
}

/// The turns of a body of fewer bytes are not located.
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

    /// Reads the whole body as `place`.
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

    /// Records that a turn has thinking.
    pub(super) fn thought(&self) {
        self.has_thinking.set(true);
    }

    pub(super) fn has_thinking(&self) -> bool {
        self.has_thinking.get()
    }

    /// Records the next turn of the conversation.
    pub(super) fn turn(&self, span: Range<usize>) {
        if self.is_long.get() {
            let text_bytes = self.size().text_bytes;
            let turn = Turn { span, text_bytes };
            self.turns.borrow_mut().each.push(turn);
        }
    }

    /// Records that the vendor may ignore turns.
    pub(super) fn shortens(&self) {
        self.may_shorten.set(true);
    }

    /// Takes the turns, which the array at `all` contains. Called after the whole body was read.
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

    /// Takes the requested features that are billed separately.
    pub(super) fn asks(&self) -> Option<Box<Asks>> {
        self.asks.take()
    }

    /// Returns samples of all texts.
    pub(super) fn texts(&self) -> TextSample {
        self.sampler.take().into()
    }

    /// Adds the text of a document.
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

/// A place in the body that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    pub(super) cx: &'a Cx,
    path: &'a Path<'a>,
    /// The number of arrays and objects around it.
    depth: usize,
}

impl At<'_> {
    /// Creates an error that names this place.
    #[cold]
    pub(super) fn refuse(self, problem: Problem) -> Error {
        self.path.refuse(problem)
    }

    /// Returns an error that names a field of the object at this place.
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

    /// Reads the value, and returns its byte range in the body too.
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

    /// Counts any value of the field as input, without parsing it: even a number that fits no type is forwarded
    /// unchanged.
    pub(super) fn weigh_field(self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        let value = self.weigh_proof(key, object)?;
        self.cx.sampler.borrow_mut().push(value);
        Ok(())
    }

    /// Counts a value that the model does not read, like a signature of reasoning: in the hold, but not in an estimate.
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

    /// Counts a text as input tokens.
    pub(super) fn weigh_text(self, text: &Str<'_>) {
        self.cx.sampler.borrow_mut().push(text.raw());
        self.cx.weigh(|size| size.text_bytes += text.decoded_len());
    }

    /// Counts a field's name as input, for objects that some vendors show to the model as written.
    pub(super) fn weigh_name(self, key: &str) {
        self.cx.weigh(|size| size.add_unsampled(key.len() as u64));
    }

    /// Counts the field's value as written, including escapes, if that is more: another format embeds it in a text,
    /// where the characters of an escape are text.
    pub(super) fn weigh_written(self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        let (before, start) = (self.cx.size().text_bytes, object.at());
        self.weigh_field(key, object)?;
        let written = before + (object.at() - start) as u64;
        self.cx
            .weigh(|size| size.text_bytes = size.text_bytes.max(written));
        Ok(())
    }

    /// Counts the field's value as input, and then also reads it as `place`, which counts nothing.
    pub(super) fn weigh_and_read<P: Shape<Value = ()>>(
        self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(), Error> {
        self.weigh_and_read_if(|_| true, key, object, place)
    }

    /// As [`At::weigh_and_read`], but reads the value only if it may contain this name, in whatever escapes. Few values
    /// do, and the others, which may be large, are not read twice.
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

    /// Records a feature requested at this place that is billed separately.
    pub(super) fn ask(self, ask: Ask) {
        let mut asks = self.cx.asks.borrow_mut();
        let asks = asks.get_or_insert_default();
        asks.add(ask, || self.path.to_string());
    }

    /// Records such a feature, requested by a field of the object at this place.
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

/// The values that a place accepts. A kind that is not overridden is rejected as the wrong type.
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
    /// Called after the opening bracket: see [`elements`].
    fn array(self, at: At<'_>, _: &mut Reader<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
}

/// Reads each element of an array as the place that `each` returns; returns their number.
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

/// Reads the elements and passes each, with its byte range in the body, to `seen`.
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

/// Computes the byte ranges to cut out of an array in order to remove some of its elements, so that the rest is still
/// separated by single commas.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    cuts: Vec<Range<usize>>,
    /// The end of the last element that is kept.
    kept: Option<usize>,
    /// Elements to remove before the first one that stays.
    leading: Option<Range<usize>>,
}

impl Cuts {
    /// Adds the next element, which is to be removed if `goes`.
    pub(super) fn element(&mut self, span: Range<usize>, goes: bool) {
        match (goes, self.kept, &mut self.leading) {
            // A removed field takes the comma before it along.
            (true, Some(kept), _) => match self.cuts.last_mut() {
                Some(cut) if cut.start == kept => cut.end = span.end,
                _ => self.cuts.push(kept..span.end),
            },
            (true, None, Some(leading)) => leading.end = span.end,
            (true, None, leading) => *leading = Some(span),
            (false, ..) => {
                if let Some(leading) = self.leading.take() {
                    self.cuts.push(leading.start..span.start);
                }
                self.kept = Some(span.end);
            }
        }
    }

    /// Returns all cuts, in order.
    pub(super) fn done(mut self) -> Vec<Range<usize>> {
        self.cuts.extend(self.leading);
        self.cuts
    }
}

/// An object that is being read, field by field.
#[derive(Debug)]
pub(super) struct Object<'r, 'a> {
    json: &'r mut Reader<'a>,
    first: bool,
}

impl<'a> Object<'_, 'a> {
    /// The next name, whose value must be read next. `None` at the end of the object.
    pub(super) fn next_key(&mut self) -> Result<Option<Cow<'a, str>>, Error> {
        match &self.json.key(&mut self.first) {
            Ok(None) => Ok(None),
            Ok(Some(name)) if name.is_text() => Ok(Some(name.decoded())),
            Ok(Some(_)) => Err(not_json(self.json.fault())),
            Err(error) => Err(not_json(*error)),
        }
    }

    /// The offset in the body: first after the opening brace, then at the start of a name's value, or at its end.
    pub(super) fn at(&self) -> usize {
        self.json.at()
    }
}

/// Tracks the names of an object: a name that is read may occur only once, in whatever escapes.
#[derive(Debug)]
pub(super) struct Once {
    names: &'static [&'static str],
    /// A bit for each first letter of a name.
    initials: u32,
    seen: u64,
}

impl Once {
    /// Creates a set of at most 64 names.
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

    /// Returns the bit of a letter, in upper or lower case.
    const fn initial(letter: u8) -> u32 {
        1 << (letter % 32)
    }

    /// Checks a name. Most names in bodies begin with none of the letters, and need no further comparison.
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

    /// Rejects a name that differs from a known one only by case. Some vendors ignore case and take the last
    /// occurrence, so they would read a value that was not checked here.
    fn check_unread(&self, at: At<'_>, key: &str) -> Result<(), Error> {
        if folds(key) && self.names.iter().any(|name| folds_to(key, name)) {
            return Err(at.refuse_field(key, Problem::Unsupported));
        }
        Ok(())
    }
}

/// Returns whether a name may become another when its case is folded: known names have only lower-case ASCII letters.
fn folds(key: &str) -> bool {
    key.bytes()
        .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii())
}

/// Returns whether this name, which contains an underscore, occurs in a text in any case. Some vendors ignore case.
fn has_in_any_case(text: &str, name: &str) -> bool {
    // Upper and lower case differ in letters but not in an underscore, so the search is for underscores.
    let at = name.find('_').unwrap_or_default();
    memchr::memchr_iter(b'_', text.as_bytes()).any(|found| {
        let start = found.checked_sub(at);
        let word = start.and_then(|start| text.as_bytes().get(start..start + name.len()));
        word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// Returns whether a name equals another except for the case of its letters. Two letters outside ASCII also fold to
/// it.
pub(super) fn folds_to(key: &str, name: &str) -> bool {
    let folded = key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(name.chars())
}

/// Reads a string and passes it to a function.
#[derive(Debug)]
pub(super) struct Text<F>(pub(super) F);

impl<T, F: FnOnce(&str) -> T> Shape for Text<F> {
    type Value = T;
    const EXPECTED: &'static str = "string";

    fn string(self, _: At<'_>, text: &Str<'_>) -> Result<T, Error> {
        Ok((self.0)(&text.decoded()))
    }
}

/// A place that also accepts null, which counts as absent.
#[derive(Debug)]
pub(super) struct OrNull<P>(pub(super) P);

impl<P: Shape> Shape for OrNull<P> {
    type Value = Option<P::Value>;
    const EXPECTED: &'static str = P::EXPECTED;

    fn null(self, _: At<'_>) -> Result<Self::Value, Error> {
        Ok(None)
    }
    fn boolean(self, at: At<'_>, value: bool) -> Result<Self::Value, Error> {
        self.0.boolean(at, value).map(Some)
    }
    fn number(self, at: At<'_>, number: &str) -> Result<Self::Value, Error> {
        self.0.number(at, number).map(Some)
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<Self::Value, Error> {
        self.0.string(at, text).map(Some)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<Self::Value, Error> {
        self.0.array(at, json).map(Some)
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<Self::Value, Error> {
        self.0.object(at, object).map(Some)
    }
}

/// Reads an integer of at least 1, or null.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) max: u64,
}

impl Count {
    /// Reads a limit of output tokens.
    pub(super) const TOKENS: Self = Self {
        max: u32::MAX as u64,
    };
}

impl Shape for Count {
    type Value = Option<u64>;
    const EXPECTED: &'static str = "integer";

    fn null(self, _: At<'_>) -> Result<Option<u64>, Error> {
        Ok(None)
    }
    fn number(self, at: At<'_>, number: &str) -> Result<Option<u64>, Error> {
        match number.parse::<u64>() {
            Err(_) => Err(at.refuse(Problem::WrongType(Self::EXPECTED))),
            Ok(0) => Err(at.refuse(Problem::BelowMin(1))),
            Ok(value) if value > self.max => Err(at.refuse(Problem::AboveMax(self.max))),
            Ok(value) => Ok(Some(value)),
        }
    }
}

/// Reads a boolean; null means false.
#[derive(Debug)]
pub(super) struct Flag;

impl Shape for Flag {
    type Value = bool;
    const EXPECTED: &'static str = "boolean";

    fn null(self, _: At<'_>) -> Result<bool, Error> {
        Ok(false)
    }
    fn boolean(self, _: At<'_>, value: bool) -> Result<bool, Error> {
        Ok(value)
    }
}

/// Null, an empty array, or one of the strings that do not change the price; without such strings, also `false`.
/// Anything else is rejected, because it would add costs that are unknown when the hold is made.
#[derive(Debug)]
pub(super) struct OnlyDefault {
    pub(super) allowed: &'static [&'static str],
    pub(super) otherwise: Problem,
}

impl OnlyDefault {
    /// Accepts only `allowed`; any other value is unsupported.
    pub(super) const fn of(allowed: &'static [&'static str]) -> Self {
        Self {
            allowed,
            otherwise: Problem::Unsupported,
        }
    }
}

/// Absent or null. Any other value is rejected without being read.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Problem);

impl Shape for Refused {
    type Value = ();
    const EXPECTED: &'static str = "nothing";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn boolean(self, at: At<'_>, _: bool) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn number(self, at: At<'_>, _: &str) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn string(self, at: At<'_>, _: &Str<'_>) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn array(self, at: At<'_>, _: &mut Reader<'_>) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
}

/// Accepts false and null, which mean the same.
#[derive(Debug)]
pub(super) struct Off(pub(super) Problem);

impl Shape for Off {
    type Value = ();
    const EXPECTED: &'static str = "boolean";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn boolean(self, at: At<'_>, value: bool) -> Result<(), Error> {
        match value {
            false => Ok(()),
            true => Err(at.refuse(self.0)),
        }
    }
}

/// A setting for how the call is served: the default, or a value for which the model may have a price.
#[derive(Debug)]
pub(super) struct Word {
    /// Accepts only values that do not change the price.
    pub(super) usual: &'static [&'static str],
    pub(super) ask: fn(Label) -> Ask,
}

impl Shape for Word {
    type Value = ();
    const EXPECTED: &'static str = "string";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        let word = text.decoded();
        if !self.usual.contains(&&*word) {
            at.ask((self.ask)(Label::new(&word)));
        }
        Ok(())
    }
}

impl Shape for OnlyDefault {
    type Value = ();
    const EXPECTED: &'static str = "nothing";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn boolean(self, at: At<'_>, value: bool) -> Result<(), Error> {
        // Without allowed strings, the field is a switch that must be off.
        match value || !self.allowed.is_empty() {
            true => Err(at.refuse(self.otherwise)),
            false => Ok(()),
        }
    }
    fn number(self, at: At<'_>, _: &str) -> Result<(), Error> {
        Err(at.refuse(self.otherwise))
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        if self.allowed.contains(&&*text.decoded()) {
            Ok(())
        } else {
            Err(at.refuse(self.otherwise))
        }
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        let Self { allowed, otherwise } = self;
        elements(at, json, || Self {
            allowed,
            otherwise: otherwise.clone(),
        })
        .map(drop)
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<(), Error> {
        Err(at.refuse(self.otherwise))
    }
}
