//! The shapes of single values: which values a field accepts.

use std::ops::Range;

use super::json::{At, Object, Once, Shape, elements};
use crate::{
    call::Ask,
    error::{Error, Problem},
    json::{Reader, Str},
    price::Label,
};

/// Reads a string, and passes its decoded text to a function.
#[derive(Debug)]
pub(crate) struct Text<F>(pub(crate) F);

impl<T, F: FnOnce(&str) -> T> Shape for Text<F> {
    type Value = T;
    const EXPECTED: &'static str = "string";

    fn string(self, _: At<'_>, text: &Str<'_>) -> Result<T, Error> {
        Ok((self.0)(&text.decoded()))
    }
}

/// Reads a string with a function.
#[derive(Debug)]
pub(crate) struct StringWith<F>(pub(crate) F);

impl<T, F: FnOnce(At<'_>, &Str<'_>) -> Result<T, Error>> Shape for StringWith<F> {
    type Value = T;
    const EXPECTED: &'static str = "string";

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<T, Error> {
        (self.0)(at, text)
    }
}

/// Reads an array with a function.
#[derive(Debug)]
pub(crate) struct ArrayWith<F>(pub(crate) F);

impl<T, F: FnOnce(At<'_>, &mut Reader<'_>) -> Result<T, Error>> Shape for ArrayWith<F> {
    type Value = T;
    const EXPECTED: &'static str = "array";

    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<T, Error> {
        (self.0)(at, json)
    }
}

/// Reads an object with a function.
#[derive(Debug)]
pub(crate) struct ObjectWith<F>(pub(crate) F);

impl<T, F: FnOnce(At<'_>, Object<'_, '_>) -> Result<T, Error>> Shape for ObjectWith<F> {
    type Value = T;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<T, Error> {
        (self.0)(at, object)
    }
}

/// Reads a value as the inner shape does. Also accepts null, as an absent value.
#[derive(Debug)]
pub(crate) struct OrNull<P>(pub(crate) P);

impl<P: Shape> Shape for OrNull<P> {
    type Value = Option<P::Value>;
    const EXPECTED: &'static str = P::EXPECTED;
    const NULL: Option<Self::Value> = Some(None);

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

/// Reads an object in which only one field is read; all others count as input. Returns the value of the field, and its
/// byte range in the body. The names of `Once` may occur only once; the first of them is the name of the field.
#[derive(Debug)]
pub(crate) struct Field<P>(pub(crate) Once, pub(crate) P);

impl<P: Shape> Shape for Field<P> {
    type Value = Option<(Range<usize>, P::Value)>;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Self::Value, Error> {
        let Self(mut once, place) = self;
        let (mut place, mut found) = (Some(place), None);
        while let Some(key) = once.next_key(at, &mut object)? {
            match place.take_if(|_| *key == *once.names[0]) {
                Some(place) => found = Some(object.field_span(&key, place)?),
                None => object.weigh_field(&key)?,
            }
        }
        Ok(found)
    }
}

/// Reads an array. Each element is read with the shape that the function returns.
#[derive(Debug)]
pub(crate) struct Each<P>(pub(crate) fn() -> P);

impl<P: Shape> Shape for Each<P> {
    type Value = ();
    const EXPECTED: &'static str = "array";

    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        elements(at, json, self.0).map(drop)
    }
}

/// Reads an integer from 1 to `max`, or null.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) max: u64,
}

impl Count {
    /// Reads a maximum number of output tokens.
    pub(crate) const TOKENS: Self = Self {
        max: u32::MAX as u64,
    };
}

impl Shape for Count {
    type Value = Option<u64>;
    const EXPECTED: &'static str = "integer";
    const NULL: Option<Self::Value> = Some(None);

    fn number(self, at: At<'_>, number: &str) -> Result<Option<u64>, Error> {
        match number.parse::<u64>() {
            Err(_) => Err(at.refuse(Problem::WrongType(Self::EXPECTED))),
            Ok(0) => Err(at.refuse(Problem::BelowMin(1))),
            Ok(value) if value > self.max => Err(at.refuse(Problem::AboveMax(self.max))),
            Ok(value) => Ok(Some(value)),
        }
    }
}

/// Reads a boolean; null counts as false.
#[derive(Debug)]
pub(crate) struct Flag;

impl Shape for Flag {
    type Value = bool;
    const EXPECTED: &'static str = "boolean";
    const NULL: Option<Self::Value> = Some(false);

    fn boolean(self, _: At<'_>, value: bool) -> Result<bool, Error> {
        Ok(value)
    }
}

/// Accepts null, an empty array, or one of the strings that do not change the price. If there are no such strings, also
/// accepts `false`. Rejects any other value, because it would add costs that are unknown when the hold is made.
#[derive(Debug)]
pub(crate) struct OnlyDefault {
    pub(crate) allowed: &'static [&'static str],
    pub(crate) otherwise: Problem,
}

impl OnlyDefault {
    /// Accepts the strings in `allowed`. Any other value is unsupported.
    pub(crate) const fn of(allowed: &'static [&'static str]) -> Self {
        let otherwise = Problem::Unsupported;
        Self { allowed, otherwise }
    }
}

impl Shape for OnlyDefault {
    type Value = ();
    const EXPECTED: &'static str = "nothing";
    const NULL: Option<Self::Value> = Some(());

    fn boolean(self, at: At<'_>, value: bool) -> Result<(), Error> {
        // If no strings are allowed, the field is a switch, and `false` turns it off.
        match value || !self.allowed.is_empty() {
            true => Err(at.refuse(self.otherwise)),
            false => Ok(()),
        }
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
    fn unexpected(self, at: At<'_>) -> Result<(), Error> {
        Err(at.refuse(self.otherwise))
    }
}

/// Accepts only null. Any other value is rejected without being read.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Problem);

impl Shape for Refused {
    type Value = ();
    const EXPECTED: &'static str = "nothing";
    const NULL: Option<()> = Some(());

    fn unexpected(self, at: At<'_>) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
}

/// Accepts false and null, which both mean that a feature is off.
#[derive(Debug)]
pub(crate) struct Off(pub(crate) Problem);

impl Shape for Off {
    type Value = ();
    const EXPECTED: &'static str = "boolean";
    const NULL: Option<Self::Value> = Some(());

    fn boolean(self, at: At<'_>, value: bool) -> Result<(), Error> {
        match value {
            false => Ok(()),
            true => Err(at.refuse(self.0)),
        }
    }
}

/// Reads a setting of how the call is served: a value that does not change the price, or a value for which the model
/// may have a price.
#[derive(Debug)]
pub(crate) struct Word {
    /// The values that do not change the price. Any other value is recorded as a requested feature.
    pub(crate) usual: &'static [&'static str],
    pub(crate) ask: fn(Label) -> Ask,
}

impl Shape for Word {
    type Value = ();
    const EXPECTED: &'static str = "string";
    const NULL: Option<Self::Value> = Some(());

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        let word = text.decoded();
        if !self.usual.contains(&&*word) {
            at.ask((self.ask)(Label::new(&word)));
        }
        Ok(())
    }
}
