//! The life of a gateway process. `build` builds the gateway, `run` serves until a signal stops it, [`reload`] applies
//! changed files, and `drain` ends it. `events` handles the settler's events, and `dedicated_thread` runs a task on its
//! own thread.

mod build;
mod dedicated_thread;
mod drain;
mod events;
mod gateway;
pub mod reload;
mod run;

pub use self::{
    events::log_event,
    gateway::Gateway,
    run::{serve, until_told_to_stop},
};
