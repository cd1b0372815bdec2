//! The map and the page map of this very process.

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use foreswap::sys::maps::{self, PageMap, Run};
use foreswap::sys::own_memory;
use foreswap::sys::thread::spawn;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;

fn map(bytes: usize) -> usize {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    unsafe { mmap_anonymous(null_mut(), bytes, prot, flags) }.expect("mmap") as usize
}

fn advise(at: usize, bytes: usize, advice: Advice) {
    // SAFETY: callers pass mappings of their own that nothing points into.
    unsafe { madvise(without_provenance_mut::<c_void>(at), bytes, advice) }.expect("madvise");
}

fn poke(at: usize) {
    // SAFETY: callers pass addresses in mappings of their own.
    unsafe { without_provenance_mut::<u8>(at).write_volatile(1) };
}

fn page_runs(map: &mut PageMap, at: usize, bytes: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    map.runs(at, at + bytes, &mut runs).expect("runs");
    runs
}

#[test]
fn a_fresh_mapping_is_adoptable_and_our_own_is_not() {
    let area = map(3 << 20);
    let own = own_memory::map(3 << 20, own_memory::Kind::Other).expect("own");
    let exclude: Vec<_> = own_memory::ranges()
        .map(|own| own.start..own.start + own.len)
        .collect();
    let pieces = maps::adoptable(&maps::read().expect("maps"), 1 << 20, &exclude);
    let holds = |at: usize| pieces.iter().any(|vma| (vma.start..vma.end).contains(&at));
    assert!(holds(area) && holds(area + (3 << 20) - 1));
    let ours = own.as_ptr() as usize;
    assert!(!holds(ours) && !holds(ours + (3 << 20) - 1));
    let on_stack = 0_u8;
    // Tests run on threads with stacks of their own, which are ordinary memory.
    assert!(holds(&raw const on_stack as usize));
    let (code, data) = (map as *const () as usize, &raw const exclude as usize);
    assert!(!holds(code) && data != 0);
}

#[test]
fn present_pages_come_in_runs_by_either_interface() {
    let area = map(2000 * PAGE);
    advise(area, 2000 * PAGE, Advice::LinuxNoHugepage);
    // Every other page at first, more runs than one batch; then a long run.
    let mut expected = Vec::new();
    let run = |from: usize, to: usize| Run {
        start: area + from * PAGE,
        end: area + to * PAGE,
        swapped: false,
        huge: false,
        zero: false,
        guard: false,
    };
    for page in (0..1400).step_by(2) {
        poke(area + page * PAGE);
        expected.push(run(page, page + 1));
    }
    for page in 1500..1990 {
        poke(area + page * PAGE);
    }
    expected.push(run(1500, 1990));
    for mut pagemap in [PageMap::open(), PageMap::open_without_scan()].map(|map| map.expect("open"))
    {
        assert_eq!(page_runs(&mut pagemap, area, 2000 * PAGE), expected);
        assert_eq!(page_runs(&mut pagemap, area + 1990 * PAGE, 10 * PAGE), []);
        let inside = page_runs(&mut pagemap, area + 1600 * PAGE, PAGE);
        assert_eq!(inside, [run(1600, 1601)]);
    }
}

#[test]
fn huge_and_zero_pages_are_told() {
    const HUGE: usize = 2 << 20;
    let area = map(3 * HUGE).next_multiple_of(HUGE);
    advise(area, HUGE, Advice::LinuxHugepage);
    advise(area + HUGE, HUGE, Advice::LinuxNoHugepage);
    poke(area);
    // SAFETY: the mapping is this test's.
    let zero = unsafe { without_provenance_mut::<u8>(area + HUGE).read_volatile() };
    assert_eq!(zero, 0);
    let runs = page_runs(&mut PageMap::open().expect("open"), area, 2 * HUGE);
    let zero = Run {
        start: area + HUGE,
        end: area + HUGE + PAGE,
        swapped: false,
        huge: false,
        zero: true,
        guard: false,
    };
    assert_eq!(runs.last(), Some(&zero));
    // Whether a huge page was to be had is the machine's affair; if so it is one run.
    if runs[0].end - runs[0].start == HUGE {
        assert!(runs[0].huge);
    }
}

extern "C" fn read_map(at: *mut c_void) {
    // SAFETY: the test passed this counter and joins the thread.
    let found = unsafe { &*at.cast::<AtomicUsize>() };
    let target = found.load(Ordering::Relaxed);
    // SAFETY: the table is this thread's own.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
    let vmas = maps::read().unwrap_or_default();
    let held = vmas
        .iter()
        .any(|vma| vma.start <= target && target < vma.end);
    let mut runs = Vec::new();
    let scanned = PageMap::open().and_then(|mut map| map.runs(target, target + PAGE, &mut runs));
    let good = held && scanned.is_ok() && runs.len() == 1;
    found.store(usize::from(good), Ordering::Relaxed);
}

#[test]
fn an_engine_thread_with_its_own_descriptors_sees_the_programs_memory() {
    let area = map(PAGE);
    poke(area);
    let found = AtomicUsize::new(area);
    let at = (&raw const found).cast_mut().cast();
    // SAFETY: joined before `found` goes.
    unsafe { spawn(c"maps", 256 << 10, false, read_map, at) }
        .expect("spawn")
        .join();
    assert_eq!(found.load(Ordering::Relaxed), 1);
}

#[test]
fn hints_are_in_the_map() {
    let area = map(30 * PAGE);
    advise(area, 10 * PAGE, Advice::Random);
    advise(area + 20 * PAGE, 10 * PAGE, Advice::Sequential);
    let mut found = maps::hints().expect("smaps");
    found.retain(|(range, _)| (area..area + 30 * PAGE).contains(&range.start));
    found.sort_unstable_by_key(|(range, _)| range.start);
    let (random, sequential) = (1, 2);
    let (second, end) = (area + 20 * PAGE, area + 30 * PAGE);
    assert_eq!(
        found,
        [(area..area + 10 * PAGE, random), (second..end, sequential)]
    );
}
