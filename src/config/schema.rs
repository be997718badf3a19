//! The JSON schema of `tollgate.toml`, for text editors, and for tests of programs that write this file.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::raw::RawConfig;

/// Returns the JSON schema (draft 7) of the whole file. It states only the types of settings; `tollgate check` checks
/// everything else.
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

/// Removes the type null, because TOML has no null, and default values, because the descriptions state them.
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

    /// Path of the stored schema. `tollgate schema > deploy/tollgate.schema.json` updates the file, and so does this
    /// test if `SETTINGS_WRITE` is set.
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
