//! nbdkit on the loopback interface, and its other clients: `nbdcopy`, and one that reads a page at a time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{PAGE, READS, apart, put_latencies};
use crate::peer::Figures;

/// How long the server may take to begin.
const BEGIN: Duration = Duration::from_secs(10);

/// nbdkit; ended on drop.
pub struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// With an export of `bytes`, which answers after `delay` milliseconds.
    pub fn start(bytes: u64, delay: Option<u64>) -> anyhow::Result<Self> {
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--ipaddr", "127.0.0.1", "--port"]);
        command.arg(free.to_string());
        if delay.is_some() {
            // As many requests at once as 20 ms at this bandwidth take, in parts of 256 KiB.
            command.args(["--threads", "64", "--filter=delay", "--filter=rate"]);
        }
        command.arg("memory").arg(bytes.to_string());
        if let Some(ms) = delay {
            command.args([format!("delay-read={ms}ms"), format!("delay-write={ms}ms")]);
            command.arg("rate=8G");
        }
        let child = command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("nbdkit cannot be started; install it (the package nbdkit)")?;
        let server = Self { child, port: free };
        let end = Instant::now() + BEGIN;
        while server.connect().is_err() {
            if Instant::now() > end {
                bail!("nbdkit does not listen on port {free}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.port))
    }

    /// The address of its export.
    pub fn address(&self) -> String {
        format!("nbd://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One turn of them; `source` has the bytes to write.
pub fn of_clients(source: &Path, bytes: u64, delay: Option<u64>) -> anyhow::Result<Figures> {
    let server = Server::start(bytes, delay)?;
    let [address, source] = [server.address(), source.display().to_string()];
    let rate = |from: &str, to: &str| -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut command = Command::new("nbdcopy");
        if delay.is_some() {
            // As much in flight as foreswap may have.
            command.args(["--requests=64", "--request-size=1048576"]);
        }
        let status = command
            .args([from, to])
            .status()
            .context("nbdcopy cannot be started; install it (the package libnbd-bin)")?;
        if !status.success() {
            bail!("nbdcopy {from} {to}: {status}");
        }
        Ok(bytes as f64 / began.elapsed().as_secs_f64())
    };
    let mut figures = Figures::new();
    figures.insert("write_bytes_per_s".to_owned(), rate(&source, &address)?);
    figures.insert("read_bytes_per_s".to_owned(), rate(&address, "null:")?);
    drop(server);
    let (server, _here) = apart(|| Server::start(bytes, delay))?;
    let reads = match delay {
        Some(_) => 100,
        None => READS,
    };
    put_latencies(&mut figures, latencies(server.connect()?, bytes, reads)?);
    Ok(figures)
}

/// Reads pages one after the other, as the simplest client would; the times.
fn latencies(mut server: TcpStream, bytes: u64, reads: u32) -> anyhow::Result<Vec<f64>> {
    server.set_nodelay(true)?;
    let mut hello = [0; 18];
    server.read_exact(&mut hello)?;
    // No zeroes after the handshake, and the default export by NBD_OPT_GO.
    let mut ask = vec![0, 0, 0, 3];
    ask.extend_from_slice(b"IHAVEOPT");
    for word in [7u32, 6, 0] {
        ask.extend_from_slice(&word.to_be_bytes());
    }
    ask.extend_from_slice(&[0, 0]);
    server.write_all(&ask)?;
    loop {
        let mut head = [0; 20];
        server.read_exact(&mut head)?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut data = vec![0; word(16) as usize];
        server.read_exact(&mut data)?;
        match word(12) {
            1 => break,
            kind if kind >> 31 != 0 => bail!("nbdkit refuses its export: {kind:#x}"),
            _ => {}
        }
    }
    let (mut random, mut reply) = (0x1234_5678_9abc_def1_u64, [0; 16 + PAGE]);
    let mut times = Vec::new();
    for cookie in 0..u64::from(reads) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let offset = random % (bytes / PAGE as u64) * PAGE as u64;
        let mut head = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0];
        for word in [cookie, offset] {
            head.extend_from_slice(&word.to_be_bytes());
        }
        head.extend_from_slice(&(PAGE as u32).to_be_bytes());
        let began = Instant::now();
        server.write_all(&head)?;
        server.read_exact(&mut reply)?;
        times.push(began.elapsed().as_nanos() as f64);
    }
    Ok(times)
}
