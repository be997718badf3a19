//! Collects log lines, so that tests can check them.

use std::{io, sync::Arc};

use parking_lot::Mutex;

/// The bytes that a log has written so far. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// Returns a function that creates writers, for `tracing_subscriber`.
    pub(super) fn writer(&self) -> impl Fn() -> Self + Send + Sync + 'static {
        let written = self.clone();
        move || written.clone()
    }
}

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
