//! Guards (MADV_GUARD_INSTALL, MADV_GUARD_REMOVE) in managed memory.
//!
//! The kernel does not report them. The C library's `madvise` therefore asks first, over the doorbell, and the pager
//! makes the call itself: nothing is mapped or moved between the kernel's change and the core's. The program's thread
//! then makes the call as well. Where memory is managed it changes nothing further, and it provides the result.

use foreswap_core::units::{PageRange, Vpn, len};

use rustix::io::Errno;

use super::boot::bytes_of;
use super::{Mode, Pager, adopt};
use crate::ledger::SeenKind;
use crate::program::{MADV_GUARD_INSTALL, MADV_GUARD_REMOVE};
use crate::sys::syscall::syscall;

impl Pager {
    /// A thread is about to guard `bytes` of memory at `start`, or to remove guards, according to `advice`.
    pub(crate) fn on_guard(&mut self, start: u64, bytes: u64, advice: i32) {
        let end = start.saturating_add(bytes) as usize;
        let Some(end) = end.checked_next_multiple_of(foreswap_core::units::PAGE_SIZE) else {
            return;
        };
        // An empty range shows whether the kernel knows the call.
        if self.mode == Mode::Bare || madvise(&(Vpn(0)..Vpn(0)), advice).is_err() {
            return;
        }
        for part in self.mm.managed_in(&adopt::pages(start as usize, end)) {
            let done = if advice == MADV_GUARD_INSTALL {
                self.install_guards(&part)
            } else {
                self.remove_guards(&part)
            };
            if !done {
                return;
            }
        }
    }

    /// Where the kernel refuses, as for locked memory, it has guarded the pages before that point: bisect the range.
    /// False: refused.
    fn install_guards(&mut self, range: &PageRange) -> bool {
        if madvise(range, MADV_GUARD_INSTALL).is_ok() {
            self.on_guarded(range);
            return true;
        }
        let middle = range.start.plus(len(range) / 2);
        len(range) > 1
            && self.install_guards(&(range.start..middle))
            && self.install_guards(&(middle..range.end))
    }

    /// `range` is guarded, and its content is gone.
    pub(crate) fn on_guarded(&mut self, range: &PageRange) {
        self.w.forget_in_snapshot(range);
        self.w.record(|to| to.change(SeenKind::Discard, range));
        self.mm.guard(&mut self.w, range);
    }

    /// Refused memory may still be guarded; a fault there is tried (`foreswap_core`, space/guard.rs). False: refused.
    fn remove_guards(&mut self, range: &PageRange) -> bool {
        if madvise(range, MADV_GUARD_REMOVE).is_err() {
            return false;
        }
        self.mm.unguard(range);
        if self.mm.usage(range).0 == 0 {
            return true;
        }
        // Unknown guards may have stood where pages are known to be mapped.
        let present = self
            .space
            .present(range)
            .unwrap_or_else(|_| vec![range.clone()]);
        let mut at = range.start;
        for found in present.into_iter().chain([range.end..range.end]) {
            if at < found.start {
                self.mm.forget_mapped(&mut self.w, &(at..found.start));
            }
            at = found.end;
        }
        true
    }
}

/// Not the C library's `madvise`: the program's leads to the pager.
fn madvise(range: &PageRange, advice: i32) -> Result<usize, Errno> {
    let bytes = bytes_of(range);
    let arguments = [bytes.start, bytes.len(), advice as usize];
    // SAFETY: the program has asked for it: its own thread makes the same call next.
    unsafe { syscall(linux_raw_sys::general::__NR_madvise, arguments) }
}
