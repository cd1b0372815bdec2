//! The two groups of tasks of `combined` (seed 000), in the parameters of usemem.

use clap::Args;

use super::usemem::{Op, Pattern, UsememArgs};
use crate::size;

/// The number of tasks if none is given, and no memory limit is known from which to scale.
const TASKS: u32 = 1;

/// The parameters of combined in addition to those of usemem.
#[derive(Debug, Clone, Default, Args, serde::Serialize, serde::Deserialize)]
pub struct CombinedArgs {
    /// Sequential writers, the tasks that are measured (default: 4 as in the seed, or the number of CPUs)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub sequential_tasks: Option<u32>,

    /// Size of all their regions together (default: 50/32 of the limit)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub sequential_total: Option<u64>,

    /// Random writers beside them (default: two for each sequential one; 0 for none)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub random_tasks: Option<u32>,

    /// Size of all their regions together (default: 30/32 of the limit)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub random_total: Option<u64>,
}

impl CombinedArgs {
    /// The sequential and the random group, with the common parameters from `shared`.
    pub fn groups(&self, shared: &UsememArgs) -> (UsememArgs, UsememArgs) {
        let group = |tasks, total, pattern| UsememArgs {
            tasks,
            bytes: None,
            total,
            pattern,
            op: Op::Write,
            ..shared.clone()
        };
        let tasks = self.sequential_tasks.unwrap_or(TASKS);
        (
            group(tasks, self.sequential_total, Pattern::Seq),
            group(
                self.random_tasks.unwrap_or(2 * tasks),
                self.random_total,
                Pattern::Rand,
            ),
        )
    }

    /// The words after `EXE` that run this workload, including those with defaults.
    pub fn to_command(&self, shared: &UsememArgs) -> Vec<String> {
        let (sequential, random) = self.groups(shared);
        let mut command = sequential.to_command();
        command[1] = "combined".to_owned();
        let mut put = |name: &str, value: u64| command.push(format!("--{name}={value}"));
        put("sequential-tasks", sequential.tasks.into());
        put("sequential-total", sequential.total_bytes());
        put("random-tasks", random.tasks.into());
        put("random-total", random.total_bytes());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CombinedWorkload, parse};

    #[test]
    fn written_out_it_is_the_same_again() {
        let given = "--sequential-tasks 2 --sequential-total 8M --random-total 4M --seconds 0.5 \
                     --mode thread --seed 9";
        let line: CombinedWorkload = parse(given);
        let words = line.groups.to_command(&line.shared);
        assert_eq!(words[..2], ["workload", "combined"]);
        let again: CombinedWorkload = parse(&words[2..].join(" "));
        assert_eq!(again.groups.to_command(&again.shared), words);
        let (sequential, random) = again.groups.groups(&again.shared);
        assert_eq!((sequential.tasks, sequential.region_bytes()), (2, 4 << 20));
        assert_eq!((random.tasks, random.region_bytes()), (4, 1 << 20));
        assert_eq!(sequential.seconds, Some(0.5));
    }
}
