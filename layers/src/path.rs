//! The path of a value in a request's body. Error messages contain it.

use std::fmt;

use crate::error::{Error, Problem};

/// The path of a value in a request's body, for example `messages[2].tool_calls[0].function.arguments`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'p> {
    /// The path of the body as a whole.
    Root,
    /// The path of a field of an object.
    Key(&'p Self, &'p str),
    /// The path of an element of an array.
    Index(&'p Self, usize),
}

impl Path<'_> {
    /// Creates a 400 error that names this path.
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
