//! Resource limits and sysctls that bound what foreswap or its programs may have.
//!
//! The engine and the supervisor raise their own limits as far as they may (`sys/limits.rs`, `inherited.rs`). Checked
//! is what they cannot raise.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit};
use rustix::thread::CapabilitySet;

use super::check::Check;
use super::who::{Place, Who};
use crate::size::humane;
use crate::{inherited, sessions};

/// Address space that the shared tables of a run take in the supervisor and in each program, at the default size of an
/// area: 2.0 to 2.5 GB.
const TABLES: u64 = 5 << 29;
/// The ledger of a run, in a file of memory, with some room for the tables of areas.
const LEDGER: u64 = 64 << 20;
/// The kernel's default of `vm.max_map_count`.
const MAPPINGS: u64 = 65530;
/// Processes and threads that start with a managed program: itself, the engine's three to six, one in between.
const TASKS: u64 = 8;
/// Below this many programs, or their tasks, builds and servers meet the limit.
const FEW: u64 = 64;
const G: u64 = 1 << 30;

/// What is read. Limits in bytes or counts.
#[derive(Clone, Debug)]
pub struct LimitFacts {
    /// RLIMIT_NOFILE.
    pub files: Rlimit,
    /// RLIMIT_AS.
    pub address_space: Rlimit,
    /// RLIMIT_DATA.
    pub data: Rlimit,
    /// RLIMIT_FSIZE.
    pub file_size: Rlimit,
    /// RLIMIT_NPROC.
    pub processes: Rlimit,
    /// Processes and threads of the user.
    pub tasks: u64,
    /// `vm.max_map_count`.
    pub mappings: Option<u64>,
    /// `vm.overcommit_memory`.
    pub overcommit: Option<u8>,
    /// What may be allocated and is, in bytes, where that is limited.
    pub committed: Option<(u64, u64)>,
    /// RAM and swap space together, in bytes.
    pub all_memory: u64,
}

impl LimitFacts {
    /// Of this process.
    pub fn read(who: &Who) -> Self {
        let number = |path: &str| {
            let text = fs::read_to_string(path).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let info = rustix::system::sysinfo();
        let unit = u64::from(info.mem_unit);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |name| field(&meminfo, name).map(|kib| kib << 10);
        Self {
            files: getrlimit(Resource::Nofile),
            address_space: getrlimit(Resource::As),
            data: getrlimit(Resource::Data),
            file_size: getrlimit(Resource::Fsize),
            processes: getrlimit(Resource::Nproc),
            tasks: tasks_of(who.user),
            mappings: number("/proc/sys/vm/max_map_count"),
            overcommit: number("/proc/sys/vm/overcommit_memory").and_then(|n| n.try_into().ok()),
            committed: field("CommitLimit:").zip(field("Committed_AS:")),
            all_memory: (info.totalram + info.totalswap) * unit,
        }
    }
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn tasks_of(user: u32) -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let statuses = entries.filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse::<u32>().ok()?;
        fs::read_to_string(entry.path().join("status")).ok()
    });
    let of_user = statuses.filter(|status| field(status, "Uid:") == Some(user.into()));
    of_user
        .filter_map(|status| field(&status, "Threads:"))
        .sum()
}

/// The checks of this file.
pub fn judge(facts: &LimitFacts, who: &Who) -> Vec<Check> {
    let mut checks = vec![
        files(facts.files, who),
        space(
            "address-space",
            "-v",
            "as",
            facts.address_space,
            TABLES,
            who,
        ),
        space("data", "-d", "data", facts.data, 0, who),
        file_size(facts.file_size, who),
    ];
    // Root is exempt, whatever its privileges; that of a user namespace is another user.
    if !(who.is_root() && who.is_initial) {
        checks.push(processes(facts, who));
    }
    checks.extend(mappings(facts.mappings));
    checks.extend(overcommit(facts));
    checks
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), humane)
}

/// A hard limit can be raised from outside only; `$$` is the shell that the command is typed in.
pub fn raised_by_root(check: Check, who: &Who, option: &str, to: &str) -> Check {
    let sudo = if who.is_root() { "" } else { "sudo " };
    let check = check.remedy(
        "for this shell (for good: /etc/security/limits.d, or the unit of a service)",
        [format!("{sudo}prlimit --{option}={to}:{to} --pid $$")],
    );
    if who.place != Place::Container {
        return check;
    }
    let to = if to == "unlimited" { "-1" } else { to };
    check.remedy(
        "or where the container is started",
        [format!("docker run --ulimit {option}={to}:{to} IMAGE")],
    )
}

fn files(limit: Rlimit, who: &Who) -> Check {
    let most = sessions::most_processes(inherited::most_files(limit));
    let count = most as u64;
    let hard = limit.maximum.map_or("unlimited".into(), |n| n.to_string());
    let found = format!("up to {hard}: room for {count} managed processes at a time");
    let check = if count == 0 {
        Check::failure(
            "open-files",
            found,
            "The supervisor needs four descriptors for each managed process, and some for itself.",
        )
    } else if count < FEW {
        Check::warning("open-files", found, "Further processes run unmanaged.")
    } else {
        Check::ok("open-files", found)
    };
    let check = match count < FEW {
        true => raised_by_root(check, who, "nofile", "65536"),
        false => check,
    };
    check
        .fact("soft", limit.current)
        .fact("hard", limit.maximum)
        .fact("managed_processes", count)
}

/// A limit that counts the engine's mappings in the program. The engine raises it by their size, if it may.
fn space(
    name: &'static str,
    flag: &str,
    option: &str,
    limit: Rlimit,
    least: u64,
    who: &Who,
) -> Check {
    let may_raise = limit.maximum.is_none() || who.may(CapabilitySet::SYS_RESOURCE);
    let why = "The engine lives in the program's address space, and raises the limit by its size.";
    let check = match limit.current {
        None => Check::ok(name, "unlimited"),
        Some(current) if current >= least && may_raise => Check::ok(
            name,
            format!(
                "{} for the program, which foreswap may raise for its engine",
                humane(current)
            ),
        ),
        Some(current) => {
            let lacks = match who.is_root() && !may_raise {
                true => "; this root lacks CAP_SYS_RESOURCE",
                false => "",
            };
            let found = format!(
                "limited to {} (ulimit {flag}; hard limit: {}){lacks}",
                humane(current),
                shown(limit.maximum)
            );
            let check = Check::failure(
                name,
                found,
                match may_raise {
                    true => {
                        "The shared tables of a run take 2.5 GiB of addresses, and little memory."
                    }
                    false => why,
                },
            );
            match limit.maximum {
                None => check.remedy("in this shell", [format!("ulimit -S {flag} unlimited")]),
                Some(_) => raised_by_root(check, who, option, "unlimited"),
            }
        }
    };
    check
        .fact("soft_bytes", limit.current)
        .fact("hard_bytes", limit.maximum)
        .fact("may_raise", may_raise)
}

fn file_size(limit: Rlimit, who: &Who) -> Check {
    let check = match limit.current {
        None => Check::ok("file-size", "unlimited"),
        Some(current) => {
            let found = format!("limited to {} (ulimit -f)", humane(current));
            let check = match current < LEDGER {
                true => Check::failure(
                    "file-size",
                    found,
                    "The shared memory of a run is a file of 48 MiB to the kernel.",
                ),
                false => Check::warning(
                    "file-size",
                    found,
                    "A swap area that is a file cannot be larger.",
                ),
            };
            match limit.maximum {
                None => check.remedy("in this shell", ["ulimit -S -f unlimited"]),
                Some(_) => raised_by_root(check, who, "fsize", "unlimited"),
            }
        }
    };
    check
        .fact("soft_bytes", limit.current)
        .fact("hard_bytes", limit.maximum)
}

fn processes(facts: &LimitFacts, who: &Who) -> Check {
    let limit = facts.processes;
    let check = match limit.current {
        None => Check::ok("processes", "unlimited"),
        Some(most) => {
            let left = most.saturating_sub(facts.tasks);
            let found = format!(
                "{} of {most} processes and threads of the user are in use",
                facts.tasks
            );
            let why = "Each managed program starts an engine with up to six threads.";
            let check = if left < TASKS {
                Check::failure("processes", found, why)
            } else if left < FEW * TASKS {
                Check::warning("processes", found, why)
            } else {
                Check::ok("processes", found)
            };
            if left >= FEW * TASKS {
                check
            } else if limit.maximum.is_none_or(|hard| hard > most) {
                check.remedy("in this shell", ["ulimit -S -u $(ulimit -H -u)"])
            } else {
                raised_by_root(check, who, "nproc", "16384")
            }
        }
    };
    check
        .fact("soft", limit.current)
        .fact("hard", limit.maximum)
        .fact("in_use", facts.tasks)
}

fn mappings(most: Option<u64>) -> Option<Check> {
    let most = most?;
    let found = format!("vm.max_map_count = {most}");
    let check = if most < MAPPINGS {
        Check::warning(
            "mappings",
            found,
            "A program with more mappings gets ENOMEM; those of its engine count, too.",
        )
        .remedy(
            "as root, until the next boot (for good: a file in /etc/sysctl.d)",
            [format!("sysctl -w vm.max_map_count={MAPPINGS}")],
        )
    } else {
        Check::ok("mappings", found)
    };
    Some(check.fact("max_map_count", most))
}

fn overcommit(facts: &LimitFacts) -> Option<Check> {
    let mode = facts.overcommit?;
    let lenient = "sysctl -w vm.overcommit_memory=1";
    let check = match (mode, facts.committed) {
        (2, Some((limit, used))) => Check::warning(
            "overcommit",
            format!(
                "vm.overcommit_memory = 2: {} of {} can still be allocated",
                humane(limit.saturating_sub(used)),
                humane(limit)
            ),
            "The kernel counts what a program allocates, also what foreswap swaps out. Beyond \
             this, allocations fail, with or without foreswap.",
        )
        .remedy(
            "as root, until the next boot (for good: a file in /etc/sysctl.d)",
            [lenient],
        ),
        (1, _) => Check::ok("overcommit", "vm.overcommit_memory = 1: no bound"),
        _ => Check::ok(
            "overcommit",
            format!(
                "vm.overcommit_memory = {mode}: up to {} in one allocation",
                humane(facts.all_memory)
            ),
        ),
    };
    let check = check.fact("overcommit_memory", mode);
    Some(match facts.committed {
        Some((limit, used)) if mode == 2 => check
            .fact("commit_limit_bytes", limit)
            .fact("committed_bytes", used),
        _ => check.fact(
            "largest_allocation_bytes",
            (mode == 0).then_some(facts.all_memory.max(G)),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::super::who::tests::{ordinary, root};
    use super::*;

    const NONE: Rlimit = Rlimit {
        current: None,
        maximum: None,
    };

    fn both(limit: u64) -> Rlimit {
        Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        }
    }

    fn soft(limit: u64) -> Rlimit {
        Rlimit {
            current: Some(limit),
            maximum: None,
        }
    }

    fn free() -> LimitFacts {
        LimitFacts {
            files: both(20000),
            address_space: NONE,
            data: NONE,
            file_size: NONE,
            processes: both(30000),
            tasks: 40,
            mappings: Some(65530),
            overcommit: Some(0),
            committed: Some((10 * G, G)),
            all_memory: 16 * G,
        }
    }

    #[track_caller]
    fn judged(facts: &LimitFacts, who: &Who, name: &str) -> (Verdict, String) {
        let checks = judge(facts, who);
        let check = checks.iter().find(|check| check.name == name);
        let check = check.unwrap_or_else(|| panic!("no {name} in {checks:?}"));
        let remedy = check.remedies.first();
        let commands = remedy.map(|remedy| remedy.commands.join("\n"));
        (check.verdict, commands.unwrap_or_default())
    }

    #[test]
    fn nothing_is_wrong_with_the_usual_limits() {
        for who in [root(), ordinary()] {
            let checks = judge(&free(), &who);
            assert!(
                checks.iter().all(|check| check.verdict == Verdict::Ok),
                "{checks:?}"
            );
        }
    }

    #[test]
    fn descriptors() {
        let with = |files| LimitFacts { files, ..free() };
        let (verdict, remedy) = judged(&with(both(64)), &root(), "open-files");
        assert_eq!(verdict, Verdict::Failure);
        assert!(remedy.contains("--nofile=65536"), "{remedy}");
        let (verdict, _) = judged(&with(both(256)), &root(), "open-files");
        assert_eq!(verdict, Verdict::Warning);
        // The supervisor raises a soft limit.
        let low = Rlimit {
            current: Some(64),
            maximum: Some(20000),
        };
        assert_eq!(judged(&with(low), &root(), "open-files").0, Verdict::Ok);
    }

    #[test]
    fn address_space_and_data() {
        let with = |address_space, data| LimitFacts {
            address_space,
            data,
            ..free()
        };
        let facts = with(both(8 * G), both(8 * G));
        for name in ["address-space", "data"] {
            let (verdict, remedy) = judged(&facts, &ordinary(), name);
            assert_eq!(verdict, Verdict::Failure);
            assert!(remedy.contains("sudo prlimit"), "{remedy}");
            // Root may raise a hard limit.
            assert_eq!(judged(&facts, &root(), name).0, Verdict::Ok);
        }
        let facts = with(soft(G), soft(G));
        let (verdict, remedy) = judged(&facts, &ordinary(), "address-space");
        assert_eq!(
            (verdict, remedy.as_str()),
            (Verdict::Failure, "ulimit -S -v unlimited")
        );
        assert_eq!(judged(&facts, &ordinary(), "data").0, Verdict::Ok);
    }

    #[test]
    fn sizes_of_files_and_numbers_of_processes() {
        let tiny = LimitFacts {
            file_size: both(1 << 20),
            ..free()
        };
        assert_eq!(judged(&tiny, &root(), "file-size").0, Verdict::Failure);
        let facts = LimitFacts {
            file_size: soft(G),
            processes: both(44),
            ..free()
        };
        let (verdict, remedy) = judged(&facts, &ordinary(), "file-size");
        assert_eq!(verdict, Verdict::Warning);
        assert_eq!(remedy, "ulimit -S -f unlimited");
        assert_eq!(judged(&facts, &ordinary(), "processes").0, Verdict::Failure);
        assert!(
            judge(&facts, &root())
                .iter()
                .all(|check| check.name != "processes")
        );
        let inner = Who {
            is_initial: false,
            ..root()
        };
        assert_eq!(judged(&facts, &inner, "processes").0, Verdict::Failure);
        let some = LimitFacts {
            processes: soft(100),
            ..free()
        };
        let (verdict, remedy) = judged(&some, &ordinary(), "processes");
        assert_eq!(verdict, Verdict::Warning);
        assert!(remedy.contains("ulimit -S -u"), "{remedy}");
    }

    #[test]
    fn sysctls() {
        let facts = LimitFacts {
            mappings: Some(1000),
            overcommit: Some(2),
            ..free()
        };
        let (verdict, remedy) = judged(&facts, &root(), "mappings");
        assert_eq!(verdict, Verdict::Warning);
        assert_eq!(remedy, "sysctl -w vm.max_map_count=65530");
        let (verdict, remedy) = judged(&facts, &root(), "overcommit");
        assert_eq!(verdict, Verdict::Warning);
        assert_eq!(remedy, "sysctl -w vm.overcommit_memory=1");
        // Without /proc nothing is known.
        let unknown = LimitFacts {
            mappings: None,
            overcommit: None,
            ..free()
        };
        assert_eq!(judge(&unknown, &root()).len(), 4);
    }

    #[test]
    fn tasks_are_counted_with_their_threads() {
        let user = rustix::process::geteuid().as_raw();
        assert!(tasks_of(user) >= 2, "a test runs on a thread of its own");
        assert_eq!(field("Uid:\t1000\t1000\n", "Uid:"), Some(1000));
    }
}
