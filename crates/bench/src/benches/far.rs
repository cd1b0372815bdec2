//! An area on an NBD server against the best that other clients get from the same server: `nbdcopy` in order, and one
//! client that reads a page at a time. The server is nbdkit on the loopback interface, started anew for each turn; with
//! `--delay` it answers later, and has a bandwidth of 1 GiB/s.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;

use super::{asked, new_report, turns, usemem};
use crate::args::{BenchArgs, Mode, Op, Pattern, PeerName, UsememArgs};
use crate::peer::{Counting, Figures, Scratch, Session};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Target, Unit};
use crate::size::humane;

const TURNS: u32 = 3;
const SECONDS: f64 = 2.0;
/// Page reads of the plain client.
const READS: u32 = 5000;
const PAGE: usize = 4096;
/// The bandwidth of a server with a delay, in bytes per second each way.
const BANDWIDTH: f64 = (1 << 30) as f64;
/// How long the server may take to begin.
const BEGIN: Duration = Duration::from_secs(10);

/// Relative to nbdcopy, and to the bandwidth of a server with a delay.
const OF_NBDCOPY: f64 = 0.8;
const OF_BANDWIDTH: f64 = 0.7;
/// How much longer a page may take than for the plain client, in nanoseconds.
const BEYOND_CLIENT: f64 = 15_000.0;

const CLIENTS: &str = "nbdcopy, a client";
const PLAIN: &str = "foreswap, --encrypt=never";

/// This process and those that it starts on some CPUs only; undone on drop.
struct On(CpuSet);

impl On {
    fn cpus(which: impl Fn(usize) -> bool) -> anyhow::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut chosen = CpuSet::new();
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu) && which(*cpu)) {
            chosen.set(cpu);
        }
        if chosen.count() > 0 {
            sched_setaffinity(None, &chosen)?;
        }
        Ok(Self(before))
    }
}

impl Drop for On {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// A server on the last CPU, as if it were on another machine, and its clients on the others. Where they share CPUs, a reply
/// takes a third of the time if the scheduler happens to have put them on the same one.
fn apart(bytes: u64, delay: Option<u64>) -> anyhow::Result<(Server, On)> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu));
    let there = On::cpus(|cpu| Some(cpu) == last)?;
    let server = Server::start(bytes, delay)?;
    drop(there);
    Ok((server, On::cpus(|cpu| Some(cpu) != last)?))
}

/// nbdkit; ended on drop.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(bytes: u64, delay: Option<u64>) -> anyhow::Result<Self> {
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

    fn address(&self) -> String {
        format!("nbd://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the clients and foreswap in turns.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let workload = UsememArgs {
        mode: Mode::Process,
        tasks: 1,
        marks: true,
        seconds: Some(args.usemem.seconds.unwrap_or(SECONDS)),
        ..args.usemem.clone()
    };
    let bytes = workload.total_bytes();
    let source = Scratch::new(&session.directory, "random");
    write_random(&source.0, bytes)?;
    let mut found: [(&str, Vec<Figures>); 3] =
        [CLIENTS, "foreswap", PLAIN].map(|name| (name, Vec::new()));
    let progress = Progress::over(u64::from(turns) * found.len() as u64);
    for turn in 0..turns {
        for (name, figures) in &mut found {
            progress.say(&format!("{name} turn {}", turn + 1));
            let one = match *name {
                CLIENTS => of_clients(&source.0, bytes, args.delay)?,
                _ => of_foreswap(session, &workload, *name == PLAIN, args.delay, &progress)?,
            };
            figures.push(one);
            progress.step();
            crate::interrupt::check()?;
        }
    }
    let delay = args.delay.map_or(String::new(), |ms| {
        format!(", {ms} ms of delay and 1 GiB/s each way")
    });
    let title = format!(
        "{} in {} on nbdkit's memory by the loopback interface{delay}, medians of {turns} turns",
        humane(bytes),
        humane(session.limit)
    );
    let parameters = json!({ "usemem": workload, "memory_limit_bytes": session.limit, "turns": turns,
        "delay_ms": args.delay, "run_options": session.foreswap.more });
    let mut report = new_report("far", title, session, parameters);
    report.peers = found
        .into_iter()
        .map(|(name, figures)| PeerReport::new(name, figures, Vec::new()))
        .collect();
    report.show(vec![
        Column::spread("read MiB/s", "read_bytes_per_s", Unit::Mebibytes),
        Column::spread("write MiB/s", "write_bytes_per_s", Unit::Mebibytes),
        Column::spread("a page p50 us", "page_p50_ns", Unit::Microseconds),
        Column::median("average", "page_average_ns", Unit::Microseconds),
    ]);
    judge(&mut report, args.delay.is_some());
    report.notes.push(
        "read: what came from the server in a sequential scan; write: what went there while memory was filled; a page: a \
         random read of 4 KiB, for foreswap a touch that faulted, with the server on a CPU of its own"
            .to_owned(),
    );
    Ok(report)
}

fn judge(report: &mut Report, is_delayed: bool) {
    for figure in ["read_bytes_per_s", "write_bytes_per_s"] {
        let ours = report.peer("foreswap").and_then(|peer| peer.median(figure));
        let theirs = report.peer(CLIENTS).and_then(|peer| peer.median(figure));
        let what = figure.split('_').next().unwrap_or(figure);
        let target = if is_delayed {
            let what = format!("sequential {what}, to the bandwidth");
            Target::at_least(
                what,
                OF_BANDWIDTH,
                Unit::Ratio,
                ours.map(|ours| ours / BANDWIDTH),
            )
        } else {
            let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
            let what = format!("sequential {what}, bytes/s to nbdcopy's");
            Target::at_least(what, OF_NBDCOPY, Unit::Ratio, ratio)
        };
        report.targets.push(target);
    }
    let page = |name: &str| report.peer(name)?.median("page_p50_ns");
    let beyond = page("foreswap")
        .zip(page(CLIENTS))
        .map(|(ours, theirs)| ours - theirs);
    let what = "a random page, beyond a client's read of one";
    let target = Target::at_most(what, BEYOND_CLIENT, Unit::Microseconds, beyond);
    report.targets.push(target);
}

/// Bytes that no server can leave out.
fn write_random(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut file =
        File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut part = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        for bytes in part.as_chunks_mut::<8>().0 {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            *bytes = word.to_ne_bytes();
        }
        file.write_all(&part)?;
    }
    Ok(())
}

fn of_clients(source: &Path, bytes: u64, delay: Option<u64>) -> anyhow::Result<Figures> {
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
    let (server, _here) = apart(bytes, delay)?;
    let latencies = latencies(
        server.connect()?,
        bytes,
        if delay.is_some() { 100 } else { READS },
    )?;
    let sum: f64 = latencies.iter().sum();
    figures.insert("page_p50_ns".to_owned(), latencies[latencies.len() / 2]);
    figures.insert("page_average_ns".to_owned(), sum / latencies.len() as f64);
    Ok(figures)
}

/// Reads pages one after the other, as the simplest client would; the times, sorted.
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
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn of_foreswap(
    session: &mut Session,
    workload: &UsememArgs,
    is_plain: bool,
    delay: Option<u64>,
    progress: &Progress,
) -> anyhow::Result<Figures> {
    let mut figures = Figures::new();
    for pattern in [Pattern::Seq, Pattern::Rand] {
        let bytes = 2 * workload.total_bytes();
        let (server, _here) = match pattern {
            Pattern::Seq => (Server::start(bytes, delay)?, None),
            _ => apart(bytes, delay).map(|(server, here)| (server, Some(here)))?,
        };
        let before = session.foreswap.more.clone();
        session
            .foreswap
            .more
            .push(format!("--swap={}", server.address()));
        if is_plain {
            session.foreswap.more.push("--encrypt=never".to_owned());
        }
        let workload = UsememArgs {
            pattern,
            op: Op::Read,
            full: Some(session.limit).filter(|limit| *limit < workload.total_bytes()),
            ..workload.clone()
        };
        let words = usemem::command(session, PeerName::Foreswap, &workload);
        let counting = Counting::Passes;
        let turn = turns::one_turn(
            session,
            PeerName::Foreswap,
            &words,
            counting,
            usemem::read,
            progress,
        );
        session.foreswap.more = before;
        let (mut found, _) = turn.map_err(anyhow::Error::from)?;
        found.insert("fill_bytes".to_owned(), workload.total_bytes() as f64);
        asked::add_rates(&mut found, &workload);
        let names: &[(&str, &str)] = match pattern {
            Pattern::Seq => &[
                ("read_bytes_per_s", "pass_in_bytes_per_s"),
                ("write_bytes_per_s", "fill_out_bytes_per_s"),
            ],
            _ => &[
                ("page_p50_ns", "faulted_p50_ns"),
                ("page_average_ns", "faulted_average_ns"),
            ],
        };
        let named = names
            .iter()
            .filter_map(|(name, its)| Some((*name, *found.get(*its)?)));
        figures.extend(named.map(|(name, value)| (name.to_owned(), value)));
    }
    Ok(figures)
}
