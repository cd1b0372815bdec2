//! Commands that `foreswap run` refuses, each with a message that names the cause and the remedy, and without running
//! the command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Outcome, Scratch};
use foreswap_e2e::system::{area_file, system, undo};
use foreswap_e2e::{Job, Managed, program, requirement};

/// Runs `foreswap run OPTIONS -- touch PROOF`. It must fail with a message that has all `words`, and must not have run
/// the command.
#[track_caller]
fn refused(options: &[&str], words: &[&str]) -> Outcome {
    let scratch = Scratch::new("refused");
    let proof = scratch.join("proof");
    let job = Job::new(binary())
        .arg("run")
        .args(options)
        .args(["--", "touch"])
        .arg(&proof)
        .timeout(60);
    refused_job(&job, &proof, words)
}

#[track_caller]
fn refused_job(job: &Job, proof: &Path, words: &[&str]) -> Outcome {
    let outcome = job.run();
    assert!(!proof.exists(), "the command ran: {}", outcome.stderr);
    assert!(
        outcome.code() != 0 && outcome.code() < 128,
        "status {}: {}",
        outcome.code(),
        outcome.stderr
    );
    let said = outcome.stderr.to_lowercase();
    for word in words {
        assert!(
            said.contains(&word.to_lowercase()),
            "no {word:?} in {:?}",
            outcome.stderr
        );
    }
    assert!(!said.contains("panicked"), "{}", outcome.stderr);
    outcome
}

#[test]
fn sizes_that_are_none() {
    for size in [
        "lots",
        "",
        "-5M",
        "12X",
        "1..5G",
        "0",
        "0%",
        "101%",
        "1e3",
        "99999999999G",
    ] {
        // The `=` form, so that a leading dash is a value.
        refused(&[&format!("--memory={size}")], &["--memory"]);
    }
    refused(
        &["--memory", "64M", "--swap-size", "some"],
        &["some", "--swap-size"],
    );
    refused(&[], &["--memory"]);
}

#[test]
fn limits_that_cannot_work() {
    refused(&["--memory", "64K"], &["64", "--memory"]);
    refused(&["--memory", "100000G"], &["memory"]);
}

/// The kernel would end foreswap with a signal, without a word.
#[test]
fn files_that_may_not_be_large() {
    let script = "ulimit -f 20000; exec \"$0\" run --memory 64M -- true";
    let outcome = Job::shell(script).arg(binary()).run();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("ulimit -f unlimited"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn no_command() {
    let outcome = Job::new(binary()).args(["run", "--memory", "64M"]).run();
    assert!(outcome.code() != 0 && outcome.code() < 128);
    assert!(outcome.stderr.contains("COMMAND"), "{}", outcome.stderr);
}

#[test]
fn area_that_is_missing() {
    refused(
        &["--memory", "64M", "--swap", "/no/such/folder"],
        &["/no/such/folder", "exist"],
    );
    refused(&["--memory", "64M", "--swap", "/dev/null"], &["/dev/null"]);
    for (area, why) in [
        ("ram:", "expected a size"),
        ("ram:zstd", "expected a size"),
        ("ram:1M", "out of bounds"),
        ("ram:500T", "larger than any memory"),
        ("ram:2T", "memory available"),
        ("ram:64M,gzip", "gzip"),
    ] {
        refused(
            &["--memory", "64M", "--swap", area],
            &[area, why, "ram:512M"],
        );
    }
}

#[test]
fn area_that_others_can_read() {
    let scratch = Scratch::new("readable");
    let path = area_file(&scratch, 64);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("the mode can be set");
    let name = path.display().to_string();
    refused(&["--memory", "64M", "--swap", &name], &[&name, "chmod"]);
}

#[test]
fn area_that_holds_data() {
    let scratch = Scratch::new("data");
    let path = area_file(&scratch, 64);
    let mut text = fs::read(&path).expect("the file can be read");
    text[..12].copy_from_slice(b"dear diary, ");
    fs::write(&path, &text).expect("and written");
    let name = path.display().to_string();
    refused(&["--memory", "64M", "--swap", &name], &[&name]);
    assert!(
        fs::read(&path).expect("it is still there") == text,
        "the data was touched"
    );
}

#[test]
fn area_without_room() {
    let scratch = Scratch::new("room");
    let name = scratch.path().display().to_string();
    refused(
        &["--memory", "64M", "--swap", &name, "--swap-size", "900T"],
        &["--swap-size"],
    );
}

#[test]
fn area_in_use_by_another_foreswap() {
    let Some(small) = program::compile("area_in_use_by_another_foreswap", "small") else {
        return;
    };
    let scratch = Scratch::new("in_use");
    let path = area_file(&scratch, 256);
    let name = path.display().to_string();
    let mut first = Managed::limit(64).options(["--swap", &name]).start(
        &Job::new(small).arg("swaps_for_ever"),
        &scratch.join("stats"),
    );
    first.wait_for_output("ready");
    refused(
        &["--memory", "64M", "--swap", &name],
        &[&name, "another foreswap"],
    );
    assert!(!first.has_ended(), "the first run goes on");
    drop(first);
    let again = Managed::limit(64).options(["--swap", &name]);
    again.run(&Job::new("/bin/true")).succeeded();
}

#[test]
fn area_that_is_the_kernels_swap() {
    let test = "area_that_is_the_kernels_swap";
    if !requirement::root(test) || requirement::command(test, "mkswap").is_none() {
        return;
    }
    let scratch = Scratch::new(test);
    let name = scratch.join("swap").display().to_string();
    // Real blocks, which swapon requires.
    system(&[
        "dd",
        "if=/dev/zero",
        &format!("of={name}"),
        "bs=1M",
        "count=32",
    ]);
    fs::set_permissions(&name, fs::Permissions::from_mode(0o600)).expect("the mode can be set");
    system(&["mkswap", &name]);
    system(&["swapon", "--priority", "0", &name]);
    let _undo = undo(&["swapoff", &name]);
    refused(&["--memory", "64M", "--swap", &name], &[&name, "swapoff"]);
}

#[test]
fn area_that_is_mounted() {
    let test = "area_that_is_mounted";
    if !requirement::root(test) || requirement::command(test, "mkfs.ext4").is_none() {
        return;
    }
    let scratch = Scratch::new(test);
    let image = area_file(&scratch, 32).display().to_string();
    let folder = scratch.join("mounted");
    fs::create_dir(&folder).expect("a folder can be made");
    let folder = folder.display().to_string();
    let device = system(&["losetup", "--find", "--show", &image]);
    let _detach = undo(&["losetup", "--detach", &device]);
    system(&["mkfs.ext4", "-q", &device]);
    system(&["mount", &device, &folder]);
    let _unmount = undo(&["umount", &folder]);
    fs::write(Path::new(&folder).join("precious"), "data").expect("the file system is there");
    refused(
        &["--memory", "64M", "--swap", &device],
        &[&device, "mounted"],
    );
    drop(_unmount);
    // Not mounted now, but still a file system.
    refused(&["--memory", "64M", "--swap", &device], &[&device]);
    system(&["mount", &device, &folder]);
    let _unmount = undo(&["umount", &folder]);
    let text = fs::read_to_string(Path::new(&folder).join("precious"));
    assert_eq!(text.ok().as_deref(), Some("data"));
}

#[test]
fn preload_object_that_is_missing() {
    let scratch = Scratch::new("preload");
    let proof = scratch.join("proof");
    let job = Job::new(binary())
        .args(["run", "--memory", "64M", "--", "touch"])
        .arg(&proof)
        .env("FORESWAP_PRELOAD", "/no/such/object.so");
    refused_job(&job, &proof, &["/no/such/object.so", "FORESWAP_PRELOAD"]);
}

/// A copy of the small program that `options` make unmanageable.
fn copy_of_small(scratch: &Scratch, test: &str, options: &[&str]) -> Option<PathBuf> {
    let path = scratch.join("program");
    fs::copy(program::compile_with(test, "small", options)?, &path).expect("it can be copied");
    Some(path)
}

#[track_caller]
fn command_refused(path: &Path, words: &[&str]) {
    let scratch = Scratch::new("command");
    let job = Job::new(path).arg("tasks");
    let line = Managed::limit(64).command_line(&scratch.join("stats.json"));
    let outcome = refused_job(&job.under(line), Path::new("/nonexistent/proof"), words);
    assert_eq!(outcome.code(), 126, "{}", outcome.stderr);
    assert_eq!(outcome.text(), "", "the command ran");
}

#[test]
fn static_program() {
    let scratch = Scratch::new("static");
    let Some(path) = copy_of_small(&scratch, "static_program", &["-static"]) else {
        return;
    };
    let name = path.display().to_string();
    command_refused(&path, &[&name, "static"]);
    // A script whose interpreter is such a program.
    let script = scratch.join("script");
    fs::write(&script, format!("#!{name} tasks\n")).expect("a script can be written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("and made executable");
    command_refused(&script, &["static"]);
}

#[test]
fn setuid_program() {
    let test = "setuid_program";
    if !requirement::root(test) {
        return;
    }
    let scratch = Scratch::new(test);
    let Some(path) = copy_of_small(&scratch, test, &[]) else {
        return;
    };
    // Of another user: for its own user the loader would honour the preload object.
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).expect("the owner can be set");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("and the mode");
    let name = path.display().to_string();
    command_refused(&path, &[&name, "set"]);
}

/// A managed program that starts a static one: it runs, and a message says once that it is not managed.
#[test]
fn static_descendant_is_named() {
    let scratch = Scratch::new("descendant");
    let Some(path) = copy_of_small(&scratch, "static_descendant_is_named", &["-static"]) else {
        return;
    };
    let script = "\"$0\" tasks; \"$0\" tasks; exit 3";
    let job = Job::shell(script).arg(&path);
    let outcome = Managed::limit(64).talkative().run(&job);
    assert_eq!(outcome.code(), 3);
    assert_eq!(outcome.text().matches("1 tasks").count(), 2);
    let name = path.display().to_string();
    let lines = outcome
        .stderr
        .lines()
        .filter(|line| line.contains(&name))
        .count();
    assert_eq!(lines, 1, "said {:?}", outcome.stderr);
}

/// The supervisor's messages about `path`, line by line.
fn said_of<'a>(outcome: &'a Outcome, path: &Path) -> Vec<&'a str> {
    let start = format!("foreswap: {} ", path.display());
    let lines = outcome.stderr.lines();
    lines.filter(|line| line.starts_with(&start)).collect()
}

/// Programs started by a managed one that gain privileges, or are not wanted to be managed.
#[test]
fn descendants_that_escape_are_named() {
    let test = "descendants_that_escape_are_named";
    let scratch = Scratch::new(test);
    let Some(small) = copy_of_small(&scratch, test, &[]) else {
        return;
    };
    let script = "\"$0\" tasks; env FORESWAP_SOCKET= \"$0\" tasks; env FORESWAP_SOCKET= \"$0\" tasks; \
                  env -i FORESWAP_SOCKET= /bin/true; \"$0\" tasks; echo '1 tasks'";
    let outcome = Managed::limit(64)
        .talkative()
        .run(&Job::shell(script).arg(&small));
    assert_eq!(outcome.text().matches("1 tasks").count(), 5);
    let said = said_of(&outcome, &small);
    assert_eq!(said.len(), 1, "said {:?}", outcome.stderr);
    assert!(said[0].contains("FORESWAP_SOCKET"), "{said:?}");
    let said = said_of(&outcome, Path::new("/bin/true"));
    assert_eq!(said.len(), 1, "said {:?}", outcome.stderr);
    assert!(said[0].contains("LD_PRELOAD"), "{said:?}");

    if !requirement::root(test) {
        return;
    }
    std::os::unix::fs::chown(&small, Some(65534), Some(65534)).expect("the owner can be set");
    fs::set_permissions(&small, fs::Permissions::from_mode(0o4755)).expect("and the mode");
    let job = Job::shell("\"$0\" tasks; exit 3").arg(&small);
    let outcome = Managed::limit(64).talkative().run(&job);
    assert_eq!(outcome.code(), 3);
    let said = said_of(&outcome, &small);
    assert_eq!(said.len(), 1, "said {:?}", outcome.stderr);
    assert!(said[0].contains("setuid"), "{said:?}");
}

/// A program whose environment is replaced is managed all the same.
#[test]
fn a_replaced_environment_is_completed() {
    let test = "a_replaced_environment_is_completed";
    let (Some(executes), Some(calls)) = (
        program::compile(test, "exec_environment"),
        program::compile(test, "mapping_calls"),
    ) else {
        return;
    };
    let managed = Managed::limit(64);
    for way in [
        "execve",
        "execle",
        "execvpe",
        "fexecve",
        "execveat",
        "posix_spawn",
        "posix_spawnp",
        "vfork",
        "execl",
        "execl_long",
        "execlp",
        "execv",
        "execvp",
    ] {
        let job = Job::new(&executes).arg(way).arg(&calls).arg("dontneed");
        managed.equals_bare_swapping(&job);
    }
    for script in [
        "env -i \"$0\" dontneed",
        "env LD_PRELOAD=/lib/x86_64-linux-gnu/libm.so.6 \"$0\" dontneed",
        "env -u FORESWAP_SOCKET -u FORESWAP_THRESHOLD \"$0\" dontneed",
        "unset LD_PRELOAD; \"$0\" dontneed",
    ] {
        managed.equals_bare_swapping(&Job::shell(script).arg(&calls));
    }
}

/// Every way to start a program is seen, in children of vfork as well, and fails as it always did. Programs that can be
/// managed are not mentioned.
#[test]
fn every_exec_is_looked_at() {
    const WAYS: [&str; 13] = [
        "execve",
        "vforked",
        "execv",
        "execvp",
        "execvpe",
        "fexecve",
        "execveat",
        "execl",
        "execlp",
        "execle",
        "execle_long",
        "posix_spawn",
        "posix_spawnp",
    ];
    let test = "every_exec_is_looked_at";
    let Some(calls) = program::compile(test, "exec_calls") else {
        return;
    };
    for (options, lines) in [(&["-static"][..], 1), (&[], 0)] {
        let scratch = Scratch::new(test);
        let Some(small) = copy_of_small(&scratch, test, options) else {
            return;
        };
        let copy = |way: &str| {
            let path = scratch.join(format!("program.{way}"));
            fs::copy(&small, &path).expect("it can be copied");
            path
        };
        let copies = WAYS.map(copy);
        let forbidden = copy("forbidden");
        fs::set_permissions(&forbidden, fs::Permissions::from_mode(0o644)).expect("a mode");

        let job = Job::new(&calls).arg(&small);
        let outcome = Managed::limit(64).talkative().run(&job).succeeded();
        assert!(outcome.text().contains("all done"), "{}", outcome.text());
        for path in &copies {
            let said = said_of(&outcome, path);
            assert_eq!(said.len(), lines, "{}: {}", path.display(), outcome.stderr);
        }
        assert!(said_of(&outcome, &forbidden).is_empty());
    }
}
