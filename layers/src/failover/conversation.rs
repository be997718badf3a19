//! Recognizes the calls of one conversation: they have the same key and the same content up to the user's first
//! message. Vendors cache prompts by their beginning, so calls with the same beginning are cheaper and faster if they
//! stay on one route.
//!
//! Cache marks (`cache_control`) are ignored, because clients move them within a conversation from call to call. The
//! billing line that some clients insert is ignored, because it changes with every call.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    marker::PhantomData,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use crate::format::BILLING_LINE;

/// The maximum number of turns of a conversation that are read. Several turns with instructions may precede the user's
/// first turn.
const TURNS_MAX: usize = 8;
/// A part of the request is parsed as a whole if it has at most this many bytes. If a longer part is an array, its
/// elements are parsed one by one. Of any other longer part, the first bytes up to this number are hashed without being
/// parsed.
const PART_BYTES_MAX: usize = 64 * 1024;

/// Returns the hash of a conversation, which is equal for all of its calls.
pub(super) fn conversation(key: &str, model: &str, body: &[u8]) -> u64 {
    // The hasher's keys are fixed, so all nodes with the same release compute the same hash.
    let mut hasher = DefaultHasher::new();
    (key, model).hash(&mut hasher);
    match serde_json::from_slice::<Opening<'_>>(body) {
        Ok(opening) => {
            let instructions = opening.system.or(opening.instructions);
            let turns = opening.messages.or(opening.input);
            let turns = turns.map_or_else(Vec::new, |Turns(turns)| turns);
            let parts = instructions.into_iter().chain(turns);
            parts.for_each(|part| add(part.get(), &mut hasher));
        }
        Err(_) => body[..body.len().min(PART_BYTES_MAX)].hash(&mut hasher),
    }
    hasher.finish()
}

fn add(json: &str, hasher: &mut DefaultHasher) {
    if json.len() > PART_BYTES_MAX {
        match serde_json::from_str::<Vec<&RawValue>>(json) {
            Ok(parts) => parts.iter().for_each(|part| add(part.get(), hasher)),
            Err(_) => json.as_bytes()[..PART_BYTES_MAX].hash(hasher),
        }
    } else if let Ok(value) = serde_json::from_str::<Value>(json) {
        add_value(&value, hasher);
    }
}

fn add_value(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "cache_control") {
                name.hash(hasher);
                add_value(value, hasher);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_value(item, hasher)),
        Value::String(text) if text.starts_with(BILLING_LINE) => {}
        Value::String(text) => text.hash(hasher),
        other => other.to_string().hash(hasher),
    }
}

/// The fields with which a conversation begins, in all formats. The Responses format uses `instructions` and `input`.
#[derive(Deserialize)]
struct Opening<'a> {
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<Turns<'a>>,
    #[serde(borrow)]
    input: Option<Turns<'a>>,
}

/// The turns of a conversation up to the user's first turn.
struct Turns<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Turns<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let turns = <&RawValue>::deserialize(deserializer)?;
        if turns.get().starts_with('"') {
            return Ok(Self(vec![turns]));
        }
        let mut list = serde_json::Deserializer::from_str(turns.get());
        list.deserialize_seq(TurnsVisitor(PhantomData))
            .map_err(D::Error::custom)
    }
}

struct TurnsVisitor<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for TurnsVisitor<'a> {
    type Value = Turns<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Turns<'a>, A::Error> {
        let mut turns = Vec::new();
        while turns.len() < TURNS_MAX {
            let Some(turn) = seq.next_element::<&'de RawValue>()? else {
                return Ok(Turns(turns));
            };
            turns.push(turn);
            if is_users(turn) {
                break;
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Turns(turns))
    }
}

fn is_users(turn: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Turn<'a> {
        #[serde(borrow)]
        role: &'a RawValue,
    }
    serde_json::from_str::<Turn<'_>>(turn.get()).is_ok_and(|turn| turn.role.get() == "\"user\"")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(body: &Value) -> u64 {
        conversation("k1", "m", body.to_string().as_bytes())
    }

    fn turn(role: &str, text: &str) -> Value {
        json!({ "role": role, "content": text })
    }

    #[test]
    fn conversation_hash_ignores_later_turns_and_other_fields() {
        let (system, first) = (turn("system", "brief"), turn("user", "hi"));
        let begun = of(&json!({ "model": "m", "messages": [system, first] }));
        for later in [
            json!({ "messages": [system, first, turn("assistant", "a"), turn("user", "b")] }),
            json!({ "max_tokens": 5, "messages": [system, first], "stream": true }),
        ] {
            assert_eq!(of(&later), begun, "{later}");
        }
    }

    #[test]
    fn conversation_in_the_responses_format_is_identified_by_its_instructions_and_first_input() {
        let (brief, first) = (json!("brief"), turn("user", "hi"));
        let thought = json!({ "type": "reasoning", "summary": [] });
        let begun = of(&json!({ "model": "m", "instructions": brief, "input": [first] }));
        for later in [
            json!({ "input": [first, thought, turn("assistant", "a"), turn("user", "b")], "instructions": brief }),
            json!({ "temperature": 1, "instructions": brief, "input": [first], "stream": true }),
        ] {
            assert_eq!(of(&later), begun, "{later}");
        }
        for other in [
            json!({ "instructions": "long", "input": [first] }),
            json!({ "instructions": null, "input": [first] }),
            json!({ "instructions": brief, "input": [turn("user", "ho")] }),
            json!({ "instructions": brief, "input": "ho" }),
        ] {
            assert_ne!(of(&other), begun, "{other}");
        }
        let text = |max: u64| of(&json!({ "input": "hi", "max_output_tokens": max }));
        assert_eq!(text(5), text(6));
    }

    #[test]
    fn conversation_hash_depends_on_the_key_and_the_model_and_the_first_turns() {
        let body = json!({ "system": "brief", "messages": [turn("user", "hi")] });
        let begun = of(&body);
        for other in [
            json!({ "system": "long", "messages": [turn("user", "hi")] }),
            json!({ "messages": [turn("user", "hi")] }),
            json!({ "system": "brief", "messages": [turn("user", "ho")] }),
            json!({ "system": "brief", "messages": [turn("system", "x"), turn("user", "hi")] }),
        ] {
            assert_ne!(of(&other), begun, "{other}");
        }
        let bytes = body.to_string();
        assert_ne!(conversation("k2", "m", bytes.as_bytes()), begun);
        assert_ne!(conversation("k1", "n", bytes.as_bytes()), begun);
    }

    #[test]
    fn conversation_hash_ignores_cache_control() {
        let mark = json!({ "type": "ephemeral" });
        let part = |marked: bool| {
            let mut part = json!({ "type": "text", "text": "hi" });
            if marked {
                part["cache_control"] = mark.clone();
            }
            json!({ "system": [part], "messages": [{ "role": "user", "content": [part] }] })
        };
        assert_eq!(of(&part(true)), of(&part(false)));
    }

    #[test]
    fn conversation_hash_ignores_the_billing_line_in_a_system_prompt() {
        for rules in ["rules", &"rules".repeat(PART_BYTES_MAX)] {
            let call = |line: &str| {
                let line = format!("{BILLING_LINE} cch={line};");
                let system = [
                    json!({ "type": "text", "text": line }),
                    json!({ "type": "text", "text": rules }),
                ];
                of(&json!({ "system": system, "messages": [turn("user", "hi")] }))
            };
            assert_eq!(call("1"), call("2"));
        }
    }

    #[test]
    fn conversation_hash_is_computed_even_for_long_turns_and_invalid_bodies() {
        let long = |end: &str| {
            let text = "a".repeat(PART_BYTES_MAX) + end;
            of(&json!({ "messages": [turn("user", &text)] }))
        };
        assert_eq!(long("b"), long("c"));
        assert_eq!(conversation("k", "m", b"{"), conversation("k", "m", b"{"));
    }
}
