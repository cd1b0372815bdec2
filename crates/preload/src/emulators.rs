//! Programs that another program executes instruction by instruction stay unmanaged: the executing program neither
//! supports the system calls of an engine nor shows the kernel the memory that the program seems to have.

use core::arch::asm;
use core::ffi::CStr;

/// The program that executes this one, if an engine cannot work there. `is_set` tells whether an environment variable
/// is set.
pub fn found(is_set: impl Fn(&CStr) -> bool) -> Option<&'static [u8]> {
    if is_under_valgrind() {
        return Some(b"what Valgrind runs is not managed");
    }
    // rr sets it for programs that it records and replays.
    if is_set(c"RUNNING_UNDER_RR") {
        return Some(b"what rr records is not managed");
    }
    None
}

/// Valgrind's own query: instructions without effect, except under Valgrind.
fn is_under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0_u64;
    // SAFETY: the rotations add up to two whole turns, and the exchange is of a register with itself.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            out("rdi") _,
            options(nostack),
        );
    }
    answer != 0
}
