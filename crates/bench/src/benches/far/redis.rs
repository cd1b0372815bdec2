//! Redis on the loopback interface, one server or a cluster of six, and its other clients: `redis-benchmark` with values of
//! the size of foreswap's, and one that reads a page at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{PAGE, READS, apart, put_latencies};
use crate::peer::{Figures, Session};

/// How long a server or a cluster may take to begin.
const BEGIN: Duration = Duration::from_secs(20);
/// Bytes of a value: those of a chunk of foreswap.
const VALUE: u64 = 256 << 10;
/// Commands of a connection without a reply, as foreswap has them.
const PIPELINE: u32 = 16;
const MASTERS: usize = 3;
/// How often a key is set, on the average, before they are read: two of a thousand are not there.
const FILLS: u64 = 6;
/// The key of a value, on one node of a cluster.
const TAG: &str = "{foreswap}";

/// A server; ended on drop.
pub struct Server {
    child: Child,
    line: Vec<String>,
    /// Where it listens.
    pub port: u16,
}

/// A port that nobody uses. That of the cluster's bus, 10000 above, exists too.
fn free_port() -> anyhow::Result<u16> {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        if port < 50_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return Ok(port);
        }
    }
}

impl Server {
    /// In memory only, with these further options.
    pub fn start(more: &[&str]) -> anyhow::Result<Self> {
        let port = free_port()?;
        let text = port.to_string();
        let words = ["--port", &text, "--bind", "127.0.0.1", "--save", ""];
        let words = words.iter().chain(more).map(|&word| word.to_owned());
        let line: Vec<String> = words.collect();
        let mut server = Self {
            child: spawn(&line)?,
            line,
            port,
        };
        server.wait()?;
        Ok(server)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + BEGIN;
        while Client::to(self.port).is_err() {
            if Instant::now() > end || self.child.try_wait()?.is_some() {
                bail!("redis-server does not listen on port {}", self.port);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends it at once; what was in its memory is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it anew, empty.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.child = spawn(&self.line)?;
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(line: &[String]) -> anyhow::Result<Child> {
    Command::new("redis-server")
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("redis-server cannot be started; install it (the package redis-server)")
}

/// Three masters, each with a replica; ended on drop.
pub struct Cluster {
    /// The masters come first.
    pub servers: Vec<Server>,
    _folder: Folder,
}

/// Removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Cluster {
    /// Starts one; its files are in the session's directory.
    pub fn start(session: &Session) -> anyhow::Result<Self> {
        let name = format!("foreswap-bench-{}-cluster", std::process::id());
        let folder = Folder(session.directory.join(name));
        std::fs::create_dir(&folder.0)
            .with_context(|| format!("cannot create {}", folder.0.display()))?;
        let place = folder.0.display().to_string();
        let mut servers = Vec::new();
        for number in 0..2 * MASTERS {
            let file = format!("nodes-{number}.conf");
            let mut words = vec!["--dir", &place, "--cluster-enabled", "yes"];
            words.extend(["--cluster-config-file", &file]);
            words.extend(["--cluster-node-timeout", "1000"]);
            words.extend(["--repl-diskless-sync-delay", "0"]);
            // A replica that is behind by this is cut off otherwise.
            words.extend(["--client-output-buffer-limit", "replica 0 0 0"]);
            servers.push(Server::start(&words)?);
        }
        let cluster = Self {
            servers,
            _folder: folder,
        };
        cluster.create()?;
        Ok(cluster)
    }

    fn create(&self) -> anyhow::Result<()> {
        let places = self.servers.iter();
        let places = places.map(|server| format!("127.0.0.1:{}", server.port));
        let output = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(places)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .context("redis-cli cannot be started; install it (the package redis-tools)")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout);
            bail!("redis-cli --cluster create: {}: {said}", output.status);
        }
        let end = Instant::now() + BEGIN;
        for server in &self.servers {
            while !is_ready(server)? {
                if Instant::now() > end {
                    bail!("the cluster does not begin");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Its address.
    pub fn address(&self) -> String {
        let places = self.servers.iter().take(MASTERS);
        let places: Vec<_> = places
            .map(|server| format!("127.0.0.1:{}", server.port))
            .collect();
        format!("redis+cluster://{}", places.join(","))
    }
}

/// The server knows the cluster, and has its replica or its master.
fn is_ready(server: &Server) -> anyhow::Result<bool> {
    let mut client = Client::to(server.port)?;
    let state = client.text(&["CLUSTER", "INFO"])?;
    let replication = client.text(&["INFO", "replication"])?;
    let is_linked = ["master_link_status:up", "connected_slaves:1"]
        .iter()
        .any(|line| replication.contains(line));
    Ok(is_linked && state.contains("cluster_state:ok"))
}

/// The simplest client.
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Of the server on this port.
    pub fn to(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::with_capacity(2 * PAGE, stream)))
    }

    /// The reply to a command; errors of the server are errors.
    pub fn ask(&mut self, words: &[&[u8]]) -> anyhow::Result<Vec<u8>> {
        let mut text = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            text.extend(format!("${}\r\n", word.len()).bytes());
            text.extend_from_slice(word);
            text.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&text)?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.trim_end();
        let (kind, rest) = line.split_at(line.len().min(1));
        match kind {
            "$" => {
                let bytes: usize = rest.parse().with_context(|| format!("redis: {line}"))?;
                let mut data = vec![0; bytes + 2];
                self.0.read_exact(&mut data)?;
                data.truncate(bytes);
                Ok(data)
            }
            "+" | ":" => Ok(rest.as_bytes().to_vec()),
            _ => bail!("redis: {line}"),
        }
    }

    /// The same, of words.
    pub fn text(&mut self, words: &[&str]) -> anyhow::Result<String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        Ok(String::from_utf8_lossy(&self.ask(&words)?).into_owned())
    }
}

/// What was started.
pub enum Started {
    /// One server.
    One(Server),
    /// A cluster.
    Cluster(Cluster),
}

impl Started {
    /// Starts servers.
    pub fn new(session: &Session, is_cluster: bool) -> anyhow::Result<Self> {
        Ok(match is_cluster {
            true => Self::Cluster(Cluster::start(session)?),
            false => Self::One(Server::start(&[])?),
        })
    }

    /// The area's address.
    pub fn address(&self) -> String {
        match self {
            Self::One(server) => format!("redis://127.0.0.1:{}", server.port),
            Self::Cluster(cluster) => cluster.address(),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::One(server) => server.port,
            Self::Cluster(cluster) => cluster.servers[0].port,
        }
    }
}

/// One turn of the other clients.
pub fn of_clients(session: &Session, bytes: u64, is_cluster: bool) -> anyhow::Result<Figures> {
    let mut figures = Figures::new();
    let started = Started::new(session, is_cluster)?;
    let values = bytes / VALUE;
    let write = rate(&started, "set", values, values)?;
    rate(&started, "set", values, FILLS * values)?;
    let read = rate(&started, "get", values, values)?;
    figures.insert("write_bytes_per_s".to_owned(), write);
    figures.insert("read_bytes_per_s".to_owned(), read);
    drop(started);
    let (started, _here) = apart(|| Started::new(session, is_cluster))?;
    put_latencies(&mut figures, latencies(started.port(), values)?);
    Ok(figures)
}

/// Bytes per second of redis-benchmark with `requests` commands on some of `values` keys.
fn rate(started: &Started, test: &str, values: u64, requests: u64) -> anyhow::Result<f64> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &started.port().to_string(), "-t", test, "--csv"]);
    // As foreswap: one connection to each master for reads, and one for writes.
    let connections = match started {
        Started::One(_) => 1,
        Started::Cluster(_) => {
            command.arg("--cluster");
            MASTERS
        }
    };
    command.args(["-c", &connections.to_string()]);
    for (option, value) in [
        ("-P", PIPELINE.into()),
        ("-d", VALUE),
        ("-r", values),
        ("-n", requests),
    ] {
        command.args([option, &value.to_string()]);
    }
    let output = command
        .stderr(Stdio::null())
        .output()
        .context("redis-benchmark cannot be started; install it (the package redis-tools)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = format!("\"{}\",\"", test.to_uppercase());
    let mut lines = text.lines();
    let per_second = lines.find_map(|line| line.strip_prefix(&name)?.split('"').next());
    let per_second = per_second.and_then(|text| text.parse::<f64>().ok());
    let per_second = per_second.with_context(|| format!("redis-benchmark says: {text}"))?;
    Ok(per_second * VALUE as f64)
}

/// Reads pages one after the other; the times.
fn latencies(port: u16, values: u64) -> anyhow::Result<Vec<f64>> {
    let mut client = Client::to(port)?;
    // In a cluster, all values are on one node.
    let probe = client.text(&["SET", TAG, ""]);
    if let Err(moved) = probe {
        let to = moved.to_string();
        let port = to.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        client = Client::to(port.filter(|_| to.contains("MOVED")).ok_or(moved)?)?;
    }
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut draw = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let key = |number: u64| format!("{TAG}{number}");
    let mut value = vec![0; VALUE as usize];
    for number in 0..values {
        for bytes in value.as_chunks_mut::<8>().0 {
            *bytes = draw().to_ne_bytes();
        }
        client.ask(&[b"SET", key(number).as_bytes(), &value])?;
    }
    let mut times = Vec::new();
    for _ in 0..READS {
        let (key, page) = (key(draw() % values), draw() % (VALUE / PAGE as u64));
        let first = page * PAGE as u64;
        let [from, to] = [first, first + PAGE as u64 - 1].map(|at| at.to_string());
        let began = Instant::now();
        let reply = client.ask(&[b"GETRANGE", key.as_bytes(), from.as_bytes(), to.as_bytes()])?;
        times.push(began.elapsed().as_nanos() as f64);
        if reply.len() != PAGE {
            bail!("redis: {} bytes of a page", reply.len());
        }
    }
    Ok(times)
}
