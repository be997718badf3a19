//! A value that can be changed while services read it.
//!
//! A layer that takes a [`Setting`] also accepts the plain value. Setting a new value through a clone changes what the
//! layer's services do from their next request on.
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

/// A shared value. Clones share it; reading never waits.
pub struct Setting<T>(Arc<ArcSwap<T>>);

impl<T> Setting<T> {
    /// Creates a setting with an initial value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(value)))
    }

    /// Replaces the setting's value.
    pub fn set(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

impl<T: Clone> Setting<T> {
    /// Returns the setting's current value.
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
