//! Limits on resources that the engine must not be caught in, nor the program because of it.
//!
//! The engine's process inherits what the program was given by `ulimit` or gave itself: a size of files that the swap
//! area exceeds, a number of descriptors, a time of the processor. It goes as far beyond as the kernel lets it, which
//! for root is all the way. The other way round what the engine maps is in the program's address space
//! and would count as the program's: the program's own limits are raised by as much, and the preload object shows them
//! as they were set.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use super::own_memory::{self, Kind, Own};
use super::syscall::syscall;

/// Limits that end or refuse what the engine does.
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
/// What the engine may map later, beside a sixteenth of what it has.
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
            // Without the privilege: as far as anybody may.
            let _ = setrlimit(resource, limit(now.maximum));
        }
    };
    for resource in OWN {
        raise(resource, None);
    }
    let files = getrlimit(Resource::Nofile).maximum;
    raise(Resource::Nofile, files.map(|most| most.max(FILES)));
}

/// The largest file that the calling process may write, if that is limited.
pub fn largest_file() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Raises what the process `pid` may map at all, and as data, by what the engine has mapped in its address space beyond the
/// bytes that `lifted` says these limits were raised by already. Of its heap, which is reserved, `opened` bytes are data.
pub fn lift_program(pid: u32, lifted: &[AtomicU64; 2], opened: u64) -> Result<(), Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(Errno::SRCH)?;
    // What a fork has left is about to be unmapped.
    let sum = |counts: fn(&Own) -> bool| -> u64 {
        let own = own_memory::ranges().filter(|own| !own.inherited && counts(own));
        own.map(|own| own.len as u64).sum()
    };
    // What is shared is no data to the kernel.
    let data = sum(|own| !matches!(own.kind, Kind::Ledger | Kind::Heap)) + opened;
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
        // SAFETY: mapped above, used by nobody.
        unsafe { own_memory::unmap(page, 1 << 20) }.expect("an end");
        child.kill().expect("a kill");
        child.wait().expect("its end");
    }
}
