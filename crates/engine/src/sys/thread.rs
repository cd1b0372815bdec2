//! Engine threads: created by a bare clone(2), unknown to libc.
//!
//! The engine works in the memory of a program that must not notice it. A pthread would allocate from the program's
//! heap, run its hooks, be counted by its libc (which then takes locks it never needed) and share its descriptors. An
//! engine thread therefore gets its own mapping with guard page, stack and thread-local block. The first one is a
//! process of its own (see [`super::beside`]) and starts the others, which are threads of the engine's process.
//!
//! The thread-local block mirrors the creating thread's block from glibc. Every module whose thread-locals lie at a
//! fixed distance below the thread pointer gets a fresh copy of its initial image at the same distance. A private dtv
//! points to these copies (and to a copy of this module's own, if it was loaded late and has no fixed place). errno,
//! libc calls with per-thread state, and Rust `thread_local!`s *without destructors* therefore work and are private
//! to the thread. Code that must never run on such a thread: anything that registers a thread-exit destructor, calls
//! the program's malloc, stdio or pthread_create, or uses another library's late thread-locals.

use core::arch::{asm, naked_asm};
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::ptr::{NonNull, without_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect};
use rustix::thread::futex;

use super::modules::{self, Modules, ThreadLocals};
use super::own_memory::{self, Kind};
use super::syscall::syscall;

const PAGE: usize = 4096;
/// Room below the thread pointer beyond the needs of the loaded modules: glibc lets late modules claim some, and code
/// compiled for them may then read there.
const TLS_SLACK: usize = 64 << 10;
/// Entries of the private dtv, two pages of them: one per loaded module with thread-locals.
const DTV_ENTRIES: usize = 2 * PAGE / 16;
/// glibc's mark for "not allocated yet" in a dtv entry.
const UNALLOCATED: usize = usize::MAX;
/// Where glibc keeps the thread's id in its control block on x86_64; checked before use.
const TCB_TID: usize = 0x2d0;

/// A thread's main function.
pub type Entry = extern "C" fn(*mut c_void);

/// The contents at fixed places above the thread pointer. The first page is for glibc and the compiler, all zero
/// except the fields set in [`Prepared::new`].
#[repr(C)]
pub(super) struct Block {
    control: [usize; PAGE / 8],
    dtv: [[usize; 2]; DTV_ENTRIES],
    /// The kernel's id of the thread; the kernel clears it and wakes waiters when it has ended.
    tid: AtomicU32,
    has_tcb_tid: bool,
    name: [u8; 16],
    entry: Entry,
    arg: *mut c_void,
    mapping: Range<usize>,
}

/// A started engine thread. Dropping the handle leaves it running; its memory is then never freed.
#[derive(Debug)]
pub struct Thread {
    block: NonNull<Block>,
}

// SAFETY: the block is only read through the handle, and its words that change are atomic.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    fn block(&self) -> &Block {
        // SAFETY: the block is unmapped by `join` and `release` only, which take the handle.
        unsafe { self.block.as_ref() }
    }

    /// The kernel's thread id; 0 once the thread has ended.
    pub fn tid(&self) -> u32 {
        self.block().tid.load(Ordering::Acquire)
    }

    /// Whether the thread still runs. Meaningless in a fork child: threads do not follow.
    pub fn is_alive(&self) -> bool {
        self.tid() != 0
    }

    /// The addresses of its stack and thread-locals, guard page included.
    pub fn mapping(&self) -> Range<usize> {
        self.block().mapping.clone()
    }

    /// Waits for the thread's end and frees its memory.
    pub fn join(self) {
        loop {
            let tid = self.tid();
            if tid == 0 {
                break;
            }
            // Not a private futex: the kernel's wake at thread exit is not one either.
            let _ = futex::wait(&self.block().tid, futex::Flags::empty(), tid, None);
        }
        // SAFETY: the kernel clears the id after the thread's last instruction in user space.
        unsafe { self.release() };
    }

    /// Frees the memory of a thread that does not run: it ended, or this is a fork child.
    ///
    /// # Safety
    /// The thread does not run in this process.
    pub unsafe fn release(self) {
        let mapping = self.mapping();
        if let Some(base) = NonNull::new(without_provenance_mut::<u8>(mapping.start)) {
            // SAFETY: the caller's promise; the mapping was made by `spawn`. A failure would leak.
            let _ = unsafe { own_memory::unmap(base, mapping.len()) };
        }
    }
}

/// Starts a thread of the calling process that runs `entry(arg)` and then ends, with all signals
/// blocked.
///
/// Without `share_files` the thread starts with a *copy* of the descriptor table, which it should
/// clear at once. Callable from any thread, also from an engine thread; uses little stack, no
/// allocator, and leaves errno alone. `name` is cut to 15 bytes.
///
/// # Safety
/// `entry` keeps to what the module's head allows and must not unwind; `arg` is valid for it, on
/// another thread.
pub unsafe fn spawn(
    name: &CStr,
    stack_bytes: usize,
    share_files: bool,
    entry: Entry,
    arg: *mut c_void,
) -> Result<Thread, Errno> {
    let mut flags = k::CLONE_VM
        | k::CLONE_FS
        | k::CLONE_SIGHAND
        | k::CLONE_THREAD
        | k::CLONE_SYSVSEM
        | k::CLONE_SETTLS
        | k::CLONE_PARENT_SETTID
        | k::CLONE_CHILD_CLEARTID;
    if share_files {
        flags |= k::CLONE_FILES;
    }
    let prepared = Prepared::new(name, stack_bytes, entry, arg)?;
    // SAFETY: the prepared memory belongs to this clone alone, and lives until the handle's `join`.
    prepared.start(|stack_top, block| unsafe { clone(flags as usize, stack_top, block) })
}

/// The memory of a thread that has not started.
pub(super) struct Prepared {
    base: NonNull<u8>,
    len: usize,
    stack_top: usize,
    block: *mut Block,
}

impl Prepared {
    /// Maps stack and thread-local block, and fills the latter.
    pub(super) fn new(
        name: &CStr,
        stack_bytes: usize,
        entry: Entry,
        arg: *mut c_void,
    ) -> Result<Self, Errno> {
        let survey = Survey::new();
        let stack = stack_bytes.max(4 * PAGE).next_multiple_of(PAGE);
        let below = survey.needed.next_multiple_of(PAGE);
        let above = size_of::<Block>().next_multiple_of(PAGE);
        let late = survey.own_late.next_multiple_of(PAGE);
        let len = PAGE + stack + below + above + late;

        let base = own_memory::map(len, Kind::Thread)?;
        let start = base.as_ptr() as usize;
        let pointer = start + PAGE + stack + below;
        let block = without_provenance_mut::<Block>(pointer);
        // SAFETY: the pages are ours. A child of the program needs no copy of the stack, and without
        // one this thread has no pages to unshare after a fork; its addresses stay taken there, so
        // that the child can unmap the whole mapping blindly.
        let prepared = unsafe {
            let stack_start = base.as_ptr().add(PAGE).cast();
            mprotect(base.as_ptr().cast(), PAGE, MprotectFlags::empty())
                .and_then(|()| madvise(stack_start, stack, Advice::LinuxWipeOnFork))
        };
        if let Err(errno) = prepared {
            // SAFETY: mapped above, not in use.
            unsafe { own_memory::unmap(base, len) }?;
            return Err(errno);
        }
        // SAFETY: the block lies within the mapping, page-aligned, zeroed, and is ours alone until
        // the thread starts; `survey` holds the creating thread's pointer, whose control block glibc
        // (or an earlier one of these) filled.
        unsafe {
            let creator = without_provenance_mut::<usize>(thread_pointer());
            let control = &mut (*block).control;
            control[0] = pointer;
            control[1] = (&raw const (*block).dtv[1]) as usize;
            control[2] = pointer;
            // "There are several threads": libc must lock its shared data.
            control[3] = 1;
            // The stack guard and the pointer guard belong to the process.
            control[5] = creator.add(5).read();
            control[6] = creator.add(6).read();
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            (*block).has_tcb_tid = creator.byte_add(TCB_TID).cast::<c_int>().read() == tid;
            // dtv[-1] is the length, dtv[0] the generation. The highest generation keeps glibc from
            // ever "updating" this dtv, which would free and allocate with the program's malloc.
            (*block).dtv = [[UNALLOCATED, 0]; DTV_ENTRIES];
            (*block).dtv[0][0] = DTV_ENTRIES - 2;
            (*block).dtv[1][0] = usize::MAX;
            let bytes = name.to_bytes();
            let kept = bytes.len().min(15);
            (&mut (*block).name)[..kept].copy_from_slice(&bytes[..kept]);
            (*block).entry = entry;
            (*block).arg = arg;
            (*block).mapping = start..start + len;
        }
        // SAFETY: the mapping was made large enough above, and the thread does not run yet.
        unsafe { survey.fill(block, pointer + above) };
        Ok(Prepared {
            base,
            len,
            stack_top: start + PAGE + stack,
            block,
        })
    }

    /// Starts it by `clone`, with the top of its stack and its block, which is its thread pointer and contains the
    /// word for its id. A negative result is an error number.
    pub(super) fn start(
        self,
        clone: impl FnOnce(usize, *mut Block) -> isize,
    ) -> Result<Thread, Errno> {
        // The new thread inherits the mask: no signal of the program ever runs on it.
        let before = set_signal_mask(u64::MAX);
        let result = clone(self.stack_top, self.block);
        set_signal_mask(before);
        if result < 0 {
            // SAFETY: no thread came to be.
            unsafe { own_memory::unmap(self.base, self.len) }?;
            return Err(Errno::from_raw_os_error(-result as i32));
        }
        // SAFETY: not null: it lies inside the mapping.
        let block = unsafe { NonNull::new_unchecked(self.block) };
        Ok(Thread { block })
    }
}

impl Block {
    /// Where the kernel stores the thread's id, and clears it at its end.
    pub(super) fn tid_word(block: *mut Self) -> *mut AtomicU32 {
        // SAFETY: an address within the block.
        unsafe { &raw mut (*block).tid }
    }
}

/// The clone of [`spawn`], or of a process that is its creator's child.
///
/// # Safety
/// `stack_top` and `block` were prepared for this and live as long as the thread.
pub(super) unsafe fn clone(flags: usize, stack_top: usize, block: *mut Block) -> isize {
    let tid = Block::tid_word(block);
    // SAFETY: the caller's promise.
    unsafe { raw_clone(flags, stack_top, tid, tid, block as usize, block) }
}

/// The raw clone: returns the new thread's id or a negative error number to the caller, and never
/// returns in the new thread.
#[unsafe(naked)]
unsafe extern "C" fn raw_clone(
    flags: usize,
    stack_top: usize,
    parent_tid: *mut AtomicU32,
    child_tid: *mut AtomicU32,
    pointer: usize,
    block: *mut Block,
) -> isize {
    naked_asm!(
        "mov r10, rcx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        // The new thread: an empty, aligned stack and no caller to return to.
        "2:",
        "xor ebp, ebp",
        "mov rdi, r9",
        "call {main}",
        "ud2",
        clone = const k::__NR_clone,
        main = sym thread_main,
    )
}

pub(super) extern "C" fn thread_main(block: *mut Block) -> ! {
    // SAFETY: `spawn` filled the block before the clone, and it outlives the thread. Thread-locals
    // are in place, so ordinary code may run from here.
    unsafe {
        if (*block).has_tcb_tid {
            // libc's recursive locks compare owners by this; 0 would own every free lock.
            let tid = (*block).tid.load(Ordering::Relaxed);
            block.byte_add(TCB_TID).cast::<u32>().write(tid);
        }
        let name = (&raw const (*block).name) as usize;
        let set_name = linux_raw_sys::prctl::PR_SET_NAME as usize;
        let _ = syscall(k::__NR_prctl, [set_name, name]);
        ((*block).entry)((*block).arg);
        // From here on the stack may be freed at any moment: one instruction, nothing after.
        asm!("syscall", in("rax") k::__NR_exit, in("rdi") 0, options(noreturn, nostack));
    }
}

/// The calling thread's thread pointer.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86_64 the word at fs:0 holds the thread pointer itself.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// Sets the calling thread's kernel signal mask and returns the old one.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0_u64;
    const SIG_SETMASK: usize = 2;
    let (new, was) = ((&raw const mask) as usize, (&raw mut old) as usize);
    // SAFETY: both masks are 8 bytes, as said; with these arguments the call cannot fail.
    let _ = unsafe {
        syscall(
            k::__NR_rt_sigprocmask,
            [SIG_SETMASK, new, was, size_of::<u64>()],
        )
    };
    old
}

/// The size and layout of an engine thread's thread-locals.
struct Survey {
    modules: &'static Modules,
    /// Bytes below the thread pointer.
    needed: usize,
    /// Bytes for this module's own thread-locals if they have no fixed place.
    own_late: usize,
}

impl Survey {
    fn new() -> Self {
        let modules = modules::loaded();
        // Everything at a fixed distance lies within the sum of all such modules.
        let room = |locals: &ThreadLocals| locals.len + locals.align;
        let needed = TLS_SLACK + modules.thread_locals().map(room).sum::<usize>();
        let own = modules.thread_locals().find(|locals| locals.is_own);
        Self {
            modules,
            needed,
            own_late: own.map_or(0, room),
        }
    }

    /// Fills the thread-locals of a thread that has not started.
    ///
    /// # Safety
    /// `needed` bytes below `block` and `own_late` from `late_area` on are mapped and unused.
    unsafe fn fill(&self, block: *mut Block, late_area: usize) {
        for locals in self.modules.thread_locals() {
            let fits = |distance: &usize| (locals.len..=self.needed).contains(distance);
            let at = match locals.distance.filter(fits) {
                Some(distance) => block as usize - distance,
                None if locals.is_own => late_area.next_multiple_of(locals.align),
                None => continue,
            };
            if locals.id + 2 > DTV_ENTRIES {
                continue;
            }
            // SAFETY: `at..at+len` lies in the mapping, by the caller's promise; the image is
            // `image_len` readable bytes that the loader keeps mapped.
            unsafe {
                let image = core::ptr::without_provenance::<u8>(locals.image);
                let to = without_provenance_mut::<u8>(at);
                core::ptr::copy_nonoverlapping(image, to, locals.image_len);
                (*block).dtv[locals.id + 1] = [at, 0];
            }
        }
    }
}
