//! Whether the program can map memory past the C library.
//!
//! The program's code shows it. A program that needs no library except the loader (as the Go linker makes them) does
//! everything itself. In other programs this module searches for system call instructions that follow a load of the
//! number of a memory call, or of an unknown number. Large programs are not searched, which would prolong their start
//! noticeably: nearly all of them have an allocator that uses the C library.

use core::ffi::{c_int, c_void};
use core::ops::Range;

/// The most code that is searched, in bytes.
const MOST: usize = 1 << 20;
/// The distance before the instruction within which the number is searched.
const BEFORE: usize = 512;
const NEAR: usize = 64;
/// In this much code, the instruction's two bytes occur by chance less than once.
const SMALL: usize = 64 << 10;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The linker's data on the program itself.
#[derive(Default)]
struct Found {
    needs_libraries: bool,
    calls: bool,
}

/// Examines the program. Takes a lock of the dynamic linker.
pub fn is_possible() -> bool {
    let mut found = Found::default();
    // SAFETY: the callback gets its expected argument, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    !found.needs_libraries || found.calls
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's promise for the call's duration; `found` is as `is_possible` passed it.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
    // The first one is the program.
    if info.dlpi_phdr.is_null() {
        found.needs_libraries = true;
        return 1;
    }
    // SAFETY: the loader says how many headers there are.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let address = |header: &libc::Elf64_Phdr| base.wrapping_add(header.p_vaddr as usize);
    for header in headers {
        match header.p_type {
            // SAFETY: the loader has mapped the parts named by the headers.
            libc::PT_DYNAMIC => unsafe { found.needs_libraries |= needs_any(address(header)) },
            libc::PT_LOAD
                if header.p_flags & (libc::PF_X | libc::PF_R) == libc::PF_X | libc::PF_R =>
            {
                let len = header.p_filesz as usize;
                if len <= MOST {
                    // SAFETY: as above.
                    let code = unsafe {
                        core::slice::from_raw_parts(
                            core::ptr::without_provenance(address(header)),
                            len,
                        )
                    };
                    found.calls |= calls_for_memory(code);
                }
            }
            _ => {}
        }
    }
    1
}

/// Whether a dynamic section names libraries.
///
/// # Safety
/// `at` is the address of one.
unsafe fn needs_any(mut at: usize) -> bool {
    const DT_NULL: usize = 0;
    const DT_NEEDED: usize = 1;
    loop {
        // SAFETY: an entry, as the one that ends the section was not met.
        let [tag, _] = unsafe { core::ptr::without_provenance::<[usize; 2]>(at).read() };
        match tag {
            DT_NULL => return false,
            DT_NEEDED => return true,
            _ => at += size_of::<[usize; 2]>(),
        }
    }
}

/// Whether the code makes a system call that may be for memory.
fn calls_for_memory(code: &[u8]) -> bool {
    let mut rest: Range<usize> = 0..code.len();
    while let Some(at) = find_call(&code[rest.clone()]).map(|at| at + rest.start) {
        if names_memory(&code[at.saturating_sub(BEFORE)..at], code.len() <= SMALL) {
            return true;
        }
        rest.start = at + SYSCALL.len();
    }
    false
}

/// The next possible place of such an instruction.
fn find_call(code: &[u8]) -> Option<usize> {
    const LANES: usize = 16;
    let mut at = 0;
    while at + LANES < code.len() {
        // Both bytes of all places at once; the compiler vectorises it.
        let (first, second) = (&code[at..at + LANES], &code[at + 1..at + 1 + LANES]);
        let pairs = first.iter().zip(second);
        let any = pairs.fold(false, |any, (&a, &b)| {
            any | ((a == SYSCALL[0]) & (b == SYSCALL[1]))
        });
        if any {
            break;
        }
        at += LANES;
    }
    code[at..]
        .windows(2)
        .position(|pair| pair == SYSCALL)
        .map(|found| at + found)
}

/// Whether the code before a system call makes it one for memory, or one with a number from its caller. `small`:
/// patterns that occur by chance in large code count too.
fn names_memory(before: &[u8], small: bool) -> bool {
    // mmap, brk, mremap.
    const NUMBERS: [u8; 3] = [9, 12, 25];
    let near = &before[before.len().saturating_sub(NEAR)..];
    let is_set_here = near.windows(7).any(|code| match *code {
        // mov $number, %eax
        [0xb8, number, 0, 0, 0, ..] => NUMBERS.contains(&number),
        // mov $number, %rax
        [0x48, 0xc7, 0xc0, number, 0, 0, 0] => NUMBERS.contains(&number),
        // push $number; pop %rax
        [0x6a, number, 0x58, ..] => NUMBERS.contains(&number),
        // mov %rdi, %rax
        [0x48, 0x89, 0xf8, ..] => true,
        // mov of something on the stack to %rax
        [0x48, 0x8b, 0x44 | 0x45, ..] => small,
        _ => false,
    });
    // mov of another register to %eax or %rax, which got the number before a loop.
    let is_moved = |code: &[u8]| code[0] == 0x89 && code[1] & 0xc7 == 0xc0;
    let is_number = |code: &[u8]| match *code {
        [0xb8..=0xbf, number, 0, 0, 0] => NUMBERS.contains(&number),
        _ => false,
    };
    is_set_here || near.windows(2).any(is_moved) && (small || before.windows(5).any(is_number))
}
