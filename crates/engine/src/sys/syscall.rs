//! Bare system calls that rustix lacks: no errno, no TLS, only registers.
//!
//! For code that runs before or outside libc's threads, or on a program's thread whose errno must not change.

use core::arch::asm;

use rustix::io::Errno;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("foreswap's engine threads are written for Linux on x86_64");

/// Calls `number` with up to five arguments; the kernel does not look at more than the call has.
///
/// # Safety
/// The arguments must be right for that call, pointers included.
#[inline]
pub(crate) unsafe fn syscall<const N: usize>(
    number: u32,
    args: [usize; N],
) -> Result<usize, Errno> {
    const { assert!(N <= 5) };
    let mut all = [0; 5];
    all[..N].copy_from_slice(&args);
    let result: isize;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11; the rest is the caller's word.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") all[0],
            in("rsi") all[1],
            in("rdx") all[2],
            in("r10") all[3],
            in("r8") all[4],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}
