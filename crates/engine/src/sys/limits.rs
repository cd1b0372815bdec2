//! Resource limits: the engine must not be affected by the program's, nor the program by the engine.
//!
//! The engine's process inherits the program's limits, set by `ulimit` or by the program: a file size below the swap
//! area's, a number of descriptors, CPU time. The engine raises them as far as the kernel allows, which for root is
//! without bound. Conversely, the engine's mappings are in the program's address space and count towards the
//! program's limits. These limits are raised by the same amount, and the preload object reports the original values.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use super::own_memory::{self, Kind, Own};
use super::syscall::syscall;

/// Limits that would end the engine or make its calls fail.
const OWN: [Resource; 7] = [
    Resource::As,
    Resource::Data,
    Resource::Fsize,
    Resource::Cpu,
    Resource::Memlock,
    Resource::Nproc,
    Resource::Stack,
];
/// Descriptors that the engine may need.
const FILES: u64 = 1024;
/// Reserve for later mappings of the engine, in addition to a sixteenth of the present ones.
const MARGIN: u64 = 32 << 20;

/// Raises the calling process' own limits as far as it may.
pub fn lift_own() {
    let raise = |resource, to: Option<u64>| {
        let limit = |number| Rlimit {
            current: number,
            maximum: number,
        };
        let now = getrlimit(resource);
        if setrlimit(resource, limit(to)).is_err() {
            // Without the privilege: up to the hard limit.
            let _ = setrlimit(resource, limit(now.maximum));
        }
    };
    for resource in OWN {
        raise(resource, None);
    }
    let files = getrlimit(Resource::Nofile).maximum;
    raise(Resource::Nofile, files.map(|most| most.max(FILES)));
}

/// The largest file that the calling process may write, if there is a limit.
pub fn largest_file() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Raises the limits of the process `pid` on address space and data by the engine's mappings in its address space,
/// minus the amounts in `lifted` by which they were raised already. `opened` bytes of the reserved heap are data.
pub fn lift_program(pid: u32, lifted: &[AtomicU64; 2], opened: u64) -> Result<(), Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(Errno::SRCH)?;
    // Remains of a fork are about to be unmapped.
    let sum = |counts: fn(&Own) -> bool| -> u64 {
        let own = own_memory::ranges().filter(|own| !own.inherited && counts(own));
        own.map(|own| own.len as u64).sum()
    };
    // The kernel does not count shared memory as data.
    let data = sum(|own| !matches!(own.kind, Kind::Ledger | Kind::Secret | Kind::Heap)) + opened;
    let own = [(Resource::As, sum(|_| true)), (Resource::Data, data)];
    for ((resource, own), lifted) in own.into_iter().zip(lifted) {
        let before = lifted.load(SeqCst);
        if own > before {
            let more = own + own / 16 + MARGIN - before;
            raise(pid, resource, more)?;
            lifted.store(before + more, SeqCst);
        }
    }
    Ok(())
}

fn raise(pid: Pid, resource: Resource, more: u64) -> Result<(), Errno> {
    let now = of(pid, resource)?;
    let raised = |limit: Option<u64>| limit.map(|limit| limit.saturating_add(more));
    if now.current.is_none() {
        return Ok(());
    }
    let to = Rlimit {
        current: raised(now.current),
        maximum: raised(now.maximum),
    };
    prlimit(Some(pid), resource, to).map(drop)
}

fn of(pid: Pid, resource: Resource) -> Result<Rlimit, Errno> {
    let mut words = [0_u64; 2];
    let (pid, at) = (pid.as_raw_nonzero().get() as usize, &raw mut words);
    // SAFETY: the kernel writes two words.
    unsafe { syscall(k::__NR_prlimit64, [pid, resource as usize, 0, at as usize]) }?;
    let [current, maximum] = words.map(|word| (word != u64::MAX).then_some(word));
    Ok(Rlimit { current, maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_what_the_engine_takes() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "ulimit -S -v 1000000; read nothing"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let pid = Pid::from_child(&child);
        let limit = || of(pid, Resource::As).expect("a limit").current;
        while limit().is_none() {
            std::thread::yield_now();
        }
        let page = own_memory::map(1 << 20, Kind::Other).expect("a mapping");
        let lifted = [const { AtomicU64::new(0) }; 2];
        lift_program(child.id(), &lifted, 0).expect("the right to");
        let by = lifted[0].load(SeqCst);
        assert!(by > MARGIN, "{by}");
        assert_eq!(limit(), Some((1_000_000 << 10) + by));
        assert_eq!(of(pid, Resource::Data).expect("a limit").current, None);
        lift_program(child.id(), &lifted, 0).expect("nothing to do");
        assert_eq!(lifted[0].load(SeqCst), by);
        // SAFETY: mapped above, not in use.
        unsafe { own_memory::unmap(page, 1 << 20) }.expect("an end");
        child.kill().expect("a kill");
        child.wait().expect("its end");
    }
}
