//! Operators: their roles and rights, and the operators file.

mod list;
mod role;

pub use self::role::{Operator, Role};
pub(crate) use self::{
    list::{ADMIN, Invitation, Named, Operators, PASSWORD_CHARS_MIN},
    role::Right,
};
