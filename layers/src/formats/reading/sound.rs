//! Bounds the tokens of a sound by its duration, because the vendor's count is not known before the call.
//!
//! Vendors bill sound by its duration, in tokens per second: 10 ([OpenAI]), 32 ([Gemini]), 12.5 (Voxtral), 25 (Qwen).
//! The hold uses the highest rate. The duration is read where decoders read it: in the header of a WAV file, or in the
//! frames of an MP3 file. Bytes of an MP3 file outside frames count as the longest sound that they could be. Other
//! formats are refused, because in them silence takes almost no bytes.
//!
//! [OpenAI]: https://developers.openai.com/api/docs/guides/realtime-costs
//! [Gemini]: https://ai.google.dev/gemini-api/docs/tokens

use super::base64::Base64;

/// The highest rate at which a vendor counts sound, in tokens per second.
const TOKENS_A_SECOND: u64 = 32;
/// The number of tokens that vendors add to each sound.
const PART_TOKENS: u64 = 32;
/// The longest time that one byte of MPEG audio can last, in microseconds. The shortest frame has 13 bytes, and the
/// longest frame lasts 144 ms.
const MICROS_A_BYTE: u64 = 12_000;
/// The maximum number of chunks of a WAV file that are read to find the chunk with its samples. Usually a file has two
/// or three.
const CHUNKS_MAX: usize = 64;

/// The file format of a sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Wav,
    Mp3,
}

impl Kind {
    /// Returns the format that has this name in a request.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "wav" => Some(Self::Wav),
            "mp3" => Some(Self::Mp3),
            _ => None,
        }
    }
}

/// Returns the file format of a sound in base64, and the most tokens that it can cost. `None` if its duration cannot be
/// measured.
pub(crate) fn measure(text: &str) -> Option<(Kind, u64)> {
    let bytes = Base64::new(text)?;
    let (kind, micros) = match bytes.word(0) {
        Some(word) if word == *b"RIFF" => (Kind::Wav, wav_micros(&bytes)?),
        _ => (Kind::Mp3, mp3_micros(&bytes)?),
    };
    let tokens = micros
        .saturating_mul(TOKENS_A_SECOND.into())
        .div_ceil(1_000_000);
    let tokens = u64::try_from(tokens).unwrap_or(u64::MAX);
    Some((kind, tokens.saturating_add(PART_TOKENS)))
}

impl Base64<'_> {
    fn word(&self, at: usize) -> Option<[u8; 4]> {
        self.bytes(at)
    }

    fn number(&self, at: usize) -> Option<u32> {
        self.word(at).map(u32::from_le_bytes)
    }

    fn short(&self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }
}

/// Returns the duration of a WAV file, at the lowest rate that its header allows. `None` if its samples are compressed.
fn wav_micros(bytes: &Base64<'_>) -> Option<u128> {
    if bytes.word(8)? != *b"WAVE" {
        return None;
    }
    let (mut at, mut rate) = (12, None);
    for _ in 0..CHUNKS_MAX {
        let (name, size) = (bytes.word(at)?, bytes.number(at + 4)?);
        let body = at + 8;
        match &name {
            b"data" => {
                let micros = bytes.len() as u128 * 1_000_000;
                return Some(micros.div_ceil(u128::from(rate?)));
            }
            b"fmt " => {
                let read = wav_bytes_a_second(bytes, body)?;
                rate = Some(rate.map_or(read, |least: u64| least.min(read)));
            }
            _ => {}
        }
        // A padding byte follows a chunk of odd length.
        let size = usize::try_from(size).ok()?;
        at = body.checked_add(size)?.checked_add(size % 2)?;
    }
    None
}

/// Returns the bytes per second. The header states them in three ways, and decoders differ in which one they use, so
/// the lowest number is returned.
fn wav_bytes_a_second(bytes: &Base64<'_>, at: usize) -> Option<u64> {
    /// The codes of WAV formats without compression: PCM, floats, A-law, µ-law.
    const WHOLE: [u16; 4] = [1, 3, 6, 7];
    const EXTENSIBLE: u16 = 0xFFFE;
    let mut codec = bytes.short(at)?;
    if codec == EXTENSIBLE {
        codec = bytes.short(at + 24)?;
    }
    let channels = u64::from(bytes.short(at + 2)?);
    let samples = u64::from(bytes.number(at + 4)?);
    let reported = u64::from(bytes.number(at + 8)?);
    let sample_bytes = u64::from(bytes.short(at + 12)?);
    let bits = u64::from(bytes.short(at + 14)?);
    let least = reported
        .min(samples * sample_bytes)
        .min(samples * channels * bits.div_ceil(8));
    (WHOLE.contains(&codec) && least > 0).then_some(least)
}

/// Returns the duration of consecutive MP3 frames. All other bytes count as frames of the longest duration.
fn mp3_micros(bytes: &Base64<'_>) -> Option<u128> {
    let start = mp3_start(bytes)?;
    let head = bytes.word(start)?;
    if head[0] != 0xFF || head[1] & 0xE0 != 0xE0 {
        return None;
    }
    let (mut at, mut micros) = (start, 0_u128);
    while let Some((length, duration)) = bytes.word(at).and_then(mp3_frame) {
        at += length;
        micros += u128::from(duration);
    }
    let rest = bytes.len().saturating_sub(at) as u128;
    Some(micros + rest * u128::from(MICROS_A_BYTE))
}

/// Returns the offset of the first byte after the ID3 tags.
fn mp3_start(bytes: &Base64<'_>) -> Option<usize> {
    let mut at = 0;
    while let Some([b'I', b'D', b'3', _]) = bytes.word(at) {
        let size = bytes.word(at + 6)?;
        // Each byte of the size contains seven bits.
        if size.iter().any(|byte| byte & 0x80 != 0) {
            return None;
        }
        let size = size
            .iter()
            .fold(0, |size, byte| size << 7 | usize::from(*byte));
        let footer = if bytes.byte(at + 5)? & 0x10 == 0 {
            0
        } else {
            10
        };
        at += 10 + size + footer;
    }
    Some(at)
}

/// Returns the length in bytes and the duration in microseconds of the Layer III frame with this header. `None` for
/// other layers, and if the header does not state the length.
fn mp3_frame(head: [u8; 4]) -> Option<(usize, u64)> {
    const KBITS: [[u64; 14]; 2] = [
        [
            32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
        ],
        [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    ];
    const RATES: [u64; 3] = [44_100, 48_000, 32_000];
    let [sync, kind, rates, _] = head;
    if sync != 0xFF || kind & 0xE0 != 0xE0 || kind >> 1 & 3 != 1 {
        return None;
    }
    let (table, slower, samples) = match kind >> 3 & 3 {
        3 => (0, 1, 1152),
        2 => (1, 2, 576),
        0 => (1, 4, 576),
        _ => return None,
    };
    let kbits = *KBITS[table].get(usize::from(rates >> 4).checked_sub(1)?)?;
    let rate = RATES.get(usize::from(rates >> 2 & 3))? / slower;
    let padding = u64::from(rates >> 1 & 1);
    let length = samples / 8 * kbits * 1000 / rate + padding;
    let micros = (samples * 1_000_000).div_ceil(rate);
    Some((usize::try_from(length).ok()?, micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::{Error, Problem},
        formats::{
            chat::parse as chat, messages::parse as messages, reading::base64::encode as base64,
        },
        price::{Class, Unpriced},
    };

    fn wav(codec: u16, channels: u16, rate: u32, bits: u16, data: usize) -> Vec<u8> {
        let align = channels * bits.div_ceil(8);
        let mut file = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
        for short in [codec, channels] {
            file.extend(short.to_le_bytes());
        }
        file.extend(rate.to_le_bytes());
        file.extend((rate * u32::from(align)).to_le_bytes());
        for short in [align, bits] {
            file.extend(short.to_le_bytes());
        }
        file.extend(b"data");
        file.extend((data as u32).to_le_bytes());
        file.resize(file.len() + data, 0);
        file
    }

    fn tokens(file: &[u8]) -> Option<(Kind, u64)> {
        measure(&base64(file))
    }

    /// Returns the quantity of a rate class that this content requests, and the fields that request it.
    fn extras(class: Class, fields: &str, content: &str) -> Option<(u64, Option<String>, String)> {
        let body = format!(
            r#"{{"model":"m",{fields}"messages":[{{"role":"user","content":{content}}}]}}"#
        );
        let asks = chat::call(body.as_bytes(), 10)
            .unwrap_or_else(|error| panic!("{body}: {error}"))
            .asks?;
        let field = asks.field(Unpriced::Class(class))?.to_owned();
        let unmeasured = asks.unmeasured().map(str::to_owned);
        Some((asks.extras().classes.get(class), unmeasured, field))
    }

    #[test]
    fn tokens_of_input_audio_are_bounded_by_its_duration() {
        let sound = base64(&wav(1, 1, 24_000, 16, 480_000));
        let part = |data: &str, format: &str| {
            format!(
                r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"{format}"}}}}"#
            )
        };
        let (one, _, field) =
            extras(Class::InputAudio, "", &format!("[{}]", part(&sound, "wav"))).unwrap();
        assert_eq!(field, "messages[0].content[0].input_audio");
        let both = [part(&sound, "wav"), part(&sound, "wav")].join(",");
        let both = extras(Class::InputAudio, "", &format!("[{both}]")).unwrap();
        assert_eq!(both, (2 * one, None, field.clone()));
        for (data, format, unmeasured) in [
            (&*sound, "mp3", "format"),
            (&sound, "flac", "format"),
            ("https://host/a.wav", "wav", "data"),
            ("", "wav", "data"),
        ] {
            let part = part(data, format);
            let (_, reported, _) = extras(Class::InputAudio, "", &format!("[{part}]")).unwrap();
            assert_eq!(reported, Some(format!("{field}.{unmeasured}")), "{format}");
        }
        let body = format!(
            r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":[{}]}}]}}"#,
            part(&sound, "wav")
        );
        let refused = messages::call(body.as_bytes(), 10);
        assert!(
            matches!(&refused, Err(Error::Invalid { field: named, problem: Problem::Unsupported }) if *named == field),
            "{refused:?}"
        );
    }

    #[test]
    fn requested_audio_or_image_output_is_recorded_with_its_field() {
        for (class, fields, field) in [
            (
                Class::OutputAudio,
                r#""modalities":["text","audio"],"#,
                Some("modalities[1]"),
            ),
            (
                Class::OutputImage,
                r#""modalities":["image","text"],"#,
                Some("modalities[0]"),
            ),
            (
                Class::OutputAudio,
                r#""audio":{"voice":"a","format":"wav"},"#,
                Some("audio"),
            ),
            (
                Class::OutputAudio,
                r#""audio":null,"modalities":["text"],"#,
                None,
            ),
            (Class::OutputAudio, r#""modalities":null,"#, None),
        ] {
            let extras = extras(class, fields, "\"x\"").map(|(_, _, field)| field);
            assert_eq!(extras.as_deref(), field, "{fields}");
        }
    }

    #[test]
    fn duration_of_a_wav_file_is_computed_from_its_header() {
        // Columns: the file, and its duration in seconds. The bytes of its header count as sound.
        for (file, seconds) in [
            (wav(1, 1, 24_000, 16, 480_000), 10),
            (wav(1, 2, 44_100, 16, 1_764_000), 10),
            (wav(7, 1, 8_000, 8, 80_000), 10),
            // A file with a low sample rate lasts longer, so it costs more.
            (wav(1, 1, 10, 8, 1000), 100),
        ] {
            let (kind, tokens) = tokens(&file).unwrap();
            assert_eq!(kind, Kind::Wav);
            let least = seconds * TOKENS_A_SECOND;
            assert!((least..least + 300).contains(&tokens), "{tokens}");
        }
        // Compressed sound is not measured. If the fields of the header contradict each other, the longest duration is
        // used.
        assert_eq!(tokens(&wav(0x11, 1, 24_000, 4, 1000)), None);
        assert_eq!(tokens(&wav(1, 0, 24_000, 16, 1000)), None);
        let mut file = wav(1, 1, 24_000, 16, 480_000);
        let at = file.windows(4).position(|name| name == b"fmt ").unwrap();
        // The bytes per second are changed, from which some decoders compute the duration.
        file[at + 16..at + 20].copy_from_slice(&4_800_u32.to_le_bytes());
        assert!(tokens(&file).unwrap().1 >= 100 * TOKENS_A_SECOND);
    }

    #[test]
    fn mp3_frames_count_by_their_duration_and_other_bytes_as_the_longest_possible_audio() {
        // An MPEG 1 frame at 128 kbit/s and 44.1 kHz has 417 bytes and lasts 26.122 ms.
        let mut frame = vec![0xFF, 0xFB, 0x90, 0x00];
        frame.resize(417, 0);
        let frames = frame.repeat(1000);
        assert_eq!(tokens(&frames), Some((Kind::Mp3, 836 + PART_TOKENS)));
        let tagged = [b"ID3\x04\0\0\0\0\0\x05abcde".as_slice(), &frames].concat();
        assert_eq!(tokens(&tagged), tokens(&frames));
        // A tag follows the frames. Its bytes count as the longest sound that they could be.
        let behind = [&frames[..], &[0; 100]].concat();
        assert_eq!(
            tokens(&behind),
            Some((Kind::Mp3, 875 + PART_TOKENS)),
            "1.2 s more"
        );
        // These MPEG 2.5 frames, in mono, have 13 bytes and last 72 ms.
        let mut free = vec![0xFF, 0xE3, 0x08, 0xC0];
        free.resize(13, 0);
        let (kind, most) = tokens(&free.repeat(1000)).unwrap();
        assert_eq!(kind, Kind::Mp3);
        assert!(most >= 72 * TOKENS_A_SECOND, "{most}");
        // These frames have 1000 bytes per second, the lowest rate that a header can state.
        let mut low = vec![0xFF, 0xE3, 0x18, 0xC0];
        low.resize(72, 0);
        let (_, most) = tokens(&low.repeat(1000)).unwrap();
        assert!((72 * 32..72 * 32 + 64).contains(&most), "{most}");
    }

    #[test]
    fn audio_of_unknown_duration_has_no_token_bound() {
        for text in [
            "",
            "AAAA",
            "https://host/sound.mp3",
            "data:audio/mp3;base64,//uQAA",
            "//uQ AA",
            "Zk xhQw",
        ] {
            assert_eq!(measure(text), None, "{text}");
        }
        // No MP3 frame follows the tag.
        assert_eq!(tokens(b"ID3\x04\0\0\0\0\0\x02abfLaC----"), None);
        assert_eq!(tokens(b"ID3\x04\0\0\xFF\0\0\x02ab\xFF\xFB\x90\0"), None);
        assert_eq!(tokens(b"OggS------------"), None);
    }
}
