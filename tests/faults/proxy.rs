//! A TCP proxy that injects faults. There is such a proxy in each connection between two processes.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

/// The direction of bytes through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The bytes from the client to the server, which are requests.
    Up,
    /// The bytes from the server to the client, which are responses.
    Down,
}

impl Way {
    const fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// How the proxy treats the bytes of one direction, on every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Pass,
    /// Each piece of data is forwarded after this delay.
    Delay(Duration),
    /// No data is forwarded until the flow is changed.
    Stall,
    /// All data is dropped, and the connection stays open.
    Discard,
    /// A connection is reset after it has forwarded this number of bytes.
    CutAfter(u64),
}

/// The action of a trap when one of its needles passes the proxy. A needle is a byte string to be found in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The needle is forwarded, and the trap reports that the needle has passed.
    Tell,
    /// The needle and all later data are held in the proxy until [`Trap::open`] is called.
    Hold,
    /// The needle is forwarded, and the response is held in the proxy until [`Trap::open`] is called. The trap springs
    /// when the response arrives.
    HoldAnswer,
    /// The needle is forwarded, and the connection is reset when the response arrives.
    LoseAnswer,
    /// The needle is forwarded, and the connection is reset after this number of bytes of the response.
    CutAnswer(u64),
    /// The needle is dropped, and the connection is reset.
    Reset,
}

/// A needle that finds the head of an HTTP response.
pub const ANSWER_HEAD: &[u8] = b"HTTP/1.1 ";
/// A needle that finds the head of a model call.
pub const REQUEST: &[u8] = b"POST /";

/// Returns needles that find calls of a Redis script by the script's hash: with flags (Redis 7.0 and newer), without
/// flags, and without `allow-oom` (a lease turn that requests money).
pub fn script(name: &str) -> Vec<Vec<u8>> {
    let with_flags = script_text(name);
    let asking = with_flags.replacen(" flags=allow-oom", "", 1);
    let without = match with_flags.split_once('\n') {
        Some((flags, body)) if flags.starts_with("#!") => body.to_owned(),
        _ => with_flags.clone(),
    };
    [with_flags, without, asking]
        .map(|code| redis::Script::new(&code).get_hash().as_bytes().to_vec())
        .to_vec()
}

/// Returns a needle that finds a Redis script which waits for a replica. Such a script is sent as text each time, and
/// the needle is a comment in the text.
pub fn durable_script(name: &str) -> Vec<Vec<u8>> {
    let text = own_text(name);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("-- "));
    let says = lines.find(|line| !line.starts_with("with: "));
    bytes(says.expect("it says what it does").as_bytes())
}

fn own_text(name: &str) -> String {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("layers/ledger/src/redis/scripts");
    std::fs::read_to_string(lua.join(format!("{name}.lua"))).unwrap()
}

/// Returns needles that find calls of a script about responses stored in Redis.
pub fn answers_script(name: &str) -> Vec<Vec<u8>> {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("layers/ledger/src/idempotency/redis");
    let code = std::fs::read_to_string(lua.join(format!("{name}.lua"))).unwrap();
    bytes(redis::Script::new(&code).get_hash().as_bytes())
}

/// Returns the text of a script of the Redis ledger, as it is sent to Redis 7.0 and newer.
pub fn script_text(name: &str) -> String {
    let text = own_text(name);
    let parts = text.lines().find_map(|line| line.strip_prefix("-- with: "));
    let parts = parts.unwrap_or_default().split_terminator(", ");
    let prelude: String = parts.map(own_text).collect();
    match text.split_once('\n') {
        Some((flags, body)) if flags.starts_with("#!") => format!("{flags}\n{prelude}{body}"),
        _ => format!("{prelude}{text}"),
    }
}

/// Returns a single needle with these bytes.
pub fn bytes(needle: &[u8]) -> Vec<Vec<u8>> {
    vec![needle.to_vec()]
}

/// A running proxy. Dropping it closes its port and all connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

type Tap = Box<dyn Fn(u64, &[u8]) + Send + Sync>;

struct Shared {
    target: Mutex<SocketAddr>,
    flows: [watch::Sender<Flow>; 2],
    refusing: AtomicBool,
    /// The number of resets so far. A connection compares it with the number at its own start, and so notices a reset.
    resets: watch::Sender<u64>,
    traps: Mutex<Vec<Armed>>,
    /// The stages of all traps that are set. `heal` opens these traps.
    stages: Mutex<Vec<Arc<watch::Sender<Stage>>>>,
    /// A function that gets a copy of the bytes that are sent to the client.
    tap: Option<Tap>,
    connections: AtomicUsize,
    next: AtomicU64,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Arc<Self> {
        Self::with_tap(target, None).await
    }

    /// Starts a proxy with a function that gets a copy of the bytes sent to the client, together with the number of
    /// their connection.
    pub async fn tapped(
        target: SocketAddr,
        tap: impl Fn(u64, &[u8]) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_tap(target, Some(Box::new(tap))).await
    }

    async fn with_tap(target: SocketAddr, tap: Option<Tap>) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            flows: [Flow::Pass, Flow::Pass].map(|flow| watch::channel(flow).0),
            refusing: AtomicBool::new(false),
            resets: watch::channel(0).0,
            traps: Mutex::default(),
            stages: Mutex::default(),
            tap,
            connections: AtomicUsize::new(0),
            next: AtomicU64::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Arc::new(Self {
            address,
            shared,
            _tasks: tasks,
        })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the server to which new connections are forwarded.
    pub fn set_target(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }

    pub fn target(&self) -> SocketAddr {
        *self.shared.target.lock().unwrap()
    }

    pub fn set(&self, way: Way, flow: Flow) {
        self.shared.flows[way as usize].send_replace(flow);
    }

    /// Resets new connections immediately. The port stays in use, so that no other process gets it.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.store(refuse, Ordering::SeqCst);
    }

    /// Resets all connections.
    pub fn reset(&self) {
        self.shared.resets.send_modify(|count| *count += 1);
    }

    /// Ends every fault: held bytes are forwarded, and new connections are accepted.
    pub fn heal(&self) {
        self.refuse(false);
        self.shared.traps.lock().unwrap().clear();
        for stage in self.shared.stages.lock().unwrap().drain(..) {
            stage.send_replace(Stage::Open);
        }
        for flow in &self.shared.flows {
            flow.send_replace(Flow::Pass);
        }
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Sets a trap. It acts once, the next time that one of the needles passes in this direction.
    pub fn trap(&self, way: Way, needles: Vec<Vec<u8>>, then: Then) -> Trap {
        let stage = Arc::new(watch::channel(Stage::Set).0);
        self.shared.stages.lock().unwrap().push(Arc::clone(&stage));
        self.shared.traps.lock().unwrap().push(Armed {
            way,
            needles,
            then,
            stage: Arc::clone(&stage),
        });
        Trap(stage)
    }
}

/// A trap that a case has set in the proxy.
pub struct Trap(Arc<watch::Sender<Stage>>);

impl Trap {
    /// Waits until the trap has sprung. Panics if this takes more than ten seconds.
    pub async fn sprung(&self) {
        let mut stage = self.0.subscribe();
        let sprung = stage.wait_for(|stage| *stage != Stage::Set);
        let sprung = timeout(Duration::from_secs(10), sprung).await;
        let _ = sprung.expect("ten seconds, and nothing went into the trap");
    }

    pub fn has_sprung(&self) -> bool {
        *self.0.borrow() != Stage::Set
    }

    /// Releases the data that the trap holds. If the trap has not sprung yet, it will never spring.
    pub fn open(&self) {
        self.0.send_replace(Stage::Open);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Set,
    Sprung,
    Open,
}

struct Armed {
    way: Way,
    needles: Vec<Vec<u8>>,
    then: Then,
    stage: Arc<watch::Sender<Stage>>,
}

fn spring(stage: &watch::Sender<Stage>) {
    stage.send_if_modified(|stage| {
        let set = *stage == Stage::Set;
        if set {
            *stage = Stage::Sprung;
        }
        set
    });
}

async fn opened(stage: &watch::Sender<Stage>) {
    let _ = stage
        .subscribe()
        .wait_for(|stage| *stage == Stage::Open)
        .await;
}

impl Shared {
    /// Removes and returns the traps of this direction that this piece of data springs.
    fn sprung_by(&self, way: Way, seen: &[u8]) -> Vec<Armed> {
        let mut traps = self.traps.lock().unwrap();
        let mut sprung = Vec::new();
        let mut at = 0;
        while at < traps.len() {
            let trap = &traps[at];
            if *trap.stage.borrow() == Stage::Open {
                traps.swap_remove(at);
            } else if trap.way == way && trap.needles.iter().any(|needle| holds(seen, needle)) {
                sprung.push(traps.swap_remove(at));
            } else {
                at += 1;
            }
        }
        sprung
    }

    /// Returns the length of the longest needle of all traps in this direction.
    fn needle_len(&self, way: Way) -> usize {
        let traps = self.traps.lock().unwrap();
        let needles = traps.iter().filter(|trap| trap.way == way);
        let lens = needles.flat_map(|trap| trap.needles.iter().map(Vec::len));
        lens.max().unwrap_or_default()
    }
}

pub fn holds(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        if shared.refusing.load(Ordering::SeqCst) {
            let _ = client.set_zero_linger();
            continue;
        }
        connections.spawn(connection(client, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(mut client: TcpStream, shared: Arc<Shared>) {
    let mut resets = shared.resets.subscribe();
    let target = *shared.target.lock().unwrap();
    let Ok(mut server) = TcpStream::connect(target).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let link = Link {
        id: shared.next.fetch_add(1, Ordering::SeqCst),
        resets: *resets.borrow(),
        doors: Mutex::new([Door::Open, Door::Open]),
        left: AtomicBool::new(false),
    };
    let broken = {
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        let both = async {
            tokio::try_join!(
                pump(&shared, &link, Way::Up, client_read, server_write),
                pump(&shared, &link, Way::Down, server_read, client_write),
            )
        };
        tokio::select! {
            biased;
            _ = resets.changed() => true,
            ended = both => ended.is_err(),
        }
    };
    if broken {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
    shared.connections.fetch_sub(1, Ordering::SeqCst);
}

/// The faults of one connection.
struct Link {
    id: u64,
    /// The number of resets of the proxy when the connection began.
    resets: u64,
    doors: Mutex<[Door; 2]>,
    /// Whether the client has disconnected. If so, no more bytes reach it.
    left: AtomicBool,
}

/// The state of one direction of a connection after a trap has sprung.
#[derive(Clone)]
enum Door {
    Open,
    Held(Arc<watch::Sender<Stage>>),
    /// The connection is reset after this number of further bytes.
    Cut(u64, Arc<watch::Sender<Stage>>),
}

impl Link {
    fn door(&self, way: Way) -> Door {
        self.doors.lock().unwrap()[way as usize].clone()
    }

    fn set(&self, way: Way, door: Door) {
        self.doors.lock().unwrap()[way as usize] = door;
    }
}

fn cut() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// Waits until the peer has closed its side. Never completes if the peer has sent bytes that are not read.
async fn closed(from: &mut ReadHalf<'_>) {
    match from.peek(&mut [0]).await {
        Ok(0) | Err(_) => {}
        Ok(_) => std::future::pending().await,
    }
}

/// Forwards the bytes of one direction. An error means that the connection must be reset.
async fn pump(
    shared: &Shared,
    link: &Link,
    way: Way,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    // The last bytes of the earlier pieces are kept, because a needle may span two pieces.
    let mut tail: Vec<u8> = Vec::new();
    let mut left_to_cut = None;
    let mut flow = shared.flows[way as usize].subscribe();
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            if way == Way::Up {
                link.left.store(true, Ordering::SeqCst);
            }
            let _ = to.shutdown().await;
            return Ok(());
        }
        let mut piece = &buffer[..count];
        match link.door(way) {
            Door::Open => {}
            Door::Held(stage) => {
                spring(&stage);
                opened(&stage).await;
                link.set(way, Door::Open);
            }
            Door::Cut(_, stage) if *stage.borrow() == Stage::Open => link.set(way, Door::Open),
            Door::Cut(left, stage) if left <= count as u64 => {
                to.write_all(&piece[..usize::try_from(left).unwrap()])
                    .await?;
                spring(&stage);
                return Err(cut());
            }
            Door::Cut(left, stage) => link.set(way, Door::Cut(left - count as u64, stage)),
        }

        tail.extend_from_slice(piece);
        for trap in shared.sprung_by(way, &tail) {
            match trap.then {
                Then::Tell => spring(&trap.stage),
                Then::Hold => {
                    spring(&trap.stage);
                    // If the sender dies while these bytes wait in the proxy, they must not be delivered.
                    tokio::select! {
                        biased;
                        () = closed(&mut from) => return Err(cut()),
                        () = opened(&trap.stage) => {}
                    }
                }
                Then::HoldAnswer => link.set(way.back(), Door::Held(trap.stage)),
                Then::LoseAnswer => link.set(way.back(), Door::Cut(0, trap.stage)),
                Then::CutAnswer(bytes) => link.set(way.back(), Door::Cut(bytes, trap.stage)),
                Then::Reset => {
                    spring(&trap.stage);
                    return Err(cut());
                }
            }
        }
        let keep = shared.needle_len(way).saturating_sub(1).min(tail.len());
        tail.drain(..tail.len() - keep);

        loop {
            let now = *flow.borrow_and_update();
            match now {
                Flow::Pass | Flow::Discard => break,
                Flow::Delay(time) => {
                    sleep(time).await;
                    break;
                }
                Flow::Stall => {
                    if flow.changed().await.is_err() {
                        return Err(cut());
                    }
                }
                Flow::CutAfter(bytes) => {
                    let left = left_to_cut.get_or_insert(bytes);
                    if *left <= piece.len() as u64 {
                        piece = &piece[..usize::try_from(*left).unwrap()];
                        to.write_all(piece).await?;
                        return Err(cut());
                    }
                    *left -= piece.len() as u64;
                    break;
                }
            }
        }
        if *flow.borrow() == Flow::Discard {
            continue;
        }
        // These bytes are dropped after a reset. Otherwise `heal` would forward them.
        if *shared.resets.borrow() != link.resets {
            return Err(cut());
        }
        to.write_all(piece).await?;
        if way == Way::Down
            && !link.left.load(Ordering::SeqCst)
            && let Some(tap) = &shared.tap
        {
            tap(link.id, piece);
        }
    }
}
