//! Tests of audio and images in chat completions (docs/prices.md), for a model that has prices for them.

use crate::prelude::*;

/// Returns a setup with these prices of a million tokens: 3200 ₽ for audio input, 6400 ₽ for audio output, 3000 ₽ for
/// generated images.
fn priced() -> Setup {
    Setup::default().edit(
        "cache_write = \"0.5\" }",
        "cache_write = \"0.5\", input_audio = \"32\", output_audio = \"64\", output_image = \"30\" }",
    )
}

/// Returns a WAV file with 100 ms of silence (24 kHz, 16 bits), in base64.
pub fn sound() -> String {
    // This is the beginning of the file: "RIFF....WAVEfmt " with 16 bytes of format, and "data" with a length of 4800
    // bytes. It has 48 bytes, a multiple of three, so its base64 text can be followed by that of the remaining samples.
    let head = "UklGRuQSAABXQVZFZm10IBAAAAABAAEAwF0AAIC7AAACABAAZGF0YcASAAAAAAAA";
    format!("{head}{}", "A".repeat(4797 / 3 * 4))
}

fn received(data: &str) -> Value {
    with(
        Op::Chat.body(""),
        json!({ "messages": [{ "role": "user", "content": [
            { "type": "text", "text": "что здесь?" },
            { "type": "input_audio", "input_audio": { "data": data, "format": "wav" } } ] }] }),
    )
}

fn spoken(modality: &str) -> Value {
    with(
        Op::Chat.body("x"),
        json!({ "modalities": ["text", modality] }),
    )
}

const INPUT_AUDIO: &str = "messages[0].content[1].input_audio";

#[tokio::test]
async fn unpriced_audio_or_image_field_is_refused_and_named() {
    refuses(
        Op::Chat,
        INPUT_AUDIO,
        [received(&sound()), received("AAAA")],
    )
    .await;
    let voice = json!({ "audio": { "voice": "alloy", "format": "wav" } });
    refuses(Op::Chat, "audio", [with(Op::Chat.body("x"), voice)]).await;
    refuses(
        Op::Chat,
        "modalities[1]",
        [spoken("audio"), spoken("image"), spoken("video")],
    )
    .await;
    let search = json!({ "web_search_options": {} });
    refuses(
        Op::Chat,
        "web_search_options",
        [with(Op::Chat.body("x"), search)],
    )
    .await;
}

#[tokio::test]
async fn priced_audio_and_images_are_forwarded_unchanged_and_charged() {
    let (world, key) = priced().start_with_key().await;
    let used = json!({ "prompt_tokens": 13, "completion_tokens": 60,
        "prompt_tokens_details": { "audio_tokens": 1 },
        "completion_tokens_details": { "audio_tokens": 40, "image_tokens": 5 } });
    let classes = json!({ "input_audio": 1, "output_audio": 40, "output_image": 5 });
    for body in [received(&sound()), spoken("audio"), spoken("image")] {
        world.vendor_sends(Reply::json(200, &answer(Op::Chat, "да", &used)));
        let answer = world.chat(&key, &body).await.expect(200);
        let sent = world.vendor.received().pop().unwrap().json();
        for field in ["messages", "modalities"] {
            assert_eq!(sent.get(field), body.get(field));
        }
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["usage"]["classes"], classes, "{receipt}");
        assert_eq!(receipt.get("unpriced"), None, "{receipt}");
        hold_covers_charge(&receipt);
        let rate = |class: &str| micro(&receipt["price"][class]);
        let four = 12 * rate("input") + 15 * rate("output");
        let sum = four + 3_200_000_000 + 40 * 6_400_000_000 + 5 * 3_000_000_000;
        assert_eq!(
            micro(&receipt["charged_rub"]),
            (sum + 999_999) / 1_000_000,
            "{receipt}"
        );
    }
}

#[tokio::test]
async fn audio_of_unknown_duration_is_refused() {
    let (world, key) = priced().start_with_key().await;
    for (data, field) in [
        ("AAAA", "data"),
        ("https://host/a.wav", "data"),
        ("//uQZAAA", "format"),
    ] {
        let answer = world.chat(&key, &received(data)).await;
        let text = refused(data, &answer, 400, INVALID, "");
        assert!(text.contains(&format!("«{INPUT_AUDIO}.{field}»")), "{text}");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn audio_is_never_sent_to_a_messages_vendor() {
    let (world, key) = Setup::default()
        .edit(
            "cache_write = \"5\" }",
            "cache_write = \"5\", input_audio = \"32\", output_audio = \"64\" }",
        )
        .start_with_key()
        .await;
    let model = Op::Messages.body("x")["model"].clone();
    for (body, field) in [
        (received(&sound()), INPUT_AUDIO),
        (spoken("audio"), "modalities[1]"),
    ] {
        let answer = world
            .chat(&key, &with(body, json!({ "model": model })))
            .await;
        let text = refused(field, &answer, 400, INVALID, "");
        assert!(text.contains(&format!("«{field}»")), "{text}");
    }
    let body = with(
        received(&sound()),
        json!({ "model": model, "max_tokens": 9 }),
    );
    let answer = world.messages(&key, &body).await;
    let text = refused("messages", &answer, 400, INVALID, "");
    assert!(text.contains(&format!("«{INPUT_AUDIO}»")), "{text}");
    assert!(world.vendor.received().is_empty());
}
