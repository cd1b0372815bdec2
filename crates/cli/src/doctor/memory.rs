//! The memory that there is to divide: the machine's, or less by a cgroup.

use super::area::AreaFacts;
use super::check::Check;
use super::who::{Place, Who};
use crate::memory::{self, Scopes};
use crate::memory_setting::MIN_LIMIT;
use crate::size::humane;
use foreswap_store::area::PAGE_BYTES;

/// With less than this free, the kernel's OOM killer may be faster than foreswap.
const TIGHT: u64 = 64 << 20;

/// What is read, in bytes.
#[derive(Clone, Debug)]
pub struct MemoryFacts {
    /// The machine's.
    pub total: u64,
    /// The same, or the least limit of the process' cgroups.
    pub available: u64,
    /// What may be added now, in the narrowest scope.
    pub free: Option<u64>,
}

impl MemoryFacts {
    /// Of this process.
    pub fn read() -> Self {
        let info = rustix::system::sysinfo();
        let free = Scopes::find().now();
        let free = free.iter().map(|scope| scope.available * PAGE_BYTES);
        Self {
            total: info.totalram * u64::from(info.mem_unit),
            available: memory::available(),
            free: free.min(),
        }
    }
}

/// The check of this file. Areas that pass through the page cache take memory from a cgroup.
pub fn judge(facts: &MemoryFacts, areas: &[AreaFacts], who: &Who) -> Vec<Check> {
    const NAME: &str = "memory";
    let is_limited = facts.available < facts.total;
    let free = facts.free.unwrap_or(facts.available);
    let mut found = match is_limited {
        true => format!(
            "{} by a cgroup, of the machine's {}",
            humane(facts.available),
            humane(facts.total)
        ),
        false => humane(facts.total),
    };
    found.push_str(&format!("; {} free now", humane(free)));
    let takes_cache = areas.iter().any(AreaFacts::fills_memory);
    let check = if facts.available < MIN_LIMIT {
        let why = "The least limit of `foreswap run --memory` is 16 MiB.";
        more(Check::failure(NAME, found, why), who)
    } else if free < TIGHT {
        let why = "Programs need memory beside the managed one; the kernel's OOM killer is near.";
        more(Check::warning(NAME, found, why), who)
    } else if is_limited && takes_cache {
        let why = "The swap area passes through memory, which counts in this cgroup as well.";
        more(Check::warning(NAME, found, why), who)
    } else if is_limited {
        let why = "`--memory 40%` and `auto` count from the cgroup's limit.";
        Check::note(NAME, found, why)
    } else {
        Check::ok(NAME, found)
    };
    vec![
        check
            .fact("machine_bytes", facts.total)
            .fact("available_bytes", facts.available)
            .fact("free_bytes", facts.free),
    ]
}

fn more(check: Check, who: &Who) -> Check {
    match who.place {
        Place::Kubernetes => check.remedy(
            "in the container's spec",
            ["resources: {limits: {memory: 2Gi}}"],
        ),
        Place::Container => check.remedy(
            "outside the container",
            ["docker update --memory 2g --memory-swap 2g CONTAINER"],
        ),
        Place::Machine => check.remedy(
            "as root, for the unit in which this session or service runs",
            ["systemctl set-property UNIT MemoryMax=2G"],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::area::tests::{direct, on_tmpfs};
    use super::super::check::Verdict;
    use super::super::who::tests::{contained, root};
    use super::*;

    const G: u64 = 1 << 30;

    fn verdict(available: u64, free: u64, area: AreaFacts) -> Verdict {
        let facts = MemoryFacts {
            total: 8 * G,
            available,
            free: Some(free),
        };
        judge(&facts, &[area], &root())[0].verdict
    }

    #[test]
    fn cgroups() {
        assert_eq!(verdict(8 * G, 4 * G, direct()), Verdict::Ok);
        assert_eq!(verdict(G, G, direct()), Verdict::Note);
        assert_eq!(verdict(G, G, on_tmpfs()), Verdict::Warning);
        // On the whole machine, the area's check says so.
        assert_eq!(verdict(8 * G, 4 * G, on_tmpfs()), Verdict::Ok);
        assert_eq!(verdict(G, 8 << 20, direct()), Verdict::Warning);
        assert_eq!(verdict(8 << 20, 1 << 20, direct()), Verdict::Failure);
        let facts = MemoryFacts {
            total: G,
            available: 8 << 20,
            free: None,
        };
        let check = &judge(&facts, &[], &contained(Place::Container))[0];
        assert!(check.remedies[0].commands[0].contains("docker update"));
    }
}
