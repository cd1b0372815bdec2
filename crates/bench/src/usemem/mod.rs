//! usemem, after vm-scalability (seeds 000 and 002): tasks that walk private regions of their own and verify every word
//! that they read.
//!
//! A page's *first touch* is the access that has to wait for it; each is timed. The main figure is `ns_per_page`: 1e9
//! over the pages per second summed over tasks. With one task it is simply its time per page.

mod clock;
mod histogram;
mod launch;
mod marks;
mod order;
mod region;
mod task;
mod words;

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

pub use clock::Clock;
pub use histogram::{Histogram, Latency};
pub use marks::{Mark, Moment};
pub use region::{PAGE, Region};
pub use words::{Draw, WORDS, Words, mix};

use crate::args::{CombinedArgs, UsememArgs};
use crate::output::put_json;
use crate::spread::Spread;
use task::Measured;

/// The report of usemem.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Its parameters.
    pub parameters: UsememArgs,
    /// Bytes of each task's region.
    pub region_bytes: u64,
    /// How touches were timed.
    pub clock: String,
    /// All tasks together.
    pub total: Total,
    /// Each task by itself.
    pub tasks: Vec<TaskReport>,
}

/// All tasks together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Total {
    /// Anonymous memory of the tasks' processes outside their regions, in bytes; shared memory counts for each.
    #[serde(default)]
    pub other_bytes: u64,
    /// Pages touched in the measured passes.
    pub pages: u64,
    /// Pages per second, summed over tasks.
    pub pages_per_s: f64,
    /// Bytes per second, summed over tasks.
    pub bytes_per_s: f64,
    /// 1e9 / `pages_per_s`.
    pub ns_per_page: f64,
    /// Each task's own time per page.
    pub task_ns_per_page: Spread,
    /// The longest time of the measured passes.
    pub pass_ns: u64,
    /// The longest fill.
    pub fill_ns: u64,
    /// The longest part of a fill with more than `--full` in use.
    pub over_ns: u64,
    /// `fill_ns` over the pages of all regions.
    pub fill_ns_per_page: f64,
    /// The longest check at the end; 0 when nothing was written.
    pub check_ns: u64,
    /// First touches of the measured passes.
    pub first_touch: Latency,
    /// Those of them that took longer than 2 microseconds, and therefore faulted.
    pub faulted_touch: Latency,
    /// First touches of the fill.
    pub fill_touch: Latency,
    /// Buckets of the first touches: smallest nanoseconds of the bucket, count.
    pub first_touch_buckets: Vec<(u64, u64)>,
    /// The kernel's count of minor faults in the measured passes.
    pub minor_faults: u64,
    /// The kernel's count of major faults in the measured passes.
    pub major_faults: u64,
}

/// One task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskReport {
    /// Time to fill the region.
    pub fill_ns: u64,
    /// Time of the measured passes.
    pub pass_ns: u64,
    /// Pages touched in them.
    pub pages: u64,
    /// Pages per second.
    pub pages_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Time per page.
    pub ns_per_page: f64,
    /// First touches of the measured passes.
    pub first_touch: Latency,
}

/// The report of combined: each group reports as usemem does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CombinedReport {
    /// The tasks that are measured.
    pub sequential: Report,
    /// The tasks beside them, if any.
    pub random: Option<Report>,
}

/// `foreswap workload usemem`.
pub fn main(args: &UsememArgs) -> anyhow::Result<ExitCode> {
    let clock = Clock::calibrated();
    let tasks = vec![args; args.tasks as usize];
    let measured = launch::run(args.mode, &tasks, clock)?;
    put_json(&Report::of(args, clock, &measured))
}

/// `foreswap workload combined`: both groups begin and end their passes together.
pub fn combined(groups: &CombinedArgs, shared: &UsememArgs) -> anyhow::Result<ExitCode> {
    let clock = Clock::calibrated();
    let (sequential, random) = groups.groups(shared);
    let mut tasks = vec![&sequential; sequential.tasks as usize];
    tasks.extend(vec![&random; random.tasks as usize]);
    let measured = launch::run(shared.mode, &tasks, clock)?;
    let (first, second) = measured.split_at(sequential.tasks as usize);
    put_json(&CombinedReport {
        sequential: Report::of(&sequential, clock, first),
        random: (!second.is_empty()).then(|| Report::of(&random, clock, second)),
    })
}

impl Report {
    fn of(args: &UsememArgs, clock: Clock, measured: &[Measured]) -> Self {
        let (mut touches, mut fills) = (Histogram::new(), Histogram::new());
        let mut tasks = Vec::new();
        for task in measured {
            let (sum, max) = task.touch_sum_max;
            let touch = Histogram::from_buckets(&task.touch_buckets, sum, max);
            let (sum, max) = task.fill_sum_max;
            fills.merge(&Histogram::from_buckets(&task.fill_buckets, sum, max));
            let pages_per_s = task.pages as f64 * 1e9 / task.pass_ns.max(1) as f64;
            tasks.push(TaskReport {
                fill_ns: task.fill_ns,
                pass_ns: task.pass_ns,
                pages: task.pages,
                pages_per_s,
                bytes_per_s: pages_per_s * PAGE as f64,
                ns_per_page: task.pass_ns as f64 / task.pages.max(1) as f64,
                first_touch: touch.latency(),
            });
            touches.merge(&touch);
        }
        let longest = |of: fn(&Measured) -> u64| measured.iter().map(of).max().unwrap_or(0);
        let pages_per_s: f64 = tasks.iter().map(|task| task.pages_per_s).sum();
        let fill_ns = longest(|task| task.fill_ns);
        let each: Vec<f64> = tasks.iter().map(|task| task.ns_per_page).collect();
        let total = Total {
            other_bytes: measured.iter().map(|task| task.other_bytes).sum(),
            pages: measured.iter().map(|task| task.pages).sum(),
            pages_per_s,
            bytes_per_s: pages_per_s * PAGE as f64,
            ns_per_page: 1e9 / pages_per_s.max(f64::MIN_POSITIVE),
            task_ns_per_page: Spread::of(&each),
            pass_ns: longest(|task| task.pass_ns),
            fill_ns,
            over_ns: longest(|task| task.over_ns),
            fill_ns_per_page: fill_ns as f64 / (args.total_bytes() / PAGE as u64) as f64,
            check_ns: longest(|task| task.check_ns),
            first_touch: touches.latency(),
            faulted_touch: touches.faulted(),
            fill_touch: fills.latency(),
            first_touch_buckets: touches.buckets(),
            minor_faults: measured.iter().map(|task| task.minor_faults).sum(),
            major_faults: measured.iter().map(|task| task.major_faults).sum(),
        };
        Self {
            parameters: args.clone(),
            region_bytes: args.region_bytes(),
            clock: clock.name().to_owned(),
            total,
            tasks,
        }
    }
}
