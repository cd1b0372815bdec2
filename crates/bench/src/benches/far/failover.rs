//! A master of a cluster is killed while a program that verifies every word runs on it, and a server takes its place.
//!
//! A wrong word or a bus error ends the program, and with it the bench. The pause is the longest touch of a page: the program
//! has one task, which does nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::redis::{Client, Cluster};
use super::{turns, usemem};
use crate::args::{Mode, Op, Pattern, PeerName, UsememArgs};
use crate::peer::{Counting, Figures, Session};
use crate::progress::Progress;

/// Seconds of the program behind its fill.
const SECONDS: f64 = 12.0;
/// From the first page on a server to the kill: the program is filled by then, and most of its time is left.
const BEFORE: Duration = Duration::from_secs(5);
/// How long the servers may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A turn on a new cluster, each page on a master and its replica; with `kill`, one of the masters is killed.
pub fn turn(
    session: &mut Session,
    workload: &UsememArgs,
    kill: bool,
    progress: &Progress,
) -> anyhow::Result<Figures> {
    let mut cluster = Cluster::start(session)?;
    let workload = UsememArgs {
        mode: Mode::Process,
        tasks: 1,
        pattern: Pattern::Rand,
        op: Op::Write,
        seconds: Some(SECONDS),
        marks: false,
        full: None,
        ..workload.clone()
    };
    let before = session.foreswap.more.clone();
    let address = format!("--swap={}?replicas=1", cluster.address());
    session.foreswap.more.push(address);
    let words = usemem::command(session, PeerName::Foreswap, &workload);
    let (turn, ended, failover) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| match kill {
            true => replace_a_master(&mut cluster).map(Some),
            false => Ok(None),
        });
        let turn = turns::one_turn(
            session,
            PeerName::Foreswap,
            &words,
            Counting::Whole,
            usemem::read,
            progress,
        );
        (turn, Instant::now(), killer.join())
    });
    session.foreswap.more = before;
    let (found, _) = turn.map_err(anyhow::Error::from)?;
    let failover = failover.map_err(|_| anyhow::anyhow!("the thread that kills has failed"))??;
    let mut figures = Figures::new();
    for (name, its) in [
        ("pause_ns", "touch_max_ns"),
        ("fill_pause_ns", "fill_touch_max_ns"),
        ("touch_p99_ns", "touch_p99_ns"),
        ("ns_per_page", "ns_per_page"),
    ] {
        figures.extend(found.get(its).map(|value| (name.to_owned(), *value)));
    }
    if let Some((killed, [failover, replaced])) = failover {
        if killed + failover > ended {
            bail!(
                "the program had ended before a new master was there, so its pause says nothing; run the bench again while nothing else is at work"
            );
        }
        figures.insert("failover_ns".to_owned(), failover.as_nanos() as f64);
        figures.insert("replaced_ns".to_owned(), replaced.as_nanos() as f64);
    }
    Ok(figures)
}

/// Waits until the program is at work, kills the first master, waits for the new one, and starts an empty server as its replica.
/// Returns when it killed it, and the times from then to a new master, and to a new replica.
fn replace_a_master(cluster: &mut Cluster) -> anyhow::Result<(Instant, [Duration; 2])> {
    let end = Instant::now() + PATIENCE;
    let mut first = Client::to(cluster.servers[0].port)?;
    while first.text(&["DBSIZE"])? == "0" {
        if Instant::now() > end {
            bail!("the program has no page on the cluster");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(BEFORE);
    let masters = masters(cluster, 1)?;
    let began = Instant::now();
    cluster.servers[0].kill()?;
    while self::masters(cluster, 1)? < masters + 1 {
        if Instant::now() > end {
            bail!("no replica has taken over");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let failover = began.elapsed();
    cluster.servers[0].restart()?;
    loop {
        let mut new = Client::to(cluster.servers[0].port)?;
        let info = new.text(&["INFO", "replication"]);
        // It refuses commands while it loads.
        if info.is_ok_and(|info| info.contains("master_link_status:up")) {
            return Ok((began, [failover, began.elapsed()]));
        }
        if Instant::now() > end {
            bail!("the new server is no replica");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How many servers, but the first ones, say that they are masters.
fn masters(cluster: &Cluster, but: usize) -> anyhow::Result<usize> {
    let mut count = 0;
    for server in &cluster.servers[but..] {
        let info = Client::to(server.port)?.text(&["INFO", "replication"]);
        let info = info.context("a server does not answer")?;
        count += usize::from(info.contains("role:master"));
    }
    Ok(count)
}
