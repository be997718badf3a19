//! The token counts that every format has.

use crate::{price::Class, usage::Usage};

/// The usage of a response, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Input tokens that were neither read from the cache nor written to it.
    pub(crate) fresh: u64,
    pub(crate) written: u64,
    pub(crate) cached: u64,
    /// All output tokens, including reasoning.
    pub(crate) output: u64,
    /// The reasoning tokens within the output, if the vendor reports them.
    pub(crate) reasoning: Option<u64>,
}

impl Counts {
    /// Converts a usage by rate class. The formats count sound and images as ordinary input, and do not
    /// distinguish the lifetimes of cache writes.
    pub(crate) fn new(usage: &Usage, reasoning: Option<u64>) -> Self {
        let sum = |tokens: u64, classes: [Class; 2]| {
            let classes = classes.map(|class| usage.classes.get(class));
            classes.into_iter().fold(tokens, u64::saturating_add)
        };
        let output = usage.output_total();
        Self {
            fresh: sum(usage.input, [Class::InputAudio, Class::InputImage]),
            written: sum(
                usage.cache_write,
                [Class::CacheWrite1h, Class::CacheWrite12h],
            ),
            cached: sum(
                usage.cached_input,
                [Class::CachedInputAudio, Class::CachedInputImage],
            ),
            output,
            reasoning: reasoning.map(|reasoning| reasoning.min(output)),
        }
    }

    /// Returns the sum of all input tokens.
    pub(crate) const fn input(&self) -> u64 {
        self.fresh
            .saturating_add(self.written)
            .saturating_add(self.cached)
    }

    /// Returns the sum of input and output tokens.
    pub(crate) const fn total(&self) -> u64 {
        self.input().saturating_add(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hour_cache_writes_are_part_of_the_input() {
        let mut usage = Usage {
            input: 1000,
            ..Usage::default()
        };
        *usage.classes.get_mut(Class::CacheWrite1h) = 4000;
        let counts = Counts::new(&usage, None);
        assert_eq!((counts.input(), counts.written), (5000, 4000));
    }
}
