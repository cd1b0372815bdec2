//! What the kernel charges on this machine for what the engine does all day: `cargo run --release
//! --example uffd_costs`. Prints medians and judges nothing.
//!
//! A fault is timed by the thread that waits, from the read to its value, with an engine thread
//! (raw clone, poll, read, ioctl) serving it from the same CPU, from another, or from where the
//! scheduler likes. Moves are timed around the ioctl.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{null_mut, without_provenance, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use foreswap::sys::cpu::{self, LastCpu};
use foreswap::sys::doorbell::{Doorbell, Knock};
use foreswap::sys::maps::{self, PageMap};
use foreswap::sys::thread::spawn;
use foreswap::sys::uffd::{Event, Features, RawMsg, Uffd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;
const PAGES: usize = 8192;
const ANYWHERE: usize = usize::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Copy,
    Move,
}

struct Engine {
    uffd: Uffd,
    bell: Doorbell,
    how: How,
    cpu: usize,
    frames: usize,
    served: AtomicUsize,
    stop: AtomicBool,
    spin: bool,
}

fn map(pages: usize) -> usize {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    let at = unsafe { mmap_anonymous(null_mut(), pages * PAGE, prot, flags) }.expect("mmap");
    // SAFETY: the mapping just made.
    unsafe { madvise(at, pages * PAGE, Advice::LinuxNoHugepage) }.expect("madvise");
    at as usize
}

fn fill(at: usize, pages: usize) {
    for page in 0..pages {
        // SAFETY: callers pass mappings of their own.
        unsafe { without_provenance_mut::<u8>(at + page * PAGE).write_volatile(1) };
    }
}

extern "C" fn serve(at: *mut c_void) {
    // SAFETY: the engine is leaked.
    let engine = unsafe { &*at.cast::<Engine>() };
    if engine.cpu != ANYWHERE {
        cpu::set_affinity([engine.cpu]).expect("pin");
    }
    let mut buffer = [RawMsg::ZERO; 16];
    while !engine.stop.load(Ordering::Relaxed) {
        if !engine.spin {
            let mut fds = [PollFd::new(&engine.uffd, PollFlags::IN)];
            let wait = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let _ = poll(&mut fds, Some(&wait));
        }
        for event in engine.uffd.read(&mut buffer).expect("read") {
            let Event::Fault { addr, .. } = event else {
                continue;
            };
            match engine.bell.on_fault(&engine.uffd, addr) {
                Knock::Call(slot) => {
                    let request = engine.bell.request(slot);
                    engine
                        .bell
                        .answer(&engine.uffd, slot, request)
                        .expect("answer");
                    continue;
                }
                Knock::Nothing => continue,
                Knock::Elsewhere => {}
            }
            let turn = engine.served.fetch_add(1, Ordering::Relaxed);
            let frame = engine.frames + turn % PAGES * PAGE;
            // SAFETY: frames are this thread's alone; the faulting page is absent.
            let result = unsafe {
                match engine.how {
                    How::Copy => {
                        let source = without_provenance(frame);
                        engine.uffd.copy(addr, source, PAGE)
                    }
                    How::Move => engine.uffd.move_pages(addr, frame, PAGE, false),
                }
            };
            result.expect("serve");
        }
    }
}

fn median(mut times: Vec<u64>) -> (f64, f64) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100] as f64 / 1000.0;
    (at(50), at(99))
}

fn faults(how: How, program: usize, engine_cpu: usize, spin: bool, name: &str) {
    let uffd = Uffd::open(Features::MOVE).expect("userfaultfd");
    let bell = Doorbell::new(&uffd).expect("doorbell");
    let (area, frames) = (map(PAGES), map(PAGES));
    fill(frames, PAGES);
    uffd.register_missing(area, PAGES * PAGE).expect("register");
    let engine = &*Box::leak(Box::new(Engine {
        uffd,
        bell,
        how,
        cpu: engine_cpu,
        frames,
        served: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        spin,
    }));
    let everywhere = cpu::allowed().expect("affinity");
    if program != ANYWHERE {
        cpu::set_affinity([program]).expect("pin");
    }
    let at = (&raw const *engine).cast_mut().cast();
    // SAFETY: the engine is leaked and what it shares is atomic.
    let thread = unsafe { spawn(c"costs", 256 << 10, true, serve, at) }.expect("spawn");
    let mut times = Vec::with_capacity(PAGES);
    for page in 0..PAGES {
        let start = Instant::now();
        // SAFETY: a page of this function's mapping.
        black_box(unsafe { without_provenance::<u8>(area + page * PAGE).read_volatile() });
        times.push(start.elapsed().as_nanos() as u64);
    }
    let (p50, p99) = median(times);
    println!("fault by {how:?}, {name}: median {p50:.1} us, p99 {p99:.1} us");
    if how == How::Move {
        let ring = engine.bell.ring();
        let mut times = Vec::with_capacity(PAGES);
        for call in 0..PAGES as u64 {
            let start = Instant::now();
            black_box(ring.call([call; 4]));
            times.push(start.elapsed().as_nanos() as u64);
        }
        let (p50, p99) = median(times);
        println!("doorbell round trip, {name}: median {p50:.1} us, p99 {p99:.1} us");
    }
    engine.stop.store(true, Ordering::Relaxed);
    thread.join();
    cpu::set_affinity(everywhere).expect("unpin");
}

fn moves(batch: usize) {
    let uffd = Uffd::open(Features::MOVE).expect("userfaultfd");
    let (area, frames) = (map(PAGES), map(PAGES));
    uffd.register_missing(frames, PAGES * PAGE)
        .expect("register");
    fill(area, PAGES);
    let mut times = Vec::new();
    for first in (0..PAGES).step_by(batch) {
        let (dst, src) = (frames + first * PAGE, area + first * PAGE);
        let start = Instant::now();
        // SAFETY: both ranges are this function's.
        unsafe { uffd.move_pages(dst, src, batch * PAGE, false) }.expect("move");
        times.push(start.elapsed().as_nanos() as u64);
    }
    let (p50, p99) = median(times);
    let each = p50 / batch as f64;
    println!("MOVE of {batch} pages: median {p50:.2} us ({each:.3} us per page), p99 {p99:.2} us");
}

fn lookups() {
    let mut last = LastCpu::new(std::process::id());
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let times = |mut work: Box<dyn FnMut()>| {
        let one = |work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos() as u64
        };
        median((0..2000).map(|_| one(&mut work)).collect())
    };
    let (p50, p99) = times(Box::new(move || {
        black_box(last.of(tid));
    }));
    println!("last CPU of a thread: median {p50:.2} us, p99 {p99:.2} us");
    let (p50, p99) = times(Box::new(|| {
        black_box(maps::read().expect("maps"));
    }));
    println!("the whole map: median {p50:.2} us, p99 {p99:.2} us");
    let area = map(PAGES);
    fill(area, PAGES);
    let mut pagemap = PageMap::open().expect("pagemap");
    let mut runs = Vec::new();
    let (p50, p99) = times(Box::new(move || {
        runs.clear();
        pagemap
            .runs(area, area + PAGES * PAGE, &mut runs)
            .expect("runs");
    }));
    println!("presence of {PAGES} pages: median {p50:.2} us, p99 {p99:.2} us");
}

fn main() {
    let cpus = cpu::allowed().expect("affinity");
    let (first, other) = (cpus[0], cpus[cpus.len() - 1]);
    for how in [How::Copy, How::Move] {
        faults(how, first, first, false, "same CPU");
        faults(how, first, other, false, "other CPU");
        faults(
            how,
            first,
            other,
            true,
            "other CPU, engine polling without sleep",
        );
        faults(how, ANYWHERE, ANYWHERE, false, "unpinned");
    }
    for batch in [1, 64, 512] {
        moves(batch);
    }
    lookups();
}
