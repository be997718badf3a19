//! Compares two texts line by line.

use serde::{Deserialize, Serialize};

/// A hunk: adjacent lines that a change removes and adds.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Hunk {
    /// The number of the hunk's first line in the old text, counted from 1.
    pub(crate) line: usize,
    pub(crate) removed: Vec<String>,
    pub(crate) added: Vec<String>,
}

/// The maximum effort of a comparison: the product of the numbers of differing lines in the two texts. If the product
/// is larger, these lines form one hunk without being compared.
const COMPARED_MAX: usize = 4_000_000;

pub(crate) fn difference(before: &str, after: &str) -> Vec<Hunk> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let ends = old[start..].iter().rev().zip(new[start..].iter().rev());
    let end = ends.take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    // For each pair of start positions: the length of the longest common subsequence of the two remainders.
    let width = new.len() + 1;
    let is_compared = old.len().saturating_mul(new.len()) <= COMPARED_MAX;
    let mut common = Vec::new();
    if is_compared {
        common.resize((old.len() + 1) * width, 0_u32);
        for (i, j) in (0..old.len())
            .rev()
            .flat_map(|i| (0..new.len()).rev().map(move |j| (i, j)))
        {
            common[i * width + j] = match old[i] == new[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j, mut hunks) = (0, 0, Vec::<Hunk>::new());
    let mut is_open = false;
    while i < old.len() || j < new.len() {
        if is_compared && i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j, is_open) = (i + 1, j + 1, false);
            continue;
        }
        if !is_open {
            hunks.push(Hunk {
                line: start + i + 1,
                removed: Vec::new(),
                added: Vec::new(),
            });
            is_open = true;
        }
        let Some(hunk) = hunks.last_mut() else { break };
        let adds = i == old.len()
            || (is_compared
                && j < new.len()
                && common[i * width + j + 1] > common[(i + 1) * width + j]);
        if adds {
            hunk.added.push(new[j].to_owned());
            j += 1;
        } else {
            hunk.removed.push(old[i].to_owned());
            i += 1;
        }
    }
    hunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_has_only_the_lines_that_differ() {
        let hunks = difference("a\nb\nc\nd\ne\n", "a\nB\nc\ne\nf\n");
        let shown: Vec<_> = hunks
            .iter()
            .map(|it| (it.line, it.removed.join(","), it.added.join(",")))
            .collect();
        let hunk = |line, removed: &str, added: &str| (line, removed.to_owned(), added.to_owned());
        assert_eq!(
            shown,
            [hunk(2, "b", "B"), hunk(4, "d", ""), hunk(6, "", "f")]
        );
        assert_eq!(difference("a\n", "a\n"), []);
    }
}
