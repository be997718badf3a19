//! `tollgate export`: writes the whole ledger as lines of JSON, to standard output or a file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, ErrorKind, IsTerminal, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;
use tollgate_layers::key::AccountId;

use super::{
    AdminArgs,
    client::{Client, with_query},
    failure::Failure,
    show::{self, counted},
};

/// The interval at which a long export prints its progress on a terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How many bytes of a line are kept. Only the first and the last line of an export are parsed, and both are shorter.
const FRAME_BYTES_MAX: usize = 256;

/// Options of `tollgate export`: which accounts are exported, and the output file.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Export only this account
    #[arg(long)]
    account: Option<AccountId>,
    /// Output file; - is standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn export(admin: &AdminArgs, args: &ExportArgs) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let account = args.account.as_ref().map(ToString::to_string);
    let path = with_query("/admin/v1/export", [("account", account)]);
    let output = args.output.as_deref();
    let output = output.filter(|path| path.as_os_str() != "-");
    let mut target = match output {
        None => Target::Stdout(BufWriter::new(io::stdout())),
        Some(path) => Target::open(path)?,
    };
    let mut seen = Seen::new(!target.is_terminal() && io::stderr().is_terminal());
    let read = client
        .read(&path, |piece| {
            seen.count(piece);
            target.write(piece)
        })
        .await;
    seen.wipe();
    match read {
        Ok(ControlFlow::Break(())) => return Ok(()),
        Ok(ControlFlow::Continue(())) => {}
        Err(failure) => {
            target.drop_part();
            return Err(failure);
        }
    }
    let Some(end) = seen.end() else {
        target.drop_part();
        return Err(Failure::OutOfReach(format!(
            "the export was cut off after {} lines; see the gateway's log and export again",
            seen.lines
        )));
    };
    target.finish()?;
    let Some(output) = output else {
        return Ok(());
    };
    let report = json!({
        "file": output.display().to_string(), "accounts": end.accounts, "lines": end.lines, "bytes": seen.bytes,
    });
    show::print(admin.json, &report, |_| {
        format!(
            "{}: {}, {}\n",
            output.display(),
            counted(end.accounts, "account"),
            counted(end.lines, "line")
        )
    })
}

/// Where the lines are written. A file gets its final name only when it is complete.
enum Target {
    Stdout(BufWriter<io::Stdout>),
    File {
        path: PathBuf,
        /// The temporary name of the file until it is complete; `None` for a pipe or a device, which is written
        /// directly.
        part: Option<PathBuf>,
        out: BufWriter<File>,
    },
}

impl Target {
    fn open(path: &Path) -> Result<Self, Failure> {
        let cannot =
            |error: io::Error| Failure::Io(format!("--output {}: {error}", path.display()));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let is_device = fs::metadata(path).is_ok_and(|there| !there.is_file());
        let part = (!is_device).then(|| {
            let mut part = path.as_os_str().to_owned();
            part.push(".part");
            // The export contains payments, which are confidential, so only the file's owner may read it.
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            PathBuf::from(part)
        });
        let out = options.open(part.as_deref().unwrap_or(path));
        Ok(Self::File {
            path: path.to_owned(),
            part,
            out: BufWriter::new(out.map_err(cannot)?),
        })
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Stdout(out) if out.get_ref().is_terminal())
    }

    /// Writes a piece of the export. Breaks if standard output is a pipe whose reader has closed it.
    fn write(&mut self, piece: &[u8]) -> Result<ControlFlow<()>, Failure> {
        let written = match self {
            Self::Stdout(out) => out.write_all(piece),
            Self::File { out, .. } => out.write_all(piece),
        };
        match written {
            Ok(()) => Ok(ControlFlow::Continue(())),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
            Err(error) => Err(self.not_written(&error)),
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        let written = match &mut self {
            Self::Stdout(out) => match out.flush() {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
                flushed => flushed,
            },
            Self::File { path, part, out } => out.flush().and_then(|()| match part {
                None => Ok(()),
                Some(part) => out
                    .get_ref()
                    .sync_all()
                    .and_then(|()| fs::rename(part, path)),
            }),
        };
        written.map_err(|error| {
            self.drop_part();
            self.not_written(&error)
        })
    }

    fn drop_part(&self) {
        if let Self::File {
            part: Some(part), ..
        } = self
        {
            // The partial file may have been removed already. If it cannot be removed, its name shows that it is
            // partial.
            let _ = fs::remove_file(part);
        }
    }

    fn not_written(&self, error: &io::Error) -> Failure {
        let name = match self {
            Self::Stdout(_) => "standard output".into(),
            Self::File { path, .. } => path.display().to_string(),
        };
        Failure::Io(format!("{name}: {error}"))
    }
}

/// The lines and bytes received so far.
#[derive(Debug, Default)]
struct Seen {
    lines: u64,
    bytes: u64,
    /// The first bytes of the line that is still incomplete. The next field has the first bytes of the last complete
    /// line.
    coming: Vec<u8>,
    last: Vec<u8>,
    progress: Option<Instant>,
    shown: bool,
}

/// The last line of an export, which has the number of lines before it.
#[derive(Debug, Deserialize)]
struct End {
    kind: String,
    accounts: u64,
    lines: u64,
}

impl Seen {
    fn new(progress: bool) -> Self {
        Self {
            progress: progress.then(|| Instant::now() + PROGRESS_EVERY),
            ..Self::default()
        }
    }

    fn count(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let room = FRAME_BYTES_MAX.saturating_sub(self.coming.len());
            self.coming.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.lines += 1;
                self.last = std::mem::take(&mut self.coming);
            }
        }
        if let Some(next) = self.progress
            && Instant::now() >= next
        {
            self.progress = Some(Instant::now() + PROGRESS_EVERY);
            self.shown = true;
            eprint!("\r{} lines, {} MB", self.lines, self.bytes / 1_000_000);
        }
    }

    /// Erases the progress line from the terminal.
    fn wipe(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }

    /// Returns the last line, if it is an end line and its counts match the received lines.
    fn end(&self) -> Option<End> {
        if !self.coming.is_empty() {
            return None;
        }
        let end: End = serde_json::from_slice(&self.last).ok()?;
        (end.kind == "end" && end.lines == self.lines).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pieces: &[&str]) -> Seen {
        let mut seen = Seen::new(false);
        pieces.iter().for_each(|piece| seen.count(piece.as_bytes()));
        seen
    }

    #[test]
    fn export_is_complete_only_if_its_last_line_has_the_right_line_count() {
        let long = format!(
            "{{\"kind\":\"account\",\"name\":\"{}\"}}\n",
            "x".repeat(1000)
        );
        for (pieces, whole) in [
            (
                vec![
                    long.as_str(),
                    "{\"kind\":\"end\",\"accounts\":1,\"lines\":2}\n",
                ],
                true,
            ),
            (
                vec![
                    long.as_str(),
                    "{\"kind\":\"e",
                    "nd\",\"accounts\":1,\"lines\":2}",
                    "\n",
                ],
                true,
            ),
            (
                vec![
                    long.as_str(),
                    "{\"kind\":\"end\",\"accounts\":1,\"lines\":2}",
                ],
                false,
            ),
            (
                vec![
                    long.as_str(),
                    "{\"kind\":\"end\",\"accounts\":1,\"lines\":3}\n",
                ],
                false,
            ),
            (vec![long.as_str()], false),
            (vec![], false),
        ] {
            assert_eq!(seen(&pieces).end().is_some(), whole, "{pieces:?}");
        }
    }

    #[test]
    fn export_file_appears_under_its_name_only_when_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export.ndjson");
        let mut target = Target::open(&path).unwrap();
        assert_eq!(target.write(b"a\n").unwrap(), ControlFlow::Continue(()));
        assert!(!path.exists());
        target.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        let target = Target::open(&path).unwrap();
        target.drop_part();
        assert_eq!(fs::read(&path).unwrap(), b"a\n", "the earlier one stays");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(Target::open(&path.join("x")).err().unwrap().code(), 74);
    }
}
