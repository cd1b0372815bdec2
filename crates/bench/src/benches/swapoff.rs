//! `swapoff` (seed 003): a program of four times its limit is evicted, the limit raised, and everything swapped in
//! while the program runs (`peer/swapoff.rs`). Beside each turn the area's device is read in 2 MiB transfers; no
//! swapoff can be faster.

use serde_json::json;

use super::device::{self, Device, Measured};
use super::{new_report, peers, turns, usemem};
use crate::args::{BenchArgs, PeerName};
use crate::disk::Transfers;
use crate::peer::Session;
use crate::report::{Better, Column, Report, Target, Unit, peer_name};
use crate::size::humane;

const TURNS: u32 = 5;
const BYTES: u64 = 1 << 30;
/// The targets: relative to the kernel's swapoff, and to the device.
const TO_KERNEL: f64 = 6.0;
const TO_DEVICE: f64 = 0.8;

/// Runs the swapoffs and the device in turns.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let given = &args.usemem;
    let bytes = given.bytes.or(given.total).unwrap_or(BYTES);
    session.swap_bytes = usemem::swap_for(bytes);
    let order = peers(args, &[PeerName::Kernel]);
    let mut device = Device::make(&session.directory, bytes, bytes, Measured::Reads)?;
    let results = turns::in_turns_by(session, &order, turns, |session, peer, progress| {
        if peer == order[0] {
            device.turn()?;
        }
        let words = command(session, peer, args, bytes);
        let turn = session.swapoff_turn(peer, &words, progress)?;
        Ok((turn.figures, json!({ "stats": turn.details })))
    })?;

    let title = format!(
        "{} in {}, all of it out, then brought back, medians of {turns} turns",
        humane(bytes),
        humane(session.limit)
    );
    let parameters = json!({ "bytes": bytes, "memory_limit_bytes": session.limit,
        "turns": turns, "fill": given.fill, "run_options": session.foreswap.more });
    let mut report = new_report("swapoff", title, session, parameters);
    report.peers = results;
    report.compare("bytes_per_s", Better::More);
    usemem::say_windows(&mut report);
    device.show(&mut report);
    report.notes.push(
        "back is what was not in memory before; KiB/read is what the device was asked for at \
         once, the kernel's windows (which it does not tell) among them; hit ratio and windows \
         are of the whole run, verification included"
            .to_owned(),
    );
    report.show(columns());
    judge(&mut report);
    Ok(report)
}

fn command(
    session: &Session,
    peer: PeerName,
    args: &BenchArgs,
    bytes: u64,
) -> Vec<std::ffi::OsString> {
    let fill = match args.usemem.fill {
        crate::args::Fill::Index => "index",
        crate::args::Fill::Random => "random",
        crate::args::Fill::Compressible => "compressible",
    };
    let mut words: Vec<String> = ["workload", "hold"].map(str::to_owned).into();
    words.push(format!("--bytes={bytes}"));
    words.push(format!("--fill={fill}"));
    words.push(format!("--seed={}", args.usemem.seed));
    if args.usemem.thp || peer.asks_for_huge_pages() {
        words.push("--thp".to_owned());
    }
    session.own_command(&words)
}

fn judge(report: &mut Report) {
    let to_kernel = report.ratio("bytes_per_s", peer_name(PeerName::Kernel));
    let fastest = device::fastest(report, Transfers::Reads);
    let first = report.peers.first();
    let ours = first.and_then(|peer| peer.median("bytes_per_s"));
    report.targets.extend([
        Target::at_least(
            "swapoff, bytes/s to the kernel's",
            TO_KERNEL,
            Unit::Ratio,
            to_kernel,
        ),
        Target::at_least(
            "swapoff, bytes/s to the area's fastest direct reads",
            TO_DEVICE,
            Unit::Ratio,
            ours.zip(fastest).map(|(ours, fastest)| ours / fastest),
        ),
    ]);
}

fn columns() -> Vec<Column> {
    vec![
        Column::spread("MiB/s", "bytes_per_s", Unit::Mebibytes),
        Column::spread("seconds", "swapoff_ns", Unit::Seconds),
        Column::median("back MiB", "back_bytes", Unit::Mebibytes),
        Column::median("KiB/read", "device_transfer_bytes", Unit::Kibibytes),
        Column::median("hit ratio", "hit_ratio", Unit::Ratio),
        Column::median("peak MiB", "peak_bytes", Unit::Mebibytes),
    ]
}
