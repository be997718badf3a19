//! Where in a request's body a value stands, for the errors that name it.

use std::fmt;

use crate::error::{Error, Problem};

/// The way to a value of the request: `messages[2].tool_calls[0].function.arguments`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'p> {
    /// The body.
    Root,
    /// A field of an object.
    Key(&'p Self, &'p str),
    /// An element of an array.
    Index(&'p Self, usize),
}

impl Path<'_> {
    /// A 400 that names this place.
    pub(crate) fn refuse(&self, problem: Problem) -> Error {
        Error::invalid(self.to_string(), problem)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Path::Root, key) => f.write_str(key),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}
