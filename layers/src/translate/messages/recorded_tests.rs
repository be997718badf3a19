//! Translates recordings of real vendors. The translation must have the texts, tool calls, stop reason and usage of the
//! recording, which are read here without the code under test.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::testing::{CX, proofs, received, translated};
use crate::{
    call::Format,
    translate::{Origin, Translator},
};

/// Returns the recordings of the Chat Completions format whose names end with `ending`.
fn recordings(ending: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let entries = fs::read_dir(&folder).expect("the recordings");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| name.starts_with("chat-") && name.ends_with(ending))
        .collect();
    names.sort();
    let read = |name: String| {
        let bytes = fs::read(folder.join(&name)).unwrap();
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// The content of a recorded Chat Completions response, read without the code under test.
#[derive(Debug, Default)]
struct Source {
    text: String,
    thinking: String,
    /// The tool calls, each with the vendor's index, the id, the name and the arguments.
    calls: Vec<(Value, String, String, String)>,
    finish: String,
    usage: Value,
    error: bool,
}

impl Source {
    fn stream(bytes: &[u8]) -> Self {
        let mut source = Self::default();
        for line in std::str::from_utf8(bytes).unwrap().lines() {
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
                continue;
            };
            source.add(&serde_json::from_str(data).unwrap(), "delta");
            if source.error {
                break;
            }
        }
        source
    }

    fn plain(bytes: &[u8]) -> Self {
        let mut source = Self::default();
        source.add(&serde_json::from_slice(bytes).unwrap(), "message");
        source
    }

    fn add(&mut self, chunk: &Value, reported: &str) {
        if chunk.get("error").is_some() {
            self.error = true;
            return;
        }
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        if let Some(finish) = choice["finish_reason"].as_str()
            && self.finish.is_empty()
        {
            self.finish = finish.to_owned();
        }
        let reported = &choice[reported];
        self.text += reported["content"].as_str().unwrap_or_default();
        let details = reported["reasoning_details"]
            .as_array()
            .into_iter()
            .flatten();
        let details: String = details
            .filter_map(|detail| detail["text"].as_str())
            .collect();
        self.thinking += ["reasoning_content", "reasoning"]
            .into_iter()
            .find_map(|name| reported[name].as_str())
            .unwrap_or(&details);
        for call in reported["tool_calls"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (id, function) = (text(&call["id"]), &call["function"]);
            let (name, arguments) = (text(&function["name"]), text(&function["arguments"]));
            let known = self
                .calls
                .iter_mut()
                .find(|known| !call["index"].is_null() && known.0 == call["index"]);
            match known {
                Some(known) => known.3 += &arguments,
                None => self
                    .calls
                    .push((call["index"].clone(), id, name, arguments)),
            }
        }
    }

    /// Returns the content that the translated response must have.
    fn content(&self) -> Vec<Value> {
        let mut content = Vec::new();
        if !self.thinking.is_empty() {
            content.push(json!({"type": "thinking", "thinking": self.thinking, "signature": ""}));
        }
        if !self.text.is_empty() {
            content.push(json!({"type": "text", "text": self.text}));
        }
        for (_, id, name, arguments) in &self.calls {
            let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            content.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        }
        content
    }

    fn stop_reason(&self) -> &'static str {
        match self.finish.as_str() {
            "length" => "max_tokens",
            "content_filter" => "refusal",
            _ if self.calls.is_empty() => "end_turn",
            _ => "tool_use",
        }
    }

    /// Returns the counts of input, cache writes, cache reads and output.
    fn usage(&self) -> [u64; 4] {
        let usage = &self.usage;
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let prompt = count(&usage["prompt_tokens"]);
        let read = count(&usage["prompt_tokens_details"]["cached_tokens"]);
        let written = count(&usage["prompt_tokens_details"]["cache_write_tokens"]);
        let output = count(&usage["completion_tokens"]);
        let reasoning = count(&usage["completion_tokens_details"]["reasoning_tokens"]);
        let beside = count(&usage["total_tokens"]) == prompt + output + reasoning;
        let output = output + if beside { reasoning } else { 0 };
        [prompt - read - written, written, read, output]
    }
}

fn classes(usage: &Value) -> [u64; 4] {
    [
        "input_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "output_tokens",
    ]
    .map(|name| usage[name].as_u64().unwrap())
}

#[test]
fn recorded_responses_keep_their_content() {
    let mut answers = 0;
    for (name, bytes) in recordings(".json") {
        let source = Source::plain(&bytes);
        let answer =
            Translator::to_messages(Format::Chat, Origin::default(), CX, true).answer(&bytes);
        if source.error {
            assert!(answer.is_err(), "{name}");
            continue;
        }
        let mut answer: Value = serde_json::from_slice(&answer.unwrap()).unwrap();
        proofs(&mut answer["content"]);
        assert_eq!(answer["content"], Value::Array(source.content()), "{name}");
        assert_eq!(answer["stop_reason"], source.stop_reason(), "{name}");
        assert_eq!(classes(&answer["usage"]), source.usage(), "{name}");
        assert!(!answer["id"].as_str().unwrap().is_empty(), "{name}");
        answers += 1;
    }
    assert!(answers >= 5, "only {answers} recordings were found");
}

#[test]
fn recorded_streams_keep_their_content() {
    let mut streams = 0;
    for (name, bytes) in recordings(".sse") {
        let source = Source::stream(&bytes);
        let (out, end) = translated(CX, &[&bytes]);
        assert_eq!(end.is_err(), source.error, "{name}: {end:?}");
        let received = received(&out);
        assert_eq!(received.content, source.content(), "{name}");
        assert_eq!(received.whole, !source.error, "{name}");
        assert!(
            !received.id.is_empty() && !received.model.is_empty(),
            "{name}"
        );
        if received.whole {
            assert_eq!(
                received.stop_reason.as_deref(),
                Some(source.stop_reason()),
                "{name}"
            );
            assert_eq!(classes(&received.usage), source.usage(), "{name}");
        }
        streams += 1;
    }
    assert!(streams >= 10, "only {streams} recordings were found");
}

#[test]
fn recorded_chat_streams_have_the_same_translation_however_they_are_split_into_chunks() {
    for (name, bytes) in recordings(".sse") {
        let (whole, _) = translated(CX, &[&bytes]);
        // The step is a prime number, so that the cuts in all recordings together are at positions of every kind.
        for cut in (0..bytes.len()).step_by(89) {
            let (out, _) = translated(CX, &[&bytes[..cut], &bytes[cut..]]);
            assert!(out == whole, "{name} cut at {cut}");
        }
        let pieces: Vec<&[u8]> = bytes.chunks(7).collect();
        assert!(
            translated(CX, &pieces).0 == whole,
            "{name} in pieces of 7 bytes"
        );
    }
}
