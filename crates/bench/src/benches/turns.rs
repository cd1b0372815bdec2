//! Peers in turns: A B A B ..., so that a drift of the machine affects all.

use std::ffi::OsString;

use serde_json::Value;

use crate::args::PeerName;
use crate::interrupt;
use crate::peer::{Counting, Figures, Session, TurnError};
use crate::progress::Progress;
use crate::report::{PeerReport, peer_name};
use crate::steal::CpuTime;

/// Parses a turn's output: its figures, and the full report.
pub type Read = fn(&[u8]) -> anyhow::Result<(Figures, Value)>;

/// Runs `turns` turns of each peer. `command` gives the words for a peer. A peer that cannot be run here is reported
/// and has no further turn. Any other failure ends the bench, since a figure of a failed program means nothing.
pub fn in_turns(
    session: &mut Session,
    peers: &[PeerName],
    turns: u32,
    command: impl Fn(&Session, PeerName) -> Vec<OsString>,
    read: Read,
) -> anyhow::Result<Vec<PeerReport>> {
    in_turns_by(session, peers, turns, |session, peer, progress| {
        let words = command(session, peer);
        one_turn(session, peer, &words, Counting::Whole, read, progress)
    })
}

/// One turn of `words`: the figures of its output and of its peer, and the further data to be kept.
pub fn one_turn(
    session: &mut Session,
    peer: PeerName,
    words: &[OsString],
    counting: Counting,
    read: Read,
    progress: &Progress,
) -> Result<(Figures, Value), TurnError> {
    let turn = session.turn(peer, words, counting, progress)?;
    let (mut figures, report) = read(&turn.output)?;
    figures.extend(turn.figures);
    let details = serde_json::json!({ "workload": report, "stats": turn.details });
    Ok((figures, details))
}

/// As [`in_turns`], but `turn` does one turn of a peer and returns its figures and the further data to be kept.
pub fn in_turns_by(
    session: &mut Session,
    peers: &[PeerName],
    turns: u32,
    mut turn: impl FnMut(&mut Session, PeerName, &Progress) -> Result<(Figures, Value), TurnError>,
) -> anyhow::Result<Vec<PeerReport>> {
    let progress = Progress::over(u64::from(turns) * peers.len() as u64);
    let mut done: Vec<(Vec<Figures>, Vec<Value>, Option<String>)> = Vec::new();
    done.resize_with(peers.len(), Default::default);
    for number in 0..turns {
        for (peer, (figures, details, not_run)) in peers.iter().zip(&mut done) {
            if not_run.is_some() {
                continue;
            }
            progress.say(&format!("{} turn {}", peer_name(*peer), number + 1));
            interrupt::pause(session.pause)?;
            let before = CpuTime::now();
            let result = turn(session, *peer, &progress);
            interrupt::check()?;
            match result {
                Ok((mut measured, report)) => {
                    if let Some(before) = before {
                        before.note(&mut measured);
                    }
                    figures.push(measured);
                    details.push(report);
                    progress.step();
                }
                Err(TurnError::NotRun(reason)) => {
                    *not_run = Some(reason.to_string());
                    progress.shrink(u64::from(turns - number));
                }
                Err(TurnError::Failed(error)) => {
                    return Err(error.context(format!("the turn of {}", peer_name(*peer))));
                }
            }
        }
    }
    let report =
        |(peer, (figures, details, not_run)): (&PeerName, (_, _, Option<String>))| match not_run {
            Some(reason) => PeerReport::not_run(peer_name(*peer), reason),
            None => PeerReport::new(peer_name(*peer), figures, details),
        };
    Ok(peers.iter().zip(done).map(report).collect())
}
