//! Who asks, and what they may do.

use std::{fmt, str::FromStr, sync::Arc};

use serde::Deserialize;

/// The holder of the admin key, or somebody whom the console has let in. The console alone puts one into a request: what
/// comes over the listener brings none.
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

    /// What the audit's lines call them.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What they may do.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }
}

/// The holder of the admin key.
impl Default for Operator {
    fn default() -> Self {
        Self::new("admin", Role::Admin)
    }
}

/// What a person is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks at everything.
    Read,
    /// Payments, corrections, the audit.
    Finance,
    /// Accounts and keys.
    Support,
    /// All of it.
    Admin,
}

/// What a call of the API needs.
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

    /// Its name.
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
    fn a_role_may_what_it_is_there_for() {
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
