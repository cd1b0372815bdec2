//! Redis servers and clusters for tests, each on ports of its own and ended by its id.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::Scratch;
use crate::requirement;

/// How long a server or a cluster may take to begin.
const BEGIN: Duration = Duration::from_secs(20);

/// A server; ended on drop.
pub struct Server {
    child: Child,
    line: Vec<String>,
    /// Where it listens.
    pub port: u16,
    login: Vec<String>,
}

/// A port that nobody uses. That of the cluster's bus, 10000 above, exists too.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        if port < 50_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}

impl Server {
    /// A server with these options. `None`: see [`requirement::command`].
    pub fn start(test: &str, scratch: &Scratch, options: &[&str]) -> Option<Self> {
        Self::on(free_port(), test, scratch, options)
    }

    /// The same, by TLS alone: with the certificates of this folder, and for clients that have one.
    pub fn start_by_tls(
        test: &str,
        scratch: &Scratch,
        certificates: &str,
        options: &[&str],
    ) -> Option<Self> {
        let port = free_port();
        let text = port.to_string();
        let [ca, cert, key, its_cert, its_key] = [
            "ca-cert",
            "server-cert",
            "server-key",
            "client-cert",
            "client-key",
        ]
        .map(|name| format!("{certificates}/{name}.pem"));
        let mut words = vec!["--port", "0", "--tls-port", &text];
        words.extend(["--tls-ca-cert-file", &ca, "--tls-cert-file", &cert]);
        words.extend(["--tls-key-file", &key, "--tls-replication", "yes"]);
        words.extend(options);
        let mut server = Self::on(port, test, scratch, &words)?;
        let login = ["--tls", "--cacert", &ca, "--cert", &its_cert];
        server.log_in(&[&login[..], &["--key", &its_key]].concat());
        Some(server)
    }

    fn on(port: u16, test: &str, scratch: &Scratch, options: &[&str]) -> Option<Self> {
        let program = requirement::command(test, "redis-server")?;
        requirement::command(test, "redis-cli")?;
        let text = port.to_string();
        let folder = scratch.path().display().to_string();
        let file = format!("dump-{port}.rdb");
        let program = program.display().to_string();
        let mut line = vec![program.as_str(), "--port", &text, "--bind", "127.0.0.1"];
        line.extend(["--dir", &folder, "--dbfilename", &file, "--save", ""]);
        line.extend(["--repl-diskless-sync-delay", "0"]);
        line.extend(options);
        let line: Vec<String> = line.into_iter().map(str::to_owned).collect();
        let child = spawn(&line, port);
        Some(Self {
            child,
            line,
            port,
            login: Vec::new(),
        })
    }

    /// What [`Server::ask`] logs in with.
    pub fn log_in(&mut self, words: &[&str]) {
        self.login = words.iter().map(|&word| word.to_owned()).collect();
    }

    /// Its address.
    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The output of redis-cli with these words.
    pub fn ask(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string(), "--no-auth-warning"])
            .args(&self.login)
            .args(words)
            .output()
            .expect("redis-cli starts");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The keys on it.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.ask(&["--scan"]);
        keys.lines().map(str::to_owned).collect()
    }

    /// Ends it at once; what was in its memory is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("the server can be waited for");
    }

    /// Starts it anew.
    pub fn restart(&mut self) {
        self.child = spawn(&self.line, self.port);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the server takes signals");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(line: &[String], port: u16) -> Child {
    let child = Command::new(&line[0])
        .args(&line[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", line[0]));
    let end = Instant::now() + BEGIN;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "{line:?} does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Three masters, each with a replica.
pub struct Cluster {
    /// The masters come first.
    pub servers: Vec<Server>,
}

impl Cluster {
    /// Starts one. `None`: see [`requirement::command`].
    pub fn start(test: &str, scratch: &Scratch) -> Option<Self> {
        Self::start_with(scratch, |options| Server::start(test, scratch, options))
    }

    /// The same, by TLS alone; see [`Server::start_by_tls`].
    pub fn start_by_tls(test: &str, scratch: &Scratch, certificates: &str) -> Option<Self> {
        Self::start_with(scratch, |options| {
            let options = [options, &["--tls-cluster", "yes"]].concat();
            Server::start_by_tls(test, scratch, certificates, &options)
        })
    }

    fn start_with(scratch: &Scratch, start: impl Fn(&[&str]) -> Option<Server>) -> Option<Self> {
        let mut servers = Vec::new();
        for number in 0..6 {
            let file = scratch.join(format!("nodes-{number}.conf"));
            let file = file.display().to_string();
            let words = ["--cluster-enabled", "yes", "--cluster-config-file", &file];
            let words = [&words[..], &["--cluster-node-timeout", "1000"]].concat();
            servers.push(start(&words)?);
        }
        let cluster = Self { servers };
        let places = cluster.servers.iter();
        let places: Vec<_> = places
            .map(|server| format!("127.0.0.1:{}", server.port))
            .collect();
        let words: Vec<&str> = places.iter().map(String::as_str).collect();
        let end = ["--cluster-replicas", "1", "--cluster-yes"];
        let said = cluster.servers[0].ask(&[&["--cluster", "create"], &words[..], &end].concat());
        assert!(said.contains("All 16384 slots covered"), "{said}");
        let begun = Instant::now();
        let is_ready = |server: &Server| {
            let info = server.ask(&["INFO", "replication"]);
            let is_replica = info.contains("master_link_status:up");
            (is_replica || info.contains("connected_slaves:1"))
                && server
                    .ask(&["CLUSTER", "INFO"])
                    .contains("cluster_state:ok")
        };
        while !cluster.servers.iter().all(is_ready) {
            assert!(begun.elapsed() < BEGIN, "the cluster does not begin");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(cluster)
    }

    /// Its address.
    pub fn address(&self) -> String {
        let places = self.servers.iter().take(3);
        let places: Vec<_> = places
            .map(|server| format!("127.0.0.1:{}", server.port))
            .collect();
        format!("redis+cluster://{}", places.join(","))
    }
}
