//! The JSON schema of `tollgate.toml`, for editors and for tests of programs that write the file.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::raw::RawConfig;

/// Returns the schema of the whole file (draft 7). It has only types; `tollgate check` checks everything else.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let schema = settings
        .into_generator()
        .into_root_schema_for::<RawConfig>();
    let mut schema = Value::from(schema);
    tidy(&mut schema);
    schema["title"] = "tollgate.toml".into();
    schema
}

/// Removes null, which TOML does not have, and defaults, which the descriptions contain.
fn tidy(schema: &mut Value) {
    let Value::Object(fields) = schema else {
        return;
    };
    fields.remove("default");
    fields.remove("format");
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            let kind = kind.clone();
            fields.insert("type".to_owned(), kind);
        }
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(tidy);
    }
    if let Some(items) = fields.get_mut("items") {
        tidy(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored schema. `tollgate schema > deploy/tollgate.schema.json` updates it, and so does this test with
    /// `SETTINGS_WRITE`.
    const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/tollgate.schema.json");

    #[test]
    fn stored_schema_equals_the_printed_one() {
        if std::env::var_os("SETTINGS_WRITE").is_some() {
            std::fs::write(KEPT, format!("{:#}\n", schema())).unwrap();
        }
        let stored: Value = serde_json::from_slice(&std::fs::read(KEPT).unwrap()).unwrap();
        assert!(
            stored == schema(),
            "deploy/tollgate.schema.json is old: tollgate schema > deploy/tollgate.schema.json"
        );
    }

    #[test]
    fn schema_describes_every_field_and_allows_no_other() {
        fn walk(schema: &Value, path: &str, seen: &mut usize) {
            let Some(properties) = schema.get("properties") else {
                return;
            };
            assert_eq!(schema["additionalProperties"], false, "{path}");
            for (name, field) in properties.as_object().unwrap() {
                *seen += 1;
                let path = format!("{path}.{name}");
                assert!(field["description"].is_string(), "{path} is not described");
                assert!(field["type"].is_string(), "{path}: {field}");
                walk(field, &path, seen);
                if let Some(items) = field.get("items") {
                    walk(items, &path, seen);
                }
            }
        }
        let (schema, mut seen) = (schema(), 0);
        walk(&schema, "", &mut seen);
        assert!(seen > 100, "{seen}");
        let route = &schema["properties"]["model"]["items"]["properties"]["routes"]["items"];
        assert_eq!(route["properties"]["weight"]["type"], "integer");
    }
}
