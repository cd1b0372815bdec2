//! The watcher: an engine thread that wakes the pager when other processes need memory, and that ends the process
//! with a message if the pager hangs.
//!
//! The pager must never touch managed memory: it would wait for itself. No other code would notice, so the watcher
//! checks the pager's pulse. The pager hangs if its loop stays in one turn while it sleeps in the kernel's handling
//! of a userfaultfd fault.
//!
//! A pager that yields its CPU to all tasks does not notice that it never runs on a busy CPU. The watcher notices,
//! and makes the pager stop yielding. The pager measures its wait, and does not yield again for a while
//! (`placement`).

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use super::Pager;
use crate::ledger::Ledger;
use crate::ledger::protocol::{Client, Severity};
use crate::program::Program;
use crate::sys::cpu::{is_kept_waiting, stop_yielding};
use crate::sys::host::Host;
use crate::sys::{handed, thread};

/// How often the pulse is checked.
const PERIOD: Duration = Duration::from_millis(500);
/// The same for a pager with pending work: it may be kept from its CPU.
const SOON: Duration = Duration::from_millis(100);
/// Checks that find the same turn asleep before the process is ended.
const LOOKS: u32 = 8;

/// Signs of life of the pager.
#[derive(Default)]
pub(crate) struct Pulse {
    turn: AtomicU64,
    asleep: AtomicBool,
    tid: AtomicU32,
}

impl Pulse {
    /// The loop begins, on this thread.
    pub(crate) fn begin(&self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.tid.store(tid.cast_unsigned(), SeqCst);
    }

    /// The loop waits for an event.
    pub(crate) fn sleep(&self) {
        self.asleep.store(true, Relaxed);
    }

    /// An event arrived.
    pub(crate) fn wake(&self) {
        self.turn.fetch_add(1, Relaxed);
        self.asleep.store(false, Relaxed);
    }
}

struct Watch {
    pulse: Arc<Pulse>,
    program: &'static Program,
    ledger: &'static Ledger,
    bell: OwnedFd,
    host: Host,
}

/// Start the watcher of `pager`, which serves `host`.
pub(crate) fn start(pager: &Pager, host: Host) -> Result<(), Errno> {
    watch(Watch {
        pulse: Arc::clone(&pager.pulse),
        program: pager.program,
        ledger: pager.w.ledger,
        bell: rustix::io::dup(&pager.bell)?,
        host,
    })
}

fn watch(watch: Watch) -> Result<(), Errno> {
    let argument = Box::into_raw(Box::new(watch)).cast::<c_void>();
    // SAFETY: `work` keeps to the rules for engine threads and gets its argument alone.
    let spawned = unsafe { thread::spawn(c"fs-watch", 64 << 10, true, work, argument) };
    spawned.map(drop)
}

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `start` made the pointer from a box and gave it to this thread alone.
    let watch = unsafe { Box::from_raw(argument.cast::<Watch>()) };
    let mut pressure = watch.ledger.pressure();
    let (mut last, mut looks) = (u64::MAX, 0);
    let (mut had, mut next) = (u64::MAX, Instant::now() + PERIOD);
    loop {
        let pulse = &watch.pulse;
        let is_busy = !pulse.asleep.load(Relaxed);
        let seen = watch
            .ledger
            .wait_pressure(pressure, if is_busy { SOON } else { PERIOD });
        let tid = pulse.tid.load(Relaxed);
        if is_busy && tid != 0 {
            let found = is_kept_waiting(tid, had);
            had = found.map_or(u64::MAX, |(_, had)| had);
            if let Some((true, _)) = found {
                stop_yielding(tid);
            }
        }
        if seen != pressure {
            pressure = seen;
            let _ = rustix::io::write(watch.bell.as_fd(), &1u64.to_ne_bytes());
            continue;
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + PERIOD;
        let turn = pulse.turn.load(Relaxed);
        let stuck =
            turn == last && tid != 0 && !pulse.asleep.load(Relaxed) && waits_for_a_page(tid);
        last = turn;
        looks = if stuck { looks + 1 } else { 0 };
        if looks >= LOOKS {
            let text = format!(
                "the pager thread (tid {tid}) of process {} waits inside the kernel, most likely for a page that only it could bring; the process is ended",
                watch.host.pid()
            );
            // Without a supervisor there is no receiver.
            let _ = Client::connect(&watch.program.socket_name())
                .and_then(|client| client.log(Severity::Error, &text));
            watch.host.abort();
        }
    }
}

/// Whether a thread of the engine sleeps in the kernel for a page of a userfaultfd. It may sleep any time for a slow
/// disk, for memory or for a lock.
fn waits_for_a_page(tid: u32) -> bool {
    let place = handed::read_in_proc(&format!("/proc/self/task/{tid}/wchan"));
    match place.as_deref() {
        Ok(b"handle_userfault") => true,
        // Not every kernel reports it.
        Ok(b"" | b"0") | Err(_) => is_asleep(tid),
        Ok(_) => false,
    }
}

/// Whether a thread of the engine sleeps in the kernel, by the state in its stat line.
fn is_asleep(tid: u32) -> bool {
    let Ok(stat) = handed::read_in_proc(&format!("/proc/self/task/{tid}/stat")) else {
        return false;
    };
    let after_name = stat.iter().rposition(|&b| b == b')').map_or(0, |at| at + 2);
    matches!(stat.get(after_name), Some(b'S' | b'D'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use foreswap_core::ReclaimPolicy;

    use super::super::panic::tests::logged_error;
    use super::*;
    use crate::ledger::protocol;
    use crate::ledger::{IoBackend, LedgerSpec, Options, ReadaheadPolicy, ThpMode};
    use crate::sys::arena_alloc::EngineAlloc;
    use crate::sys::cpu;
    use crate::sys::own_memory::{self, Kind};
    use crate::sys::uffd::{Features, Uffd};

    static HEAP: EngineAlloc = EngineAlloc::new();
    static PROGRAM: Program = Program::new(&HEAP);
    /// Marks the test's own process as the victim.
    const VICTIM: &str = "FORESWAP_WATCH_VICTIM";

    fn ledger() -> &'static Ledger {
        let options = Options {
            readahead: ReadaheadPolicy::None,
            reclaim: ReclaimPolicy::Clock,
            thp: ThpMode::Never,
            helpers: 0,
            io: IoBackend::Threads,
            max_window: 1,
            full_timeout: Duration::from_secs(1),
            adopt_threshold: 1 << 20,
        };
        let spec = LedgerSpec {
            limit_pages: 1000,
            options,
            areas: Vec::new(),
        };
        Box::leak(Box::new(Ledger::create(&spec).expect("a ledger")))
    }

    /// The pulse of a pager of this process that starts later.
    fn watched() -> Arc<Pulse> {
        let pulse = Arc::new(Pulse::default());
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        watch(Watch {
            pulse: Arc::clone(&pulse),
            program: &PROGRAM,
            ledger: ledger(),
            bell: bell.expect("an eventfd"),
            host: Host::open(std::process::id()).expect("this process"),
        })
        .expect("the watcher");
        pulse
    }

    /// A thread that poses as the pager, and touches a page that never arrives.
    fn suffer(socket: &str) {
        assert!(PROGRAM.configure(socket.as_bytes(), 0));
        let uffd = Uffd::open(Features::empty()).expect("a userfaultfd");
        let page = own_memory::map(4096, Kind::Other).expect("a page").as_ptr() as usize;
        uffd.register_missing(page, 4096).expect("registered");
        let pulse = watched();
        let pager = std::thread::spawn(move || {
            pulse.begin();
            pulse.sleep();
            // Longer than the watcher's patience: a pager that waits for work is not ended.
            std::thread::sleep(PERIOD * (LOOKS + 2));
            pulse.wake();
            // Nor is a pager that the kernel blocks for another reason.
            std::thread::sleep(PERIOD * (LOOKS + 2));
            println!("awake");
            // SAFETY: the page is mapped.
            unsafe { (page as *const u8).read_volatile() }
        });
        // Long enough for the watcher; if it does nothing, the process exits normally.
        std::thread::sleep(PERIOD * LOOKS * 5);
        drop((pager, uffd));
    }

    /// Beside threads that always have work, a pager that yields to all tasks would wait for seconds.
    #[test]
    fn a_pager_that_gets_no_cpu_yields_no_more() {
        let cpu = cpu::allowed().expect("CPUs")[0];
        let pulse = watched();
        let over = Arc::new(AtomicBool::new(false));
        let others: Vec<_> = (0..4)
            .map(|_| {
                let over = Arc::clone(&over);
                std::thread::spawn(move || {
                    cpu::set_affinity([cpu]).expect("pinned");
                    while !over.load(Relaxed) {
                        core::hint::spin_loop();
                    }
                })
            })
            .collect();
        let pager = std::thread::spawn(move || {
            cpu::set_affinity([cpu]).expect("pinned");
            cpu::set_yielding(true).expect("it yields");
            pulse.begin();
            let began = Instant::now();
            // SAFETY: the calling thread's policy.
            while unsafe { libc::sched_getscheduler(0) } == libc::SCHED_IDLE {
                assert!(began.elapsed() < Duration::from_secs(20), "it still yields");
            }
            pulse.sleep();
        });
        let ended = pager.join();
        over.store(true, Relaxed);
        for other in others {
            other.join().expect("an end");
        }
        ended.expect("it runs");
    }

    #[test]
    fn a_pager_that_waits_for_itself_ends_the_process_with_a_word() {
        if let Ok(socket) = std::env::var(VICTIM) {
            return suffer(&socket);
        }
        let socket = format!("foreswap-watch-test-{}", std::process::id());
        let listener = protocol::listen(&socket).expect("a socket");
        let test = "a_pager_that_waits_for_itself_ends_the_process_with_a_word";
        let exe = std::env::current_exe().expect("the test knows its own path");
        let output = Command::new(exe)
            .args([test, "--nocapture"])
            .env(VICTIM, &socket)
            .output()
            .expect("the victim ran");
        assert_eq!(output.status.signal(), Some(6), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("awake"), "ended too early: {text}");

        let text = logged_error(&listener);
        assert!(
            text.starts_with("the pager thread (tid ") && text.contains("waits inside the kernel"),
            "{text}"
        );
    }
}
