//! The exec family's functions: each has the file examined and continues in the C library's function.
//!
//! Their contracts are those of the manual; errno is left to the real function.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;

use super::{Strings, before, before_file, before_search, is_configured, look, own_environment};
use crate::real::{Real, forward, missing};
use crate::{PROGRAM, rlimits};

static EXECVE: Real = Real::new(c"execve");
static EXECV: Real = Real::new(c"execv");
static EXECVP: Real = Real::new(c"execvp");
static EXECVPE: Real = Real::new(c"execvpe");
static EXECL: Real = Real::new(c"execl");
static EXECLP: Real = Real::new(c"execlp");
static EXECLE: Real = Real::new(c"execle");
static FEXECVE: Real = Real::new(c"fexecve");
static EXECVEAT: Real = Real::new(c"execveat");
static POSIX_SPAWN: Real = Real::new(c"posix_spawn");
static POSIX_SPAWNP: Real = Real::new(c"posix_spawnp");
static SYSTEM: Real = Real::new(c"system");
static POPEN: Real = Real::new(c"popen");

/// Looks up all of them.
pub fn look_up() {
    for real in [
        &EXECVE,
        &EXECV,
        &EXECVP,
        &EXECVPE,
        &EXECL,
        &EXECLP,
        &EXECLE,
        &FEXECVE,
        &EXECVEAT,
        &POSIX_SPAWN,
        &POSIX_SPAWNP,
        &SYSTEM,
        &POPEN,
    ] {
        real.address();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, args: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { before(path, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    forward!(EXECVE => fn(*const c_char, Strings, Strings) -> c_int; path, args, environment)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { before(path, own_environment()) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    forward!(EXECV => fn(*const c_char, Strings) -> c_int; path, args)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(name: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { before_search(name, true, own_environment()) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    forward!(EXECVP => fn(*const c_char, Strings) -> c_int; name, args)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(name: *const c_char, args: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { before_search(name, true, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    forward!(EXECVPE => fn(*const c_char, Strings, Strings) -> c_int; name, args, environment)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(file: c_int, args: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { before_file(file, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    forward!(FEXECVE => fn(c_int, Strings, Strings) -> c_int; file, args, environment)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    args: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    if is_configured() && !path.is_null() && folder != -1 {
        // SAFETY: the caller's promise; a descriptor that is not open makes the calls on it fail.
        unsafe {
            let name = CStr::from_ptr(path);
            if name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
                before_file(folder, environment);
            } else {
                look(BorrowedFd::borrow_raw(folder), name, false, environment, 0);
            }
        }
    }
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    forward!(EXECVEAT => fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
        folder, path, args, environment, flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { before(path, environment) };
    forward!(POSIX_SPAWN =>
        fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
        pid, path, actions, attributes, args, environment)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { before_search(name, false, environment) };
    forward!(POSIX_SPAWNP =>
        fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
        pid, name, actions, attributes, args, environment)
}

// Starts the shell.
#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    if !command.is_null() {
        // SAFETY: a string and the program's environment.
        unsafe { before(c"/bin/sh".as_ptr(), own_environment()) };
    }
    forward!(SYSTEM => fn(*const c_char) -> c_int; command)
}

// Starts the shell.
#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: a string and the program's environment.
    unsafe { before(c"/bin/sh".as_ptr(), own_environment()) };
    forward!(POPEN => fn(*const c_char, *const c_char) -> *mut c_void; command, kind)
}

/// The arguments of a variadic function: those from registers, and those from the stack.
const IN_REGISTERS: usize = 6;
/// The start of the stack arguments, after the saved registers.
const ON_STACK: usize = 8;

/// Defines a variadic function: it saves the register arguments, calls `$before`, and continues in the function at
/// the returned address.
macro_rules! variadic {
    ($name:ident, $before:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "push rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "call {before}",
                "mov r11, rax",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop rcx",
                "pop r8",
                "pop r9",
                "pop rax",
                "jmp r11",
                before = sym $before,
            );
        }
    };
}

variadic!(execl, before_execl);
variadic!(execlp, before_execlp);
variadic!(execle, before_execle);

unsafe extern "C" fn before_execl(arguments: *const usize) -> *mut c_void {
    // SAFETY: the first argument is the path.
    unsafe { before(arguments.read() as *const c_char, own_environment()) };
    found(&EXECL)
}

unsafe extern "C" fn before_execlp(arguments: *const usize) -> *mut c_void {
    // SAFETY: the first argument is the name.
    unsafe { before_search(arguments.read() as *const c_char, true, own_environment()) };
    found(&EXECLP)
}

unsafe extern "C" fn before_execle(arguments: *const usize) -> *mut c_void {
    let argument = |index: usize| {
        let stacked = index
            .checked_sub(IN_REGISTERS)
            .map(|index| ON_STACK + index);
        // SAFETY: it is not read beyond the environment, which comes after the null.
        unsafe { arguments.add(stacked.unwrap_or(index)).read() }
    };
    let mut index = 1;
    while argument(index) != 0 {
        index += 1;
    }
    // SAFETY: the caller's promise.
    unsafe { before(argument(0) as *const c_char, argument(index + 1) as Strings) };
    found(&EXECLE)
}

fn found(real: &Real) -> *mut c_void {
    PROGRAM.executes();
    let address = real.address();
    if address.is_null() {
        missing();
    }
    address
}
