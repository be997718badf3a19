//! Replaces files that other processes may read at any time.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown},
    path::Path,
};

/// Replaces a file atomically: a reader gets either the old content or the new content. If the file is new, only its
/// owner can read it. If it exists, its owner and mode are kept, because the gateway must still be able to read it.
///
/// # Errors
/// An error if the file cannot be written. The old content is then unchanged.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let _ = fs::remove_file(beside);
    let mut options = fs::OpenOptions::new();
    let mut file = (options.write(true).create_new(true).mode(0o600)).open(beside)?;
    file.write_all(content)?;
    if let Ok(before) = fs::metadata(path) {
        let own = file.metadata()?;
        if (before.uid(), before.gid()) != (own.uid(), own.gid()) {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
        }
        file.set_permissions(before.permissions())?;
    }
    file.sync_all()?;
    fs::rename(beside, path)
}
