//! The loaded modules of the process: where they lie, and their thread-locals.
//!
//! Engine threads run code of ours and of the C library's. That code has static data, which looks
//! like the program's anonymous memory in the maps but must never be paged out; and it has
//! thread-locals, of which every engine thread needs its own.
//!
//! The dynamic linker keeps what it knows of later modules in the program's heap. So it is asked
//! once, by a thread of the program before any memory is managed; a fork child inherits the answer.
//! Modules loaded after that are missing: no engine thread uses them.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use std::cell::UnsafeCell;
use std::sync::Once;

const PAGE: usize = 4096;
/// Modules that are remembered; of a program with more the last ones are not.
const MOST: usize = 512;

/// The thread-locals of a module.
#[derive(Clone, Copy, Debug)]
pub struct ThreadLocals {
    /// The linker's number of the module.
    pub id: usize,
    /// How far below the thread pointer every thread has them; `None` where that differs.
    pub distance: Option<usize>,
    /// Address of their initial image.
    pub image: usize,
    /// Bytes of the image; the rest is zero.
    pub image_len: usize,
    /// Bytes in all.
    pub len: usize,
    /// A power of two.
    pub align: usize,
    /// It is the module that this code is in.
    pub is_own: bool,
}

/// What the linker said.
pub struct Modules {
    ranges: [(usize, usize); MOST],
    range_count: usize,
    locals: [Option<ThreadLocals>; MOST],
    local_count: usize,
    thread_pointer: usize,
}

/// The one list. It is filled in place: it is larger than the stack of some threads that ask first.
struct Place(UnsafeCell<Modules>);

// SAFETY: written by one thread inside `FILLED`, and only read after that.
unsafe impl Sync for Place {}

static FILLED: Once = Once::new();
static MODULES: Place = Place(UnsafeCell::new(Modules {
    ranges: [(0, 0); MOST],
    range_count: 0,
    locals: [None; MOST],
    local_count: 0,
    thread_pointer: 0,
}));

/// The modules as of the first call.
///
/// The first call takes a lock of the dynamic linker's and reads its lists: it must come before
/// memory is managed.
pub fn loaded() -> &'static Modules {
    FILLED.call_once(|| {
        // SAFETY: `FILLED` lets one thread in, and nobody reads before it is through. The callback
        // gets the list, which outlives the call.
        unsafe {
            (*MODULES.0.get()).thread_pointer = super::thread::thread_pointer();
            libc::dl_iterate_phdr(Some(on_module), MODULES.0.get().cast());
        }
    });
    // SAFETY: filled, and not written any more.
    unsafe { &*MODULES.0.get() }
}

impl Modules {
    /// Where each module but the program itself lies, from its first to its last segment.
    pub fn libraries(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.ranges[..self.range_count]
            .iter()
            .map(|&(start, end)| start..end)
    }

    /// The modules with thread-locals.
    pub fn thread_locals(&self) -> impl Iterator<Item = &ThreadLocals> {
        self.locals.iter().flatten()
    }

    fn add_range(&mut self, base: usize, headers: &[libc::Elf64_Phdr]) {
        let segments = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD);
        let pages = segments.map(|header| {
            let start = base.wrapping_add(header.p_vaddr as usize);
            let end = start + header.p_memsz as usize;
            (start / PAGE * PAGE, end.next_multiple_of(PAGE))
        });
        let whole = pages.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        if let (Some(whole), Some(place)) = (whole, self.ranges.get_mut(self.range_count)) {
            *place = whole;
            self.range_count += 1;
        }
    }

    fn add_locals(&mut self, locals: ThreadLocals) {
        if let Some(place) = self.locals.get_mut(self.local_count) {
            *place = Some(locals);
            self.local_count += 1;
        }
    }
}

unsafe extern "C" fn on_module(
    info: *mut libc::dl_phdr_info,
    info_len: usize,
    modules: *mut c_void,
) -> c_int {
    if info_len < size_of::<libc::dl_phdr_info>() {
        return 0;
    }
    // SAFETY: the loader's promise for the call's duration; `modules` is as `loaded` passed it.
    let (info, modules) = unsafe { (&*info, &mut *modules.cast::<Modules>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader says how many headers there are.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // SAFETY: names are zero-terminated.
    let is_program = info.dlpi_name.is_null() || unsafe { *info.dlpi_name } == 0;
    if !is_program {
        modules.add_range(base, headers);
    }
    let here = on_module as *const () as usize;
    let is_own = headers.iter().any(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz as usize).contains(&here)
    });
    let tls = headers.iter().find(|header| header.p_type == libc::PT_TLS);
    if let Some(tls) = tls.filter(|_| info.dlpi_tls_modid != 0) {
        let data = info.dlpi_tls_data as usize;
        modules.add_locals(ThreadLocals {
            id: info.dlpi_tls_modid,
            distance: (data != 0).then(|| modules.thread_pointer.wrapping_sub(data)),
            image: base.wrapping_add(tls.p_vaddr as usize),
            image_len: tls.p_filesz as usize,
            len: tls.p_memsz as usize,
            align: (tls.p_align as usize).max(1),
            is_own,
        });
    }
    0
}
