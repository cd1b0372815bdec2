//! The CPUs of threads. A fault costs several times less if the engine thread that serves it is on the CPU of the
//! waiting thread; the engine therefore looks up CPUs, and chooses its own.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::getpriority_process;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::handed;

/// Threads whose descriptors are kept open.
const CACHED: usize = 16;
/// The field `processor` of /proc/PID/stat, counted from the one after the name.
const PROCESSOR: usize = 39 - 3;

/// Restricts the calling thread to `cpus`.
pub fn set_affinity(cpus: impl IntoIterator<Item = usize>) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL);
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
}

/// The CPUs that the calling thread may use.
pub fn allowed() -> Result<Vec<usize>, Errno> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// CPUs on which a thread may run.
#[derive(Clone, Copy, Debug)]
pub struct Cpus(Option<CpuSet>);

impl Cpus {
    /// The CPUs of the calling thread at present.
    pub fn now() -> Self {
        Cpus(sched_getaffinity(None).ok())
    }

    /// Lets thread `tid` of this process run on all of these CPUs, without yielding, whatever the affinity and policy
    /// of its creator. No code watches whether it starves, and others wait for the locks that it holds (also the
    /// kernel's lock of the address space).
    pub fn free(&self, tid: u32) {
        let Some(pid) = i32::try_from(tid).ok().and_then(Pid::from_raw) else {
            return;
        };
        // A thread that is gone needs neither.
        let _ = set_policy(tid, SCHED_OTHER);
        if let Some(set) = &self.0 {
            let _ = sched_setaffinity(Some(pid), set);
        }
    }
}

/// How many CPUs the calling thread may use, at least 1.
pub fn count() -> usize {
    sched_getaffinity(None).map_or(1, |set| (set.count() as usize).max(1))
}

/// The CPU that the calling thread runs on right now.
pub fn current() -> usize {
    sched_getcpu()
}

/// Looks up the last CPUs of a process' threads, and keeps the descriptors of the last few threads open.
#[derive(Debug)]
pub struct LastCpu {
    process: u32,
    threads: [Option<(u32, OwnedFd)>; CACHED],
}

impl LastCpu {
    /// For the threads of `process`, with nothing open yet.
    pub fn new(process: u32) -> Self {
        LastCpu {
            process,
            threads: Default::default(),
        }
    }

    /// The present or last CPU of thread `tid` of the process; `None` if it is gone.
    pub fn of(&mut self, tid: u32) -> Option<usize> {
        let place = &mut self.threads[tid as usize % CACHED];
        if !matches!(place, Some((cached, _)) if *cached == tid) {
            let path = format!("/proc/{}/task/{tid}/stat", self.process);
            let file = handed::open_in_proc(&CString::new(path).ok()?).ok()?;
            *place = Some((tid, file));
        }
        let (_, file) = place.as_ref()?;
        let mut text = [0_u8; 1024];
        let cpu = match rustix::io::pread(file, &mut text, 0) {
            Ok(len) => processor(&text[..len]),
            Err(_) => None,
        };
        if cpu.is_none() {
            *place = None;
        }
        cpu
    }
}

/// The name may contain spaces and parentheses: fields count from the last parenthesis.
fn processor(stat: &[u8]) -> Option<usize> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = core::str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(PROCESSOR)?.parse().ok()
}

/// Makes the calling thread yield its CPU to all other tasks (`SCHED_IDLE`), or stop yielding. The scheduler treats a
/// CPU that only runs such threads as idle. Threads that it starts inherit the policy: see [`Cpus::free`].
///
/// The priority of its I/O would follow: a disk's queue (mq-deadline) would hold its reads back, for up to ten
/// seconds, while any other task has reads. The I/O priority is therefore kept, and a thread that may not set it does
/// not yield.
pub fn set_yielding(yielding: bool) -> Result<(), Errno> {
    if yielding && io_priority()? == 0 {
        set_io_priority(io_priority_of(getpriority_process(None)?))?;
    }
    set_policy(0, if yielding { SCHED_IDLE } else { SCHED_OTHER })
}

/// Thread `tid` of the calling process stops yielding.
pub fn stop_yielding(tid: u32) {
    // A thread that is gone need not.
    let _ = set_policy(tid, SCHED_OTHER);
}

/// Whether thread `tid` of the calling process is runnable and got no CPU time since `before`, its CPU time then in
/// nanoseconds; and its CPU time now.
pub fn is_kept_waiting(tid: u32, before: u64) -> Option<(bool, u64)> {
    let had = handed::read_in_proc(&format!("/proc/self/task/{tid}/schedstat")).ok()?;
    let had = core::str::from_utf8(&had).ok()?;
    let had: u64 = had.split_ascii_whitespace().next()?.parse().ok()?;
    let stat = handed::read_in_proc(&format!("/proc/self/task/{tid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    Some((had == before && stat.get(name_end + 2) == Some(&b'R'), had))
}

const SCHED_OTHER: usize = 0;
const SCHED_IDLE: usize = 5;
const IO_OF_THREAD: usize = 1;
/// The class is above the levels; level 0 goes first and 7 last.
const BEST_EFFORT: usize = 2 << 13;

/// The priority of the calling thread's I/O in the kernel's encoding; 0 if it follows from the policy.
fn io_priority() -> Result<usize, Errno> {
    let number = linux_raw_sys::general::__NR_ioprio_get;
    // SAFETY: the arguments are numbers.
    unsafe { super::syscall::syscall(number, [IO_OF_THREAD, 0]) }
}

/// The kernel's I/O priority for an ordinary thread of this nice value, -20 to 19.
fn io_priority_of(nice: i32) -> usize {
    BEST_EFFORT | ((nice + 20) as usize / 5)
}

fn set_io_priority(priority: usize) -> Result<(), Errno> {
    let number = linux_raw_sys::general::__NR_ioprio_set;
    // SAFETY: the arguments are numbers.
    unsafe { super::syscall::syscall(number, [IO_OF_THREAD, 0, priority]) }.map(drop)
}

/// Of thread `tid`; 0 is the calling one.
fn set_policy(tid: u32, policy: usize) -> Result<(), Errno> {
    let priority = 0_i32;
    let parameter = (&raw const priority) as usize;
    let number = linux_raw_sys::general::__NR_sched_setscheduler;
    // SAFETY: the parameter is one int, as the call says.
    unsafe { super::syscall::syscall(number, [tid as usize, policy, parameter]) }.map(drop)
}

/// The time that a thread was runnable and waited for a CPU.
#[derive(Debug)]
pub struct RunDelay(OwnedFd);

impl RunDelay {
    /// That of the calling thread.
    pub fn of_this_thread() -> Result<Self, Errno> {
        let path = c"/proc/thread-self/schedstat";
        handed::open_in_proc(path).map(Self)
    }

    /// Nanoseconds since the thread began.
    pub fn total(&self) -> Option<u64> {
        let mut text = [0; 96];
        let n = rustix::io::pread(&self.0, &mut text, 0).ok()?;
        let field = text[..n].split(|&byte| byte == b' ').nth(1)?;
        core::str::from_utf8(field).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use rustix::thread::futex;

    use super::*;

    #[test]
    fn the_processor_field_is_found_behind_an_odd_name() {
        let mut stat = b"12 (a) b (c) S".to_vec();
        for field in 4..=44 {
            stat.extend_from_slice(format!(" {field}").as_bytes());
        }
        assert_eq!(processor(&stat), Some(39));
        assert_eq!(processor(b"12 (x) S 1 2"), None);
        assert_eq!(processor(b""), None);
    }

    #[test]
    fn a_pinned_thread_is_found_where_it_was_pinned() {
        let mut last = LastCpu::new(std::process::id());
        for cpu in allowed().expect("allowed") {
            set_affinity([cpu]).expect("pin");
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            assert_eq!(current(), cpu);
            assert_eq!(last.of(tid), Some(cpu));
        }
        assert_eq!(last.of(u32::MAX >> 2), None);
        assert!(count() >= 1);
        assert_eq!(set_affinity([usize::MAX]), Err(Errno::INVAL));
    }

    /// The policy and the CPUs of thread `tid`.
    fn policy_and_cpus(tid: u32) -> (String, String) {
        let read = |name: &str| {
            let path = format!("/proc/self/task/{tid}/{name}");
            std::fs::read_to_string(path).expect("of a thread that runs")
        };
        let (stat, status) = (read("stat"), read("status"));
        // The 41st field, counted after the name.
        let policy = stat[stat.rfind(')').expect("a name") + 2..]
            .split(' ')
            .nth(38);
        let cpus = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"));
        (
            policy.expect("a policy").to_owned(),
            cpus.expect("a mask").to_owned(),
        )
    }

    /// Otherwise a disk's queue would serve other tasks' reads before the reads that threads wait for.
    #[test]
    fn one_that_yields_its_cpu_keeps_the_priority_of_its_io() {
        std::thread::spawn(|| {
            assert_eq!(io_priority(), Ok(0), "what follows from the policy");
            set_yielding(true).expect("yielding is always allowed");
            let nice = getpriority_process(None).expect("of this thread");
            assert_eq!(io_priority(), Ok(io_priority_of(nice)));
            set_io_priority(BEST_EFFORT | 7).expect("lower is allowed");
            set_yielding(true).expect("yielding is always allowed");
            assert_eq!(io_priority(), Ok(BEST_EFFORT | 7), "the user's own");
            let levels = [-20, 0, 19].map(|nice| io_priority_of(nice) - BEST_EFFORT);
            assert_eq!(levels, [0, 4, 7]);
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_thread_of_one_that_yields_and_is_pinned_does_neither() {
        extern "C" fn wait(word: *mut core::ffi::c_void) {
            // SAFETY: the word outlives the thread.
            let word = unsafe { &*word.cast::<AtomicU32>() };
            while word.load(SeqCst) == 0 {
                let _ = futex::wait(word, futex::Flags::PRIVATE, 0, None);
            }
        }
        std::thread::spawn(|| {
            let (home, me) = (Cpus::now(), rustix::thread::gettid().as_raw_nonzero());
            let before = policy_and_cpus(me.get() as u32);
            set_yielding(true).expect("yielding is always allowed");
            set_affinity([current()]).expect("pin");
            let done = AtomicU32::new(0);
            let word = (&raw const done).cast_mut().cast();
            // SAFETY: it waits for the word only, which lives until it has ended.
            let thread = unsafe { super::super::thread::spawn(c"test", 65536, true, wait, word) };
            let thread = thread.expect("a thread");
            home.free(thread.tid());
            assert_eq!(policy_and_cpus(me.get() as u32).0, "5");
            assert_eq!(policy_and_cpus(thread.tid()), before);
            done.store(1, SeqCst);
            let _ = futex::wake(&done, futex::Flags::PRIVATE, 1);
            thread.join();
            home.free(0);
        })
        .join()
        .expect("no panic");
    }
}
