//! The allocator's functions: they forward, and notice growth of the heap.
//!
//! The C library's malloc gets memory from the kernel by internal calls: it moves the break, maps large blocks, and
//! maps arenas of 64 MiB for further threads. Each is detected by the address of a returned block: beyond the known
//! break, with the mark of a mapped block, or further into a 64 MiB stretch than seen before. The common case is two
//! comparisons. Other allocators map through `mmap`, which is noticed there.
//!
//! The leak check of the sanitizers forgives the dynamic linker its blocks, which only memory that the check does not
//! read refers to. It knows them by the caller of their allocator. With such an allocator, the linker's calls therefore
//! jump there, without a frame of this module.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize};

use foreswap::program::state;
use foreswap::sys::modules;

use crate::real::{Real, forward};
use crate::{PROGRAM, mappings, robust};

/// Look up the real functions now: later, a thread that holds the loader's lock may need them.
pub fn look_up() {
    let all = [
        &MALLOC,
        &CALLOC,
        &REALLOC,
        &MEMALIGN,
        &POSIX_MEMALIGN,
        &ALIGNED_ALLOC,
        &VALLOC,
        &PVALLOC,
        &BRK,
        &SBRK,
        &PTHREAD_CREATE,
        &THRD_CREATE,
    ];
    for real in all {
        real.address();
    }
}

static MALLOC: Real = Real::new(c"malloc");
static CALLOC: Real = Real::new(c"calloc");
static REALLOC: Real = Real::new(c"realloc");
static MEMALIGN: Real = Real::new(c"memalign");
static POSIX_MEMALIGN: Real = Real::new(c"posix_memalign");
static ALIGNED_ALLOC: Real = Real::new(c"aligned_alloc");
static VALLOC: Real = Real::new(c"valloc");
static PVALLOC: Real = Real::new(c"pvalloc");
static BRK: Real = Real::new(c"brk");
static SBRK: Real = Real::new(c"sbrk");
static THRD_CREATE: Real = Real::new(c"thrd_create");
static PTHREAD_CREATE: Real = Real::new(c"pthread_create");

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    /// The break as the C library knows it.
    static __curbrk: AtomicUsize;
}

/// The C library's `__libc_single_threaded`: 0 once there was a second thread. It has it since 2.32: it is looked up, so
/// that the object can be loaded beside an older one. Null before the look-up, and where there is none.
static SINGLE_THREADED: AtomicPtr<AtomicU8> = AtomicPtr::new(core::ptr::null_mut());

/// The largest block for the short way: the size limit of the C library's thread cache.
const SMALL: usize = 1032;
/// The break at the last look while the short way is open; an impossible break otherwise.
static BREAK_SEEN: AtomicUsize = AtomicUsize::new(CLOSED);
const CLOSED: usize = 1;
/// Memory does not come from the break alone: there was a second thread with an arena of its own, or the break is
/// obstructed. Permanent: an arena may keep growing.
static SCATTERED: AtomicBool = AtomicBool::new(false);

/// Blocks from this size on may be separate mappings.
const BIG: usize = 64 << 10;
/// log2 of the alignment of an arena.
const STRETCH: u32 = 26;
/// Below this address the break grows, above it the kernel maps.
const MAPPED_FROM: usize = 0x7000_0000_0000;
/// The C library's mark of a mapped block, in the size word before it.
const IS_MAPPED: usize = 2;

/// For each stretch of addresses, how far into it memory was seen, in steps; 0 for none. Only used pages of this
/// table take memory.
static STRETCHES: [AtomicU32; 1 << (47 - STRETCH)] =
    [const { AtomicU32::new(0) }; 1 << (47 - STRETCH)];
/// log2 of a step within a stretch.
const STEP: u32 = 16;
static HEAP_START: AtomicUsize = AtomicUsize::new(usize::MAX);
static HEAP_END: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Steps of the break since memory is managed.
static STEPS: AtomicU32 = AtomicU32::new(0);
/// Small steps of the break after which the steps become large.
const SMALL_STEPS: u32 = 16;
/// The least growth of the break from then on, in bytes.
const LARGE_STEP: c_int = 8 << 20;
/// The smallest block that the C library may move by mremap: below the minimum of its mapping threshold.
const MOVABLE: usize = 16 << 10;
/// Blocks have the C library's layout.
static OWN_LAYOUT: AtomicBool = AtomicBool::new(false);

/// The dynamic linker, and the allocator's functions that it calls past this module. Without a length: none.
#[repr(C)]
struct Linker {
    start: AtomicUsize,
    length: AtomicUsize,
    malloc: AtomicPtr<c_void>,
    calloc: AtomicPtr<c_void>,
}

static LINKER: Linker = Linker {
    start: AtomicUsize::new(0),
    length: AtomicUsize::new(0),
    malloc: AtomicPtr::new(core::ptr::null_mut()),
    calloc: AtomicPtr::new(core::ptr::null_mut()),
};

/// The body of a function that jumps to the address at an offset in [`LINKER`] if the linker called it, otherwise to
/// `$ours`.
macro_rules! past_us_for_the_linker {
    ($offset:literal, $ours:path) => {
        naked_asm!(
            "mov rax, [rsp]",
            "sub rax, [rip + {linker}]",
            "cmp rax, [rip + {linker} + 8]",
            "jae {ours}",
            concat!("jmp [rip + {linker} + ", $offset, "]"),
            linker = sym LINKER,
            ours = sym $ours,
        )
    };
}

/// Another allocator than the C library's is in use.
fn note_linker() {
    // SAFETY: it only reads the auxiliary vector.
    let base = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    if base == 0 {
        return;
    }
    LINKER.malloc.store(MALLOC.address(), Relaxed);
    LINKER.calloc.store(CALLOC.address(), Relaxed);
    LINKER.start.store(base, Relaxed);
    // SAFETY: the linker was loaded there.
    let length = unsafe { modules::length_of(base) };
    LINKER.length.store(length, SeqCst);
}

/// The object was loaded.
pub fn begin() {
    // The first definition in the search order: an executable may have a copy, which is then the one in use.
    // SAFETY: the name is zero-terminated.
    let single = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE_THREADED.store(single.cast(), Relaxed);
    // Makes the C library ask the kernel.
    let here = forward!(SBRK => fn(isize) -> *mut c_void; 0) as usize;
    HEAP_END.store(here, Relaxed);
    HEAP_START.store(here, Relaxed);
    OWN_LAYOUT.store(
        core::ptr::addr_eq(MALLOC.address(), __libc_malloc as *const ()),
        Relaxed,
    );
    CALLOC.address();
    if !OWN_LAYOUT.load(Relaxed) {
        note_linker();
    }
    open_short_way();
}

/// The break as known to the C library; 0 before it asked the kernel.
#[inline]
fn the_break() -> usize {
    // SAFETY: the C library's variable; only read.
    unsafe { __curbrk.load(Relaxed) }
}

/// Opens the short way for small blocks until the break moves again, if permitted.
#[inline]
fn open_short_way() {
    if SCATTERED.load(Relaxed) || HEAP_START.load(Relaxed) == usize::MAX {
        return;
    }
    // SAFETY: null or the C library's variable, which stays; only read.
    let single = unsafe { SINGLE_THREADED.load(Relaxed).as_ref() };
    let single = single.is_some_and(|single| single.load(Relaxed) != 0);
    // Other allocators may take small blocks from elsewhere than the break.
    if single && OWN_LAYOUT.load(Relaxed) {
        BREAK_SEEN.store(follow_break(), Relaxed);
    } else {
        close_short_way();
    }
}

#[cold]
fn close_short_way() {
    SCATTERED.store(true, Relaxed);
    BREAK_SEEN.store(CLOSED, Relaxed);
}

/// The address of the table of seen memory: large, and mostly without memory.
pub fn table() -> usize {
    (&raw const STRETCHES) as usize
}

/// Note the break before it moves (memory returned and taken again is new) and after.
#[inline]
fn follow_break() -> usize {
    let here = the_break();
    if here != HEAP_END.load(Relaxed) {
        note_break();
    }
    here
}

/// A block was returned.
#[inline]
fn note(block: *mut c_void, size: usize) {
    let at = block as usize;
    if at >= HEAP_START.load(Relaxed) && at < MAPPED_FROM {
        if at + size > HEAP_END.load(Relaxed) {
            note_break();
        }
    } else if size >= BIG {
        note_big(at, size);
    } else if at != 0 && !is_seen(at, size.max(1)) {
        note_stretch(at, size.max(1));
    }
}

/// Whether memory was seen up to `at + size` in its stretch.
#[inline]
fn is_seen(at: usize, size: usize) -> bool {
    let reach = (at + size - 1) & ((1 << STRETCH) - 1);
    let known = STRETCHES
        .get(at >> STRETCH)
        .map_or(u32::MAX, |reach| reach.load(Relaxed));
    (reach >> STEP) < known as usize
}

/// The break has moved.
#[cold]
fn note_break() {
    if HEAP_START.load(Relaxed) == usize::MAX {
        // Before the constructor.
        return;
    }
    let end = the_break();
    let before = HEAP_END.swap(end, Relaxed);
    if end <= before {
        return PROGRAM.shrank(before - end);
    }
    PROGRAM.grew(before, end - before);
    // Each step becomes a VMA of its own once it is registered: a heap that grows under management takes larger
    // steps. This also ends the adaptation of the C library's threshold for mapped blocks, from now on 128 KiB unless
    // it was raised before. That is better for a process that swaps: a mapped block that is freed is discarded, whereas
    // a free block of the heap is written to the area and read again when it is reused. Measured with 16 blocks of 0.2
    // to 8 MiB that are replaced at random (64 MiB) beside 100 MiB of small ones, in 40 MiB: 6 to 12 ms a block and
    // 0.6 GiB read, against 21 to 26 ms and 4.9 GiB with the threshold at its maximum. A single such block at a time
    // costs 0.2 to 0.7 ms instead of 0.03. While everything fits, nothing is changed.
    if PROGRAM.state.load(Relaxed) == state::ARMED
        && OWN_LAYOUT.load(Relaxed)
        && STEPS.fetch_add(1, Relaxed) == SMALL_STEPS
    {
        // SAFETY: on a thread of the program, outside of the allocator.
        unsafe { libc::mallopt(libc::M_TOP_PAD, LARGE_STEP) };
    }
}

#[cold]
fn note_stretch(at: usize, size: usize) {
    if HEAP_START.load(Relaxed) == usize::MAX {
        // Before the constructor: the look at the maps will find it.
        return;
    }
    // An arena outside the break.
    close_short_way();
    let Some(known) = STRETCHES.get(at >> STRETCH) else {
        return;
    };
    let reach = ((at + size - 1) & ((1 << STRETCH) - 1)) >> STEP;
    let before = known.fetch_max(reach as u32 + 1, Relaxed);
    if before == 0 {
        PROGRAM.seen(at, size.max(1 << STEP));
    } else if reach as u32 >= before {
        // The arena was adopted as a whole when it was first seen.
        PROGRAM.used((reach as u32 + 1 - before) as usize * (1 << STEP));
    }
}

#[cold]
fn note_big(at: usize, size: usize) {
    if at == 0 || HEAP_START.load(Relaxed) == usize::MAX {
        return;
    }
    if OWN_LAYOUT.load(Relaxed) {
        // SAFETY: the C library's blocks have two words before them.
        let [before, size_word] = unsafe { ((at - 16) as *const [usize; 2]).read() };
        if size_word & IS_MAPPED != 0 {
            return PROGRAM.grew(at - 16 - before, before + (size_word & !7));
        }
    }
    if !is_seen(at, size) {
        note_stretch(at, size);
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    if size <= SMALL && the_break() == BREAK_SEEN.load(Relaxed) {
        // SAFETY: the short way is open, so the function was looked up; it has this signature.
        // Compiled to a jump: with a look at whether it was found there would be a frame as well.
        return unsafe {
            let address = MALLOC.known().unwrap_unchecked();
            core::mem::transmute::<*mut c_void, Malloc>(address)(size)
        };
    }
    malloc_and_look(size)
}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;

/// `malloc` jumps here: the caller is the same.
#[unsafe(naked)]
extern "C" fn malloc_and_look(size: usize) -> *mut c_void {
    past_us_for_the_linker!("16", malloc_then_look)
}

extern "C" fn malloc_then_look(size: usize) -> *mut c_void {
    follow_break();
    let block = forward!(MALLOC => fn(usize) -> *mut c_void; size);
    note(block, size);
    open_short_way();
    block
}

/// As the C library's. A second thread gets an arena of its own, which does not move the break, and a stack that is
/// recognisable only after the call.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    main: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let (main, argument) = robust::begin_with(main, argument);
    let make = || {
        let made = forward!(PTHREAD_CREATE =>
            fn(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int;
            thread, attributes, main, argument);
        if made != 0 {
            robust::forget(main, argument);
        }
        made
    };
    // SAFETY: by contract the C library stores the thread's number there.
    unsafe { make_thread(thread, make) }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut c_void,
    main: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let (main, argument) = robust::begin_with(main, argument);
    let make = || {
        let made = forward!(THRD_CREATE =>
            fn(*mut c_void, *const c_void, *mut c_void) -> c_int;
            thread, main, argument);
        if made != 0 {
            robust::forget(main, argument);
        }
        made
    };
    // SAFETY: as above.
    unsafe { make_thread(thread, make) }
}

/// Create a thread by `make`, which stores its number at `thread`.
///
/// # Safety
/// It does so if it returns 0.
unsafe fn make_thread(thread: *mut c_void, make: impl FnOnce() -> c_int) -> c_int {
    close_short_way();
    let [begun, made] = &PROGRAM.threads;
    begun.fetch_add(1, SeqCst);
    let status = make();
    if status == 0 && !thread.is_null() {
        // SAFETY: the caller's promise; the number is the address of the control block.
        let block = unsafe { thread.cast::<usize>().read() };
        PROGRAM.control_blocks.note(block);
    }
    made.fetch_add(1, SeqCst);
    status
}

/// As the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    past_us_for_the_linker!("24", calloc_then_look)
}

extern "C" fn calloc_then_look(count: usize, size: usize) -> *mut c_void {
    if CALLOC.known().is_none() && HEAP_START.load(Relaxed) == usize::MAX {
        // The search for the real function may itself allocate.
        // SAFETY: the C library's own.
        return unsafe { __libc_calloc(count, size) };
    }
    follow_break();
    let block = forward!(CALLOC => fn(usize, usize) -> *mut c_void; count, size);
    note(block, count.wrapping_mul(size));
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    follow_break();
    // A large block may be moved whole.
    let turn = (size >= MOVABLE).then(mappings::turn_to_move);
    let block = forward!(REALLOC => fn(*mut c_void, usize) -> *mut c_void; old, size);
    drop(turn);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    follow_break();
    let block = forward!(MEMALIGN => fn(usize, usize) -> *mut c_void; alignment, size);
    note(block, size);
    block
}

/// As the C library's.
///
/// # Safety
/// `out` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    follow_break();
    let status = forward!(POSIX_MEMALIGN =>
        fn(*mut *mut c_void, usize, usize) -> c_int; out, alignment, size);
    if status == 0 {
        // SAFETY: by contract, and it was just written.
        note(unsafe { *out }, size);
    }
    status
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    follow_break();
    let block = forward!(ALIGNED_ALLOC => fn(usize, usize) -> *mut c_void; alignment, size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    follow_break();
    let block = forward!(VALLOC => fn(usize) -> *mut c_void; size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    follow_break();
    let block = forward!(PVALLOC => fn(usize) -> *mut c_void; size);
    note(block, size);
    block
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn brk(end: *mut c_void) -> c_int {
    let status = forward!(BRK => fn(*mut c_void) -> c_int; end);
    follow_break();
    status
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn sbrk(more: isize) -> *mut c_void {
    let before = forward!(SBRK => fn(isize) -> *mut c_void; more);
    follow_break();
    before
}
