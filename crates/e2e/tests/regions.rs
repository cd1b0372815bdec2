//! Regions of memory beyond RAM in programs that foreswap did not start (`crates/capi`). The checks are in
//! `programs/regions.c` and `region_forks.h`; each leaves no process behind.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use foreswap_e2e::copies::Copies;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::{Job, Managed, Outcome, parts, program, requirement};
use rustix::process::{Signal, kill_process};

/// How long children, engines and supervisor may outlive their program.
const PATIENCE: Duration = Duration::from_secs(20);

fn job(part: &str) -> Option<Job> {
    let path = program::compile_with(part, "regions", &["-lforeswap_capi"])?;
    let library = program::library();
    let folder = library.parent().expect("a folder");
    Some(Job::new(path).arg(part).env("LD_LIBRARY_PATH", folder))
}

/// The end of `running`, its children, its engines and its supervisor, which may have the last word.
#[track_caller]
fn end(mut running: Running) -> Outcome {
    let mut ended = None;
    while !running.is_overdue() {
        if running.has_ended() {
            let since = *ended.get_or_insert_with(Instant::now);
            let left = running.processes();
            if left.is_empty() {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "left behind: {left:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    running.wait()
}

#[track_caller]
fn part(name: &str) {
    if let Some(job) = job(name) {
        let outcome = end(job.start()).succeeded();
        assert_eq!(outcome.text(), format!("{name}: as it should be\n"));
        let notes = outcome.stderr.lines();
        // What a busy machine makes it say.
        let may_say = ["uses more than the limit", "the disk still writes"];
        let is_known = |line: &&str| may_say.iter().any(|text| line.contains(text));
        let notes = notes.filter(|line| !line.starts_with("note "));
        let other: Vec<&str> = notes.filter(|line| !is_known(line)).collect();
        assert!(other.is_empty(), "{other:?}");
    }
}

parts!(
    part:
    limit
    few_then_many
    threads
    come_and_go
    files
    lent
    huge
    forks
    bare_forks
    many_forks
    forks_while_opening
    regions_during_forks
    advice
    misuse
    exits
);

/// The program's second image opens an engine of its own.
#[test]
fn execs() {
    if let Some(job) = job("execs") {
        let outcome = end(job.start()).succeeded();
        assert_eq!(outcome.text(), "limit: as it should be\n");
    }
}

/// A fork past the C library: the engine serves the child.
#[test]
fn raw_fork() {
    let test = "raw_fork";
    if !requirement::root(test) {
        return;
    }
    if let Some(job) = job(test) {
        let outcome = end(job.start()).succeeded();
        assert!(
            outcome.stderr.contains("runs unmanaged"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn rights_given_up() {
    if requirement::root("rights_given_up") {
        part("rights_given_up");
    }
}

#[test]
fn a_child_that_is_left_behind_has_its_memory() {
    if let Some(job) = job("left_behind") {
        assert_eq!(
            end(job.start()).succeeded().text(),
            "left_behind: as it should be\nthe orphan is content\n"
        );
    }
}

#[test]
fn a_killed_program_leaves_nothing() {
    for part in ["waits", "reads"] {
        let Some(job) = job(part) else { return };
        let mut running = job.start();
        running.wait_for_output("ready");
        let _ = kill_process(running.pid(), Signal::KILL);
        assert_eq!(end(running).code(), 128 + 9);
    }
}

/// The program ends with a message, and does not read zeros.
#[test]
fn a_program_does_not_outlive_its_engine() {
    for part in ["waits", "reads"] {
        let Some(job) = job(part) else { return };
        let mut running = job.start();
        running.wait_for_output("ready");
        for engine in running.engines() {
            let _ = kill_process(engine, Signal::KILL);
        }
        let outcome = end(running);
        assert_ne!(outcome.code(), 0);
        assert_eq!(outcome.text(), "ready\n");
        assert!(outcome.stderr.contains("engine"), "{}", outcome.stderr);
    }
}

/// Signals of the terminal are the program's alone; without its supervisor a program goes on.
#[test]
fn a_program_outlives_its_supervisor() {
    let Some(job) = job("reads") else { return };
    let mut running = job.start();
    running.wait_for_output("ready");
    let supervisors = running.processes_named("foreswap");
    assert_eq!(supervisors.len(), 1);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let _ = kill_process(supervisors[0], signal);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(running.processes_named("foreswap"), supervisors);
    let _ = kill_process(supervisors[0], Signal::KILL);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!running.has_ended());
    let _ = kill_process(running.pid(), Signal::TERM);
    assert_eq!(end(running).text(), "ready\n");
}

/// There the run's own engine manages all memory, and regions are ordinary memory.
#[test]
fn under_a_run_regions_are_ordinary_memory() {
    if let Some(job) = job("threads") {
        Managed::limit(16).equals_bare_swapping(&job);
    }
}

/// The program's standard streams may be closed.
#[test]
fn streams_are_the_programs() {
    let Some(job) = job("threads") else { return };
    let job = job.under(["sh", "-c", "exec \"$@\" 0<&- 2>&-", "sh"]);
    let text = end(job.start()).succeeded().text();
    assert_eq!(text, "threads: as it should be\n");
}

/// The kernel must not allow userfaultfd to all users, or this shows nothing.
#[test]
fn an_ordinary_user_needs_the_device() {
    let test = "an_ordinary_user_needs_the_device";
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let is_met = setting.trim() == "0" && Path::new("/dev/userfaultfd").exists();
    if !requirement::root(test) || !requirement::required(is_met, test, "/dev/userfaultfd") {
        return;
    }
    let Some(copies) = Copies::new(test, &["as_ordinary_user", "regions"]) else {
        return;
    };
    let job = |access: &str, part: &str| {
        Job::new(copies.join("as_ordinary_user"))
            .arg(access)
            .arg("env")
            .arg(format!("LD_LIBRARY_PATH={}", copies.join("").display()))
            .arg(copies.join("regions"))
            .arg(part)
            .cwd(copies.join("work"))
            .env("TMPDIR", copies.join("work"))
    };
    for part in [
        "files",
        "forks",
        "many_forks",
        "forks_while_opening",
        "regions_during_forks",
        "raw_fork_unseen",
    ] {
        end(job("with", part).start()).succeeded();
    }
    let refused = end(job("without", "limit").start());
    assert_eq!(refused.code(), 99);
    for words in ["foreswap_open", "userfaultfd", "foreswap doctor"] {
        assert!(refused.text().contains(words), "{}", refused.text());
    }
}

/// The example of the header, compiled as its users do, from an installation.
#[test]
fn the_example_builds_with_pkg_config() {
    let test = "the_example_builds_with_pkg_config";
    let tools = ["gcc", "pkg-config"].map(|tool| requirement::command(test, tool).is_some());
    if tools != [true; 2] {
        return;
    }
    let (scratch, sources) = (
        Scratch::new(test),
        requirement::workspace().join("crates/capi"),
    );
    let place = |folder: &str, file: &Path| {
        let folder = scratch.join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        let name = file.file_name().expect("a name");
        fs::copy(file, folder.join(name)).expect("a copy");
    };
    let library = program::library();
    place("include", &sources.join("include/foreswap.h"));
    place("lib/foreswap", &library);
    place("bin", &library.with_file_name("foreswap"));
    let template = fs::read_to_string(sources.join("foreswap.pc.in")).expect("a template");
    let prefix = scratch.path().display().to_string();
    let text = template
        .replace("@PREFIX@", &prefix)
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    fs::write(scratch.join("foreswap.pc"), text).expect("a file");
    let line = format!(
        "gcc -std=c99 -Wall -Wextra -Werror -o sum {}/examples/sum.c $(pkg-config --cflags --libs foreswap) && ./sum",
        sources.display()
    );
    let outcome = end(Job::shell(&line)
        .cwd(scratch.path())
        .env("PKG_CONFIG_PATH", scratch.path())
        .start());
    let text = outcome.succeeded().text();
    assert_eq!(text, "sum 562949936644096, expected 562949936644096\n");
}

#[test]
fn the_example_of_the_document_compiles() {
    let test = "the_example_of_the_document_compiles";
    let Some(compiler) = requirement::command(test, "gcc") else {
        return;
    };
    let root = requirement::workspace();
    let document = fs::read_to_string(root.join("docs/ARRAYS.md")).expect("the document");
    let example = document.split("```c\n").nth(1).expect("an example in C");
    let (example, _) = example.split_once("```").expect("its end");
    let scratch = Scratch::new(test);
    let file = scratch.join("job.c");
    let text =
        format!("#include <foreswap.h>\n#include <stdio.h>\nint main(void)\n{{\n{example}}}\n");
    fs::write(&file, text).expect("a file");
    let line = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
    let include = root.join("crates/capi/include");
    let job = Job::new(compiler).args(line).arg("-I").arg(include);
    job.arg(file).run().succeeded();
}

/// Each function of the library is declared, and no other.
#[test]
fn the_header_declares_what_the_library_has() {
    let test = "the_header_declares_what_the_library_has";
    let Some(tool) = requirement::command(test, "nm") else {
        return;
    };
    let output = Command::new(tool)
        .args(["-D", "--defined-only"])
        .arg(program::library())
        .output()
        .expect("nm starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut exported: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let header = requirement::workspace().join("crates/capi/include/foreswap.h");
    let header = fs::read_to_string(header).expect("the header");
    let code = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']));
    let mut declared: Vec<&str> = code
        .filter(|line| line.ends_with(");"))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    exported.sort_unstable();
    declared.sort_unstable();
    assert!(!exported.is_empty());
    assert_eq!(exported, declared);
}
