//! Load control: processes whose working sets do not fit together wait in turn, and nothing else changes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Running, Scratch, processes_with_tag};
use foreswap_e2e::{Job, Managed, program};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// Four processes of 40 MiB.
fn four(program: &Path, scratch: &Scratch, touches: u32) -> Job {
    fs::create_dir(scratch.join("run")).expect("a folder");
    let one = format!(
        "{} 40 {touches} {}",
        program.display(),
        scratch.join("sums").display()
    );
    Job::shell(&format!("{one} & {one} & {one} & {one} & wait"))
        .env("XDG_RUNTIME_DIR", scratch.join("run"))
        .timeout(150)
}

/// The number of processes of the run that wait for memory.
fn waiting(running: &Running, scratch: &Scratch) -> usize {
    let output = Command::new(binary())
        .args(["ps", "--json"])
        .env("XDG_RUNTIME_DIR", scratch.join("run"))
        .output()
        .expect("ps runs");
    let runs: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let runs = runs.as_array().cloned().unwrap_or_default();
    let supervisor = running.pid().as_raw_nonzero().get();
    // Others may run at the same time.
    let mut runs = runs.iter().filter(|run| run["supervisor"] == supervisor);
    let run = runs.next().cloned().unwrap_or_default();
    let processes = run["processes"].as_array().cloned().unwrap_or_default();
    let waits = |process: &&Value| process["waits_for_memory"] == true;
    processes.iter().filter(waits).count()
}

fn until_some_wait(running: &mut Running, scratch: &Scratch) {
    let start = Instant::now();
    while waiting(running, scratch) == 0 {
        assert!(!running.has_ended(), "nobody waited");
        assert!(start.elapsed() < Duration::from_secs(60), "nobody waits");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The sums of the processes that have ended well.
fn sums(scratch: &Scratch) -> Vec<String> {
    let text = fs::read_to_string(scratch.join("sums")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn processes_that_do_not_fit_wait_in_turn() {
    let test = "processes_that_do_not_fit_wait_in_turn";
    let Some(program) = program::compile(test, "thrash") else {
        return;
    };
    let scratch = Scratch::new("load_control");
    let job = four(&program, &scratch, 400_000);
    let mut running = Managed::limit(64).start(&job, &scratch.join("stats.json"));
    until_some_wait(&mut running, &scratch);
    running.wait().succeeded();
    let sums = sums(&scratch);
    assert_eq!(sums.len(), 4, "each of them ended well");
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
}

/// Ranks that wait for each other by looking at shared memory, or by asking their sockets, again and again: with turns of two
/// seconds, each of the twelve rounds would take several turns (more than a minute).
#[test]
fn processes_that_wait_for_each_other_are_not_held_apart() {
    let test = "processes_that_wait_for_each_other_are_not_held_apart";
    let Some(program) = program::compile(test, "barriers") else {
        return;
    };
    for how in ["look", "ask"] {
        let job = Job::new(&program).args(["4", "40", "12", how]).timeout(150);
        let bare = job.run();
        let start = Instant::now();
        let outcome = Managed::limit(80).run(&job).succeeded();
        let took = start.elapsed();
        outcome.equals(&bare);
        outcome.swapped();
        assert!(took < Duration::from_secs(40), "{how}: {took:?}");
    }
}

/// Nobody renews the decisions then.
#[test]
fn without_a_supervisor_nobody_waits() {
    let test = "without_a_supervisor_nobody_waits";
    let Some(program) = program::compile(test, "thrash") else {
        return;
    };
    let scratch = Scratch::new("load_control");
    let job = four(&program, &scratch, 200_000);
    let mut running = Managed::limit(64).start(&job, &scratch.join("stats.json"));
    until_some_wait(&mut running, &scratch);
    let tag = running.tag().to_owned();
    kill_process(running.pid(), Signal::KILL).expect("it runs");
    let start = Instant::now();
    while sums(&scratch).len() < 4 && start.elapsed() < Duration::from_secs(120) {
        thread::sleep(Duration::from_millis(100));
    }
    let found = sums(&scratch);
    for pid in processes_with_tag(&tag) {
        let _ = kill_process(pid, Signal::KILL);
    }
    assert_eq!(found.len(), 4, "all go on without a supervisor");
    assert!(found.iter().all(|sum| *sum == found[0]), "{found:?}");
}

#[test]
fn it_can_be_turned_off() {
    let Some(program) = program::compile("it_can_be_turned_off", "thrash") else {
        return;
    };
    let scratch = Scratch::new("load_control");
    let job = four(&program, &scratch, 40_000);
    let mut running = Managed::limit(64)
        .options(["--load-control", "off"])
        .start(&job, &scratch.join("stats.json"));
    while !running.has_ended() {
        assert_eq!(waiting(&running, &scratch), 0);
        thread::sleep(Duration::from_millis(100));
    }
    running.wait().succeeded();
    assert_eq!(sums(&scratch).len(), 4);
}

/// A process that sleeps leaves its memory to one that lacks it. At equal shares, the one that works would miss at each
/// third touch: 130,000 times. 9,000 to 15,000 are measured; 15,000 to 64,000 while it asked too seldom.
#[test]
fn a_sleeping_process_gives_its_memory_to_a_working_one() {
    let test = "a_sleeping_process_gives_its_memory_to_a_working_one";
    let Some(program) = program::compile(test, "sleeper") else {
        return;
    };
    let program = program.display();
    let script = format!("{program} sleep 60 & {program} work 100 400000 && kill $! && wait $!");
    let job = Job::shell(&script).timeout(150);
    let outcome = Managed::limit(128).run(&job).succeeded();
    assert_eq!(outcome.text(), "worked well\nslept well\n");
    let majors = outcome.stats().count("faults_major");
    assert!(majors < 30_000, "{majors} faults");
}
