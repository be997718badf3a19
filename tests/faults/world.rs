//! The processes of a case: gateways, a vendor, a ledger, and a proxy in each connection between them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client as Legacy, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    client::{Client, Key},
    judge,
    machine::Machine,
    process::GatewayProcess,
    proxy::Proxy,
    servers::Servers,
    support::{
        config::edited,
        process::ADMIN_KEY,
        redis::{RedisCluster, RedisSentinels, RedisServer},
    },
    vendor_log::{Call, VendorLog},
    verdict::{Bound, Charge},
};

pub use crate::{
    load::any_call,
    plan::{LedgerKind, Plan, config_text},
    servers::address_of,
};

pub(crate) type AdminClient = Legacy<HttpConnector, Full<Bytes>>;

/// The running gateways, proxies, ledger and vendor of a case. Dropping it kills all processes.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) gateways: Vec<Arc<GatewayProcess>>,
    pub(crate) fronts: Vec<Arc<Proxy>>,
    pub(crate) vendor_proxies: Vec<Arc<Proxy>>,
    pub(crate) redis_proxies: Vec<Arc<Proxy>>,
    pub(crate) servers: Servers,
    pub(crate) vendor: VendorLog,
    pub(crate) key: Key,
    pub(crate) admin: AdminClient,
    pub(crate) expected: Mutex<BTreeMap<u64, Charge>>,
    pub(crate) bound: Mutex<Bound>,
    pub(crate) machine: Mutex<Option<Machine>>,
    pub(crate) faults: Mutex<Vec<Instant>>,
    pub(crate) notes: Mutex<Vec<String>>,
    pub(crate) rounds: AtomicUsize,
    pub(crate) negative: Arc<AtomicUsize>,
    pub(crate) watcher: JoinSet<()>,
    pub(crate) judged: bool,
    pub(crate) dir: TempDir,
}

impl World {
    pub async fn start(plan: Plan) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let servers = Servers::start(&plan).await;
        let vendor = VendorLog::start().await;
        let (mut gateways, mut fronts, mut vendor_proxies, mut redis_proxies) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for index in 0..plan.gateways {
            let vendor_proxy = Proxy::tapped(vendor.address(), vendor.tap(index)).await;
            let url = match &servers {
                Servers::None => format!("sqlite:{}", dir.path().join("books.db").display()),
                Servers::Cluster(cluster) => cluster.url(),
                Servers::Two {
                    sentinels: Some(sentinels),
                    ..
                } => sentinels.url(),
                Servers::One(_) | Servers::Two { .. } => {
                    let target = servers.behind_proxy().expect("it is one server");
                    let proxy = Proxy::start(target).await;
                    let url = format!("redis://{}/0", proxy.address());
                    redis_proxies.push(proxy);
                    url
                }
            };
            let outbox = dir.path().join(format!("outbox-{index}.db"));
            let text = config_text(vendor_proxy.address(), &url, &outbox);
            let text = edited(text, &plan.edits);
            let config = dir.path().join(format!("gateway-{index}.toml"));
            std::fs::write(&config, text).unwrap();
            // The proxy starts with an unused port as its target. It gets the gateway's address when the gateway
            // serves.
            let front = Proxy::start(([127, 0, 0, 1], 9).into()).await;
            let gateway =
                GatewayProcess::start(index, config, plan.shell_of(index), Arc::clone(&front))
                    .await;
            gateways.push(Arc::new(gateway));
            fronts.push(front);
            vendor_proxies.push(vendor_proxy);
        }
        let admin = Legacy::builder(TokioExecutor::new()).build_http();
        let rubles = plan.rubles;
        let mut world = Self {
            plan,
            gateways,
            fronts,
            vendor_proxies,
            redis_proxies,
            servers,
            vendor,
            key: Key {
                secret: String::new(),
                id: String::new(),
                account: String::new(),
            },
            admin,
            expected: Mutex::default(),
            bound: Mutex::new(Bound::nothing_lost()),
            machine: Mutex::default(),
            faults: Mutex::default(),
            notes: Mutex::default(),
            rounds: AtomicUsize::new(0),
            negative: Arc::default(),
            watcher: JoinSet::new(),
            judged: false,
            dir,
        };
        world.key = world.account("acme", &rubles.to_string()).await;
        world.watcher.spawn(judge::watch(
            world.gateways.clone(),
            Arc::clone(&world.negative),
            world.admin.clone(),
        ));
        world
    }

    pub fn gateway(&self, index: usize) -> &GatewayProcess {
        &self.gateways[index]
    }

    /// Returns the proxy between the clients and a gateway.
    pub fn client_proxy(&self, index: usize) -> &Proxy {
        &self.fronts[index]
    }

    /// Returns whether the gateways reach their ledger through proxies.
    pub fn has_redis_proxies(&self) -> bool {
        !self.redis_proxies.is_empty()
    }

    /// Returns the proxy between a gateway and its only Redis server.
    pub fn redis_proxy(&self, index: usize) -> &Proxy {
        &self.redis_proxies[index]
    }

    /// Returns the proxy between a gateway and the vendor.
    pub fn vendor_proxy(&self, index: usize) -> &Proxy {
        &self.vendor_proxies[index]
    }

    /// Returns the Redis server, or the primary with which the case has begun.
    pub fn redis(&self) -> &RedisServer {
        match &self.servers {
            Servers::One(server)
            | Servers::Two {
                primary: server, ..
            } => server,
            _ => panic!("there is no such server"),
        }
    }

    pub fn replica(&self) -> &RedisServer {
        match &self.servers {
            Servers::Two { replica, .. } => replica,
            _ => panic!("there is no replica"),
        }
    }

    pub fn sentinels(&self) -> &RedisSentinels {
        match &self.servers {
            Servers::Two {
                sentinels: Some(sentinels),
                ..
            } => sentinels,
            _ => panic!("there are no Sentinels"),
        }
    }

    pub fn cluster(&self) -> &RedisCluster {
        match &self.servers {
            Servers::Cluster(cluster) => cluster,
            _ => panic!("there is no cluster"),
        }
    }

    pub fn vendor(&self) -> &VendorLog {
        &self.vendor
    }

    /// Returns the folder of the gateways' files: `books.db`, `outbox-<index>.db`, `gateway-<index>.toml`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the key of the first account, `acme`.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns a caller of this gateway that has the first account's key.
    pub fn client(&self, gateway: usize) -> Client {
        self.client_of(gateway, &self.key)
    }

    pub fn client_of(&self, gateway: usize, key: &Key) -> Client {
        Client {
            gateway,
            front: self.fronts[gateway].address(),
            key: key.clone(),
            vendor: self.vendor.clone(),
        }
    }

    /// Creates an account with this number of rubles, and a key without limits.
    pub async fn account(&self, id: &str, rubles: &str) -> Key {
        let account = json!({ "id": id, "name": id });
        self.done(0, Method::POST, "/admin/v1/accounts", account)
            .await;
        let path = format!("/admin/v1/accounts/{id}/topups");
        let payment = json!({ "id": "first", "amount_rub": rubles });
        self.done(0, Method::POST, &path, payment).await;
        let path = format!("/admin/v1/accounts/{id}/keys");
        let made = self.done(0, Method::POST, &path, json!({})).await;
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        Key {
            secret: text("key"),
            id: text("id"),
            account: id.to_owned(),
        }
    }

    /// Sends a request to a gateway's admin API directly, without a proxy. `Err` if the gateway did not answer.
    pub async fn admin(
        &self,
        gateway: usize,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value), String> {
        let address = self.gateways[gateway].admin_address();
        let address = address.ok_or("it does not run")?;
        let (status, body) = ask_admin(&self.admin, address, method, path, body).await?;
        let value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok((status, value))
    }

    /// Sends a request to a gateway's admin API, which must succeed.
    async fn done(&self, gateway: usize, method: Method, path: &str, body: Value) -> Value {
        match self.admin(gateway, method, path, Some(body)).await {
            Ok((status, answer)) if status.is_success() => answer,
            other => panic!("{path}: {other:?}"),
        }
    }

    /// Returns the accounts as a gateway reports them.
    pub async fn accounts(&self, gateway: usize) -> Result<Vec<Value>, String> {
        let (status, answer) = self
            .admin(gateway, Method::GET, "/admin/v1/accounts", None)
            .await?;
        match answer["accounts"].as_array() {
            Some(accounts) if status.is_success() => Ok(accounts.clone()),
            _ => Err(format!("accounts: {status} {answer}")),
        }
    }

    /// Waits until a gateway reports that it is ready.
    pub async fn ready(&self, gateway: usize, limit: Duration) {
        let mut last = String::new();
        let ready = timeout(limit, async {
            loop {
                match self.admin(gateway, Method::GET, "/readyz", None).await {
                    Ok((StatusCode::OK, _)) => return,
                    other => last = format!("{other:?}"),
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
        if ready.await.is_err() {
            panic!("gateway {gateway} is not ready within {limit:?}: {last}");
        }
    }

    /// Sets what a call must be charged, for the verdict.
    pub fn expect(&self, call: &Call, charge: Charge) {
        self.expected.lock().unwrap().insert(call.id, charge);
    }

    /// Sets the bound on losses. Without a bound, nothing may be lost. A bound that contains a time must be set before
    /// the fault, because the delays of this machine are measured from then on.
    pub fn stated(&self, bound: Bound) {
        if bound.is_of_time() {
            *self.machine.lock().unwrap() = Some(Machine::watch(self.dir.path()));
        }
        *self.bound.lock().unwrap() = bound;
    }

    /// Records that a server that all gateways need has died at this time.
    pub fn fault_at(&self, at: Instant) {
        self.faults.lock().unwrap().push(at);
    }

    /// Counts one more injection of the case's fault.
    pub fn round(&self) {
        self.rounds.fetch_add(1, Ordering::SeqCst);
    }

    /// Adds a note to the line of the case in the table.
    pub fn note(&self, text: impl Into<String>) {
        self.notes.lock().unwrap().push(text.into());
    }

    /// Ends all faults: held bytes are forwarded, stopped processes continue, and dead processes are restarted.
    pub async fn heal(&self) {
        let proxies = [&self.fronts, &self.vendor_proxies, &self.redis_proxies];
        for proxy in proxies.into_iter().flatten() {
            proxy.heal();
        }
        for gateway in &self.gateways {
            if gateway.is_running() {
                gateway.cont();
            } else {
                gateway.restart().await;
            }
        }
    }

    pub(crate) fn logs(&self) -> String {
        let tails = self.gateways.iter().enumerate().map(|(index, gateway)| {
            let tail = gateway.log_tail(25);
            format!("--- gateway {index}\n{tail}\n")
        });
        tails.collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.watcher.abort_all();
        for gateway in &self.gateways {
            gateway.end();
        }
        // The case has ended without a verdict, so the output of its processes is shown.
        if !self.judged {
            println!("{}", self.logs());
        }
    }
}

pub(crate) async fn ask_admin(
    admin: &AdminClient,
    address: SocketAddr,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<(StatusCode, Bytes), String> {
    let req = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("authorization", format!("Bearer {ADMIN_KEY}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(
            body.map(|body| body.to_string()).unwrap_or_default(),
        )))
        .unwrap();
    let answer = async {
        let res = admin
            .request(req)
            .await
            .map_err(|error| format!("{error:?}"))?;
        let status = res.status();
        let body = res.into_body().collect().await;
        let body = body.map_err(|error| format!("{error:?}"))?;
        Ok((status, body.to_bytes()))
    };
    timeout(Duration::from_secs(15), answer)
        .await
        .unwrap_or_else(|_| Err("no answer in 15 seconds".to_owned()))
}
