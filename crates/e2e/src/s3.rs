//! Object stores for tests: moto, which keeps objects in memory, each on a port of its own and ended by its id.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Job;
use crate::requirement;

/// How long a server may take to begin.
const BEGIN: Duration = Duration::from_secs(30);
/// Its only bucket.
pub const BUCKET: &str = "cold";

/// A server with a bucket; ended on drop.
pub struct Server {
    child: Child,
    python: PathBuf,
    options: Vec<String>,
    port: u16,
}

/// A port that nobody uses, and that no connection is given while a server is away: those are above 32767.
fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        let number = std::process::id().wrapping_mul(31).wrapping_add(tried) % 20_000;
        let port = 10_000 + number as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    /// `None`: see [`requirement::venv_python`].
    pub fn start(test: &str) -> Option<Self> {
        let server = Self::on(test, &[])?;
        server.make_bucket();
        Some(server)
    }

    /// The same without a bucket, by TLS, with this certificate and its key.
    pub fn start_by_tls(test: &str, certificate: &str, key: &str) -> Option<Self> {
        Self::on(test, &["-s", "-c", certificate, "-k", key])
    }

    fn on(test: &str, options: &[&str]) -> Option<Self> {
        let python = requirement::venv_python(test)?;
        let port = free_port();
        let options: Vec<String> = options.iter().map(|&word| word.to_owned()).collect();
        let child = spawn(&python, &options, port);
        Some(Self {
            child,
            python,
            options,
            port,
        })
    }

    /// Where it is.
    pub fn endpoint(&self) -> String {
        let scheme = match self.options.is_empty() {
            true => "http",
            false => "https",
        };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The address of an area with small objects, under a prefix.
    pub fn address(&self) -> String {
        format!(
            "s3://{BUCKET}/pages?segment=1M&endpoint={}",
            self.endpoint()
        )
    }

    /// A job with the keys that it wants.
    pub fn log_in(job: &Job) -> Job {
        let job = job.clone().env("AWS_ACCESS_KEY_ID", "tester");
        job.env("AWS_SECRET_ACCESS_KEY", "opensesame")
    }

    /// The names of the objects in the bucket.
    pub fn objects(&self) -> Vec<String> {
        let answer = self.ask("GET", "?list-type=2&max-keys=1000");
        let names = answer.split("<Key>").skip(1);
        let names = names.filter_map(|rest| rest.split('<').next());
        names.map(str::to_owned).collect()
    }

    /// Makes the bucket.
    pub fn make_bucket(&self) {
        let answer = self.ask("PUT", "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// A request that needs no signature.
    fn ask(&self, method: &str, query: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        write!(
            stream,
            "{method} /{BUCKET}{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Ends it at once; its objects are gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("the server can be waited for");
    }

    /// Starts it anew, without a bucket.
    pub fn restart(&mut self) {
        self.child = spawn(&self.python, &self.options, self.port);
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

fn spawn(python: &PathBuf, options: &[String], port: u16) -> Child {
    let child = Command::new(python)
        .args([
            "-m",
            "moto.server",
            "-H",
            "127.0.0.1",
            "-p",
            &port.to_string(),
        ])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("Python starts");
    let end = Instant::now() + BEGIN;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "moto does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}
