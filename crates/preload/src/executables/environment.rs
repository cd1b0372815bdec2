//! The environment of an executed program.
//!
//! A program may replace it: `env -i`, a script that sets LD_PRELOAD for another object, Python's
//! `subprocess.run(..., env={})`. It does not mean to leave foreswap by that, so what the new program needs is put in
//! again: this object, first in LD_PRELOAD, and where the supervisor is. Who wants a program to run without foreswap
//! sets FORESWAP_SOCKET to nothing.
//!
//! A vfork child borrows its parent's memory: the new list is on the stack, and what does not fit there is reported.

use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering::Relaxed;

use foreswap::program::SOCKET_BYTES;

use super::{OBJECT, Strings, socket};
use crate::PROGRAM;

/// The variables of foreswap.
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const SOCKET: &[u8] = b"FORESWAP_SOCKET=";
const THRESHOLD: &[u8] = b"FORESWAP_THRESHOLD=";
const MAP_FILES: &[u8] = b"FORESWAP_MAP_FILES=";
/// The most variables of a program, in a small and in a large list.
const FEW: usize = 120;
const MANY: usize = 1000;
/// Room for the value of LD_PRELOAD, and for each of the other two.
const VALUE_BYTES: usize = 1024;
const SHORT_BYTES: usize = 160;
/// Room for patterns of files. Longer ones are left out: files are the kernel's then.
const PATTERN_BYTES: usize = 1024;

/// What a new program's environment lacks for it to be managed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lacks {
    /// Nothing.
    Nothing,
    /// What [`with_ours`] puts in.
    Ours,
    /// This object in LD_PRELOAD, or the supervisor's name. It cannot be put in, or is not wanted.
    Object,
    Socket,
}

/// # Safety
/// `environment` is null or a list of strings.
unsafe fn each(mut environment: Strings, mut found: impl FnMut(*const c_char, &'static [u8])) {
    while !environment.is_null() {
        // SAFETY: an element of the list, whose end is not passed.
        let entry = unsafe { environment.read() };
        if entry.is_null() {
            return;
        }
        // SAFETY: an element that is not null is a string. It stays as long as the call lasts.
        found(entry, unsafe { CStr::from_ptr(entry) }.to_bytes());
        // SAFETY: the null at the end comes after this element.
        environment = unsafe { environment.add(1) };
    }
}

/// What `environment` lacks. `may_change`: something can be put in.
///
/// # Safety
/// `environment` is null or a list of strings.
pub unsafe fn lacks(environment: Strings, may_change: bool) -> Lacks {
    if OBJECT.load(Relaxed).is_null() {
        return Lacks::Nothing;
    }
    let (mut object, mut named, mut unwanted) = (false, false, false);
    let (mut count, mut value) = (0, 0);
    // SAFETY: the caller's promise.
    unsafe {
        each(environment, |_, entry| {
            count += 1;
            if let Some(list) = entry.strip_prefix(PRELOAD) {
                object |= names_us(list);
                value += list.len();
            } else if let Some(name) = entry.strip_prefix(SOCKET) {
                named |= !name.is_empty();
                unwanted |= name.is_empty();
            }
        });
    }
    if object && named {
        return Lacks::Nothing;
    }
    // SAFETY: the dynamic linker's string.
    let own = unsafe { CStr::from_ptr(OBJECT.load(Relaxed)) }
        .to_bytes()
        .len();
    let fits = count <= MANY && PRELOAD.len() + own + value + 3 <= VALUE_BYTES;
    let is_managed = PROGRAM.threshold.load(Relaxed) != u64::MAX;
    match may_change && fits && is_managed && !unwanted {
        true => Lacks::Ours,
        false if object => Lacks::Socket,
        false => Lacks::Object,
    }
}

/// Calls `execute` with what `environment` lacks. `lacks` is the result of [`lacks`].
///
/// # Safety
/// `environment` is null or a list of strings.
pub unsafe fn with_ours<T>(
    lacks: Lacks,
    environment: Strings,
    execute: impl FnOnce(Strings) -> T,
) -> T {
    if lacks != Lacks::Ours {
        return execute(environment);
    }
    let mut count = 0;
    // SAFETY: the caller's promise.
    unsafe {
        each(environment, |_, _| count += 1);
        match count <= FEW {
            // Four more, and the end.
            true => with_list::<{ FEW + 5 }, T>(environment, execute),
            false => with_list::<{ MANY + 5 }, T>(environment, execute),
        }
    }
}

/// # Safety
/// As for [`with_ours`]; there are at most `N - 5` variables.
#[inline(never)]
unsafe fn with_list<const N: usize, T>(
    environment: Strings,
    execute: impl FnOnce(Strings) -> T,
) -> T {
    let mut list = [core::ptr::null::<c_char>(); N];
    let mut preload = Text::<VALUE_BYTES>::of(PRELOAD);
    // SAFETY: the dynamic linker's string.
    preload.add(unsafe { CStr::from_ptr(OBJECT.load(Relaxed)) }.to_bytes());
    let mut name = Text::<SHORT_BYTES>::of(SOCKET);
    let socket = socket().unwrap_or([0; SOCKET_BYTES]);
    name.add(socket.split(|&byte| byte == 0).next().unwrap_or_default());
    let mut threshold = Text::<SHORT_BYTES>::of(THRESHOLD);
    threshold.add_number(PROGRAM.threshold.load(Relaxed));
    let patterns = crate::files::patterns();
    let has_files = !patterns.is_empty() && patterns.len() + MAP_FILES.len() < PATTERN_BYTES;
    let mut files = Text::<PATTERN_BYTES>::of(MAP_FILES);
    files.add(if has_files { patterns } else { &[] });
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        each(environment, |entry, text| {
            if let Some(value) = text.strip_prefix(PRELOAD) {
                preload.add(b":");
                preload.add(value);
            } else if ![SOCKET, THRESHOLD, MAP_FILES]
                .iter()
                .any(|ours| text.starts_with(ours))
            {
                list[at] = entry;
                at += 1;
            }
        });
    }
    for entry in [preload.end(), name.end(), threshold.end()] {
        list[at] = entry;
        at += 1;
    }
    if has_files {
        list[at] = files.end();
    }
    execute(list.as_ptr())
}

/// A variable of bounded length.
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    fn of(name: &[u8]) -> Self {
        let mut text = Text {
            bytes: [0; N],
            length: 0,
        };
        text.add(name);
        text
    }

    /// Appends what fits, with room for the zero at the end.
    fn add(&mut self, more: &[u8]) {
        let fits = more.len().min(N - 1 - self.length);
        self.bytes[self.length..self.length + fits].copy_from_slice(&more[..fits]);
        self.length += fits;
    }

    fn add_number(&mut self, number: u64) {
        let mut divisor = 10_u64.pow(number.checked_ilog10().unwrap_or(0));
        while divisor > 0 {
            self.add(&[b'0' + (number / divisor % 10) as u8]);
            divisor /= 10;
        }
    }

    fn end(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

/// Whether a value of LD_PRELOAD contains this object, or another copy of it.
fn names_us(value: &[u8]) -> bool {
    // SAFETY: the dynamic linker's string.
    let object = unsafe { CStr::from_ptr(OBJECT.load(Relaxed)) }.to_bytes();
    let name = |path: &'_ [u8]| {
        path.iter()
            .rposition(|&byte| byte == b'/')
            .map_or(0, |at| at + 1)
    };
    let own = &object[name(object)..];
    let mut entries = value.split(|byte| b" \t\n:".contains(byte));
    entries.any(|entry| &entry[name(entry)..] == own)
}
