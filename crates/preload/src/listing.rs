//! The list of loaded modules, as the program sees it: this one comes last, not first.
//!
//! LD_PRELOAD puts it first. AddressSanitizer's runtime refuses to run if it does not lead the list itself, and
//! programs that search the list mostly look for earlier entries.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use crate::real::{Real, forward};

static DL_ITERATE_PHDR: Real = Real::new(c"dl_iterate_phdr");

/// Look up the real function now: later, a thread that holds the loader's lock may need it.
pub fn look_up() {
    DL_ITERATE_PHDR.address();
}

type Visit = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

struct Walk {
    visit: Visit,
    argument: *mut c_void,
    own: MaybeUninit<libc::dl_phdr_info>,
    own_bytes: usize,
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dl_iterate_phdr(visit: Option<Visit>, argument: *mut c_void) -> c_int {
    let Some(visit) = visit else { return 0 };
    let mut walk = Walk {
        visit,
        argument,
        own: MaybeUninit::uninit(),
        own_bytes: 0,
    };
    let status = forward!(DL_ITERATE_PHDR => fn(Visit, *mut c_void) -> c_int;
        pass_on, (&raw mut walk).cast());
    if status != 0 || walk.own_bytes == 0 {
        return status;
    }
    // SAFETY: `pass_on` has filled it; the visitor gets what it asked for.
    unsafe { visit(walk.own.as_mut_ptr(), walk.own_bytes, argument) }
}

unsafe extern "C" fn pass_on(
    info: *mut libc::dl_phdr_info,
    bytes: usize,
    walk: *mut c_void,
) -> c_int {
    // SAFETY: the loader's promise for the call's duration; `walk` is as passed above.
    let (known, walk) = unsafe { (&*info, &mut *walk.cast::<Walk>()) };
    if bytes == size_of::<libc::dl_phdr_info>() && is_own(known) {
        walk.own.write(*known);
        walk.own_bytes = bytes;
        return 0;
    }
    // SAFETY: as the program asked.
    unsafe { (walk.visit)(info, bytes, walk.argument) }
}

/// Whether it is this module.
fn is_own(info: &libc::dl_phdr_info) -> bool {
    let here = pass_on as *const () as usize;
    if info.dlpi_phdr.is_null() {
        return false;
    }
    // SAFETY: the loader says how many headers there are.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    headers.iter().any(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz as usize).contains(&here)
    })
}
