//! The format that a request requires of the response, in the neutral form of a request.

use serde_json::value::RawValue;

use super::request::is_object;
use crate::{
    error::{Error, Problem},
    formats::{
        text::{Json, made, optional},
        wire::Object,
    },
    model::Dialect,
};

/// The format that the response must have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnswerFormat<'a> {
    /// The response must be a JSON object, of any shape.
    Object,
    Schema {
        name: Option<&'a RawValue>,
        description: Option<&'a RawValue>,
        schema: &'a RawValue,
        strict: bool,
    },
}

impl<'a> AnswerFormat<'a> {
    /// Reads the object `format`, which has the type of the format. The schema is in the object's field `nested`, or in
    /// the object itself. If the model cannot follow schemas, a schema is refused with the problem `refusal`.
    pub(crate) fn read(
        format: &Object<'a, '_>,
        nested: Option<&str>,
        dialect: &Dialect,
        refusal: Problem,
    ) -> Result<Option<Self>, Error> {
        let kind = format.need("type")?;
        match &*kind.string()? {
            "text" => Ok(None),
            "json_object" => Ok(Some(Self::Object)),
            "json_schema" if !dialect.json_schema => Err(kind.refuse(refusal)),
            "json_schema" => match nested {
                None => Self::schema(format),
                Some(nested) => Self::schema(&format.need_object(nested)?),
            },
            _ => Err(kind.refuse(Problem::NotOneOf("text, json_object, json_schema"))),
        }
    }

    /// Writes the format as OpenAI's formats have it. If `nested`, the schema is in the field `json_schema`; otherwise
    /// it is next to the type. OpenAI's formats require a name, which other formats omit.
    pub(crate) fn written(&self, nested: bool) -> Json<'static> {
        let Self::Schema {
            name,
            description,
            schema,
            strict,
        } = self
        else {
            return made(r#"{"type":"json_object"}"#.to_owned());
        };
        let name = name.map_or("\"answer\"", RawValue::get);
        let description = description.map_or_else(String::new, |text| {
            format!("\"description\":{},", text.get())
        });
        let schema =
            format!("\"name\":{name},{description}\"schema\":{schema},\"strict\":{strict}");
        made(match nested {
            true => format!("{{\"type\":\"json_schema\",\"json_schema\":{{{schema}}}}}"),
            false => format!("{{\"type\":\"json_schema\",{schema}}}"),
        })
    }

    fn schema(named: &Object<'a, '_>) -> Result<Option<Self>, Error> {
        let schema = named.need("schema")?;
        is_object(&schema)?;
        Ok(Some(Self::Schema {
            name: optional(named, "name")?,
            description: optional(named, "description")?,
            schema: schema.raw,
            strict: named.flag("strict")?.unwrap_or(false),
        }))
    }
}
