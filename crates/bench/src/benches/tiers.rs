//! A near area with room for half of the pages and a far one behind it, against all pages on either: whether pages that are
//! used come to be near.
//!
//! The near area is a file, the far one nbdkit on the loopback interface, which answers after a while. The program fills its
//! memory in order, so that what it fills last is far, and reads that last part then, at random. Reads of all pages at random and
//! in order, which no exchange of places makes faster, follow, and skewed ones, whose ranks are spread over all pages.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::Context;
use serde_json::{Value, json};

use super::far::nbd::Server;
use super::{new_report, turns, usemem};
use crate::args::{BenchArgs, PeerName};
use crate::peer::{Counting, Figures, Scratch, Session};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Unit};
use crate::size::humane;
use crate::workset::{self, Kind};

const TURNS: u32 = 3;
/// Times the limit.
const OVER: u64 = 4;
/// Milliseconds.
const DELAY: u64 = 1;
const STEPS: &str = "late-read,late-read,late-read,scan,rand-read,zipf-read";

const BOTH: &str = "half near, half far";
const NEAR: &str = "all near";
const FAR: &str = "all far";

/// Runs the three in turns.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let delay = args.delay.unwrap_or(DELAY);
    let bytes = args.usemem.bytes.or(args.usemem.total);
    let bytes = bytes.unwrap_or(OVER * session.limit);
    session.swap_bytes = usemem::swap_for(bytes);
    let mut found = [BOTH, NEAR, FAR].map(|name| (name, Vec::new()));
    let progress = Progress::over(u64::from(turns) * found.len() as u64);
    for turn in 0..turns {
        for (name, figures) in &mut found {
            progress.say(&format!("{name} turn {}", turn + 1));
            figures.push(one_turn(session, name, bytes, delay, &progress)?);
            progress.step();
            crate::interrupt::check()?;
        }
    }
    let title = format!(
        "{} in {}, medians of {turns} turns; far: a server that answers after {delay} ms",
        humane(bytes),
        humane(session.limit)
    );
    let parameters = json!({ "bytes": bytes, "memory_limit_bytes": session.limit, "turns": turns,
        "delay_ms": delay, "run_options": session.foreswap.more });
    let mut report = new_report("tiers", title, session, parameters);
    report.peers = found
        .into_iter()
        .map(|(name, figures)| PeerReport::new(name, figures, Vec::new()))
        .collect();
    let columns = [
        ("late part", "first_ns"),
        ("third time", "last_ns"),
        ("in order", "scan_ns"),
        ("at random", "rand_ns"),
        ("skewed", "zipf_ns"),
    ];
    let columns = columns.map(|(title, name)| Column::spread(title, name, Unit::Microseconds));
    report.show(columns.into_iter().collect());
    report.say(
        "us/touch, each of as many reads as there are pages; late part: of the three eighths that were filled last; skewed: the \
         page of rank r has a share of 1 / r^0.99"
            .to_owned(),
    );
    Ok(report)
}

fn one_turn(
    session: &mut Session,
    name: &str,
    bytes: u64,
    delay: u64,
    progress: &Progress,
) -> anyhow::Result<Figures> {
    let near = Scratch::new(&session.directory, "near");
    let mut server = None;
    let before = session.foreswap.more.clone();
    if name == BOTH {
        let path = near.0.display();
        let file = File::create(&near.0).with_context(|| format!("cannot create {path}"))?;
        file.set_len(bytes / 2)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        session.foreswap.more.push(format!("--swap={path}"));
    }
    if name != NEAR {
        let started = Server::start(2 * bytes, Some(delay))?;
        let address = started.address();
        session.foreswap.more.push(format!("--swap={address}"));
        server = Some(started);
    }
    let words = [
        "workload",
        "workset",
        "--bytes",
        &bytes.to_string(),
        "--steps",
        STEPS,
    ];
    let words = session.own_command(&words.map(str::to_owned));
    let (peer, counting) = (PeerName::Foreswap, Counting::Whole);
    let turn = turns::one_turn(session, peer, &words, counting, read, progress);
    session.foreswap.more = before;
    drop(server);
    Ok(turn.map_err(anyhow::Error::from)?.0)
}

fn read(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output)?;
    let report: workset::Report = serde_json::from_value(value.clone())?;
    let mut figures = Figures::new();
    for step in &report.steps {
        let name = match step.kind {
            Kind::LateRead if !figures.contains_key("first_ns") => "first_ns",
            Kind::LateRead => "last_ns",
            Kind::RandRead => "rand_ns",
            Kind::ZipfRead => "zipf_ns",
            _ => "scan_ns",
        };
        figures.insert(name.to_owned(), step.ns_per_touch);
    }
    Ok((figures, value))
}
