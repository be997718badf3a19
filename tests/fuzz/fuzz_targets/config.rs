//! A configuration file is accepted, or all of its mistakes are reported, without a secret in the report.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::config::Config;

const SECRET: &str = "a-secret-of-the-environment-0123456789";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // Texts that name a file are skipped, so that no file of this machine is read. Texts that contain the secret
    // themselves are skipped too.
    if text.contains("file") || text.contains(SECRET) {
        return;
    }
    match Config::parse(text, &|_| Some(SECRET.to_owned())) {
        Ok(config) => {
            assert!(!config.live.models.is_empty());
            assert!(!format!("{config:?}").contains(SECRET));
        }
        Err(errors) => {
            assert!(errors.iter().next().is_some());
            assert!(!format!("{errors} {errors:?}").contains(SECRET));
        }
    }
});
