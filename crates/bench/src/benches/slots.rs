//! The slot allocator alone, against one lock that is taken for each slot: no program, no I/O.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde_json::json;

use super::new_report;
use crate::args::BenchArgs;
use crate::interrupt;
use crate::peer::{Figures, Session};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Unit};
use crate::size::humane;
use crate::slots::locked::Locked;
use crate::slots::shipped::Shipped;
use crate::slots::{self, Area, CLUSTER, Measured, Plan, TASKS};

const TURNS: u32 = 5;
const BYTES: u64 = 8 << 30;
/// Bytes of a slot.
const SLOT: u64 = 4096;
const REQUESTS: [u32; 3] = [1, 16, CLUSTER];
/// Requests that fail.
const REFUSALS: u32 = 1000;

/// Names in the report.
const SHIPPED: &str = "foreswap";
const LOCKED: &str = "one lock per slot";

/// An area, once for each allocator.
struct State {
    name: &'static str,
    shipped: Shipped,
    locked: Locked,
    /// Slots of whole clusters, and of others.
    free: (u64, u64),
}

impl State {
    fn new(name: &'static str, slots: u32, fragmented: &[u32]) -> anyhow::Result<Self> {
        let state = Self {
            name,
            shipped: Shipped::new(slots, fragmented)?,
            locked: Locked::new(slots, fragmented),
            free: {
                let broken = fragmented.len() as u64 * u64::from(CLUSTER);
                (u64::from(slots) - broken, broken / 2)
            },
        };
        slots::touch(&state.shipped);
        slots::touch(&state.locked);
        Ok(state)
    }

    /// Half of the slots that requests of this size can get.
    fn half(&self, request: u32) -> u64 {
        let (whole, others) = self.free;
        match request {
            CLUSTER => whole / 2,
            _ => (whole + others) / 2,
        }
    }
}

/// Takes half of the free slots and puts them back, by requests of several sizes and by one and two tasks.
pub fn run(args: &BenchArgs, session: &Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let bytes = args.usemem.bytes.or(args.usemem.total).unwrap_or(BYTES);
    let cluster_bytes = u64::from(CLUSTER) * SLOT;
    ensure!(
        (64 << 20..=64 << 30).contains(&bytes) && bytes.is_multiple_of(cluster_bytes),
        "an area of {bytes} bytes (--total): it should have 64M to 64G, in whole 2M"
    );
    let area_slots = (bytes / SLOT) as u32;
    let fragmented = slots::fragmented(area_slots / CLUSTER, args.usemem.seed);
    let progress = Progress::over(u64::from(turns));
    progress.say("making areas");
    let states = [
        State::new("empty", area_slots, &[])?,
        State::new("fragmented", area_slots, &fragmented)?,
    ];
    let mut rows = Rows::default();
    for _ in 0..turns {
        turn(&states, &mut rows, &progress)?;
        progress.step();
    }
    drop(progress);

    let title = format!(
        "half of what is free of an area of {}, taken and put back, medians of {turns} turns",
        humane(bytes)
    );
    let parameters = json!({ "bytes": bytes, "turns": turns, "seed": args.usemem.seed,
        "fragmented_clusters": fragmented.len(), "clusters": area_slots / CLUSTER });
    let mut report = new_report("slots", title, session, parameters);
    report.peers = rows.reports();
    report.show(vec![
        Column::spread("taken M slots/s", "slots_per_s", Unit::Millions),
        Column::median("ns/slot", "ns_per_slot", Unit::Number),
        Column::median("k calls/s", "calls_per_s", Unit::Thousands),
        Column::median("put M slots/s", "put_slots_per_s", Unit::Millions),
        Column::median("to one lock", "slots_per_s_to_one_lock", Unit::Ratio),
    ]);
    Ok(report)
}

/// The turns of each row, in the order of the rows.
#[derive(Default)]
struct Rows {
    order: Vec<String>,
    turns: BTreeMap<String, Vec<Figures>>,
}

impl Rows {
    fn add(&mut self, row: String, figures: Figures) {
        let turns = self.turns.entry(row.clone()).or_default();
        if turns.is_empty() {
            self.order.push(row);
        }
        turns.push(figures);
    }

    fn reports(mut self) -> Vec<PeerReport> {
        let report = |row: String| {
            let turns = self.turns.remove(&row).unwrap_or_default();
            PeerReport::new(row, turns, Vec::new())
        };
        self.order.into_iter().map(report).collect()
    }
}

fn turn(states: &[State], rows: &mut Rows, progress: &Progress) -> anyhow::Result<()> {
    for state in states {
        for request in REQUESTS {
            for tasks in 1..=TASKS {
                let plan = Plan {
                    request,
                    tasks,
                    slots: state.half(request),
                };
                let row = |of: &str| {
                    let (slots, tasks) = (plural(request, "slot"), plural(tasks as u32, "task"));
                    format!("{slots}, {}, {tasks}: {of}", state.name)
                };
                let mut shipped = figures(&state.shipped, plan, progress)?;
                let locked = figures(&state.locked, plan, progress)?;
                let ratio = shipped["slots_per_s"] / locked["slots_per_s"];
                shipped.insert("slots_per_s_to_one_lock".to_owned(), ratio);
                rows.add(row(SHIPPED), shipped);
                rows.add(row(LOCKED), locked);
            }
        }
    }
    for state in states {
        let seconds = slots::refusal(&state.shipped, REFUSALS)?;
        let figures = Figures::from([("calls_per_s".to_owned(), 1.0 / seconds)]);
        let row = format!("{CLUSTER} slots, {}, none left: {SHIPPED}", state.name);
        rows.add(row, figures);
    }
    Ok(())
}

fn figures<A: Area>(area: &A, plan: Plan, progress: &Progress) -> anyhow::Result<Figures> {
    interrupt::check()?;
    progress.tick();
    let Measured {
        slots,
        calls,
        take_seconds,
        put_seconds,
    } = slots::measure(area, plan)?;
    let figures = [
        ("slots_per_s", slots as f64 / take_seconds),
        ("ns_per_slot", take_seconds * 1e9 / slots as f64),
        ("calls_per_s", calls as f64 / take_seconds),
        ("put_slots_per_s", slots as f64 / put_seconds),
    ];
    Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
}

fn plural(count: u32, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
