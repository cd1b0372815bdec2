//! `combined` (seed 000): sequential writers over more than memory, again and again, beside random writers. The figures
//! are those of the sequential tasks. Those of the random tasks are shown as well, since a peer that starves them would
//! otherwise look good.
//!
//! Every peer gets the same regions and the same seconds. With the same number of passes one group would end before the
//! other, and the other would continue alone.

use serde_json::{Value, json};

use super::{new_report, peers, turns, usemem as patterns};
use crate::args::{BenchArgs, CombinedArgs, Mode, PeerName, UsememArgs};
use crate::peer::{Figures, Session};
use crate::report::{
    Better, Column, PeerReport, Report, Target, Unit, peer_name, regions_hit_ratio,
};
use crate::size::humane;
use crate::usemem;

const TURNS: u32 = 5;
const SECONDS: f64 = 30.0;

/// The seed's machine and tasks.
const SEED_MEMORY: u64 = 32;
const SEED_SEQUENTIAL: u64 = 50;
const SEED_RANDOM: u64 = 30;
const SEED_TASKS: usize = 4;

/// The target relative to the kernel at its best.
const THROUGHPUT: f64 = 4.0;
const P99: f64 = 0.5;
const HIT_RATIO: f64 = 0.999;

/// Faults per page of random writers below which they do not swap as the seed's did.
const SWAPPING: f64 = 0.1;

/// Runs both groups side by side.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    anyhow::ensure!(
        args.usemem.bytes.is_none() && args.usemem.total.is_none(),
        "combined has two sizes: give --sequential-total and --random-total"
    );
    let turns = args.turns.unwrap_or(TURNS);
    let shared = UsememArgs {
        seconds: Some(args.usemem.seconds.unwrap_or(SECONDS)),
        ..args.usemem.clone()
    };
    let groups = scaled(&args.combined, session.limit);
    let (sequential, random) = groups.groups(&shared);
    session.swap_bytes = patterns::swap_for(sequential.total_bytes() + random.total_bytes());
    let order = peers(args, &[PeerName::Kernel]);
    let command = |s: &Session, peer: PeerName| {
        // The kernel at its best has huge pages: the workload asks for them.
        let thp = shared.thp || peer.asks_for_huge_pages();
        let shared = UsememArgs {
            thp,
            ..shared.clone()
        };
        s.own_command(&groups.to_command(&shared))
    };
    let mut results = turns::in_turns(session, &order, turns, command, read)?;
    if sequential.region_bytes() != random.region_bytes() {
        results = results
            .into_iter()
            .map(|peer| with_own_hit_ratio(peer, sequential.region_bytes()))
            .collect();
    }

    let mode = match shared.mode {
        Mode::Process => "processes",
        Mode::Thread => "threads",
    };
    let title = format!(
        "{} sequential writers over {} beside {} random writers over {} in {}, {mode}, \
         {} s, medians of {turns} turns",
        sequential.tasks,
        humane(sequential.total_bytes()),
        random.tasks,
        humane(random.total_bytes()),
        humane(session.limit),
        shared.seconds.unwrap_or_default()
    );
    let parameters = json!({ "sequential": sequential, "random": random,
        "memory_limit_bytes": session.limit, "turns": turns,
        "readahead": session.foreswap.readahead, "run_options": session.foreswap.more });
    let mut report = new_report("combined", title, session, parameters);
    report.peers = results;
    report.notes.push(format!(
        "scale: seed 000 has 4 sequential processes over 50 GiB and 8 random ones over 30 GiB in \
         32 GiB, on 72 CPUs, for 300 s with the first filling; here the memory is 1/{:.0} of that, \
         and the filling is not in the figures",
        (SEED_MEMORY << 30) as f64 / session.limit as f64
    ));
    report.notes.push(
        "us/page, MiB/s, touches, faults/page and own hit ratio are the sequential tasks'; hit \
         ratio is everybody's, as in the seed"
            .to_owned(),
    );
    let resident = |peer: &&PeerReport| {
        let faults = peer.median("random.faults_per_page");
        faults.is_some_and(|faults| faults < SWAPPING)
    };
    for peer in report.peers.iter().filter(resident) {
        report.notes.push(format!(
            "the random writers of {} hardly swapped, so they were no neighbours like the seed's: \
             give them more (--random-total)",
            peer.peer
        ));
    }
    patterns::note_clock(&mut report, |turn| &turn["workload"]["sequential"]["clock"]);
    report.show(columns());
    report.compare("bytes_per_s", Better::More);
    report.compare("touch_p50_ns", Better::Less);
    report.compare("touch_p99_ns", Better::Less);
    report.compare("random.pages_per_s", Better::More);
    patterns::say_windows(&mut report);
    judge(&mut report);
    Ok(report)
}

/// The groups as given, or else scaled from the seed's proportions.
fn scaled(given: &CombinedArgs, limit: u64) -> CombinedArgs {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let tasks = given
        .sequential_tasks
        .unwrap_or(cpus.min(SEED_TASKS) as u32);
    let part = |gib: u64| (limit / SEED_MEMORY) * gib;
    CombinedArgs {
        sequential_tasks: Some(tasks),
        sequential_total: Some(given.sequential_total.unwrap_or(part(SEED_SEQUENTIAL))),
        random_tasks: Some(given.random_tasks.unwrap_or(2 * tasks)),
        random_total: Some(given.random_total.unwrap_or(part(SEED_RANDOM))),
    }
}

fn read(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output)?;
    let report: usemem::CombinedReport = serde_json::from_value(value.clone())?;
    let mut figures = patterns::figures_of(&report.sequential.total);
    if let Some(random) = report.random {
        let random = patterns::figures_of(&random.total).into_iter();
        figures.extend(random.map(|(name, value)| (format!("random.{name}"), value)));
    }
    Ok((figures, value))
}

/// Adds the hit ratio of the sequential regions, if the peer reports regions.
fn with_own_hit_ratio(mut peer: PeerReport, region_bytes: u64) -> PeerReport {
    if peer.not_run.is_some() {
        return peer;
    }
    for (figures, details) in peer.turns.iter_mut().zip(&peer.details) {
        if let Some(ratio) = regions_hit_ratio(&details["stats"], region_bytes) {
            figures.insert("own_hit_ratio".to_owned(), ratio);
        }
    }
    PeerReport::new(peer.peer, peer.turns, peer.details)
}

fn judge(report: &mut Report) {
    let kernel = peer_name(PeerName::Kernel);
    let throughput = report.ratio("bytes_per_s", kernel);
    let p99 = report.ratio("touch_p99_ns", kernel);
    let first = report.peers.first();
    let hits = first.and_then(|peer| peer.median("own_hit_ratio").or(peer.median("hit_ratio")));
    report.targets.extend([
        Target::at_least(
            "combined, bytes/s of the sequential tasks to the kernel's",
            THROUGHPUT,
            Unit::Ratio,
            throughput,
        ),
        Target::at_most(
            "combined, their p99 latency per page to the kernel's",
            P99,
            Unit::Ratio,
            p99,
        ),
        Target::at_least("combined, their hit ratio", HIT_RATIO, Unit::Ratio, hits),
    ]);
}

fn columns() -> Vec<Column> {
    vec![
        Column::spread("us/page", "ns_per_page", Unit::Microseconds),
        Column::median("pages/s", "pages_per_s", Unit::Number),
        Column::median("MiB/s", "bytes_per_s", Unit::Mebibytes),
        Column::median("touch p50 us", "touch_p50_ns", Unit::Microseconds),
        Column::median("p99", "touch_p99_ns", Unit::Microseconds),
        Column::median("max", "touch_max_ns", Unit::Microseconds),
        Column::median("faults/page", "faults_per_page", Unit::Ratio),
        Column::median("own hit ratio", "own_hit_ratio", Unit::Ratio),
        Column::median("hit ratio", "hit_ratio", Unit::Ratio),
        Column::median("pages/major", "pages_per_major", Unit::Tenths),
        Column::median("random pages/s", "random.pages_per_s", Unit::Number),
        Column::median("their faults/page", "random.faults_per_page", Unit::Ratio),
        Column::median("peak MiB", "peak_bytes", Unit::Mebibytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_proportions_hold_where_nothing_is_given() {
        let scaled = scaled(&CombinedArgs::default(), 256 << 20);
        assert_eq!(scaled.sequential_total, Some(400 << 20));
        assert_eq!(scaled.random_total, Some(240 << 20));
        assert_eq!(
            scaled.random_tasks,
            scaled.sequential_tasks.map(|tasks| 2 * tasks)
        );
    }

    #[test]
    fn the_hit_ratio_of_the_sequential_regions_is_added() {
        let stats = json!({ "vmas": [
            { "bytes": 8192, "readahead_pages": 10, "readahead_hits": 9 },
            { "bytes": 4096, "readahead_pages": 10, "readahead_hits": 0 },
        ]});
        let details = vec![json!({ "stats": stats })];
        let peer = PeerReport::new("foreswap", vec![Figures::new()], details);
        let peer = with_own_hit_ratio(peer, 8192);
        assert_eq!(peer.median("own_hit_ratio"), Some(0.9));
    }
}
