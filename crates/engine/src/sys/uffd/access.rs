//! Opening a userfaultfd: the features, the permitted way, and the message to the user if there is none.

use core::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use crate::sys::handed::{self, Handed};

bitflags::bitflags! {
    /// The features of a userfaultfd; the names are the kernel's without `UFFD_FEATURE_`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Write-protect faults are told apart from missing ones.
        const PAGEFAULT_FLAG_WP = k::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64;
        /// A forked child gets its own descriptor (needs CAP_SYS_PTRACE).
        const EVENT_FORK = k::UFFD_FEATURE_EVENT_FORK as u64;
        /// mremap of a registered range is reported.
        const EVENT_REMAP = k::UFFD_FEATURE_EVENT_REMAP as u64;
        /// madvise(DONTNEED, FREE, REMOVE) of a registered range is reported.
        const EVENT_REMOVE = k::UFFD_FEATURE_EVENT_REMOVE as u64;
        /// Missing faults on hugetlbfs.
        const MISSING_HUGETLBFS = k::UFFD_FEATURE_MISSING_HUGETLBFS as u64;
        /// Missing faults on shared memory.
        const MISSING_SHMEM = k::UFFD_FEATURE_MISSING_SHMEM as u64;
        /// munmap of a registered range is reported.
        const EVENT_UNMAP = k::UFFD_FEATURE_EVENT_UNMAP as u64;
        /// Faults become SIGBUS instead of messages.
        const SIGBUS = k::UFFD_FEATURE_SIGBUS as u64;
        /// Fault messages carry the thread's id.
        const THREAD_ID = k::UFFD_FEATURE_THREAD_ID as u64;
        /// Minor faults on hugetlbfs.
        const MINOR_HUGETLBFS = k::UFFD_FEATURE_MINOR_HUGETLBFS as u64;
        /// Minor faults on shared memory.
        const MINOR_SHMEM = k::UFFD_FEATURE_MINOR_SHMEM as u64;
        /// Fault addresses keep their offset within the page.
        const EXACT_ADDRESS = k::UFFD_FEATURE_EXACT_ADDRESS as u64;
        /// Write protection of hugetlbfs and shared memory.
        const WP_HUGETLBFS_SHMEM = k::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64;
        /// Write protection of absent pages.
        const WP_UNPOPULATED = k::UFFD_FEATURE_WP_UNPOPULATED as u64;
        /// UFFDIO_POISON: accesses to a page end in SIGBUS.
        const POISON = k::UFFD_FEATURE_POISON as u64;
        /// Write-protect faults resolve themselves and are only recorded.
        const WP_ASYNC = k::UFFD_FEATURE_WP_ASYNC as u64;
        /// The features required for the program's memory.
        const NEEDED = Self::MOVE.bits()
            | Self::POISON.bits()
            | Self::THREAD_ID.bits()
            | Self::EXACT_ADDRESS.bits()
            | Self::EVENT_REMOVE.bits()
            | Self::EVENT_UNMAP.bits()
            | Self::EVENT_REMAP.bits();
        /// UFFDIO_MOVE: pages change address without being copied.
        const MOVE = k::UFFD_FEATURE_MOVE as u64;
    }
}

impl Features {
    /// The first kernel that has the feature, for messages.
    fn since(self) -> &'static str {
        if self.contains(Self::MOVE) {
            "6.8"
        } else if self.contains(Self::WP_ASYNC) {
            "6.7"
        } else if self.contains(Self::POISON) {
            "6.6"
        } else if self.contains(Self::WP_UNPOPULATED) {
            "6.4"
        } else if self.contains(Self::WP_HUGETLBFS_SHMEM) {
            "5.19"
        } else if self.contains(Self::EXACT_ADDRESS) {
            "5.18"
        } else {
            "5.14"
        }
    }
}

fn names(features: Features) -> String {
    let mut list = String::new();
    for (name, _) in features.iter_names() {
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(name);
    }
    list
}

/// Why no userfaultfd could be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum UffdError {
    /// Neither the device nor the system call is permitted.
    #[error(
        "no permission to use userfaultfd (/dev/userfaultfd: {device}; userfaultfd(2): {call}). \
         Any one of these helps: run as root; give your group the device with the udev rule \
         KERNEL==\"userfaultfd\", GROUP=\"users\", MODE=\"0660\"; \
         sysctl vm.unprivileged_userfaultfd=1; in a container, pass --device=/dev/userfaultfd"
    )]
    NoPermission {
        /// The error of the device.
        device: Errno,
        /// The error of the system call.
        call: Errno,
    },
    /// The kernel was built without it.
    #[error("this kernel has no userfaultfd: it needs CONFIG_USERFAULTFD=y and Linux 6.8 or later")]
    NoSupport,
    /// The kernel has userfaultfd without some required features.
    #[error(
        "this kernel's userfaultfd lacks {}: Linux {} or later is needed, this is {kernel}",
        names(*.missing), .missing.since()
    )]
    FeatureMissing {
        /// The missing features.
        missing: Features,
        /// The running kernel's release.
        kernel: String,
    },
    /// Any other error.
    #[error("userfaultfd: {what}: {errno}")]
    Other {
        /// The step that failed.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// On /dev/userfaultfd: a new descriptor.
const NEW: Opcode = opcode::none(0xAA, 0x00);

/// USERFAULTFD_IOC_NEW takes flags by value and returns a descriptor.
struct NewFromDevice;

// SAFETY: the ioctl reads its argument as an integer, writes no memory, and returns a descriptor
// that belongs to the caller.
unsafe impl Ioctl for NewFromDevice {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut c_void {
        core::ptr::without_provenance_mut((k::O_CLOEXEC | k::O_NONBLOCK) as usize)
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: a successful call returns a fresh descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A descriptor without its handshake: by the device first, then by the system call.
pub(super) fn new_descriptor() -> Result<OwnedFd, UffdError> {
    use rustix::fs::{Mode, OFlags, open};
    let by_device = open(
        c"/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    // SAFETY: as the implementation of NewFromDevice says.
    .and_then(|device| unsafe { ioctl(&device, NewFromDevice) })
    .or_else(|errno| {
        let device = handed::get(Handed::Userfaultfd).ok_or(errno)?;
        // SAFETY: as above.
        unsafe { ioctl(device, NewFromDevice) }
    });
    let device = match by_device {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    // SAFETY: creating the descriptor changes no memory; its methods state their changes.
    let by_call = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) };
    by_call.map_err(|call| match call {
        Errno::NOSYS => UffdError::NoSupport,
        Errno::PERM | Errno::ACCESS => UffdError::NoPermission { device, call },
        errno => UffdError::Other {
            what: "userfaultfd(2)",
            errno,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_remedy() {
        let denied = UffdError::NoPermission {
            device: Errno::NOENT,
            call: Errno::PERM,
        };
        let text = denied.to_string();
        for part in [
            "root",
            "KERNEL==\"userfaultfd\"",
            "vm.unprivileged_userfaultfd=1",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let old = UffdError::FeatureMissing {
            missing: Features::MOVE | Features::POISON,
            kernel: "6.1.0".into(),
        };
        assert_eq!(
            old.to_string(),
            "this kernel's userfaultfd lacks POISON, MOVE: Linux 6.8 or later is needed, this is 6.1.0"
        );
    }
}
