//! A value that can be changed while services read it.
//!
//! A layer that accepts a [`Setting`] also accepts a plain value. If the value is replaced through a clone of the
//! setting, the layer's services use the new value from their next request on.
//!
//! ```
//! use tollgate_ledger::setting::Setting;
//!
//! let limit = Setting::new(10);
//! let of_a_service = limit.clone();
//! limit.set(20);
//! assert_eq!(of_a_service.get(), 20);
//! ```

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;

/// A shared value that can be replaced. Clones share it, and reading it never waits.
pub struct Setting<T>(Arc<ArcSwap<T>>);

impl<T> Setting<T> {
    /// Creates a setting with an initial value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(value)))
    }

    /// Replaces the value in all clones of this setting.
    pub fn set(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

impl<T: Clone> Setting<T> {
    /// Returns the current value.
    #[must_use]
    pub fn get(&self) -> T {
        T::clone(&self.0.load())
    }
}

impl<T> Clone for Setting<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> From<T> for Setting<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.load().fmt(f)
    }
}
