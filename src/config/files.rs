//! The files from which a configuration was read, with digests of their contents. A changed digest causes a reload.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Files by path, each with a digest of its contents. The digest is `None` if the file could not be read.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Files(BTreeMap<PathBuf, Option<[u8; 32]>>);

impl Files {
    pub(super) fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = std::fs::read(path);
        let digest = bytes.as_ref().ok();
        let digest = digest.map(|bytes| Sha256::digest(bytes).into());
        self.0.insert(path.to_owned(), digest);
        bytes
    }

    /// Reads the same files again, and returns them with new digests.
    #[must_use]
    pub fn look(&self) -> Self {
        let mut now = Self::default();
        for path in self.0.keys() {
            drop(now.read(path));
        }
        now
    }

    /// Returns whether the files that are in both sets have the same contents in both.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let differs = |(path, held): (&PathBuf, &Option<[u8; 32]>)| {
            other.0.get(path).is_some_and(|other| other != held)
        };
        !self.0.iter().any(differs)
    }
}

/// Prints only the paths, because a digest of a secret must not be logged.
impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_and_change_and_removal_of_a_file_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, "1").unwrap();
        let mut files = Files::default();
        assert_eq!(files.read(&one).unwrap(), b"1");
        assert!(files.read(&two).is_err());
        assert_eq!(files.look(), files);
        std::fs::write(&two, "2").unwrap();
        let with_two = files.look();
        assert_ne!(with_two, files);
        assert!(!with_two.agrees_with(&files));
        std::fs::remove_file(&two).unwrap();
        assert_eq!(files.look(), files);
        let mut other = Files::default();
        other.read(&one).unwrap();
        assert!(other.agrees_with(&files) && files.agrees_with(&other));
    }
}
