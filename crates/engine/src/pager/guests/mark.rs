//! How the child of an announced fork makes itself known.
//!
//! The kernel's report of a fork does not tell whose fork it is. If several forks are reported while one is announced, the
//! engine serves all their children, as those of forks past the C library need it. The child of the announced fork then
//! cannot register its memory, and discards the *mark*: a page that nobody uses, registered with the program's memory.
//! The report of that comes by the userfaultfd of this child, which is closed.

use core::cell::UnsafeCell;

use foreswap_core::units::{PAGE_SIZE, Vpn};

use crate::sys::own_memory;
use crate::sys::uffd::{Features, Uffd};

/// In static memory, it has the same address in all processes that forks connect, and is never adopted.
#[repr(align(4096))]
struct Page(UnsafeCell<[u8; PAGE_SIZE]>);

// SAFETY: nobody reads or writes it.
unsafe impl Sync for Page {}

static MARK: Page = Page(UnsafeCell::new([0; PAGE_SIZE]));

fn address() -> usize {
    MARK.0.get() as usize
}

/// Its page.
pub fn page() -> Vpn {
    Vpn::of(address() as u64)
}

/// Registers it, if forks are reported.
pub fn register(uffd: &Uffd) {
    if uffd.features().contains(Features::EVENT_FORK) {
        // Without it, the child of an announced fork ends where another thread forks at the same moment.
        let _ = uffd.register_missing(address(), PAGE_SIZE);
    }
}

/// Discards it. Returns once that was read, if it is registered.
pub fn show() {
    // SAFETY: it has no content.
    let _ = unsafe { own_memory::discard(address(), PAGE_SIZE) };
}
