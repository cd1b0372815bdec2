//! An area on a server against the best that other clients get from the same server: in order, and a page at a time.
//!
//! The server is on the loopback interface, started anew for each turn. NBD: nbdkit, `nbdcopy`, and one client that reads
//! pages; with `--delay` the server answers later, and has a bandwidth of 1 GiB/s. Redis: one server or a cluster,
//! `redis-benchmark`, one client that reads pages, and foreswap on a file; for a cluster also the pause when a master is killed.

mod failover;
pub(super) mod nbd;
mod redis;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;

use super::{asked, new_report, turns, usemem};
use crate::args::{BenchArgs, FarServer, Mode, Op, Pattern, PeerName, UsememArgs};
use crate::peer::{Counting, Figures, Scratch, Session};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Target, Unit};
use crate::size::humane;

const TURNS: u32 = 3;
/// Of a failover.
const MOST_KILLS: u32 = 3;
const SECONDS: f64 = 2.0;
/// Page reads of the plain client.
const READS: u32 = 5000;
const PAGE: usize = 4096;
/// The bandwidth of a server with a delay, in bytes per second each way.
const BANDWIDTH: f64 = (1 << 30) as f64;

/// Relative to nbdcopy, to redis-benchmark, and to the bandwidth of a server with a delay.
const OF_NBDCOPY: f64 = 0.8;
const OF_BENCHMARK: f64 = 0.7;
const OF_BANDWIDTH: f64 = 0.7;
/// How much longer a page may take than for the plain client, in nanoseconds.
const BEYOND_CLIENT: f64 = 15_000.0;

const OURS: &str = "foreswap";
const PLAIN: &str = "foreswap, --encrypt=never";
const ON_A_FILE: &str = "foreswap on a file";
const UNDISTURBED: &str = "foreswap, replicas=1";
const KILLED: &str = "the same, a master killed";

/// The kind of server, and how it behaves.
#[derive(Clone, Copy)]
struct Kind {
    server: FarServer,
    delay: Option<u64>,
}

impl Kind {
    fn is_cluster(self) -> bool {
        self.server == FarServer::Cluster
    }

    /// The other clients, and their tool.
    fn clients(self) -> (&'static str, &'static str) {
        match self.server {
            FarServer::Nbd => ("nbdcopy, a client", "nbdcopy"),
            _ => ("redis-benchmark, a client", "redis-benchmark"),
        }
    }

    fn peers(self) -> Vec<&'static str> {
        let mut peers = vec![self.clients().0, OURS, PLAIN];
        if self.server != FarServer::Nbd {
            peers.push(ON_A_FILE);
        }
        peers
    }

    fn in_words(self) -> String {
        let server = match self.server {
            FarServer::Nbd => "nbdkit's memory",
            FarServer::Redis => "a redis-server",
            FarServer::Cluster => "a Redis cluster (three masters, three replicas)",
        };
        let delay = self.delay.map_or(String::new(), |ms| {
            format!(", {ms} ms of delay and 1 GiB/s each way")
        });
        format!("{server} by the loopback interface{delay}")
    }
}

/// A server, until it is dropped.
enum Server {
    Nbd(nbd::Server),
    Redis(redis::Started),
}

impl Server {
    fn start(kind: Kind, session: &Session, bytes: u64) -> anyhow::Result<Self> {
        Ok(match kind.server {
            FarServer::Nbd => Self::Nbd(nbd::Server::start(bytes, kind.delay)?),
            _ => Self::Redis(redis::Started::new(session, kind.is_cluster())?),
        })
    }

    fn address(&self) -> String {
        match self {
            Self::Nbd(nbd) => nbd.address(),
            Self::Redis(redis) => redis.address(),
        }
    }
}

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
fn apart<T>(start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, On)> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu));
    let there = On::cpus(|cpu| Some(cpu) == last)?;
    let server = start()?;
    drop(there);
    Ok((server, On::cpus(|cpu| Some(cpu) != last)?))
}

/// Runs the clients and foreswap in turns.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let kind = Kind {
        server: args.server,
        delay: args.delay,
    };
    if kind.delay.is_some() && kind.server != FarServer::Nbd {
        bail!("--delay is for --server nbd");
    }
    let turns = args.turns.unwrap_or(TURNS);
    let workload = UsememArgs {
        mode: Mode::Process,
        tasks: 1,
        marks: true,
        seconds: Some(args.usemem.seconds.unwrap_or(SECONDS)),
        ..args.usemem.clone()
    };
    let found = in_turns(kind, turns, &workload, session)?;
    let title = format!(
        "{} in {} on {}, medians of {turns} turns",
        humane(workload.total_bytes()),
        humane(session.limit),
        kind.in_words()
    );
    let parameters = json!({ "usemem": workload, "memory_limit_bytes": session.limit, "turns": turns,
        "server": kind.server, "delay_ms": args.delay, "run_options": session.foreswap.more });
    let mut report = new_report("far", title, session, parameters);
    report.peers = found
        .into_iter()
        .map(|(name, figures)| PeerReport::new(name, figures, Vec::new()))
        .collect();
    let mut columns = vec![
        Column::spread("read MiB/s", "read_bytes_per_s", Unit::Mebibytes),
        Column::spread("write MiB/s", "write_bytes_per_s", Unit::Mebibytes),
        Column::spread("a page p50 us", "page_p50_ns", Unit::Microseconds),
        Column::median("average", "page_average_ns", Unit::Microseconds),
    ];
    if kind.is_cluster() {
        columns.push(Column::spread("pause ms", "pause_ns", Unit::Milliseconds));
        for (title, figure) in [
            ("new master ms", "failover_ns"),
            ("new replica ms", "replaced_ns"),
        ] {
            columns.push(Column::median(title, figure, Unit::Milliseconds));
        }
    }
    report.show(columns);
    judge(&mut report, kind);
    note(&mut report, kind);
    Ok(report)
}

type Turns = Vec<(&'static str, Vec<Figures>)>;

fn in_turns(
    kind: Kind,
    turns: u32,
    workload: &UsememArgs,
    session: &mut Session,
) -> anyhow::Result<Turns> {
    let bytes = workload.total_bytes();
    let source = Scratch::new(&session.directory, "random");
    if kind.server == FarServer::Nbd {
        write_random(&source.0, bytes)?;
    }
    let peers = kind.peers();
    let mut found: Turns = peers.into_iter().map(|name| (name, Vec::new())).collect();
    let progress = Progress::over(u64::from(turns) * found.len() as u64);
    for turn in 0..turns {
        for (name, figures) in &mut found {
            progress.say(&format!("{name} turn {}", turn + 1));
            let is_clients = *name == kind.clients().0;
            let one = match (kind.server, *name) {
                (FarServer::Nbd, _) if is_clients => nbd::of_clients(&source.0, bytes, kind.delay),
                _ if is_clients => redis::of_clients(session, bytes, kind.is_cluster()),
                (_, ON_A_FILE) => of_foreswap(session, workload, None, false, &progress),
                (_, name) => of_foreswap(session, workload, Some(kind), name == PLAIN, &progress),
            };
            figures.push(one?);
            progress.step();
            crate::interrupt::check()?;
        }
    }
    if kind.is_cluster() {
        for (name, is_killed) in [(UNDISTURBED, false), (KILLED, true)] {
            let mut figures = Vec::new();
            for turn in 0..turns.min(MOST_KILLS) {
                progress.say(&format!("{name} turn {}", turn + 1));
                figures.push(failover::turn(session, workload, is_killed, &progress)?);
                crate::interrupt::check()?;
            }
            found.push((name, figures));
        }
    }
    Ok(found)
}

fn note(report: &mut Report, kind: Kind) {
    report.notes.push(
        "read: what came from the server in a sequential scan; write: what went there while memory was filled; a page: a \
         random read of 4 KiB, for foreswap a touch that faulted, with the server on a CPU of its own"
            .to_owned(),
    );
    if kind.server != FarServer::Nbd {
        report.notes.push(
            "redis-benchmark: GET and SET of values of 256 KiB with random keys, 16 commands on each connection, one \
             connection to a master"
                .to_owned(),
        );
    }
    if kind.is_cluster() {
        report.notes.push(
            "pause: the longest touch of a page of a program that writes random pages for 12 s and verifies each word; a \
             wrong word or a bus error would have ended the bench; new master, new replica: after the kill, as the servers \
             say"
                .to_owned(),
        );
    }
}

fn judge(report: &mut Report, kind: Kind) {
    let (clients, tool) = kind.clients();
    for figure in ["read_bytes_per_s", "write_bytes_per_s"] {
        let ours = report.peer(OURS).and_then(|peer| peer.median(figure));
        let theirs = report.peer(clients).and_then(|peer| peer.median(figure));
        let what = figure.split('_').next().unwrap_or(figure);
        let target = if kind.delay.is_some() {
            let what = format!("sequential {what}, to the bandwidth");
            Target::at_least(
                what,
                OF_BANDWIDTH,
                Unit::Ratio,
                ours.map(|ours| ours / BANDWIDTH),
            )
        } else {
            let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
            let what = format!("sequential {what}, bytes/s to {tool}'s");
            let bound = match kind.server {
                FarServer::Nbd => OF_NBDCOPY,
                _ => OF_BENCHMARK,
            };
            Target::at_least(what, bound, Unit::Ratio, ratio)
        };
        report.targets.push(target);
    }
    let page = |name: &str| report.peer(name)?.median("page_p50_ns");
    let beyond = page(OURS)
        .zip(page(clients))
        .map(|(ours, theirs)| ours - theirs);
    let what = "a random page, beyond a client's read of one";
    let target = Target::at_most(what, BEYOND_CLIENT, Unit::Microseconds, beyond);
    report.targets.push(target);
}

/// Adds the figures of a client's reads of pages.
fn put_latencies(figures: &mut Figures, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let sum: f64 = times.iter().sum();
    figures.insert("page_p50_ns".to_owned(), times[times.len() / 2]);
    figures.insert("page_average_ns".to_owned(), sum / times.len() as f64);
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

/// One turn on a server, or on a file.
fn of_foreswap(
    session: &mut Session,
    workload: &UsememArgs,
    kind: Option<Kind>,
    is_plain: bool,
    progress: &Progress,
) -> anyhow::Result<Figures> {
    let mut figures = Figures::new();
    for pattern in [Pattern::Seq, Pattern::Rand] {
        let bytes = 2 * workload.total_bytes();
        let start = || {
            kind.map(|kind| Server::start(kind, session, bytes))
                .transpose()
        };
        let (server, _here) = match pattern {
            Pattern::Seq => (start()?, None),
            _ => apart(start).map(|(server, here)| (server, Some(here)))?,
        };
        let before = session.foreswap.more.clone();
        if let Some(server) = &server {
            let swap = format!("--swap={}", server.address());
            session.foreswap.more.push(swap);
        }
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
        let names = names(pattern);
        let named = names
            .iter()
            .filter_map(|(name, its)| Some((*name, *found.get(*its)?)));
        figures.extend(named.map(|(name, value)| (name.to_owned(), value)));
    }
    Ok(figures)
}

/// The figures of a turn, and what they are called there.
fn names(pattern: Pattern) -> &'static [(&'static str, &'static str)] {
    match pattern {
        Pattern::Seq => &[
            ("read_bytes_per_s", "pass_in_bytes_per_s"),
            ("write_bytes_per_s", "fill_out_bytes_per_s"),
        ],
        _ => &[
            ("page_p50_ns", "faulted_p50_ns"),
            ("page_average_ns", "faulted_average_ns"),
        ],
    }
}
