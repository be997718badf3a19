//! Tests in which a new process replaces a running gateway: no call is refused, and no stream is cut.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use http::Request;
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate::demo::{script::polite, vendor::ScriptedVendor};

use crate::{
    prelude::*,
    support::process::{Log, Start, TOLLGATE, addresses, signal, with_secrets},
};

/// The maximum time until a process has started or stopped, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The cost of a call with `chat_body("Привет")`, in micro-rubles.
const COST: i64 = 1500;
const STREAMS: usize = 20;

/// Returns the addresses of both listeners: for callers, and for operators.
pub(crate) fn both(
    (callers, operators): (SocketAddr, Option<SocketAddr>),
) -> (SocketAddr, SocketAddr) {
    (callers, operators.expect("operators are served"))
}

async fn admin(to: SocketAddr, method: Method, path: &str, body: Option<Value>) -> Answer {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let req = json_request(method, &format!("http://{to}{path}"), ADMIN_KEY, body);
    let answer = whole(client().request(req).await.unwrap()).await;
    assert!(answer.status.is_success(), "{path}: {answer:?}");
    answer
}

/// Creates an account `acme` with money and a key. Returns the secret of the key.
pub(crate) async fn funded_key(to: SocketAddr) -> String {
    let account = json!({ "id": "acme", "name": "acme" });
    admin(to, Method::POST, "/admin/v1/accounts", Some(account)).await;
    let payment = json!({ "id": "first", "amount_rub": "1000" });
    let path = "/admin/v1/accounts/acme/topups";
    admin(to, Method::POST, path, Some(payment)).await;
    let path = "/admin/v1/accounts/acme/keys";
    let made = admin(to, Method::POST, path, Some(json!({}))).await.json();
    made["key"].as_str().unwrap().to_owned()
}

fn call(to: SocketAddr, key: &str, stream: bool) -> Request<Full<bytes::Bytes>> {
    let url = format!("http://{to}/v1/chat/completions");
    let body = with(chat_body("Привет"), json!({ "stream": stream }));
    json_request(Method::POST, &url, key, body.to_string())
}

/// A vendor whose streams wait after their first word until the test lets them continue.
struct Vendor {
    scripted: ScriptedVendor,
    holds: Arc<Mutex<Vec<Arc<Notify>>>>,
}

impl Vendor {
    async fn start() -> Self {
        let scripted = ScriptedVendor::start().await.unwrap();
        let holds: Arc<Mutex<Vec<Arc<Notify>>>> = Arc::default();
        let stored = Arc::clone(&holds);
        scripted.script(move |received| {
            if received.json()["stream"] != true {
                return polite(received);
            }
            let hold = Arc::new(Notify::new());
            stored.lock().unwrap().push(Arc::clone(&hold));
            polite(received).with_step(2, Step::Hold(hold))
        });
        Self { scripted, holds }
    }

    fn let_go(&self) {
        for hold in self.holds.lock().unwrap().iter() {
            hold.notify_one();
        }
    }
}

/// Opens streams, each on a separate connection, and reads the first word of each.
async fn begin_streams(to: SocketAddr, key: &str) -> Vec<Incoming> {
    let client = client();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let res = client.request(call(to, key, true)).await.unwrap();
        assert_eq!(res.status(), 200);
        let mut body = res.into_body();
        read_until(&mut body, "Вы ").await;
        streams.push(body);
    }
    streams
}

async fn finish_streams(streams: Vec<Incoming>) {
    for mut body in streams {
        let rest = rest(&mut body).await;
        assert!(rest.contains("Привет") && rest.contains("[DONE]"), "{rest}");
    }
}

/// Makes calls one after another, each on a new connection, until the test stops the loop.
struct Caller {
    done: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    failures: Arc<Mutex<Vec<String>>>,
    tasks: JoinSet<()>,
}

impl Caller {
    fn start(to: SocketAddr, key: &str) -> Self {
        let client: HttpClient =
            hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
                .pool_max_idle_per_host(0)
                .build_http();
        let mut caller = Self {
            done: Arc::default(),
            stop: Arc::default(),
            failures: Arc::default(),
            tasks: JoinSet::new(),
        };
        let (done, stop, failures) = (
            Arc::clone(&caller.done),
            Arc::clone(&caller.stop),
            Arc::clone(&caller.failures),
        );
        let key = key.to_owned();
        caller.tasks.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let failure = match client.request(call(to, &key, false)).await {
                    Ok(res) if res.status() == 200 => {
                        let answer = whole(res).await;
                        answer.failed.then(|| format!("broke off: {answer:?}"))
                    }
                    Ok(res) => Some(format!("{:?}", whole(res).await)),
                    Err(error) => Some(format!("connecting {}: {error:?}", error.is_connect())),
                };
                match failure {
                    None => {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    Some(failure) => failures.lock().unwrap().push(failure),
                }
            }
        });
        caller
    }

    /// Waits until this number of further calls are done.
    async fn goes_on(&self, more: usize) {
        let (begun, until) = (Instant::now(), self.done.load(Ordering::SeqCst) + more);
        while self.done.load(Ordering::SeqCst) < until {
            let failures = self.failures.lock().unwrap().clone();
            assert!(begun.elapsed() < PATIENCE, "it stands still: {failures:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the calls. Returns the number of answered calls, and the failures of the others.
    async fn stop(mut self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::SeqCst);
        while self.tasks.join_next().await.is_some() {}
        let failures = self.failures.lock().unwrap().clone();
        (self.done.load(Ordering::SeqCst), failures)
    }
}

/// Checks that exactly this number of calls was charged, each once, and that the audit finds no breach.
async fn books_balance(to: SocketAddr, calls: usize) {
    let begun = Instant::now();
    let account = loop {
        let account = admin(to, Method::GET, "/admin/v1/accounts/acme", None).await;
        let account = account.json();
        if account["held_rub"] == "0.00" {
            break account;
        }
        assert!(begun.elapsed() < PATIENCE, "{account}");
    };
    let spent = COST * i64::try_from(calls).unwrap();
    assert_eq!(
        micro(&account["spent_rub"]),
        spent,
        "{calls} calls: {account}"
    );
    let audit = admin(to, Method::POST, "/admin/v1/audit", None)
        .await
        .json();
    assert_eq!(audit["breaches"], json!([]), "{audit}");
}

/// The new process listens on the same port as the old process (`reuse_port`), and has its own outbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_process_takes_calls_while_the_old_one_finishes_its_streams() {
    let (redis, vendor) = (RedisServer::start().await, Vendor::start().await);
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let port = port.unwrap().port();
    let config = |outbox: &str| {
        let outbox = dir.path().join(outbox);
        let text = config_text(vendor.scripted.address(), &redis.url(), outbox);
        let listen = format!("listen = \"127.0.0.1:{port}\"\nreuse_port = true\nbase_url");
        text.replace("listen = \"127.0.0.1:0\"\nbase_url", &listen)
            .replace("[tariff]", "[limits]\ndrain_seconds = 60\n[tariff]")
    };
    let start = |name: &str| {
        let file = dir.path().join(name).with_extension("toml");
        std::fs::write(&file, config(&format!("{name}.db"))).unwrap();
        Start::new(&file, &file.with_extension("log")).spawn()
    };
    let old = start("blue");
    let (address, operators) = both(old.serving().await);
    old.says("the ledger is new").await;
    let key = funded_key(operators).await;
    let streams = begin_streams(address, &key).await;
    let caller = Caller::start(address, &key);
    caller.goes_on(20).await;

    let new = start("green");
    let (same, operators) = both(new.serving().await);
    assert_eq!(same, address);
    caller.goes_on(50).await;
    old.signal("-TERM");
    old.says("draining").await;
    caller.goes_on(100).await;
    vendor.let_go();
    finish_streams(streams).await;
    old.says("stopped").await;
    assert_eq!(old.ended().await.code(), Some(0));
    caller.goes_on(20).await;
    let (calls, failures) = caller.stop().await;
    // When a socket is closed, the kernel resets the connections in its queue, unless net.ipv4.tcp_migrate_req is set.
    // So one call may fail after it has connected, but no connection may be refused.
    let refused = |failure: &String| !failure.starts_with("connecting false");
    assert!(!failures.iter().any(refused), "{failures:?}");
    assert!(failures.len() <= 1, "{failures:?}");
    books_balance(operators, calls + STREAMS).await;
}

/// A Python program that opens two sockets and prints their ports. Each line that it reads is the path of a log file.
/// For each line, it starts a gateway on these sockets with this log, and prints the process id.
const SUPERVISOR: &str = r#"
import fcntl, os, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
binary, config = sys.argv[1:]
sockets = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2)]
print(*[s.getsockname()[1] for s in sockets], flush=True)
for line in sys.stdin:
    log = os.open(line.strip(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    pid = os.fork()
    if pid == 0:
        kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in [log] + [s.fileno() for s in sockets]]
        for place, fd in zip((1, 3, 4), kept):
            os.dup2(fd, place)
        os.dup2(1, 2)
        os.environ.update(LISTEN_FDS="2", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="public:admin")
        os.execv(binary, [binary, "serve", "--config", config])
    os.close(log)
    print(pid, flush=True)
"#;

/// Opens the gateway's sockets, and passes them to each gateway process, as systemd does with a socket unit.
struct Supervisor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    started: Vec<u32>,
    public: u16,
}

impl Supervisor {
    fn start(config: &Path) -> Self {
        let mut command = Command::new("python3");
        let mut child = with_secrets(&mut command)
            .args(["-c", SUPERVISOR, TOLLGATE])
            .arg(config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut supervisor = Self {
            child,
            input,
            output: BufReader::new(output),
            started: Vec::new(),
            public: 0,
        };
        let ports = supervisor.line();
        supervisor.public = ports.split(' ').next().unwrap().parse().unwrap();
        supervisor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it has ended");
        line.trim().to_owned()
    }

    fn serve(&mut self, log: PathBuf) -> (u32, Log) {
        writeln!(self.input, "{}", log.display()).unwrap();
        let pid = self.line().parse().unwrap();
        self.started.push(pid);
        (pid, Log(log))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for pid in &self.started {
            // This kills the processes that have not ended.
            let mut kill = Command::new("kill");
            let _ = kill
                .args(["-KILL", &pid.to_string()])
                .stderr(Stdio::null())
                .status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sockets stay open from one process to the next. Connections wait in the kernel until the new process can open
/// the ledger's file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_inherited_sockets_wait_until_the_new_process_has_opened_the_ledger() {
    let vendor = Vendor::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let ledger = format!("sqlite:{}", file("ledger.db").display());
    let text = config_text(vendor.scripted.address(), &ledger, "outbox.db")
        .replace("[ledger]", "[ledger]\nopen_wait_seconds = 60")
        .replace("[tariff]", "[limits]\ndrain_seconds = 60\n[tariff]");
    std::fs::write(file("tollgate.toml"), text).unwrap();
    let mut supervisor = Supervisor::start(&file("tollgate.toml"));
    let (old, old_log) = supervisor.serve(file("old.log"));
    let (address, operators) = both(addresses(&old_log.says("serving", 1).await));
    assert_eq!(address.port(), supervisor.public);
    let key = funded_key(operators).await;
    let streams = begin_streams(address, &key).await;
    let caller = Caller::start(address, &key);
    caller.goes_on(20).await;

    let (_, new_log) = supervisor.serve(file("new.log"));
    new_log.says("ledger.url: waiting", 1).await;
    caller.goes_on(20).await;
    signal("-TERM", old);
    old_log.says("draining", 1).await;
    vendor.let_go();
    finish_streams(streams).await;
    old_log.says("stopped", 1).await;
    let serving = new_log.says("serving", 1).await;
    assert_eq!(both(addresses(&serving)), (address, operators));
    caller.goes_on(50).await;
    let (calls, failures) = caller.stop().await;
    assert!(failures.is_empty(), "{failures:?}");
    books_balance(operators, calls + STREAMS).await;
}
