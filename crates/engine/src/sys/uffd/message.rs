//! The messages of a userfaultfd: faults, and changes of the program's address space.

use core::slice;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use linux_raw_sys::general as k;

/// One message as the kernel writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct RawMsg([u8; 32]);

impl RawMsg {
    /// An empty message, to fill a buffer with.
    pub const ZERO: Self = Self([0; 32]);
}

const _: () = assert!(size_of::<RawMsg>() == size_of::<k::uffd_msg>());

/// The kind of the faulting access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultFlags {
    /// It was a write.
    pub write: bool,
    /// The page is present but write-protected.
    pub wp: bool,
    /// The page is in the page cache but not mapped.
    pub minor: bool,
}

/// A decoded message. Addresses are bytes in the process that faulted.
#[derive(Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// The address; page-aligned unless EXACT_ADDRESS was requested.
        addr: usize,
        /// The kind of access.
        flags: FaultFlags,
        /// The kernel's id of the thread, 0 without THREAD_ID.
        tid: u32,
    },
    /// `start..end` is about to be discarded. The message comes *before* the pages are dropped, and no message
    /// reports when they are. A page of the range that is moved out after this message may still hold its old
    /// contents, which must then be forgotten, not kept for swap-in. The EAGAIN of other ioctls is no protection: it
    /// ends before the pages are dropped, and a move to memory that another userfaultfd serves never gets it.
    Remove {
        /// First byte.
        start: usize,
        /// One past the last.
        end: usize,
    },
    /// `start..end` was unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// One past the last.
        end: usize,
    },
    /// `from..from+len` was moved to `to`. An [`Event::Unmap`] of the old addresses follows, and
    /// the program's mremap returns only after both have been read.
    Remap {
        /// Old address.
        from: usize,
        /// New address.
        to: usize,
        /// Bytes that moved: the old length, also when the mapping grew.
        len: usize,
    },
    /// The process forked; the child's memory reports to this descriptor. The fork has copied the memory, and the thread
    /// waits for this message to be read. Since the copy, no ioctl has succeeded.
    Fork {
        /// The child's userfaultfd.
        fd: OwnedFd,
    },
    /// A message kind of a newer kernel.
    Unknown(u8),
}

impl RawMsg {
    fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[8 + 8 * index..][..8]);
        u64::from_ne_bytes(bytes)
    }

    fn decode(&self) -> Event {
        let [a, b, c] = [self.word(0), self.word(1), self.word(2)];
        match u32::from(self.0[0]) {
            k::UFFD_EVENT_PAGEFAULT => {
                let flag = |bit: u32| a & u64::from(bit) != 0;
                let mut tid = [0; 4];
                tid.copy_from_slice(&self.0[24..28]);
                Event::Fault {
                    addr: b as usize,
                    flags: FaultFlags {
                        write: flag(k::UFFD_PAGEFAULT_FLAG_WRITE),
                        wp: flag(k::UFFD_PAGEFAULT_FLAG_WP),
                        minor: flag(k::UFFD_PAGEFAULT_FLAG_MINOR),
                    },
                    tid: u32::from_ne_bytes(tid),
                }
            }
            k::UFFD_EVENT_REMOVE => Event::Remove {
                start: a as usize,
                end: b as usize,
            },
            k::UFFD_EVENT_UNMAP => Event::Unmap {
                start: a as usize,
                end: b as usize,
            },
            k::UFFD_EVENT_REMAP => Event::Remap {
                from: a as usize,
                to: b as usize,
                len: c as usize,
            },
            k::UFFD_EVENT_FORK => {
                let mut fd = [0; 4];
                fd.copy_from_slice(&self.0[8..12]);
                // SAFETY: the kernel installed this descriptor for the reader of this message,
                // and each message is decoded once.
                let fd = unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(fd)) };
                Event::Fork { fd }
            }
            _ => Event::Unknown(self.0[0]),
        }
    }
}

/// The messages of one read, oldest first.
pub struct Events<'b> {
    rest: slice::Iter<'b, RawMsg>,
}

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.rest.next().map(RawMsg::decode)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl ExactSizeIterator for Events<'_> {}

impl<'b> Events<'b> {
    pub(super) fn new(messages: &'b [RawMsg]) -> Self {
        Self {
            rest: messages.iter(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: u32, words: [u64; 3]) -> RawMsg {
        let mut raw = RawMsg::ZERO;
        raw.0[0] = event as u8;
        for (i, word) in words.iter().enumerate() {
            raw.0[8 + 8 * i..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        raw
    }

    #[test]
    fn each_message_decodes_to_its_event() {
        let fault = message(k::UFFD_EVENT_PAGEFAULT, [0b011, 0x7000, 42]).decode();
        let Event::Fault {
            addr: 0x7000,
            flags,
            tid: 42,
        } = fault
        else {
            panic!("{fault:?}");
        };
        assert_eq!(
            flags,
            FaultFlags {
                write: true,
                wp: true,
                minor: false
            }
        );
        let other = message(k::UFFD_EVENT_REMOVE, [1, 2, 0]).decode();
        assert!(matches!(other, Event::Remove { start: 1, end: 2 }));
        let other = message(k::UFFD_EVENT_UNMAP, [3, 4, 0]).decode();
        assert!(matches!(other, Event::Unmap { start: 3, end: 4 }));
        let other = message(k::UFFD_EVENT_REMAP, [5, 6, 7]).decode();
        assert!(matches!(
            other,
            Event::Remap {
                from: 5,
                to: 6,
                len: 7
            }
        ));
        assert!(matches!(
            message(0x44, [0; 3]).decode(),
            Event::Unknown(0x44)
        ));
    }
}
