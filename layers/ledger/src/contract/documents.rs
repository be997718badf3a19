//! Documents: small texts with a version, which the ledger stores next to the books.

use std::{
    future::{Future, ready},
    pin::Pin,
};

use serde::{Serialize, de::DeserializeOwned};

use super::BookError;

/// How often an update is attempted while other processes keep changing the same document.
const ATTEMPTS_MAX: usize = 100;
/// The text that replaces a removed value. The document itself is kept, because its version numbers must continue.
const REMOVED: &str = "-";

/// A document: a text that is stored next to the books, with a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The document's name, unique within the ledger.
    pub name: String,
    /// The document's version; each change increases it by one, from 1.
    pub version: u64,
    /// The text of the document.
    pub text: String,
}

impl Document {
    /// Parses the text as JSON.
    ///
    /// # Errors
    /// [`BookError::Unavailable`] if the text is not a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, BookError> {
        serde_json::from_str(&self.text).map_err(|error| BookError::Unavailable(error.into()))
    }

    /// Returns whether the document's value was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.text == REMOVED
    }
}

/// The value of a document together with its version. A write must name this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The version that was read; 0 if the document does not exist.
    pub version: u64,
    /// The value; `None` if the document does not exist or its value was removed.
    pub value: Option<T>,
}

/// The result of the closure of [`Documents::update`]: how to change the document, and the value `R` that the update
/// returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update<T, R> {
    /// Writes the value `T`.
    Write(T, R),
    /// Removes the value; the document's version numbers continue.
    Remove(R),
    /// Leaves the document unchanged.
    Keep(R),
}

/// Named documents. A change is a compare-and-swap: it succeeds only if the document still has the expected version.
/// Typed values are stored as JSON.
///
/// A method fails with a [`BookError`] if the ledger refuses the request or is unreachable. The documentation of a
/// method lists only the errors that this method returns in addition.
pub trait Documents: Send + Sync + 'static {
    /// Returns the document with this name, if it exists.
    fn document(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<Option<Document>, BookError>> + Send;

    /// Returns the documents whose names begin with `begins`, sorted by name.
    fn documents(
        &self,
        begins: &str,
    ) -> impl Future<Output = Result<Vec<Document>, BookError>> + Send;

    /// Writes a document if its version is still `version`; a `version` of 0 requires that the document does not exist.
    /// An empty text deletes the document. Returns whether the document was written.
    fn compare_and_swap(
        &self,
        name: &str,
        version: u64,
        text: &str,
    ) -> impl Future<Output = Result<bool, BookError>> + Send;

    /// Reads the value of a document, which is stored as JSON.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses the request or is unreachable, or if the document is not a `T`.
    fn read_value<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<Versioned<T>, BookError>> + Send {
        async move {
            let found = self.document(name).await?;
            Ok(Versioned {
                version: found.as_ref().map_or(0, |found| found.version),
                value: match found {
                    Some(found) if !found.is_removed() => Some(found.parse()?),
                    _ => None,
                },
            })
        }
    }

    /// Writes a value if the document's version is still `version`; a `version` of 0 requires that the document does
    /// not exist. Returns whether the value was written.
    fn write_value<T: Serialize>(
        &self,
        name: &str,
        version: u64,
        value: &T,
    ) -> impl Future<Output = Result<bool, BookError>> + Send {
        let text = to_json(value);
        async move { self.compare_and_swap(name, version, &text?).await }
    }

    /// Reads a document, passes its value to `change`, and writes what `change` returns. If another process changes the
    /// document meanwhile, the document is read again and `change` is called again.
    ///
    /// # Errors
    /// The error of `change`. A [`BookError`] if the ledger refuses the request or is unreachable, or if another
    /// process changed the document during every attempt.
    fn update<'a, T, R, E>(
        &'a self,
        name: &'a str,
        mut change: impl FnMut(Option<T>) -> Result<Update<T, R>, E> + Send + 'a,
    ) -> Updating<'a, R, E>
    where
        T: Serialize + DeserializeOwned + Send + 'a,
        R: Send + 'a,
        E: From<BookError> + Send + 'a,
    {
        self.update_async(name, move |found| ready(change(found.value)))
    }

    /// Changes a document as [`Documents::update`] does, with an async `change` that may wait between the read and the
    /// write.
    ///
    /// # Errors
    /// The error of `change`, or a [`BookError`] in the cases of [`Documents::update`].
    fn update_async<'a, T, R, E, F>(
        &'a self,
        name: &'a str,
        mut change: impl FnMut(Versioned<T>) -> F + Send + 'a,
    ) -> Updating<'a, R, E>
    where
        T: Serialize + DeserializeOwned + Send + 'a,
        R: Send + 'a,
        E: From<BookError> + Send + 'a,
        F: Future<Output = Result<Update<T, R>, E>> + Send + 'a,
    {
        Box::pin(async move {
            for _ in 0..ATTEMPTS_MAX {
                let found = self.read_value(name).await?;
                let version = found.version;
                let (text, answer) = match change(found).await? {
                    Update::Write(value, answer) => (to_json(&value)?, answer),
                    Update::Remove(answer) => (REMOVED.to_owned(), answer),
                    Update::Keep(answer) => return Ok(answer),
                };
                if self.compare_and_swap(name, version, &text).await? {
                    return Ok(answer);
                }
                tokio::task::yield_now().await;
            }
            let busy = format!("other gateways changed document {name} during every attempt");
            Err(BookError::Unavailable(busy.into()).into())
        })
    }
}

/// The future of an update. It is boxed because it borrows the update's closure, and the compiler cannot prove that
/// such a future is `Send` (rust-lang/rust#100013).
pub type Updating<'a, R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send + 'a>>;

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String, BookError> {
    serde_json::to_string(value).map_err(|error| BookError::Unavailable(error.into()))
}
