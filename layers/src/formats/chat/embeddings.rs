//! Parses a request for embeddings.

use std::cell::Cell;

use crate::{
    call::{Call, Format},
    error::{Error, Problem},
    formats::reading::{
        common::Common,
        fields::{self, Of},
        json::{At, Cx, Flag, Object, ObjectWith, Once, Shape, elements},
    },
    json::{Reader, Str},
    model::ModelKind,
};

/// The fields of the Embeddings format that may occur only once in a body.
const NAMES: &[&str] = &fields::names::<{ fields::count(Of::Embeddings) }>(Of::Embeddings);

pub(crate) fn call(body: &[u8], inputs_max: u64) -> Result<Call, Error> {
    Cx::new(inputs_max).read(body, ObjectWith(read))
}

fn read(at: At<'_>, mut object: Object<'_, '_>) -> Result<Call, Error> {
    let mut once = const { Once::new(NAMES) };
    let mut body = Common::new(Of::Embeddings, object.offset());
    while let Some(key) = once.next_key(at, &mut object)? {
        match &*key {
            "input" => {
                object.field(&key, Input)?;
                body.has_conversation = true;
            }
            "stream" => {
                if object.field(&key, Flag)? {
                    return Err(at.refuse_field(&key, Problem::Unsupported));
                }
            }
            _ => body.field(&key, &mut object)?,
        }
    }
    Ok(Call {
        kind: ModelKind::Embedding,
        output_tokens: Some(0),
        usage_asked: false,
        ..body.call(at, Format::Chat, "input")?
    })
}

/// Reads `input`: a text, an array of token ids, an array of texts, or an array of arrays of token ids.
struct Input;

impl Shape for Input {
    type Value = ();
    const EXPECTED: &'static str = "string or array";

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        not_empty(at, text)?;
        at.weigh_text(text);
        at.cx.weigh(|size| size.inputs += 1);
        Ok(())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        let form = Cell::new(None);
        let count = elements(at, json, || Element(&form))?;
        let (inputs, tokens) = match form.get() {
            None => return Err(at.refuse(Problem::Empty)),
            Some(Form::Token) => (1, count),
            Some(Form::Text | Form::Tokens) => (count, 0),
        };
        if inputs > at.cx.messages_max {
            return Err(at.refuse(Problem::AboveMax(at.cx.messages_max)));
        }
        at.cx.weigh(|size| {
            size.inputs += inputs;
            size.tokens += tokens;
        });
        Ok(())
    }
}

/// Rejects an empty text, because vendors reject it too.
fn not_empty(at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
    match text.decoded_len() {
        0 => Err(at.refuse(Problem::Empty)),
        _ => Ok(()),
    }
}

/// The kind of an array's elements, which is the same for all elements.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// The elements are token ids. Together they are one input.
    Token,
    /// The elements are texts. Each of them is one input.
    Text,
    /// The elements are arrays of token ids. Each of them is one input.
    Tokens,
}

struct Element<'f>(&'f Cell<Option<Form>>);

impl Element<'_> {
    /// Rejects an element whose kind differs from that of the first element.
    fn is(&self, form: Form, at: At<'_>) -> Result<(), Error> {
        let expected = match self.0.replace(Some(form)) {
            Some(Form::Token) if form != Form::Token => Token::EXPECTED,
            Some(Form::Text) if form != Form::Text => "string",
            Some(Form::Tokens) if form != Form::Tokens => "array",
            _ => return Ok(()),
        };
        Err(at.refuse(Problem::WrongType(expected)))
    }
}

impl Shape for Element<'_> {
    type Value = ();
    const EXPECTED: &'static str = Input::EXPECTED;

    fn number(self, at: At<'_>, number: &str) -> Result<(), Error> {
        self.is(Form::Token, at)?;
        Token.number(at, number)
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        self.is(Form::Text, at)?;
        not_empty(at, text)?;
        at.weigh_text(text);
        Ok(())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        self.is(Form::Tokens, at)?;
        match elements(at, json, || Token)? {
            0 => Err(at.refuse(Problem::Empty)),
            count => {
                at.cx.weigh(|size| size.tokens += count);
                Ok(())
            }
        }
    }
}

/// Reads a token id, which is the number of a token in the model's vocabulary.
struct Token;

impl Shape for Token {
    type Value = ();
    const EXPECTED: &'static str = "integer from 0";

    fn number(self, at: At<'_>, number: &str) -> Result<(), Error> {
        match number.parse::<u32>() {
            Ok(_) => Ok(()),
            Err(_) => Err(at.refuse(Problem::WrongType(Self::EXPECTED))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Call, Error> {
        call(body.as_bytes(), 3)
    }

    #[test]
    fn texts_and_tokens_are_counted_in_every_form_of_embeddings_input() {
        // Columns: the input, the number of inputs, the bytes of text, the number of tokens.
        for (input, inputs, text_bytes, tokens) in [
            (r#""привет\n""#, 1, 13, 0),
            (r#"["a","bc"," "]"#, 3, 4, 0),
            ("[1,22,333]", 1, 0, 3),
            ("[0, 1,2,3,4,5 ]", 1, 0, 6),
            ("[[1],[2,3],[4294967295,5,6]]", 3, 0, 6),
        ] {
            let call = read(&format!(r#"{{"model":"e","input":{input}}}"#)).unwrap();
            let size = call.input;
            assert_eq!(
                (size.inputs, size.text_bytes, size.tokens),
                (inputs, text_bytes, tokens),
                "{input}"
            );
            assert_eq!((size.messages, size.images), (0, 0));
            assert_eq!((call.kind, call.stream), (ModelKind::Embedding, false));
            assert_eq!(call.output_tokens, Some(0));
        }
    }

    #[test]
    fn embeddings_fields_that_the_parser_does_not_read_are_accepted_and_counted_as_input() {
        let body = r#"{"input":"abc","encoding_format":"base64","model":"e","dimensions":256,"user":"u","stream":false,
            "service_tier":"auto","input_type":"query","provider":null}"#;
        let call = read(body).unwrap();
        assert_eq!(&body[call.spans.model.clone()], "\"e\"");
        // The text in `input` has 3 bytes. The values of fields that the parser does not read count as input too:
        // `base64` has 6 bytes, `256` has 3, `u` has 1 and `query` has 5.
        assert_eq!(call.input.text_bytes, 3 + 6 + 3 + 1 + 5);
        assert_eq!(call.asks, None);
    }

    #[test]
    fn invalid_embeddings_field_is_refused_by_name() {
        for (fields, field, problem) in [
            (r#""input":"a""#, "model", Problem::Missing),
            (r#""model":"e""#, "input", Problem::Missing),
            (
                r#""model":"e","input":null"#,
                "input",
                Problem::WrongType("string or array"),
            ),
            (
                r#""model":"e","input":{}"#,
                "input",
                Problem::WrongType("string or array"),
            ),
            (r#""model":"e","input":[]"#, "input", Problem::Empty),
            (r#""model":"e","input":"""#, "input", Problem::Empty),
            (r#""model":"e","input":[""]"#, "input[0]", Problem::Empty),
            (
                r#""model":"e","input":["a",""]"#,
                "input[1]",
                Problem::Empty,
            ),
            (
                r#""model":"e","input":[[1],[]]"#,
                "input[1]",
                Problem::Empty,
            ),
            (
                r#""model":"e","input":["a",{"image":"x"}]"#,
                "input[1]",
                Problem::WrongType("string or array"),
            ),
            (
                r#""model":"e","input":["a",1]"#,
                "input[1]",
                Problem::WrongType("string"),
            ),
            (
                r#""model":"e","input":[1,"a"]"#,
                "input[1]",
                Problem::WrongType("integer from 0"),
            ),
            (
                r#""model":"e","input":[[1],"a"]"#,
                "input[1]",
                Problem::WrongType("array"),
            ),
            (
                r#""model":"e","input":[[1,"a"]]"#,
                "input[0][1]",
                Problem::WrongType("integer from 0"),
            ),
            (
                r#""model":"e","input":[1,-2]"#,
                "input[1]",
                Problem::WrongType("integer from 0"),
            ),
            (
                r#""model":"e","input":[[1.5]]"#,
                "input[0][0]",
                Problem::WrongType("integer from 0"),
            ),
            (
                r#""model":"e","input":["a","b","c","d"]"#,
                "input",
                Problem::AboveMax(3),
            ),
            (
                r#""model":"e","input":"a","input":"b""#,
                "input",
                Problem::Duplicate,
            ),
            (
                r#""model":"e","input":"a","Input":"b""#,
                "Input",
                Problem::Unsupported,
            ),
            (
                r#""model":"e","input":"a","stream":true"#,
                "stream",
                Problem::Unsupported,
            ),
            (
                r#""model":"e","input":"a","models":["f"]"#,
                "models[0]",
                Problem::Unsupported,
            ),
            (
                r#""model":"e","input":"a","messages":[{"role":"user","content":"x"}]"#,
                "messages[0]",
                Problem::Unsupported,
            ),
            (
                r#""model":"e","input":"a","search_parameters":{"mode":"on"}"#,
                "search_parameters",
                Problem::Unsupported,
            ),
            (
                r#""model":"e","input":"a","web_search_options":{}"#,
                "web_search_options",
                Problem::Unsupported,
            ),
        ] {
            let body = format!("{{{fields}}}");
            match read(&body) {
                Err(Error::Invalid {
                    field: named,
                    problem: why,
                }) => {
                    assert_eq!((&*named, why), (field, problem), "{body}");
                }
                other => panic!("{body}: {other:?}"),
            }
        }
    }
}
