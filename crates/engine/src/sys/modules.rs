//! The loaded modules of the process: their ranges, and their thread-locals.
//!
//! Engine threads run code of this crate and of the C library. The static data of that code looks like the program's
//! anonymous memory in the maps but must never be paged out. Its thread-locals must exist for every engine thread.
//! These modules are found through this module's own relocations, which the linker has resolved. The static data of
//! all other modules is the program's.
//!
//! The program may interpose the C library's functions, as a sanitizer's runtime does with `memcpy`. On an engine
//! thread such a function would look for a thread unknown to it, and access memory that may be managed. The functions
//! that the engine calls are therefore bound to the C library itself before anything starts.
//!
//! The dynamic linker keeps its data on later modules in the program's heap. It is therefore asked once, by a thread
//! of the program before any memory is managed; a fork child inherits the answer. Modules loaded after that are
//! missing: no engine thread uses them.

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use std::cell::UnsafeCell;
use std::sync::Once;

use rustix::mm::{MprotectFlags, mprotect};

use super::elf::Symbols;

const PAGE: usize = 4096;
/// The most modules that are recorded; further ones are left out.
const MOST: usize = 512;

/// The thread-locals of a module.
#[derive(Clone, Copy, Debug)]
pub struct ThreadLocals {
    /// The linker's number of the module.
    pub id: usize,
    /// The distance below the thread pointer, if it is the same for every thread; `None` otherwise.
    pub distance: Option<usize>,
    /// Address of their initial image.
    pub image: usize,
    /// Bytes of the image; the rest is zero.
    pub image_len: usize,
    /// Bytes in all.
    pub len: usize,
    /// A power of two.
    pub align: usize,
    /// It is the module of this code.
    pub is_own: bool,
}

/// The range of a module.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    end: usize,
    /// Engine threads run its code.
    is_engines: bool,
}

impl Place {
    const NONE: Self = Place {
        start: 0,
        end: 0,
        is_engines: false,
    };
}

/// The linker's answer.
pub struct Modules {
    places: [Place; MOST],
    place_count: usize,
    /// The load address of this module, and its dynamic section.
    own: (usize, usize),
    locals: [Option<ThreadLocals>; MOST],
    local_count: usize,
    thread_pointer: usize,
}

/// The only list. It is filled in place: it is larger than the stack of some threads that ask first.
struct List(UnsafeCell<Modules>);

// SAFETY: written by one thread inside `FILLED`, and only read after that.
unsafe impl Sync for List {}

static FILLED: Once = Once::new();
static MODULES: List = List(UnsafeCell::new(Modules {
    places: [Place::NONE; MOST],
    place_count: 0,
    own: (0, 0),
    locals: [None; MOST],
    local_count: 0,
    thread_pointer: 0,
}));

/// The modules at the first call.
///
/// The first call takes a lock of the dynamic linker and reads its lists: it must come before memory is managed.
pub fn loaded() -> &'static Modules {
    FILLED.call_once(|| {
        // SAFETY: `FILLED` lets one thread in, and nobody reads before it is through. The callback
        // gets the list, which outlives the call.
        unsafe {
            (*MODULES.0.get()).thread_pointer = super::thread::thread_pointer();
            libc::dl_iterate_phdr(Some(on_module), MODULES.0.get().cast());
            (*MODULES.0.get()).find_engine_code();
        }
    });
    // SAFETY: filled, and not written any more.
    unsafe { &*MODULES.0.get() }
}

impl Modules {
    /// The range of each module whose code engine threads run, from its first to its last segment.
    pub fn of_engine(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.places[..self.place_count]
            .iter()
            .filter(|place| place.is_engines)
            .map(|place| place.start..place.end)
    }

    /// The modules with thread-locals.
    pub fn thread_locals(&self) -> impl Iterator<Item = &ThreadLocals> {
        self.locals.iter().flatten()
    }

    fn add_place(&mut self, base: usize, headers: &[libc::Elf64_Phdr], is_own: bool) {
        let (start, end) = extent(base, headers);
        if let Some(place) = self.places.get_mut(self.place_count) {
            *place = Place {
                start,
                end,
                is_engines: is_own,
            };
            self.place_count += 1;
        }
    }

    /// Marks the modules that resolve names of this module's relocations.
    ///
    /// # Safety
    /// `own` is the linker's answer for this module, which stays loaded.
    unsafe fn find_engine_code(&mut self) {
        let places = &mut self.places[..self.place_count];
        // The program's own allocator is not called, but `free` is referenced as well.
        let not_called = libc::free as *const () as usize;
        let mark = |_: &CStr, _, slot: *mut usize| {
            // SAFETY: a word of this module's that the linker has set.
            let target = unsafe { slot.read_unaligned() };
            let mut places = places.iter_mut();
            let place = places.find(|place| (place.start..place.end).contains(&target));
            if let Some(place) = place.filter(|_| target != not_called) {
                place.is_engines = true;
            }
        };
        // SAFETY: the caller's promise.
        if let Some(own) = unsafe { Symbols::of(self.own) } {
            own.relocations(mark);
        }
    }

    fn add_locals(&mut self, locals: ThreadLocals) {
        if let Some(place) = self.locals.get_mut(self.local_count) {
            *place = Some(locals);
            self.local_count += 1;
        }
    }
}

/// Binds the functions that this module calls to the C library's definitions: those that resolved to other modules, and
/// those of `past_own`, which this module defines for the program alone. `data` is the result of [`static_data`].
///
/// # Safety
/// No other thread runs code of this module.
pub unsafe fn bind_to_libc(data: &StaticData, past_own: &[&CStr]) {
    // Memory must be freed by the allocator that returned it.
    const PROGRAMS: &CStr = c"free";
    // SAFETY: the linker's answers for loaded modules; neither leaves.
    let (own, libc) = unsafe { (Symbols::of(data.own_module), Symbols::of(data.libc_module)) };
    let (Some(own), Some(libc)) = (own, libc) else {
        return;
    };
    let within = |range: (usize, usize), at: usize| (range.0..range.1).contains(&at);
    own.relocations(|name: &CStr, is_function: bool, slot: *mut usize| {
        // SAFETY: a word of this module's that the linker has set.
        let target = unsafe { slot.read_unaligned() };
        let stays = within(data.libc, target)
            // Other names that this module defines resolved to this module, as for the program.
            || within(data.here, target) && !past_own.contains(&name);
        if stays || target == 0 || !is_function || name == PROGRAMS {
            return;
        }
        let Some(real) = libc.function(name) else {
            return;
        };
        let page = core::ptr::without_provenance_mut(slot as usize / PAGE * PAGE);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the page is this module's, and was closed to writing by the linker.
        unsafe {
            if mprotect(page, PAGE, access).is_ok() {
                slot.write_unaligned(real);
            }
        }
    });
}

fn loaded_segments(headers: &[libc::Elf64_Phdr]) -> impl Iterator<Item = &libc::Elf64_Phdr> {
    headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD)
}

/// Whether `address` is within a module.
fn holds(base: usize, headers: &[libc::Elf64_Phdr], address: usize) -> bool {
    loaded_segments(headers).any(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        (start..start + header.p_memsz as usize).contains(&address)
    })
}

/// Bytes of the module whose file header is mapped at `base`, from there to its last segment.
///
/// # Safety
/// It is, and the program headers with it.
pub unsafe fn length_of(base: usize) -> usize {
    let at = base as *const libc::Elf64_Ehdr;
    // SAFETY: the caller's promise; the headers are aligned.
    let headers = unsafe {
        let first = base + (*at).e_phoff as usize;
        core::slice::from_raw_parts(first as *const libc::Elf64_Phdr, usize::from((*at).e_phnum))
    };
    extent(base, headers).1.saturating_sub(base)
}

/// From its first to its last segment, in whole pages.
fn extent(base: usize, headers: &[libc::Elf64_Phdr]) -> (usize, usize) {
    let pages = loaded_segments(headers).map(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        let end = start + header.p_memsz as usize;
        (start / PAGE * PAGE, end.next_multiple_of(PAGE))
    });
    pages
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        .unwrap_or((0, 0))
}

fn dynamic_section(base: usize, headers: &[libc::Elf64_Phdr]) -> usize {
    let mut headers = headers.iter();
    let dynamic = headers.find(|header| header.p_type == libc::PT_DYNAMIC);
    dynamic.map_or(0, |at| base.wrapping_add(at.p_vaddr as usize))
}

/// The writable static data of the loaded modules, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticData {
    /// Without initial content (`.bss`), except this module's.
    pub anonymous: usize,
    /// Private copies of file content, once written to.
    pub of_files: usize,
    /// The `anonymous` part of this module.
    pub own: usize,
    /// The ranges of this module and of the C library.
    here: (usize, usize),
    libc: (usize, usize),
    /// The load addresses of these modules, and their dynamic sections.
    own_module: (usize, usize),
    libc_module: (usize, usize),
}

/// Looks at the static data of all modules. Takes a lock of the dynamic linker.
pub fn static_data() -> StaticData {
    let mut data = StaticData::default();
    // SAFETY: the callback gets its expected argument, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add_static_data), (&raw mut data).cast()) };
    data
}

unsafe extern "C" fn add_static_data(
    info: *mut libc::dl_phdr_info,
    _: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the loader's promise for the call's duration; `data` is as `static_data` passed it.
    let (info, data) = unsafe { (&*info, &mut *data.cast::<StaticData>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader says how many headers there are.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_own = holds(base, headers, static_data as *const () as usize);
    if is_own {
        data.own_module = (base, dynamic_section(base, headers));
        data.here = extent(base, headers);
    } else if holds(base, headers, libc::__errno_location as *const () as usize) {
        data.libc_module = (base, dynamic_section(base, headers));
        data.libc = extent(base, headers);
    }
    for header in loaded_segments(headers).filter(|header| header.p_flags & libc::PF_W != 0) {
        let start = base.wrapping_add(header.p_vaddr as usize);
        let of_file = (start + header.p_filesz as usize).next_multiple_of(PAGE);
        let end = (start + header.p_memsz as usize).next_multiple_of(PAGE);
        data.of_files += of_file - start / PAGE * PAGE;
        let anonymous = end.saturating_sub(of_file);
        *(if is_own {
            &mut data.own
        } else {
            &mut data.anonymous
        }) += anonymous;
    }
    0
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
    let is_own = holds(base, headers, on_module as *const () as usize);
    if is_own {
        modules.own = (base, dynamic_section(base, headers));
    }
    // The program itself has copies of some variables of the C library, none that matter here.
    if !is_program {
        modules.add_place(base, headers, is_own);
    }
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
