use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;

fn find_one(name: &str) -> Result<PathBuf, ProgramError> {
    find(OsStr::new(name), OsStr::new("/usr/bin:/bin"))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn put(folder: &tempfile::TempDir, name: &str, text: &[u8], mode: u32) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    path.display().to_string()
}

#[test]
fn ordinary_programs_are_found() {
    assert!(find_one("/bin/ls").is_ok());
    assert!(find_one("ls").is_ok_and(|path| path.ends_with("ls")));
    assert!(find_one("python3").is_ok());
}

#[test]
fn commands_of_exit_status_127_and_126() {
    for name in ["no-such-command-here", "/no/such/command", "", "./no/such"] {
        let error = find_one(name).expect_err(name);
        assert_eq!(error.exit_status(), 127, "{error}");
    }
    let folder = folder();
    let plain = put(&folder, "plain", b"#!/bin/sh\n", 0o644);
    for name in ["/tmp", &plain, "/dev/null"] {
        let error = find_one(name).expect_err(name);
        assert_eq!(error.exit_status(), 126, "{error}");
    }
    let search = folder.path().as_os_str();
    let error = find(OsStr::new("plain"), search).expect_err("not executable, but there");
    assert_eq!(error.exit_status(), 126);
}

#[test]
fn scripts_are_followed_to_their_interpreters() {
    let folder = folder();
    let good = put(
        &folder,
        "good",
        b"#!/usr/bin/env python3\nprint(1)\n",
        0o755,
    );
    assert!(find_one(&good).is_ok());
    let twice = put(&folder, "twice", format!("#!{good}\n").as_bytes(), 0o755);
    assert!(find_one(&twice).is_ok());
    let bare = put(&folder, "bare", b"echo no first line\n", 0o755);
    assert!(find_one(&bare).is_ok());
    let lost = put(&folder, "lost", b"#!/no/such/interpreter\n", 0o755);
    let error = find_one(&lost).expect_err("no interpreter");
    assert_eq!(error.exit_status(), 126);
    assert!(
        error.to_string().contains("/no/such/interpreter"),
        "{error}"
    );
    let itself = folder.path().join("loop").display().to_string();
    put(&folder, "loop", format!("#!{itself}\n").as_bytes(), 0o755);
    assert!(find_one(&itself).is_err());
}

#[test]
fn static_programs_and_scripts_for_them_are_refused() {
    let folder = folder();
    let source = put(&folder, "main.c", b"int main(void) { return 0; }\n", 0o644);
    let program = folder.path().join("static").display().to_string();
    let built = Command::new("gcc")
        .args(["-static", "-o", &program, &source])
        .status();
    assert!(built.expect("gcc").success());
    let error = find_one(&program).expect_err("static");
    assert!(error.to_string().contains("statically linked"), "{error}");
    assert_eq!(error.exit_status(), 126);
    let script = put(
        &folder,
        "script",
        format!("#!{program}\n").as_bytes(),
        0o755,
    );
    let error = find_one(&script).expect_err("its interpreter is static");
    assert!(error.to_string().contains("statically linked"), "{error}");
}

#[test]
fn programs_that_gain_privileges_are_refused() {
    let folder = folder();
    let ls = fs::read("/bin/ls").expect("/bin/ls");
    let program = put(&folder, "gain", &ls, 0o755);
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: giving a file to another user needs root");
        return;
    }
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("chown");
    assert!(find_one(&program).is_ok());
    for (mode, word) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("its mode");
        let error = find_one(&program).expect_err(word);
        assert!(error.to_string().contains(word), "{error}");
    }
}
