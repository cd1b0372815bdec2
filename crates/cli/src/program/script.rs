//! The first line of a script: the program that the kernel will start for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The content after `#!`.
#[derive(Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The program named.
    pub path: PathBuf,
    /// The program that `env` will look up, if the interpreter is `env`.
    pub through_env: Option<OsString>,
}

/// The interpreter of a script; `None` if the file is not one.
pub fn interpreter(head: &[u8]) -> Option<Interpreter> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
        .filter(|word| !word.is_empty());
    let path = PathBuf::from(OsStr::from_bytes(words.next()?));
    let through_env = if path.file_name() == Some(OsStr::new("env")) {
        env_program(words)
    } else {
        None
    };
    Some(Interpreter { path, through_env })
}

/// The first word after env's options and assignments.
fn env_program<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<OsString> {
    let mut takes_value = false;
    for word in words {
        if std::mem::take(&mut takes_value) {
            continue;
        }
        if matches!(word, b"-u" | b"--unset" | b"-C" | b"--chdir") {
            takes_value = true;
        } else if let Some(first) = word.strip_prefix(b"-S").filter(|rest| !rest.is_empty()) {
            return Some(OsStr::from_bytes(first).to_owned());
        } else if !word.starts_with(b"-") && !word.contains(&b'=') {
            return Some(OsStr::from_bytes(word).to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(String, Option<String>)> {
        let found = interpreter(line.as_bytes())?;
        let through = found
            .through_env
            .map(|program| program.to_string_lossy().into_owned());
        Some((found.path.display().to_string(), through))
    }

    #[test]
    fn first_lines() {
        let plain = |path: &str| Some((path.to_owned(), None));
        let env = |program: &str| Some(("/usr/bin/env".to_owned(), Some(program.to_owned())));
        assert_eq!(read("#!/bin/sh\necho"), plain("/bin/sh"));
        assert_eq!(read("#! /usr/bin/python3 -u\n"), plain("/usr/bin/python3"));
        assert_eq!(read("#!/usr/bin/env python3\n"), env("python3"));
        assert_eq!(
            read("#!/usr/bin/env -S A=1 -u B python3 -u\n"),
            env("python3")
        );
        assert_eq!(read("#!/usr/bin/env -Spython3 -u"), env("python3"));
        assert_eq!(read("echo no first line"), None);
        assert_eq!(read("#!\n"), None);
        assert_eq!(read(""), None);
    }
}
