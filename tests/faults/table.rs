//! The table of fault cases: their selection by the command line, and their verdicts.

use std::{
    any::Any, panic::AssertUnwindSafe, pin::Pin, process::ExitCode, rc::Rc, sync::Arc, thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    sync::Semaphore,
    task::{JoinSet, LocalSet},
    time::{Instant, timeout},
};

use crate::verdict::Verdict;

/// The maximum number of cases that run at the same time. At most one case runs per core, because each case has several
/// processes.
const AT_ONCE_MAX: usize = 3;
const QUICK_LIMIT: Duration = Duration::from_secs(90);
const LONG_LIMIT: Duration = Duration::from_secs(900);

/// The future of a case. It need not be `Send`, because all cases share one thread, and their tasks run on other
/// threads.
type Running = Pin<Box<dyn Future<Output = Verdict>>>;

/// One case of the fault catalogue.
#[derive(Clone)]
pub struct Case {
    group: &'static str,
    name: String,
    long: bool,
    alone: bool,
    run: Rc<dyn Fn() -> Running>,
}

/// Lists cases, one per row: the number of the group in the catalogue, the name, the function that runs it, and marks
/// such as `long`.
macro_rules! cases {
    ($($group:literal $name:expr => $run:expr $(, $mark:ident)*;)*) => {
        vec![$(Case::new($group, $name, move || $run)$(.$mark())*),*]
    };
}

pub(crate) use cases;

impl Case {
    /// Creates a case. `group` is the number of its group in the catalogue.
    pub fn new<F>(
        group: &'static str,
        name: impl Into<String>,
        run: impl Fn() -> F + 'static,
    ) -> Self
    where
        F: Future<Output = Verdict> + 'static,
    {
        Self {
            group,
            name: name.into(),
            long: false,
            alone: false,
            run: Rc::new(move || -> Running { Box::pin(run()) }),
        }
    }

    /// Marks a case that takes more than ten seconds. Such a case runs only with `--long`.
    pub fn long(mut self) -> Self {
        self.long = true;
        self
    }

    /// Marks a case that measures time. No other case runs at the same time.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }
}

/// The options of the command line.
#[derive(Debug, Default)]
struct Options {
    words: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    long: bool,
    list: bool,
    /// The flag `--ignored` of libtest. With it no case runs, because no case is marked as ignored.
    ignored: bool,
}

impl Options {
    /// Accepts the flags of libtest, too, because `cargo test` passes them to every test binary.
    fn parse(args: impl Iterator<Item = String>) -> Self {
        let mut options = Self::default();
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let (name, value) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with('-') => (name.to_owned(), Some(value)),
                _ => (arg.clone(), None),
            };
            match name.as_str() {
                "--long" => options.long = true,
                "--list" => options.list = true,
                "--exact" => options.exact = true,
                "--ignored" => options.ignored = true,
                "--skip" => options
                    .skip
                    .extend(value.map(str::to_owned).or_else(|| args.next())),
                "--test-threads" | "--format" | "--color" | "--logfile" | "--shuffle-seed"
                | "-Z" => {
                    if value.is_none() {
                        args.next();
                    }
                }
                flag if flag.starts_with('-') => {}
                _ => options.words.push(arg),
            }
        }
        options
    }

    fn wants(&self, case: &Case) -> bool {
        let is = |word: &String| match self.exact {
            true => case.name == *word,
            false => case.name.contains(word.as_str()),
        };
        let named = self.words.is_empty() || self.words.iter().any(is);
        named && !self.ignored && (self.long || !case.long) && !self.skip.iter().any(is)
    }
}

/// Runs the selected cases, and prints the table.
pub fn run(cases: Vec<Case>) -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
    let wanted: Vec<Case> = cases
        .into_iter()
        .filter(|case| options.wants(case))
        .collect();
    if options.list {
        for case in &wanted {
            println!("{}: test", case.name);
        }
        return ExitCode::SUCCESS;
    }
    if wanted.is_empty() {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    let began = Instant::now();
    let results = runtime.block_on(LocalSet::new().run_until(run_all(&wanted)));
    print!("{}", table(&wanted, &results));
    let failed = results
        .iter()
        .filter(|verdict| !verdict.problems.is_empty())
        .count();
    println!(
        "{} passed, {failed} failed, in {} s",
        results.len() - failed,
        began.elapsed().as_secs()
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs the cases. Returns their verdicts in the order of the cases.
async fn run_all(cases: &[Case]) -> Vec<Verdict> {
    let mut verdicts: Vec<Option<Verdict>> = cases.iter().map(|_| None).collect();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let room = Arc::new(Semaphore::new(cores.min(AT_ONCE_MAX)));
    let mut together = JoinSet::new();
    for (index, case) in cases.iter().enumerate().filter(|(_, case)| !case.alone) {
        let (case, room) = (case.clone(), Arc::clone(&room));
        together.spawn_local(async move {
            let _permit = room.acquire_owned().await;
            (index, run_one(&case).await)
        });
    }
    while let Some(Ok((index, verdict))) = together.join_next().await {
        verdicts[index] = Some(verdict);
    }
    for (index, case) in cases.iter().enumerate().filter(|(_, case)| case.alone) {
        verdicts[index] = Some(run_one(case).await);
    }
    let missing = || failed("it did not run".to_owned());
    verdicts
        .into_iter()
        .map(|verdict| verdict.unwrap_or_else(missing))
        .collect()
}

async fn run_one(case: &Case) -> Verdict {
    let (limit, began) = (
        if case.long { LONG_LIMIT } else { QUICK_LIMIT },
        Instant::now(),
    );
    let run = AssertUnwindSafe((case.run)()).catch_unwind();
    let verdict = match timeout(limit, run).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(panic)) => failed(words(&*panic)),
        Err(_) => failed(format!("not done within {limit:?}")),
    };
    let tenths = began.elapsed().as_millis() / 100;
    let output = if verdict.problems.is_empty() {
        "ok"
    } else {
        "FAILED"
    };
    println!(
        "{}: {output} ({}.{} s)",
        case.name,
        tenths / 10,
        tenths % 10
    );
    if output == "FAILED" {
        println!("{}", verdict.complaint());
    }
    verdict
}

fn failed(problem: String) -> Verdict {
    Verdict {
        problems: vec![problem],
        ..Verdict::default()
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

fn table(cases: &[Case], verdicts: &[Verdict]) -> String {
    let heads = [
        "group",
        "fault",
        "runs",
        "calls",
        "lost",
        "double",
        "negative",
        "may be lost",
        "measured",
        "result",
    ];
    let mut rows: Vec<[String; 10]> = vec![heads.map(str::to_owned)];
    for (case, verdict) in cases.iter().zip(verdicts) {
        let result = if verdict.problems.is_empty() {
            "ok"
        } else {
            "FAILED"
        };
        rows.push([
            case.group.to_owned(),
            case.name.clone(),
            verdict.runs.to_string(),
            verdict.calls.to_string(),
            verdict.lost.to_string(),
            verdict.double.to_string(),
            verdict.negative.to_string(),
            verdict.bound.clone(),
            verdict.notes.join(", "),
            result.to_owned(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| width(column).unwrap_or_default())
        .collect();
    let mut text = String::from("\n");
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if number == 0 {
            let lines: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            text.push_str(&format!("| {} |\n", lines.join(" | ")));
        }
    }
    text
}
