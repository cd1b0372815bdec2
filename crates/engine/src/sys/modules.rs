//! The loaded modules of the process: where they lie, and their thread-locals.
//!
//! Engine threads run code of ours and of the C library's. That code has static data, which looks
//! like the program's anonymous memory in the maps but must never be paged out; and it has
//! thread-locals, of which every engine thread needs its own. Which modules these are is read off
//! our own relocations, which the linker has resolved: what stands before the C library (a
//! sanitizer's runtime, say) is found that way too. The static data of all others is the program's.
//!
//! The dynamic linker keeps what it knows of later modules in the program's heap. So it is asked
//! once, by a thread of the program before any memory is managed; a fork child inherits the answer.
//! Modules loaded after that are missing: no engine thread uses them.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use std::cell::UnsafeCell;
use std::sync::Once;

const PAGE: usize = 4096;
const DT_NULL: usize = 0;
const DT_PLTRELSZ: usize = 2;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;
const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;
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

/// Where a module lies.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    end: usize,
    /// Engine threads run code of it.
    is_engines: bool,
}

impl Place {
    const NONE: Self = Place {
        start: 0,
        end: 0,
        is_engines: false,
    };
}

/// What the linker said.
pub struct Modules {
    places: [Place; MOST],
    place_count: usize,
    /// The address that this module was loaded at, and its dynamic section.
    own: (usize, usize),
    locals: [Option<ThreadLocals>; MOST],
    local_count: usize,
    thread_pointer: usize,
}

/// The one list. It is filled in place: it is larger than the stack of some threads that ask first.
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
            (*MODULES.0.get()).find_engine_code();
        }
    });
    // SAFETY: filled, and not written any more.
    unsafe { &*MODULES.0.get() }
}

impl Modules {
    /// Where each module lies that engine threads run code of, from its first to its last segment.
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
        let pages = loaded_segments(headers).map(|header| {
            let start = base.wrapping_add(header.p_vaddr as usize);
            let end = start + header.p_memsz as usize;
            (start / PAGE * PAGE, end.next_multiple_of(PAGE))
        });
        let whole = pages.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        if let (Some((start, end)), Some(place)) = (whole, self.places.get_mut(self.place_count)) {
            *place = Place {
                start,
                end,
                is_engines: is_own,
            };
            self.place_count += 1;
        }
    }

    /// Marks the modules in which what our own relocations name was found.
    ///
    /// # Safety
    /// `own` is what the linker said of this module, which stays loaded.
    unsafe fn find_engine_code(&mut self) {
        let (base, mut dynamic) = self.own;
        if dynamic == 0 {
            return;
        }
        let [mut rela, mut rela_len, mut plt, mut plt_len] = [0; 4];
        loop {
            // SAFETY: the section's entries are read up to the one that ends it.
            let [tag, value] =
                unsafe { core::ptr::without_provenance::<[usize; 2]>(dynamic).read() };
            match tag {
                DT_NULL => break,
                DT_RELA => rela = value,
                DT_RELASZ => rela_len = value,
                DT_JMPREL => plt = value,
                DT_PLTRELSZ => plt_len = value,
                _ => {}
            }
            dynamic += size_of::<[usize; 2]>();
        }
        // The program's own allocator is none of ours, but what frees is named as well.
        let not_called = libc::free as *const () as usize;
        for (table, len) in [(rela, rela_len), (plt, plt_len)] {
            // Some linkers leave the section as it is in the file.
            let table = if table < base { table + base } else { table };
            let count = if table == 0 {
                0
            } else {
                len / size_of::<libc::Elf64_Rela>()
            };
            for index in 0..count {
                // SAFETY: one of the table's entries, and the word that it says was set.
                let target = unsafe {
                    let entry = core::ptr::without_provenance::<libc::Elf64_Rela>(table)
                        .add(index)
                        .read();
                    let kind = entry.r_info as u32;
                    if !matches!(kind, R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                        continue;
                    }
                    let place = base.wrapping_add(entry.r_offset as usize);
                    core::ptr::without_provenance::<usize>(place).read_unaligned()
                };
                let places = &mut self.places[..self.place_count];
                let place = places
                    .iter_mut()
                    .find(|place| (place.start..place.end).contains(&target));
                if let Some(place) = place.filter(|_| target != not_called) {
                    place.is_engines = true;
                }
            }
        }
    }

    fn add_locals(&mut self, locals: ThreadLocals) {
        if let Some(place) = self.locals.get_mut(self.local_count) {
            *place = Some(locals);
            self.local_count += 1;
        }
    }
}

fn loaded_segments(headers: &[libc::Elf64_Phdr]) -> impl Iterator<Item = &libc::Elf64_Phdr> {
    headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD)
}

/// Whether it is the module that this code is in.
fn holds_this_code(base: usize, headers: &[libc::Elf64_Phdr]) -> bool {
    let here = on_module as *const () as usize;
    loaded_segments(headers).any(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        (start..start + header.p_memsz as usize).contains(&here)
    })
}

/// How much static data the loaded modules have, in bytes that are written to.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticData {
    /// Nothing is behind it at first (`.bss`); this module's left out.
    pub anonymous: usize,
    /// A copy of what a file holds, as soon as it is written to.
    pub of_files: usize,
    /// What is `anonymous` of this module.
    pub own: usize,
}

/// Looks at the static data of all modules. Takes a lock of the dynamic linker's.
pub fn static_data() -> StaticData {
    let mut data = StaticData::default();
    // SAFETY: the callback gets what it expects, which outlives the call.
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
    let is_own = holds_this_code(base, headers);
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
    let is_own = holds_this_code(base, headers);
    if is_own {
        let dynamic = headers
            .iter()
            .find(|header| header.p_type == libc::PT_DYNAMIC);
        modules.own = (
            base,
            dynamic.map_or(0, |at| base.wrapping_add(at.p_vaddr as usize)),
        );
    }
    // The program itself has copies of variables of the C library's, none that matter here.
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
