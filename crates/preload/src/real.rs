//! The real functions behind the interposed ones: the next definition in the search order, looked up once.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// An interposed function.
pub struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    /// The next definition of `name`.
    pub const fn new(name: &'static CStr) -> Self {
        Real {
            name,
            found: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Its address; null if there is none.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if found.is_null() {
            self.look_up()
        } else {
            found
        }
    }

    /// Its address, if it was looked up already.
    #[inline]
    pub fn known(&self) -> Option<*mut c_void> {
        let found = self.found.load(Relaxed);
        (!found.is_null()).then_some(found)
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is zero-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Relaxed);
        found
    }
}

/// Call the real function: `forward!(REAL as fn(type...) -> type; arguments...)`. The program cannot continue without
/// it: its absence ends the process with its name.
macro_rules! forward {
    ($real:expr => fn($($kind:ty),*) -> $result:ty; $($argument:expr),*) => {{
        let address = $real.address();
        if address.is_null() {
            $crate::real::missing();
        }
        type Function = unsafe extern "C" fn($($kind),*) -> $result;
        // SAFETY: the C library defines the function with this signature.
        let function = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Function>(address) };
        // SAFETY: the caller's arguments are passed on as they are.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use forward;

/// A function of the C library is missing.
#[cold]
pub fn missing() -> ! {
    foreswap::program::say(b"foreswap: the C library lacks a function that it should have\n");
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
