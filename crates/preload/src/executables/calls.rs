//! The exec family's functions: each has the file examined and continues in the C library's function.
//!
//! Their contracts are those of the manual; errno is left to the real function.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;

use super::environment::{Lacks, with_ours};
use super::{
    AS_IT_IS, CHANGES, Look, Strings, before, before_file, before_search, is_configured, look,
    own_environment,
};
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

/// The functions that search in PATH let the shell try what is no program.
const SEARCHES: Look = Look {
    shell: true,
    ..CHANGES
};

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
    let lacks = unsafe { before(path, CHANGES, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    let execute = |environment| forward!(EXECVE => fn(*const c_char, Strings, Strings) -> c_int; path, args, environment);
    // SAFETY: as above.
    unsafe { with_ours(lacks, environment, execute) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, args: Strings) -> c_int {
    let environment = own_environment();
    // SAFETY: the caller's promise.
    let lacks = unsafe { before(path, CHANGES, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    if lacks == Lacks::Nothing {
        return forward!(EXECV => fn(*const c_char, Strings) -> c_int; path, args);
    }
    let execute = |environment| forward!(EXECVE => fn(*const c_char, Strings, Strings) -> c_int; path, args, environment);
    // SAFETY: as above.
    unsafe { with_ours(lacks, environment, execute) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(name: *const c_char, args: Strings) -> c_int {
    let environment = own_environment();
    // SAFETY: the caller's promise.
    let lacks = unsafe { before_search(name, SEARCHES, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    if lacks == Lacks::Nothing {
        return forward!(EXECVP => fn(*const c_char, Strings) -> c_int; name, args);
    }
    let execute = |environment| forward!(EXECVPE => fn(*const c_char, Strings, Strings) -> c_int; name, args, environment);
    // SAFETY: as above.
    unsafe { with_ours(lacks, environment, execute) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(name: *const c_char, args: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    let lacks = unsafe { before_search(name, SEARCHES, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    let execute = |environment| forward!(EXECVPE => fn(*const c_char, Strings, Strings) -> c_int; name, args, environment);
    // SAFETY: as above.
    unsafe { with_ours(lacks, environment, execute) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(file: c_int, args: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's promise.
    let lacks = unsafe { before_file(file, environment) };
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    let execute = |environment| forward!(FEXECVE => fn(c_int, Strings, Strings) -> c_int; file, args, environment);
    // SAFETY: as above.
    unsafe { with_ours(lacks, environment, execute) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    args: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    let mut lacks = Lacks::Nothing;
    if is_configured() && !path.is_null() && folder != -1 {
        // SAFETY: the caller's promise; a descriptor that is not open makes the calls on it fail.
        unsafe {
            let name = CStr::from_ptr(path);
            if name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
                lacks = before_file(folder, environment);
            } else {
                let folder = BorrowedFd::borrow_raw(folder);
                lacks = look(folder, name, CHANGES, environment, 0).unwrap_or(lacks);
            }
        }
    }
    PROGRAM.executes();
    let _as_set = rlimits::lower();
    let execute = |environment| {
        forward!(EXECVEAT => fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
            folder, path, args, environment, flags)
    };
    // SAFETY: the caller's promise.
    unsafe { with_ours(lacks, environment, execute) }
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
    let lacks = unsafe { before(path, CHANGES, environment) };
    let spawn = |environment| {
        forward!(POSIX_SPAWN =>
            fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
            pid, path, actions, attributes, args, environment)
    };
    // SAFETY: as above.
    unsafe { with_ours(lacks, environment, spawn) }
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
    let lacks = unsafe { before_search(name, CHANGES, environment) };
    let spawn = |environment| {
        forward!(POSIX_SPAWNP =>
            fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
            pid, name, actions, attributes, args, environment)
    };
    // SAFETY: as above.
    unsafe { with_ours(lacks, environment, spawn) }
}

// Starts the shell.
#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    if !command.is_null() {
        // SAFETY: a string and the program's environment.
        unsafe { before(c"/bin/sh".as_ptr(), AS_IT_IS, own_environment()) };
    }
    forward!(SYSTEM => fn(*const c_char) -> c_int; command)
}

// Starts the shell.
#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: a string and the program's environment.
    unsafe { before(c"/bin/sh".as_ptr(), AS_IT_IS, own_environment()) };
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

/// The most arguments of a variadic call whose environment is changed.
const MOST_ARGUMENTS: usize = 120;

/// The arguments of a variadic function.
#[derive(Clone, Copy)]
struct Arguments(*const usize);

impl Arguments {
    /// # Safety
    /// The caller passed this one.
    unsafe fn get(self, index: usize) -> usize {
        let stacked = index.checked_sub(IN_REGISTERS);
        let at = stacked.map_or(index, |index| ON_STACK + index);
        // SAFETY: the caller's promise.
        unsafe { self.0.add(at).read() }
    }

    /// The index of the null that ends the new program's arguments.
    ///
    /// # Safety
    /// They have one.
    unsafe fn end(self) -> usize {
        let mut index = 1;
        // SAFETY: nothing is read beyond the null.
        while unsafe { self.get(index) } != 0 {
            index += 1;
        }
        index
    }

    /// Executes with a changed environment what the caller is about to execute without. Returns if that fails: the
    /// caller's call then fails in the same way.
    ///
    /// # Safety
    /// As for the variadic functions.
    #[inline(never)]
    unsafe fn execute(
        self,
        lacks: Lacks,
        environment: Strings,
        execute: impl FnOnce(*const c_char, Strings, Strings) -> c_int,
    ) {
        let mut list = [core::ptr::null::<c_char>(); MOST_ARGUMENTS + 1];
        // SAFETY: the caller's promise.
        unsafe {
            let end = self.end();
            if lacks != Lacks::Ours || end > MOST_ARGUMENTS {
                return;
            }
            for index in 1..end {
                list[index - 1] = self.get(index) as *const c_char;
            }
            let path = self.get(0) as *const c_char;
            with_ours(lacks, environment, |environment| {
                execute(path, list.as_ptr(), environment)
            });
        }
    }
}

fn real_execve(path: *const c_char, args: Strings, environment: Strings) -> c_int {
    forward!(EXECVE => fn(*const c_char, Strings, Strings) -> c_int; path, args, environment)
}

fn real_execvpe(name: *const c_char, args: Strings, environment: Strings) -> c_int {
    forward!(EXECVPE => fn(*const c_char, Strings, Strings) -> c_int; name, args, environment)
}

unsafe extern "C" fn before_execl(arguments: *const usize) -> *mut c_void {
    let (arguments, environment) = (Arguments(arguments), own_environment());
    let real = found(&EXECL);
    // SAFETY: the first argument is the path.
    unsafe {
        let lacks = before(arguments.get(0) as *const c_char, CHANGES, environment);
        arguments.execute(lacks, environment, real_execve);
    }
    real
}

unsafe extern "C" fn before_execlp(arguments: *const usize) -> *mut c_void {
    let (arguments, environment) = (Arguments(arguments), own_environment());
    let real = found(&EXECLP);
    // SAFETY: the first argument is the name.
    unsafe {
        let lacks = before_search(arguments.get(0) as *const c_char, SEARCHES, environment);
        arguments.execute(lacks, environment, real_execvpe);
    }
    real
}

unsafe extern "C" fn before_execle(arguments: *const usize) -> *mut c_void {
    let arguments = Arguments(arguments);
    let real = found(&EXECLE);
    // SAFETY: the environment comes after the null.
    unsafe {
        let environment = arguments.get(arguments.end() + 1) as Strings;
        let lacks = before(arguments.get(0) as *const c_char, CHANGES, environment);
        arguments.execute(lacks, environment, real_execve);
    }
    real
}

fn found(real: &Real) -> *mut c_void {
    PROGRAM.executes();
    let address = real.address();
    if address.is_null() {
        missing();
    }
    address
}
