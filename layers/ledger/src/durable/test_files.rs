//! Files for tests of the stores.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rusqlite::Connection;

/// Changes a file in the way another program could.
pub(crate) fn edit(path: &Path, sql: &str) {
    let conn = Connection::open(path).unwrap();
    conn.execute_batch(sql).unwrap();
}

/// Copies a file and its write-ahead log in the state that a killed process leaves.
pub(crate) fn copy_of_open_file(path: &Path) -> PathBuf {
    let copy = path.with_extension("copy");
    let wal = |path: &Path| PathBuf::from(format!("{}-wal", path.display()));
    fs::copy(path, &copy).unwrap();
    fs::copy(wal(path), wal(&copy)).unwrap();
    copy
}

/// Creates files that belong to no store: a text file, and a database of another program.
pub(crate) fn foreign_files(dir: &Path) -> [PathBuf; 2] {
    let [text, foreign] = ["text", "foreign"].map(|name| dir.join(name));
    let words =
        "This is a text file and not a database, so a store must refuse to open it as its own.";
    fs::write(&text, words).unwrap();
    edit(&foreign, "CREATE TABLE t (x)");
    [text, foreign]
}
