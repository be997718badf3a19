//! Tests that hold for every format. A response stays the same if it is written and read again, however its bytes are
//! cut. A format that exists only in these tests is translated in all directions.

use std::{fs, mem, path::Path};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::{
    chat, messages, responses,
    toy_tests::Toy,
    turn::{Call, Counts, Emit, Event, Reader, Stop, Writer},
};
use crate::{
    error::Error,
    formats::{origin::Origin, responses::requested::RequestEcho, wire::AnswerCx},
    sse::Splitter,
};

/// The content of a response that every format can carry.
#[derive(Clone, Debug, Default, PartialEq)]
struct Turn {
    text: String,
    refusal: String,
    reasoning: String,
    /// The id, name and arguments of each tool call.
    calls: Vec<(String, String, String)>,
    stop: Option<Stop>,
    counts: Counts,
    whole: bool,
    /// The item number of each tool call.
    items: Vec<u64>,
}

impl Turn {
    fn take(&mut self, event: Event<'_>) {
        assert!(!self.whole, "{event:?} after the end");
        match event {
            Event::Text(_, refusal, piece) => {
                let text = if refusal {
                    &mut self.refusal
                } else {
                    &mut self.text
                };
                text.push_str(piece);
            }
            Event::Reasoning(_, _, piece) => self.reasoning.push_str(piece),
            Event::Call { item, call } => {
                self.items.push(item);
                let call = (call.id.to_owned(), call.name.to_owned(), String::new());
                self.calls.push(call);
            }
            Event::Arguments { item, piece, fault } => {
                assert_eq!(fault, None);
                let call = self.items.iter().position(|known| *known == item);
                self.calls[call.expect("a call")].2.push_str(piece);
            }
            Event::Stop(stop) => self.stop = Some(stop),
            Event::End(counts) => (self.counts, self.whole) = (counts, true),
            Event::Begin { .. } | Event::Proof(..) | Event::Done(..) | Event::Alive => {}
        }
    }

    /// Removes the differences that a translation may make to a turn: whether the stop reason mentions tool calls,
    /// whether missing arguments become `{}`, and the order of tool calls.
    fn comparable(mut self) -> Self {
        self.items.clear();
        self.calls.sort_unstable();
        if let Some(Stop::EndTurn | Stop::ToolUse) = self.stop {
            let called = !self.calls.is_empty();
            self.stop = Some(if called { Stop::ToolUse } else { Stop::EndTurn });
        }
        for (_, _, arguments) in &mut self.calls {
            if arguments.is_empty() {
                arguments.push_str("{}");
            }
        }
        self
    }

    /// Returns the turn as the Messages format can carry it. In this format, a refusal is ordinary text with a stop
    /// reason of its own.
    fn without_refusal(mut self) -> Self {
        if !self.refusal.is_empty() {
            self.stop = Some(Stop::Refusal);
        }
        self.text += &mem::take(&mut self.refusal);
        self
    }
}

/// A format, with the functions that create its reader and its writer.
#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    reader: fn() -> Box<dyn Reader>,
    writer: fn(plain: bool) -> Box<dyn Writer>,
}

const CX: AnswerCx = AnswerCx {
    created: 1,
    usage_asked: true,
    thinking_asked: true,
};

const FORMATS: [Format; 4] = [
    Format {
        name: "chat",
        reader: || Box::new(chat::Reader::new(1)),
        writer: |plain| Box::new(chat::Writer::new(Origin::default(), CX, plain)),
    },
    Format {
        name: "messages",
        reader: || Box::<messages::Reader>::default(),
        writer: |plain| Box::new(messages::Writer::new(Origin::default(), CX, plain)),
    },
    Format {
        name: "responses",
        reader: || Box::<responses::Reader>::default(),
        writer: |plain| {
            let body = br#"{"model":"m","input":"x","include":["reasoning.encrypted_content"],"reasoning":{"summary":"auto"}}"#;
            let requested = RequestEcho::read(body, Uuid::from_u128(1).simple(), 1, "v").unwrap();
            Box::new(responses::Writer::new(requested, plain))
        },
    },
    Format {
        name: "toy",
        reader: || Box::<Toy>::default(),
        writer: |_| Box::<Toy>::default(),
    },
];

/// Reads a stream that arrives in chunks of this size, and passes on its events.
pub(super) fn read(
    reader: &mut dyn Reader,
    stream: &[u8],
    size: usize,
    emit: Emit<'_>,
) -> Result<(), Error> {
    let (mut splitter, mut events) = (Splitter::default(), Vec::new());
    for chunk in stream.chunks(size) {
        let chunk = Bytes::copy_from_slice(chunk);
        splitter.push(&chunk, |event| events.push(event)).unwrap();
    }
    events.extend(splitter.finish());
    for event in events {
        reader.event(&event, emit)?;
    }
    reader.end(emit)
}

/// Writes a turn whose pieces arrive in this order.
fn written(writer: &mut dyn Writer, turn: &Turn, order: &[usize]) -> BytesMut {
    let mut out = BytesMut::new();
    let mut write = |event: Event<'_>| writer.write(event, &mut out).unwrap();
    write(Event::Begin {
        id: "\"i\"",
        model: "\"m\"",
    });
    // The items are the reasoning, the text and the tool calls. The pieces of each item must keep their order.
    let calls = turn.calls.iter().map(|(_, _, arguments)| &**arguments);
    let texts: Vec<&str> = [&*turn.reasoning, &*turn.text]
        .into_iter()
        .chain(calls)
        .collect();
    let mut rests = texts.clone();
    let mut begun = vec![false; texts.len()];
    let turns = order
        .iter()
        .map(|item| item % texts.len())
        .chain(0..texts.len());
    for (place, index) in turns.enumerate() {
        let last = place >= order.len();
        if !mem::replace(&mut begun[index], true) && index >= 2 {
            let (id, name, _) = &turn.calls[index - 2];
            let custom = false;
            let (item, call) = (index as u64, Call { id, name, custom });
            write(Event::Call { item, call });
        }
        let end = if last { usize::MAX } else { 3 };
        let piece = take_piece(&mut rests[index], end);
        let item = index as u64;
        if !piece.is_empty() {
            write(match index {
                0 => Event::Reasoning(item, true, piece),
                1 => Event::Text(item, false, piece),
                _ => Event::Arguments {
                    item,
                    piece,
                    fault: None,
                },
            });
        }
        if last {
            let implied = false;
            write(Event::Done(item, implied));
        }
    }
    if !turn.refusal.is_empty() {
        let (item, refusal, piece) = (texts.len() as u64, true, &*turn.refusal);
        write(Event::Text(item, refusal, piece));
    }
    write(Event::Stop(turn.stop.unwrap()));
    write(Event::End(turn.counts));
    out
}

/// Takes about this many bytes from the beginning of the text. A piece never ends within a character or an escape.
fn take_piece<'t>(text: &mut &'t str, bytes: usize) -> &'t str {
    let is_cut = |end: usize| {
        let escapes = text.as_bytes()[..end].iter().rev();
        let backslashes = escapes.take_while(|byte| **byte == b'\\').count();
        !text.is_char_boundary(end) || backslashes % 2 == 1
    };
    let mut end = bytes.min(text.len());
    while end < text.len() && is_cut(end) {
        end += 1;
    }
    let (piece, rest) = text.split_at(end);
    *text = rest;
    piece
}

pub(super) fn escaped() -> impl Strategy<Value = String> {
    let text = "[a-z \"\\\\\n\u{436}\u{1f980}]{0,12}";
    text.prop_map(|text| {
        let json = json!(text).to_string();
        json[1..json.len() - 1].to_owned()
    })
}

fn turns() -> impl Strategy<Value = Turn> {
    let arguments = prop_oneof![
        Just(String::new()),
        ("[a-z]{1,3}", escaped()).prop_map(|(name, text)| {
            let json = format!("{{\"{name}\":[1,null,\"{text}\"]}}");
            let json = json!(json).to_string();
            json[1..json.len() - 1].to_owned()
        }),
    ];
    let calls = prop::collection::vec(("[a-z]{1,8}", arguments), 0..4);
    let stop = prop_oneof![
        Just(Stop::EndTurn),
        Just(Stop::ToolUse),
        Just(Stop::MaxTokens),
        Just(Stop::Refusal),
    ];
    let counts = (0..99_u64, 0..99_u64, 0..99_u64, 9..99_u64, 1..9_u64);
    (escaped(), escaped(), escaped(), calls, stop, counts).prop_map(
        |(text, refusal, reasoning, calls, stop, counts)| {
            let (fresh, written, cached, output, reasoned) = counts;
            let calls = calls.into_iter().enumerate();
            Turn {
                text,
                refusal,
                reasoning,
                calls: calls
                    .map(|(index, (name, arguments))| (format!("c{index}"), name, arguments))
                    .collect(),
                stop: Some(stop),
                counts: Counts {
                    fresh,
                    written,
                    cached,
                    output,
                    reasoning: Some(reasoned),
                },
                whole: true,
                items: Vec::new(),
            }
        },
    )
}

/// Returns the turn as it is after it was written in this format.
fn carried(format: &Format, turn: Turn) -> Turn {
    match format.name {
        "messages" => turn.without_refusal(),
        _ => turn,
    }
}

proptest! {
    #[test]
    fn response_is_unchanged_after_it_is_written_and_read_again(
        turn in turns(),
        order in prop::collection::vec(0..9_usize, 0..12),
    ) {
        for format in FORMATS {
            let expected = carried(&format, turn.clone()).comparable();
            let stream = written(&mut *(format.writer)(false), &turn, &order);
            for size in [1, 7, stream.len()] {
                let mut again = Turn::default();
                let mut emit = |event: Event<'_>| { again.take(event); Ok(()) };
                read(&mut *(format.reader)(), &stream, size, &mut emit).unwrap();
                prop_assert_eq!(&again.comparable(), &expected, "{}", format.name);
            }
            let mut again = Turn::default();
            let plain = written(&mut *(format.writer)(true), &turn, &order);
            (format.reader)().answer(&plain, &mut |event| { again.take(event); Ok(()) }).unwrap();
            prop_assert_eq!(&again.comparable(), &expected, "plain {}", format.name);
        }
    }

    #[test]
    fn response_is_unchanged_after_every_translation(turn in turns()) {
        for vendor in FORMATS {
            let stream = written(&mut *(vendor.writer)(false), &turn, &[]);
            for caller in FORMATS {
                let mut out = BytesMut::new();
                let mut writer = (caller.writer)(false);
                let mut write = |event: Event<'_>| writer.write(event, &mut out);
                read(&mut *(vendor.reader)(), &stream, stream.len(), &mut write).unwrap();
                let mut again = Turn::default();
                let mut emit = |event: Event<'_>| { again.take(event); Ok(()) };
                read(&mut *(caller.reader)(), &out, out.len(), &mut emit).unwrap();
                let expected = carried(&caller, carried(&vendor, turn.clone())).comparable();
                prop_assert_eq!(&again.comparable(), &expected, "{} {}", vendor.name, caller.name);
            }
        }
    }
}

/// JSON names of the wire formats. The code of layers must not contain them: it uses the functions of `formats`.
const WIRE_NAMES: [&str; 12] = [
    "cache_control",
    "content_block",
    "finish_reason",
    "input_audio",
    "input_tokens",
    "message_stop",
    "output_tokens",
    "prompt_tokens",
    "reasoning_content",
    "response.completed",
    "tool_calls",
    "tool_use",
];

#[test]
fn json_names_of_the_formats_occur_only_in_the_format_folders() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders: Vec<_> = ["parse", "passthrough", "respond", "translate"]
        .iter()
        .map(|layer| source.join(layer))
        .collect();
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !["tests.rs", "testing.rs", "recorded.rs"]
                .iter()
                .any(|it| name.ends_with(it))
            {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
                let code = code
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"));
                for (line, name) in code.flat_map(|line| WIRE_NAMES.map(|name| (line, name))) {
                    let quoted = [format!("\"{name}\""), format!("\\\"{name}\\\"")];
                    assert!(
                        !quoted.iter().any(|it| line.contains(it)),
                        "{path:?}: {line}"
                    );
                }
                read += 1;
            }
        }
    }
    assert!(read > 15, "{read}");
}

#[test]
fn paths_that_the_docs_name_for_a_new_wire_format_exist() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(package.join("../docs/architecture.md")).unwrap();
    let row = page
        .lines()
        .find(|line| line.starts_with("| a new **wire format**"));
    let row = row.unwrap();
    let places = (1..).map_while(|number| row.split_once(&format!("({number}) `")));
    let places: Vec<_> = places
        .map(|(_, rest)| rest.split('`').next().unwrap())
        .collect();
    assert!((1..=5).contains(&places.len()), "{places:?}");
    for place in places {
        assert!(package.join("..").join(place).exists(), "{place}");
    }
    let (_, files) = row.split_once("as in the other folders (").unwrap();
    let files: Vec<_> = files.split(')').next().unwrap().split(", ").collect();
    assert!(files.len() > 5, "{files:?}");
    for (format, file) in ["chat", "messages", "responses"]
        .into_iter()
        .flat_map(|format| {
            files
                .iter()
                .map(move |file| (format, file.trim_matches('`')))
        })
    {
        let path = package.join(format!("src/formats/{format}/{file}.rs"));
        assert!(path.exists(), "{path:?}");
    }
}
