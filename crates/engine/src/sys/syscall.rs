//! Bare system calls for what rustix does not offer: no errno, no TLS, nothing but registers.
//!
//! Used where code runs before or beside libc's idea of a thread, or on a program's thread whose
//! errno must not change.

use core::arch::asm;

use rustix::io::Errno;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("foreswap's engine threads are written for Linux on x86_64");

/// Calls `number` with four arguments.
///
/// # Safety
/// The arguments must be right for that call, pointers included.
pub(super) unsafe fn syscall4(
    number: u32,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11; the rest is the caller's word.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
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

/// Calls `number` with five arguments.
///
/// # Safety
/// As for [`syscall4`].
pub(super) unsafe fn syscall5(number: u32, args: [usize; 5]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: as in `syscall4`.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
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
