//! Compressed memory as a swap area: alone, in front of a file, shared by forks, full, removed, and with processes
//! killed while they use it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Running, Scratch, processes_with_tag};
use foreswap_e2e::{Job, MIB, Managed, Outcome, program};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// Mebibytes.
const LIMIT: u64 = 64;

/// A test program whose memory compresses to about a third; one page in eight does not compress.
fn squeezable(test: &str, name: &str) -> Option<PathBuf> {
    program::compile_with(test, name, &["-DSQUEEZABLE"])
}

/// With these areas, the first to be filled first.
fn with_areas(areas: &[&str]) -> Managed {
    let options = areas.iter().flat_map(|area| ["--swap", area]);
    Managed::limit(LIMIT).options(options)
}

/// 160 MiB in 64 MiB and a store that holds them only compressed.
#[test]
fn memory_that_compresses_fits() {
    let test = "memory_that_compresses_fits";
    let Some(path) = squeezable(test, "small") else {
        return;
    };
    for area in ["ram:48M", "ram:48M,lz4", "ram:40M,zstd"] {
        with_areas(&[area]).equals_bare_swapping(&Job::new(&path).arg("swaps_once"));
    }
}

/// Incompressible pages are stored uncompressed if there is no other area.
#[test]
fn memory_that_does_not_compress_fits_where_there_is_room() {
    let test = "memory_that_does_not_compress_fits_where_there_is_room";
    let Some(path) = program::compile(test, "small") else {
        return;
    };
    for area in ["ram:144M", "ram:144M,zstd"] {
        with_areas(&[area]).equals_bare_swapping(&Job::new(&path).arg("swaps_once"));
    }
}

/// Pages that do not compress go to the file behind, the others do not.
#[test]
fn incompressible_pages_go_to_the_next_area() {
    let test = "incompressible_pages_go_to_the_next_area";
    let folder = Scratch::new("behind");
    let path = folder.path().display().to_string();
    let Some(session) = Session::begin(test, &["ram:128M", &path], false) else {
        return;
    };
    let [store, file] = [0, 1].map(|area| session.used(area));
    assert!(store > 60 * MIB, "{store} bytes of pages in the store");
    let eighth = 160 * MIB / 8;
    assert!(
        (5 * MIB..eighth + MIB).contains(&file),
        "{file} in the file"
    );
    session.end();
}

/// The compressed memory is much too small: the file takes the rest.
#[test]
fn a_full_store_leaves_the_rest_to_the_file() {
    let test = "a_full_store_leaves_the_rest_to_the_file";
    let scratch = Scratch::new(test);
    let folder = scratch.path().display().to_string();
    for name in ["small", "full_area"] {
        let Some(path) = squeezable(test, name) else {
            return;
        };
        let part = if name == "small" {
            "swaps_once"
        } else {
            "fits_both"
        };
        for area in ["ram:4M", "ram:8M,zstd"] {
            with_areas(&[area, &folder]).equals_bare_swapping(&Job::new(&path).arg(part));
        }
    }
}

/// If the store is the only area and nothing can be freed, the thread gets SIGBUS, and a message.
#[test]
fn a_full_store_ends_in_a_bus_error() {
    let test = "a_full_store_ends_in_a_bus_error";
    let Some(path) = program::compile(test, "full_area") else {
        return;
    };
    let outcome = with_areas(&["ram:32M"])
        .options(["--full-timeout", "1s"])
        .talkative()
        .run(&Job::new(path).arg("fits_neither").timeout(60));
    assert_eq!(outcome.code(), 55, "{} {}", outcome.text(), outcome.stderr);
    let told = |what: &str| outcome.stderr.lines().any(|line| line.contains(what));
    assert!(told("ram:32M") && told("SIGBUS"), "{}", outcome.stderr);
    outcome.within_limit(LIMIT * MIB);
}

/// Room that one thread frees is available to another.
#[test]
fn room_in_the_store_comes_back() {
    let test = "room_in_the_store_comes_back";
    let Some(path) = program::compile(test, "full_area") else {
        return;
    };
    for part in ["turns_over", "waits_for_room"] {
        with_areas(&["ram:52M"])
            .options(["--full-timeout", "60s"])
            .equals_bare_swapping(&Job::new(&path).arg(part));
    }
}

const FORKS: [&str; 5] = [
    "child_sees_parent",
    "grandchildren",
    "fork_while_threads_work",
    "killed_child",
    "killed_parent",
];

#[test]
fn forks_share_what_is_in_the_store() {
    let test = "forks_share_what_is_in_the_store";
    let Some(path) = squeezable(test, "fork_calls") else {
        return;
    };
    for part in FORKS {
        with_areas(&["ram:256M"]).equals_bare_swapping(&Job::new(&path).arg(part));
    }
}

#[test]
fn forks_share_what_is_in_the_store_and_behind_it() {
    let test = "forks_share_what_is_in_the_store_and_behind_it";
    let scratch = Scratch::new(test);
    let folder = scratch.path().display().to_string();
    let Some(path) = program::compile(test, "fork_calls") else {
        return;
    };
    for part in FORKS {
        with_areas(&["ram:12M", &folder]).equals_bare_swapping(&Job::new(&path).arg(part));
    }
}

/// Children and threads of a program are killed while the store is used. The others read on, and nothing is left when
/// all are dead.
#[test]
fn kills_leave_the_others_their_memory() {
    let test = "kills_leave_the_others_their_memory";
    let Some(path) = squeezable(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let job = Job::new(path)
        .arg("120")
        .arg(scratch.join("stop"))
        .arg("alone");
    // Two programs side by side in one run; one is killed and started again repeatedly.
    let line = format!(
        "{}; i=0; while [ $i -lt 12 ]; do {} & sleep 0.$i; kill -9 $!; wait $!; i=$((i+1)); done; \
         touch {}; wait $first",
        "\"$0\" \"$1\" \"$2\" & first=$!",
        "\"$0\" \"$1\" /nowhere/stop >/dev/null",
        scratch.join("stop").display()
    );
    let job = Job::shell(&line)
        .arg(job.program())
        .arg("120")
        .arg(scratch.join("stop"))
        .timeout(120);
    let outcome = with_areas(&["ram:48M"]).talkative().run(&job);
    let outcome = outcome.succeeded();
    assert!(
        outcome.text().ends_with("all right\n"),
        "{}",
        outcome.text()
    );
    outcome.swapped();
}

#[test]
fn nothing_is_left_after_a_kill() {
    let Some(path) = program::compile("nothing_is_left_after_a_kill", "fork_calls") else {
        return;
    };
    let scratch = Scratch::new("kill_ram");
    let job = Job::new(path).arg("fork_while_threads_work").timeout(60);
    for n in 1..8u64 {
        let running = with_areas(&["ram:256M"]).start(&job, &scratch.join("stats.json"));
        std::thread::sleep(Duration::from_millis(n * n * 10));
        let mut pids = running.processes();
        pids.push(running.pid());
        for pid in pids {
            let _ = kill_process(pid, Signal::KILL);
        }
        let tag = running.tag().to_owned();
        assert_ne!(running.wait().code(), 0);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !processes_with_tag(&tag).is_empty() {
            assert!(Instant::now() < deadline, "processes are left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A `verify_loop` under foreswap, and commands to its run.
struct Session {
    running: Running,
    scratch: Scratch,
}

impl Session {
    fn begin(test: &str, areas: &[&str], forks: bool) -> Option<Self> {
        let program = squeezable(test, "verify_loop")?;
        let scratch = Scratch::new(test);
        fs::create_dir(scratch.join("run")).expect("a folder");
        let job = Job::new(program)
            .arg("160")
            .arg(scratch.join("stop"))
            .arg(if forks { "forks" } else { "alone" })
            .env("XDG_RUNTIME_DIR", scratch.join("run"));
        let mut running = with_areas(areas)
            .talkative()
            .start(&job, &scratch.join("stats.json"));
        running.wait_for_output("ready");
        Some(Session { running, scratch })
    }

    #[track_caller]
    fn tell(&self, words: &[&str]) -> String {
        let output = Command::new(binary())
            .arg(words[0])
            .args(self.pid_for(words[0]))
            .args(&words[1..])
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .output()
            .expect("foreswap starts");
        let said = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{words:?}: {text}");
        text
    }

    /// This run, as `ps` lists it.
    #[track_caller]
    fn listed(&self) -> Value {
        let runs: Value = serde_json::from_str(&self.tell(&["ps", "--json"])).expect("JSON");
        let supervisor = self.running.pid().as_raw_nonzero().get();
        let runs = runs.as_array().expect("a list");
        let ours = runs.iter().find(|run| run["supervisor"] == supervisor);
        ours.expect("our run is listed").clone()
    }

    /// Bytes in memory of the only process.
    #[track_caller]
    fn resident(&self) -> u64 {
        let ours = self.listed();
        let bytes = ours["processes"][0]["resident_bytes"].as_u64();
        bytes.unwrap_or_else(|| panic!("no process in {ours}"))
    }

    /// Bytes of pages on an area, as the areas are listed.
    #[track_caller]
    fn used(&self, area: usize) -> u64 {
        let ours = self.listed();
        ours["areas"][area]["used_bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("no area {area} in {ours}"))
    }

    /// The areas, as they are listed.
    #[track_caller]
    fn areas(&self) -> String {
        let listed = self.tell(&["ps"]);
        let (_, areas) = listed.split_once("PRIORITY").unwrap_or_default();
        let ours = self.running.pid().as_raw_nonzero().to_string();
        let ours = |line: &&str| line.split_whitespace().next() == Some(&ours);
        areas.lines().filter(ours).collect()
    }

    fn pid_for(&self, command: &str) -> Option<String> {
        let pid = self.running.pid().as_raw_nonzero().to_string();
        (command != "ps").then_some(pid)
    }

    #[track_caller]
    fn end(self) -> Outcome {
        fs::write(self.scratch.join("stop"), "").expect("a file");
        let outcome = self.running.wait().succeeded();
        let text = outcome.text();
        assert!(text.ends_with("all right\n"), "{text}");
        outcome
    }
}

#[test]
fn a_store_is_taken_away_and_another_comes() {
    let test = "a_store_is_taken_away_and_another_comes";
    let folder = Scratch::new("behind");
    let path = folder.path().display().to_string();
    for forks in [false, true] {
        let Some(session) = Session::begin(test, &["ram:96M", &path], forks) else {
            return;
        };
        assert!(session.areas().contains("ram:96M"));
        session.tell(&["swapoff", "ram:96M"]);
        let listed = session.areas();
        assert!(!listed.contains("ram:"), "{listed}");
        session.tell(&["swapon", "ram:80M,zstd", "--priority", "5"]);
        std::thread::sleep(Duration::from_millis(300));
        session.tell(&["swapoff", &path]);
        let listed = session.areas();
        assert!(listed.contains("ram:80M,zstd"), "{listed}");
        assert!(!listed.contains(&path), "{listed}");
        session.end();
    }
}

#[test]
fn pages_in_the_store_come_back_into_memory() {
    let test = "pages_in_the_store_come_back_into_memory";
    let Some(session) = Session::begin(test, &["ram:96M"], false) else {
        return;
    };
    session.tell(&["set", "memory=256M"]);
    session.tell(&["swapoff"]);
    session.end();
}

/// Pages in memory keep their slots, and the slots and the pages together may be more than the limit.
#[test]
fn pages_in_memory_need_no_other_place() {
    let test = "pages_in_memory_need_no_other_place";
    let Some(session) = Session::begin(test, &["ram:96M"], false) else {
        return;
    };
    session.tell(&["set", "memory=224M"]);
    let until = Instant::now() + Duration::from_secs(30);
    while session.resident() < 140 << 20 {
        assert!(Instant::now() < until, "{} bytes", session.resident());
        std::thread::sleep(Duration::from_millis(50));
    }
    session.tell(&["swapoff"]);
    session.end();
}
