//! The fields that the bodies of all formats have.

use bytes::Bytes;

use super::{
    cache::{CACHE_MARK, MARK},
    fields::{self, Of},
    json::{At, Flag, Object, Shape, Text, Word},
};
use crate::{
    call::{Ask, Call, Format, Spans},
    error::{Error, Problem},
    model::ModelKind,
};

/// The fields of a body that have been read so far.
#[derive(Debug)]
pub(crate) struct Common {
    of: Of,
    model: Option<String>,
    stream: bool,
    pub(crate) has_conversation: bool,
    pub(crate) output_tokens: Option<u64>,
    pub(crate) spans: Spans,
}

impl Common {
    /// Creates the state for a body whose fields begin at the offset `start`.
    pub(crate) fn new(of: Of, start: usize) -> Self {
        Self {
            of,
            model: None,
            stream: false,
            has_conversation: false,
            output_tokens: None,
            spans: Spans {
                start,
                ..Spans::default()
            },
        }
    }

    /// Reads the field that contains the conversation.
    pub(crate) fn conversation<P: Shape>(
        &mut self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<P::Value, Error> {
        let (span, value) = object.field_span(key, place)?;
        self.spans.turns.all = span;
        self.has_conversation = true;
        Ok(value)
    }

    /// Reads a field that the format's own parser does not read.
    pub(crate) fn field(&mut self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        match key {
            "model" => {
                let (span, value) = object.field_span(key, Text(str::to_owned))?;
                (self.spans.model, self.model) = (span, Some(value));
            }
            "stream" => self.stream = object.field(key, Flag)?,
            "service_tier" => {
                let usual: &[&str] = match self.of {
                    Of::Messages => &["auto", "standard_only"],
                    Of::Chat | Of::Responses | Of::Embeddings => &["auto", "default"],
                };
                let ask = Ask::ServiceTier;
                object.field(key, Word { usual, ask })?;
            }
            MARK if self.of != Of::Embeddings => object.weigh_and_read(key, CACHE_MARK)?,
            _ => fields::read(self.of, key, object)?,
        }
        Ok(())
    }

    /// Returns the parsed call. `conversation` is the name of the field with the conversation, which must not be
    /// missing.
    pub(crate) fn call(
        mut self,
        at: At<'_>,
        format: Format,
        conversation: &'static str,
    ) -> Result<Call, Error> {
        let Some(model) = self.model else {
            return Err(at.refuse_field("model", Problem::Missing));
        };
        if !self.has_conversation {
            return Err(at.refuse_field(conversation, Problem::Missing));
        }
        self.spans.turns = at.cx.turns(self.spans.turns.all);
        Ok(Call {
            format,
            kind: ModelKind::Chat,
            body: Bytes::new(),
            model,
            stream: self.stream,
            output_tokens: self.output_tokens,
            choices: 1,
            usage_asked: true,
            input: at.cx.size(),
            texts: at.cx.texts(),
            asks: at.cx.asks(),
            spans: self.spans,
            session: None,
        })
    }
}
