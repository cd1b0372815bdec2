//! io_uring, or the reason for which threads take its place.
//!
//! The attempt is the one of an engine: a ring of its depth, after its limit for locked memory has been raised as far
//! as it may. Newer kernels (6.18 is one) charge the ring to that limit.

use std::fs;

use foreswap::IO_DEPTH;
use foreswap_store::ring::{Uring, UringUnavailable};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

use super::check::Check;
use super::limits::raised_by_root;
use super::system::unfiltered;
use super::who::Who;
use crate::size::humane;

/// Bytes of locked memory for the rings of hundreds of engines.
const ENOUGH: &str = "8388608";
/// Measured 2026-11-28 on two CPUs (`foreswap run --io`, 256 MiB in 64 MiB).
const COST: &str = "Four threads transfer the pages instead: sequential access is as fast, random \
                    faults take 1.2 to 2.2 times as long.";

/// What is read.
#[derive(Clone, Debug)]
pub struct IoFacts {
    /// The attempt.
    pub ring: Result<(), UringUnavailable>,
    /// `kernel.io_uring_disabled`.
    pub disabled: Option<u8>,
    /// The hard limit of locked memory, in bytes.
    pub lockable: Option<u64>,
}

impl IoFacts {
    /// Of this process.
    pub fn read() -> Self {
        let limit = getrlimit(Resource::Memlock);
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        let _ = setrlimit(Resource::Memlock, raised);
        let ring = Uring::new(&[], IO_DEPTH).map(drop);
        let _ = setrlimit(Resource::Memlock, limit);
        let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        Self {
            ring,
            disabled: disabled.and_then(|text| text.trim().parse().ok()),
            lockable: limit.maximum,
        }
    }
}

/// The check of this file.
pub fn judge(facts: &IoFacts, who: &Who) -> Vec<Check> {
    let check = match &facts.ring {
        Ok(()) => Check::ok("io_uring", "permitted"),
        Err(refusal) => refused(refusal, facts, who),
    };
    vec![
        check
            .fact("available", facts.ring.is_ok())
            .fact("io_uring_disabled", facts.disabled),
    ]
}

fn refused(refusal: &UringUnavailable, facts: &IoFacts, who: &Who) -> Check {
    let warning = |found: String| Check::warning("io_uring", found, COST);
    match Errno::from_raw_os_error(refusal.errno.clamp(1, 4095)) {
        Errno::PERM | Errno::ACCESS => {
            let by_sysctl = match facts.disabled {
                Some(2) => true,
                Some(1) => !who.may(CapabilitySet::SYS_ADMIN),
                _ => false,
            };
            if by_sysctl {
                let value = facts.disabled.unwrap_or_default();
                warning(format!("refused by kernel.io_uring_disabled = {value}")).remedy(
                    "as root, until the next boot (for good: a file in /etc/sysctl.d)",
                    ["sysctl -w kernel.io_uring_disabled=0"],
                )
            } else {
                let calls = "io_uring_setup, io_uring_enter, io_uring_register";
                unfiltered(
                    warning("refused by a seccomp filter".to_owned()),
                    who,
                    calls,
                )
            }
        }
        Errno::NOMEM => {
            let limit = facts.lockable.map_or("no limit".to_owned(), humane);
            let warning = warning(format!(
                "refused: no memory for its ring (RLIMIT_MEMLOCK: {limit})"
            ));
            raised_by_root(warning, who, "memlock", ENOUGH)
        }
        Errno::NOSYS => warning("not in this kernel (CONFIG_IO_URING)".to_owned()),
        _ => warning(refusal.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::super::who::Place;
    use super::super::who::tests::{contained, ordinary, root};
    use super::*;

    fn facts(errno: Errno, disabled: u8) -> IoFacts {
        IoFacts {
            ring: Err(UringUnavailable {
                errno: errno.raw_os_error(),
            }),
            disabled: Some(disabled),
            lockable: Some(4096),
        }
    }

    fn first(facts: &IoFacts, who: &Who) -> (String, String) {
        let checks = judge(facts, who);
        assert_eq!(checks[0].verdict, Verdict::Warning);
        assert!(checks[0].why.contains("threads"));
        let commands = &checks[0].remedies[0].commands;
        (checks[0].found.clone(), commands[0].clone())
    }

    #[test]
    fn who_refused_it() {
        let (found, remedy) = first(&facts(Errno::PERM, 2), &root());
        assert!(found.contains("io_uring_disabled = 2"), "{found}");
        assert_eq!(remedy, "sysctl -w kernel.io_uring_disabled=0");
        // 1 is for users without CAP_SYS_ADMIN.
        let (_, remedy) = first(&facts(Errno::PERM, 1), &ordinary());
        assert_eq!(remedy, "sysctl -w kernel.io_uring_disabled=0");
        let (found, _) = first(&facts(Errno::PERM, 1), &root());
        assert!(found.contains("seccomp"), "{found}");
        let (_, remedy) = first(&facts(Errno::PERM, 0), &contained(Place::Container));
        assert!(remedy.contains("--security-opt"), "{remedy}");
        let (found, remedy) = first(&facts(Errno::NOMEM, 0), &ordinary());
        assert!(found.contains("4 KiB"), "{found}");
        assert!(remedy.contains("--memlock"), "{remedy}");
    }
}
