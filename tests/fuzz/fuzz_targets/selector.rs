//! JSON selectors. The input is a line with a selector, and then JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::text::select_json::Selector;

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let Ok(text) = std::str::from_utf8(&data[..end]) else {
        return;
    };
    let Ok(selector) = text.parse::<Selector>() else {
        return;
    };
    let shown = selector.to_string();
    assert_eq!(shown.parse::<Selector>().as_ref(), Ok(&selector), "{shown}");
    let json = data.get(end + 1..).unwrap_or_default();
    if let Ok(number) = selector.select(json) {
        // If the selector runs again, it must give the same digits.
        assert_eq!(selector.select(json), Ok(number));
    }
});
