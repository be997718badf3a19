//! Reads and writes the files that commands are given.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use super::failure::Failure;
use crate::net::replace::replace_file;

/// The largest file that is read as a whole, in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Opens a file, or standard input if the path is `-`.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(File::open(path)?))
}

/// Reads a file, or standard input if the path is `-`. If the file is too large, the failure's text ends with `advice`.
pub(super) fn read_whole(path: &Path, advice: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(Failure::of_file(path, &error)),
        Ok(size) if size as u64 > FILE_BYTES_MAX => Err(Failure::Data(format!(
            "{}: the file has more than {FILE_BYTES_MAX} bytes; {advice}",
            path.display()
        ))),
        Ok(_) => Ok(bytes),
    }
}

/// Replaces the content of a file. If the path is a symbolic link, replaces the file to which it leads.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let replaced = fs::canonicalize(path).and_then(|path| replace_file(&path, text.as_bytes()));
    replaced.map_err(|error| Failure::of_file(path, &error))
}
