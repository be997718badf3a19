//! The names that most of the tests use. A test file imports all of them with `use crate::prelude::*`.

pub use std::{sync::Arc, time::Duration};

pub use bytes::Bytes;
pub use http::Method;
pub use serde_json::{Value, json};
pub use tokio::sync::Notify;
pub use tollgate::demo::vendor::{Reply, Step};

pub use crate::{checks::*, harness::*, ops::*, replies::*};
