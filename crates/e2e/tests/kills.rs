//! kill -9 at random moments leaves nothing behind: no process, no file, no socket, no write to memory of others.

use std::fs;
use std::time::{Duration, Instant};

use foreswap_e2e::process::{Running, Scratch, processes_with_tag};
use foreswap_e2e::system::{area_file, loop_device, slow_writes};
use foreswap_e2e::{Job, MIB, Managed, program, requirement};
use rustix::process::{Signal, kill_process};

/// Mebibytes.
const LIMIT: u64 = 64;

/// The abstract sockets of `pid`.
fn sockets_of(pid: i32) -> Vec<String> {
    let name = format!("@foreswap-{pid}-");
    fs::read_to_string("/proc/net/unix")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.contains(&name))
        .map(str::to_owned)
        .collect()
}

#[track_caller]
fn nothing_is_left(tag: &str, supervisor: i32, folder: &Scratch) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let processes = processes_with_tag(tag);
        let sockets = sockets_of(supervisor);
        let files = fs::read_dir(folder.path())
            .expect("the folder is there")
            .count();
        if processes.is_empty() && sockets.is_empty() && files == 0 {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "left behind: processes {processes:?}, sockets {sockets:?}, {files} files"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts the job in its own swap folder, waits `delay` and kills the processes that `victims` selects.
#[track_caller]
fn kill_after(
    test: &str,
    job: &Job,
    delay: Duration,
    managed: Managed,
    victims: fn(&Running) -> Vec<rustix::process::Pid>,
) {
    let (folder, scratch) = (Scratch::new(test), Scratch::new("stats"));
    let running = managed
        .options(["--swap".as_ref(), folder.path().as_os_str()])
        .start(job, &scratch.join("stats.json"));
    std::thread::sleep(delay);
    for pid in victims(&running) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let (tag, supervisor) = (
        running.tag().to_owned(),
        running.pid().as_raw_nonzero().get(),
    );
    let outcome = running.wait();
    assert_ne!(outcome.code(), 0);
    nothing_is_left(&tag, supervisor, &folder);
}

fn fixed() -> Managed {
    Managed::limit(LIMIT)
}

/// Delays from before the first instruction to deep in the swapping.
fn delays() -> impl Iterator<Item = Duration> {
    (0..14u64).map(|i| Duration::from_millis(i * i * 4))
}

#[test]
fn of_the_command() {
    let Some(path) = program::compile("of_the_command", "small") else {
        return;
    };
    let job = Job::new(path).arg("swaps_for_ever").timeout(60);
    for delay in delays() {
        kill_after("kill_command", &job, delay, fixed(), |running| {
            loop {
                let pids = running.processes_named("small");
                if !pids.is_empty() {
                    return pids;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

#[test]
fn of_the_supervisor() {
    let Some(path) = program::compile("of_the_supervisor", "small") else {
        return;
    };
    let job = Job::new(path).arg("swaps_for_ever").timeout(60);
    for delay in delays() {
        kill_after("kill_supervisor", &job, delay, fixed(), |running| {
            vec![running.pid()]
        });
    }
}

#[test]
fn of_a_supervisor_that_changes_the_limit() {
    let Some(path) = program::compile("of_a_supervisor_that_changes_the_limit", "small") else {
        return;
    };
    let job = Job::new(path).arg("swaps_for_ever").timeout(60);
    for delay in [1, 30, 150, 250, 400].map(Duration::from_millis) {
        let auto = Managed::memory("16M..64M");
        kill_after("kill_auto", &job, delay, auto, |running| {
            vec![running.pid()]
        });
    }
}

#[test]
fn of_everything_at_once() {
    let Some(path) = program::compile("of_everything_at_once", "fork_calls") else {
        return;
    };
    let job = Job::new(path).arg("fork_while_threads_work").timeout(60);
    for delay in delays().skip(2) {
        kill_after("kill_all", &job, delay, fixed(), |running| {
            let mut pids = running.processes();
            pids.push(running.pid());
            pids
        });
    }
}

fn can_slow_writes(test: &str) -> bool {
    let has_blkio = fs::exists("/sys/fs/cgroup/blkio").unwrap_or(false);
    requirement::root(test) && requirement::required(has_blkio, test, "cgroup v1's blkio")
}

/// The slots of an ended process are not reused before the disk has completed its I/O.
#[test]
fn of_a_process_with_writes_under_way() {
    let test = "of_a_process_with_writes_under_way";
    let Some(path) = program::compile(test, "last_writes") else {
        return;
    };
    if !can_slow_writes(test) {
        return;
    }
    for io in ["uring", "threads"] {
        let scratch = Scratch::new(test);
        // Small enough that the second process gets the slots of the first.
        let (device, _detach) = loop_device(&area_file(&scratch, 160));
        let (cgroup, _remove) = slow_writes(&device, 8 * MIB);
        let job = Job::new(&path).arg(cgroup.join("tasks")).arg(&device);
        let outcome = Managed::limit(LIMIT)
            .options(["--swap", &device, "--io", io])
            .run(&job.timeout(60))
            .succeeded();
        outcome.swapped();
        // Threads end after their writes.
        let outlived = outcome.note("outlived") > 0;
        assert!(outlived || io == "threads", "the test shows nothing");
    }
}
