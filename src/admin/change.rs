//! Formats the effect of a change for the audit log.

use serde::Serialize;
use serde_json::Value;

/// The fields in `names` that differ, as JSON: `ceiling_rub: null → "100.00", …`.
pub(super) fn changes<T: Serialize>(names: &[&str], before: &T, after: &T) -> String {
    let (before, after) = (json(before), json(after));
    let differing = names.iter().filter(|name| before[**name] != after[**name]);
    let changes: Vec<String> = differing
        .map(|name| format!("{name}: {} → {}", before[*name], after[*name]))
        .collect();
    if changes.is_empty() {
        "nothing".to_owned()
    } else {
        changes.join(", ")
    }
}

fn json(answer: &impl Serialize) -> Value {
    serde_json::to_value(answer)
        .expect("serializing an answer with string keys to JSON cannot fail")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn audit_line_lists_only_the_fields_that_changed() {
        let before = json!({ "name": "a", "status": "active", "models": [], "secret": "x" });
        let after = json!({ "name": "a", "status": "disabled", "models": ["m"], "secret": "y" });
        assert_eq!(
            changes(&["name", "status", "models"], &before, &after),
            r#"status: "active" → "disabled", models: [] → ["m"]"#
        );
        assert_eq!(changes(&["name"], &before, &after), "nothing");
    }
}
