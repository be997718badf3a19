//! The operator that sent a request, and what that operator may do.

use std::{fmt, str::FromStr, sync::Arc};

use serde::Deserialize;

/// The operator that sends a request: the holder of the admin key, or an operator who is signed in to the console. Only
/// the console inserts an `Operator` into a request; a request that arrives at the listener has none.
#[derive(Clone, Debug)]
pub struct Operator {
    name: Arc<str>,
    role: Role,
}

impl Operator {
    pub(crate) fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.into(),
            role,
        }
    }

    /// Returns the name under which the operator appears in the audit log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the operator's role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }
}

/// The holder of the admin key. A request into which the console has inserted no `Operator` counts as a request of this
/// holder.
impl Default for Operator {
    fn default() -> Self {
        Self::new("admin", Role::Admin)
    }
}

/// The role of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The role may read everything.
    Read,
    /// The role may read everything, book payments and corrections, and run the audit.
    Finance,
    /// The role may read everything, and change accounts and keys.
    Support,
    /// The role may do everything.
    Admin,
}

/// The right that a request requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Money,
    Support,
    Everything,
}

impl Role {
    const ALL: [Self; 4] = [Self::Read, Self::Finance, Self::Support, Self::Admin];

    pub(crate) const fn may(self, right: Right) -> bool {
        match self {
            Self::Admin => true,
            Self::Finance => matches!(right, Right::Read | Right::Money),
            Self::Support => matches!(right, Right::Read | Right::Support),
            Self::Read => matches!(right, Right::Read),
        }
    }

    /// Returns the name of the role.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Finance => "finance",
            Self::Support => "support",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or("must be read, finance, support or admin")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_role_has_its_own_rights_and_only_admin_has_all() {
        use Right::{Everything, Money, Read, Support};
        for (role, rights) in [
            ("read", &[Read][..]),
            ("finance", &[Read, Money]),
            ("support", &[Read, Support]),
            ("admin", &[Read, Money, Support, Everything]),
        ] {
            let role: Role = role.parse().unwrap();
            for right in [Read, Money, Support, Everything] {
                assert_eq!(role.may(right), rights.contains(&right), "{role} {right:?}");
            }
        }
        assert!("root".parse::<Role>().is_err());
    }
}
