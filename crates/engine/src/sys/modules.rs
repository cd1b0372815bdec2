//! The shared objects of the process, by address.
//!
//! Engine threads run code of ours and of the C library's, and that code has static data. It looks
//! like the program's anonymous memory in the maps, but must never be paged out.

use core::ffi::{c_int, c_void};
use core::ops::Range;

const PAGE: usize = 4096;

/// Where each loaded object but the program itself lies, from its first to its last segment. Objects
/// loaded later are missing; no engine thread uses these.
///
/// Takes a lock of the dynamic linker's: only before memory is managed, so that its holder cannot
/// wait for us.
pub fn libraries() -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // SAFETY: the callback gets `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(on_object), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn on_object(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the linker passes a valid description, `libraries` its list.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Range<usize>>>()) };
    // SAFETY: names are zero-terminated.
    let is_program = info.dlpi_name.is_null() || unsafe { *info.dlpi_name } == 0;
    if is_program {
        return 0;
    }
    // SAFETY: as many headers are there.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let segments = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD);
    let ends = segments.map(|header| {
        let start = base + header.p_vaddr as usize;
        (
            start / PAGE * PAGE,
            (start + header.p_memsz as usize).next_multiple_of(PAGE),
        )
    });
    let whole = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    found.extend(whole.map(|(start, end)| start..end));
    0
}
