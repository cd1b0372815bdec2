//! The kernel, /proc, and the files of foreswap itself.

use std::fs;
use std::path::PathBuf;

use foreswap::sys::uffd::UffdError;
use rustix::io::Errno;

use super::check::Check;
use super::permission::PermissionFacts;
use super::who::{Place, Who};
use crate::preload::{self, PreloadError};
use crate::program::{self, ProgramError};

/// The first kernel with UFFDIO_MOVE.
const FIRST_KERNEL: (u32, u32) = (6, 8);

/// What is read.
#[derive(Debug)]
pub struct SystemFacts {
    /// As `uname` prints it.
    pub release: String,
    /// The same.
    pub machine: String,
    /// /proc.
    pub proc: ProcFacts,
    /// The calls that engines need and that sandboxes refuse.
    pub calls: Vec<(&'static str, Result<(), Errno>)>,
    /// Whether a seccomp filter is in force.
    pub filtered: bool,
    /// The preload object.
    pub object: Result<PathBuf, PreloadError>,
    /// The system's shell, which stands for its programs.
    pub shell: Result<PathBuf, ProgramError>,
}

/// The parts of /proc that foreswap reads.
#[derive(Clone, Copy, Debug)]
pub struct ProcFacts {
    /// `maps` and `pagemap` of the own process.
    pub own_memory: bool,
    /// Its numbers are those of this pid namespace.
    pub own_namespace: bool,
    /// The memory of the machine.
    pub meminfo: bool,
}

impl SystemFacts {
    /// Of this system.
    pub fn read() -> Self {
        let name = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let opens = |path: &str| fs::File::open(path).is_ok();
        let shown = fs::read_link("/proc/self").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            release: text(name.release()),
            machine: text(name.machine()),
            proc: ProcFacts {
                own_memory: opens("/proc/thread-self/maps") && opens("/proc/thread-self/pagemap"),
                own_namespace: shown.as_os_str() == std::process::id().to_string().as_str(),
                meminfo: opens("/proc/meminfo"),
            },
            calls: tried_calls(),
            filtered: status.lines().any(|line| line == "Seccomp:\t2"),
            object: preload::find(),
            shell: program::find("sh".as_ref(), &program::search_path()),
        }
    }
}

/// Calls without an effect.
fn tried_calls() -> Vec<(&'static str, Result<(), Errno>)> {
    const KCMP_VM: libc::c_long = 1;
    let us = rustix::process::getpid();
    let raw = libc::c_long::from(us.as_raw_nonzero().get());
    let most = libc::c_long::from(u32::MAX);
    let called = |result: libc::c_long| match result {
        -1 => {
            let errno = std::io::Error::last_os_error().raw_os_error();
            Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)))
        }
        _ => Ok(()),
    };
    let pidfd = rustix::process::pidfd_open(us, rustix::process::PidfdFlags::empty());
    let memory = rustix::fs::memfd_create(c"foreswap", rustix::fs::MemfdFlags::CLOEXEC);
    // SAFETY: no descriptor has this number.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, most, most, 0) };
    let closed = called(closed);
    // SAFETY: it compares this process with itself.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, raw, raw, KCMP_VM, 0, 0) };
    vec![
        ("pidfd_open", pidfd.map(drop)),
        ("memfd_create", memory.map(drop)),
        ("close_range", closed),
        ("kcmp", called(compared)),
    ]
}

/// The checks of this file. The kernel's features are known from the attempt to get a userfaultfd.
pub fn judge(facts: &SystemFacts, permission: &PermissionFacts, who: &Who) -> Vec<Check> {
    let mut checks = vec![
        kernel(facts, permission),
        proc(facts.proc),
        calls(facts, who),
    ];
    // Without /proc, foreswap does not find its own place.
    if facts.proc.own_memory || !matches!(facts.object, Err(PreloadError::Lost(_))) {
        checks.push(object(&facts.object));
    }
    checks.push(shell(&facts.shell));
    checks
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel(facts: &SystemFacts, permission: &PermissionFacts) -> Check {
    let here = format!("Linux {} on {}", facts.release, facts.machine);
    let why = "foreswap moves pages in and out with userfaultfd's UFFDIO_MOVE (Linux 6.8).";
    let boot = |check: Check| {
        check.remedy(
            "as root, then reboot into the new kernel (Debian 12)",
            ["apt-get install -t bookworm-backports linux-image-amd64"],
        )
    };
    let check = match &permission.opened {
        Ok(()) => Check::ok("kernel", format!("{here}, all features")),
        Err(UffdError::FeatureMissing { .. } | UffdError::NoSupport) => {
            let error = permission.opened.as_ref().err();
            let error = error.map(ToString::to_string).unwrap_or_default();
            boot(Check::failure("kernel", format!("{here}: {error}"), why))
        }
        // Not asked, but the version tells.
        Err(_) => match version(&facts.release) {
            Some(version) if version < FIRST_KERNEL => boot(Check::failure("kernel", here, why)),
            _ => Check::ok("kernel", here),
        },
    };
    check
        .fact("release", facts.release.as_str())
        .fact("machine", facts.machine.as_str())
}

fn proc(facts: ProcFacts) -> Check {
    let check = if !facts.own_memory {
        Check::failure(
            "proc",
            "/proc is not mounted, or hides this process",
            "Engines read the maps and the pagemap of their process there.",
        )
        .remedy("as root", ["mount -t proc proc /proc"])
    } else if !facts.own_namespace {
        Check::warning(
            "proc",
            "/proc is that of another pid namespace",
            "Memory that is not managed cannot be looked at, and --strict refuses to run.",
        )
        .remedy("as root, in this namespace", ["mount -t proc proc /proc"])
    } else if !facts.meminfo {
        Check::warning(
            "proc",
            "/proc/meminfo cannot be read (mounted with subset=pid?)",
            "`--memory auto` does not see how much memory the machine has to spare.",
        )
        .remedy("as root", ["mount -t proc proc /proc"])
    } else {
        Check::ok("proc", "mounted, with all that foreswap reads")
    };
    check
        .fact("own_memory", facts.own_memory)
        .fact("own_pid_namespace", facts.own_namespace)
        .fact("meminfo", facts.meminfo)
}

/// What a container is told to stop filtering.
pub fn unfiltered(check: Check, who: &Who, calls: &str) -> Check {
    match who.place {
        Place::Kubernetes => check.remedy(
            &format!("in the pod's spec; or a profile of type Localhost that allows {calls}"),
            ["securityContext: {seccompProfile: {type: Unconfined}}"],
        ),
        Place::Container => check.remedy(
            &format!("where the container is started; or with a profile that allows {calls}"),
            ["docker run --security-opt seccomp=unconfined IMAGE"],
        ),
        Place::Machine => check.remedy(
            &format!("in the unit of a service; or allow {calls} in your sandbox's profile"),
            ["SystemCallFilter="],
        ),
    }
}

fn calls(facts: &SystemFacts, who: &Who) -> Check {
    let refused = facts.calls.iter().filter(|(_, result)| result.is_err());
    let refused: Vec<&str> = refused.map(|(name, _)| *name).collect();
    let filter = match facts.filtered {
        true => "a seccomp filter is in force",
        false => "no seccomp filter",
    };
    let check = match refused.as_slice() {
        [] => Check::ok(
            "seccomp",
            match facts.filtered {
                true => format!("{filter}; it allows what engines call"),
                false => filter.to_owned(),
            },
        ),
        ["kcmp"] => unfiltered(
            Check::note(
                "seccomp",
                format!("{filter}; kcmp(2) is refused"),
                "Engines notice later that their program executes another one.",
            ),
            who,
            "kcmp",
        ),
        names => unfiltered(
            Check::failure(
                "seccomp",
                format!("{filter}; refused: {}", names.join(", ")),
                "An engine cannot start without these system calls.",
            ),
            who,
            &names.join(", "),
        ),
    };
    let filtered = facts.filtered;
    check
        .fact("filtered", filtered)
        .fact("refused_calls", refused)
}

fn object(object: &Result<PathBuf, PreloadError>) -> Check {
    match object {
        Ok(path) => {
            let path = path.display().to_string();
            Check::ok("preload", format!("{path} is there")).fact("path", path)
        }
        Err(error) => {
            let check = Check::failure(
                "preload",
                error.to_string(),
                "Every managed program loads this object.",
            );
            match error {
                PreloadError::NotFound { .. } => check
                    .remedy("in the folder of foreswap's sources", ["make build"])
                    .remedy(
                        "where the object lies elsewhere",
                        ["export FORESWAP_PRELOAD=/path/to/libforeswap_preload.so"],
                    ),
                PreloadError::Unspeakable(_) | PreloadError::Lost(_) => check.remedy(
                    "with a copy of the object",
                    ["export FORESWAP_PRELOAD=/path/to/libforeswap_preload.so"],
                ),
            }
        }
    }
}

fn shell(shell: &Result<PathBuf, ProgramError>) -> Check {
    match shell {
        Ok(path) => Check::ok(
            "programs",
            format!("{} can be managed (dynamic, glibc)", path.display()),
        ),
        Err(error @ ProgramError::Unmanageable { .. }) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Check::warning(
                "programs",
                first,
                "Programs of this system probably cannot be managed: foreswap needs glibc.",
            )
            .remedy(
                "with an image that has glibc",
                ["docker run --device /dev/userfaultfd debian:stable"],
            )
        }
        Err(error) => Check::note(
            "programs",
            error.to_string(),
            "Commands are looked up in PATH.",
        ),
    }
}

#[cfg(test)]
#[path = "system_tests.rs"]
mod tests;
