//! What `foreswap top PID` prints when that run has ended: its last figures in a sentence, as the screen is gone.

use crate::control::words::Run;
use crate::report::{grouped, plural};
use crate::size::humane;

/// Characters of a command line that are printed.
const COMMAND: usize = 60;

/// The sentence. `last` is the run at the last look; `None` if it ended before the first. The figures of what happened after the
/// last look are not in it: only the closing block of `foreswap run` has these.
pub fn sentence(last: Option<&Run>) -> String {
    let Some(run) = last else {
        return "the run has ended before it could be looked at".to_owned();
    };
    let name = match &run.group {
        Some(group) => format!("group {group}"),
        None => format!("run {} ({})", run.supervisor, shortened(&run.command)),
    };
    let memory = humane(run.resident_bytes);
    let limit = humane(run.limit_bytes);
    let traffic = run.totals.map(|totals| {
        format!(
            "; {} {} major, {} minor; swap {} out, {} in",
            plural(
                totals.faults_major + totals.faults_minor,
                "fault:",
                "faults:"
            ),
            grouped(totals.faults_major),
            grouped(totals.faults_minor),
            humane(totals.swap_out_bytes),
            humane(totals.swap_in_bytes),
        )
    });
    let traffic = traffic.unwrap_or_default();
    format!("{name} has ended; at the last look it had {memory} in memory, limit {limit}{traffic}")
}

fn shortened(command: &str) -> String {
    if command.chars().count() <= COMMAND {
        return command.to_owned();
    }
    let start: String = command.chars().take(COMMAND - 3).collect();
    format!("{start}...")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::fixed;

    #[test]
    fn the_last_figures_are_in_it() {
        let mut run = fixed::run();
        let totals = run.totals.as_mut().expect("counters");
        (totals.faults_major, totals.faults_minor) = (1_234, 5);
        (totals.swap_out_bytes, totals.swap_in_bytes) = (3 << 30, 120 << 20);
        assert_eq!(
            sentence(Some(&run)),
            "run 100 (/usr/bin/python3 job.py) has ended; at the last look it had 61 MiB in memory, limit 64 MiB; \
             1,239 faults: 1,234 major, 5 minor; swap 3 GiB out, 120 MiB in"
        );
        run.group = Some("build".to_owned());
        run.totals = None;
        assert_eq!(
            sentence(Some(&run)),
            "group build has ended; at the last look it had 61 MiB in memory, limit 64 MiB"
        );
    }

    #[test]
    fn a_long_command_is_shortened_and_a_run_that_nobody_saw_is_named_so() {
        let run = Run {
            command: "ä".repeat(100),
            ..fixed::run()
        };
        let text = sentence(Some(&run));
        assert!(text.contains(&format!("({}...)", "ä".repeat(57))), "{text}");
        assert!(sentence(None).contains("before it could be looked at"));
    }
}
