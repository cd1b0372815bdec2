//! NBD servers of others for tests, each started on a socket of its own and ended by its id.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::Scratch;
use crate::requirement;

/// How long a server may take to begin.
const BEGIN: Duration = Duration::from_secs(10);

/// A server; ended on drop.
pub struct Server {
    child: Child,
    line: Vec<String>,
    socket: PathBuf,
    /// Of one that leaves the process that was started.
    pid_file: Option<PathBuf>,
}

impl Server {
    /// nbdkit on the socket `name` of the scratch folder, with these words (a plugin, filters, their values). `None`: see
    /// [`requirement::command`].
    pub fn nbdkit(test: &str, scratch: &Scratch, name: &str, words: &[&str]) -> Option<Self> {
        let program = requirement::command(test, "nbdkit")?;
        let socket = scratch.join(name);
        let mut line = vec![
            program.display().to_string(),
            "--foreground".to_owned(),
            "--unix".to_owned(),
            socket.display().to_string(),
        ];
        line.extend(words.iter().map(|&word| word.to_owned()));
        Some(Self::start(line, socket))
    }

    /// Any other server that listens on `socket`.
    pub fn start(line: Vec<String>, socket: PathBuf) -> Self {
        let child = spawn(&line, &socket);
        Self {
            child,
            line,
            socket,
            pid_file: None,
        }
    }

    /// nbd-server with this configuration, on the socket `s` of the scratch folder. `None`: see [`requirement::command`].
    pub fn nbd_server(test: &str, scratch: &Scratch, sections: &str) -> Option<Self> {
        let program = requirement::command(test, "nbd-server")?;
        let [socket, config, pid] = ["s", "config", "pid"].map(|name| scratch.join(name));
        let text = format!(
            "[generic]\nunixsock = {}\nallowlist = true\n{sections}",
            socket.display()
        );
        fs::write(&config, text).expect("a configuration");
        let words = [&program, Path::new("-C"), &config, Path::new("-p"), &pid];
        let line = words.map(|word| word.display().to_string()).to_vec();
        let mut server = Self::start(line, socket);
        server.child.wait().expect("it leaves its starter");
        server.pid_file = Some(pid);
        Some(server)
    }

    /// The address of its export.
    pub fn address(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Ends it at once; what was in its memory is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("the server can be waited for");
        fs::remove_file(&self.socket).ok();
    }

    /// Starts it anew.
    pub fn restart(&mut self) {
        self.child = spawn(&self.line, &self.socket);
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
        let text = self.pid_file.as_ref().map(fs::read_to_string);
        if let Some(Ok(text)) = text
            && let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

fn spawn(line: &[String], socket: &Path) -> Child {
    let child = Command::new(&line[0])
        .args(&line[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", line[0]));
    let end = Instant::now() + BEGIN;
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < end, "{line:?} does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}
