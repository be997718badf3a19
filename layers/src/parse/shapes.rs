//! The shapes of single values: which value a field accepts.

use super::json::{At, Object, Shape, elements};
use crate::{
    call::Ask,
    error::{Error, Problem},
    json::{Reader, Str},
    price::Label,
};

/// Reads a string, and passes its decoded text to a function.
#[derive(Debug)]
pub(super) struct Text<F>(pub(super) F);

impl<T, F: FnOnce(&str) -> T> Shape for Text<F> {
    type Value = T;
    const EXPECTED: &'static str = "string";

    fn string(self, _: At<'_>, text: &Str<'_>) -> Result<T, Error> {
        Ok((self.0)(&text.decoded()))
    }
}

/// Reads a value as the inner place does, and also accepts null as an absent value.
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

/// Reads an integer from 1 to `max`, or null.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) max: u64,
}

impl Count {
    /// Reads a maximum of output tokens.
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

/// Reads a boolean; null counts as false.
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

/// Accepts null, an empty array, or one of the strings that do not change the price; if there are no such strings, also
/// `false`. Rejects anything else, because it would add costs that are unknown when the hold is made.
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

impl Shape for OnlyDefault {
    type Value = ();
    const EXPECTED: &'static str = "nothing";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn boolean(self, at: At<'_>, value: bool) -> Result<(), Error> {
        // If no strings are allowed, the field is a switch, and `false` means that it is off.
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

/// Accepts only null. Any other value is rejected without being read.
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

/// Accepts false and null, which both mean that a feature is off.
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

/// Reads a setting for how the call is served: a value that does not change the price, or one for which the model may
/// have a price.
#[derive(Debug)]
pub(super) struct Word {
    /// The values that do not change the price. Other values are recorded as requested features.
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
