//! `--memory auto`: idle memory leaves, a working set stays and grows, and memory goes back when others need it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::system::undo;
use foreswap_e2e::{Job, MIB, Managed, Outcome, Stats, program, requirement};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// Mebibytes that the program uses, and that it touched once.
const HOT: u64 = 48;
const COLD: u64 = 96;

struct Auto {
    running: Running,
    scratch: Scratch,
}

impl Auto {
    fn start(program: PathBuf, memory: &str, hot: u64, cold: u64, wrapper: &[&str]) -> Self {
        let scratch = Scratch::new("auto");
        fs::create_dir(scratch.join("run")).expect("a folder");
        let job = Job::new(program)
            .args([hot.to_string(), cold.to_string()])
            .arg(scratch.join("stop"))
            .env("XDG_RUNTIME_DIR", scratch.join("run"))
            .timeout(180);
        let managed = Managed::memory(memory).started_by(wrapper).talkative();
        let mut running = managed.start(&job, &scratch.join("stats.json"));
        running.wait_for_output("ready");
        Self { running, scratch }
    }

    fn tell(&self, words: &[&str]) -> String {
        let pid = self.running.processes_named("foreswap");
        let pid = pid.iter().map(|pid| pid.as_raw_nonzero().get()).min();
        let pid = pid.expect("the supervisor").to_string();
        let output = Command::new(binary())
            .args(
                words
                    .iter()
                    .map(|&word| if word == "PID" { &pid } else { word }),
            )
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .output()
            .expect("foreswap starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(if output.stdout.is_empty() {
            &output.stderr
        } else {
            &output.stdout
        })
        .into_owned()
    }

    fn ps(&self) -> Value {
        let runs: Value = serde_json::from_str(&self.tell(&["ps", "--json", "PID"])).expect("JSON");
        runs[0].clone()
    }

    /// Waits until `is_so`; returns how long it took.
    #[track_caller]
    fn until(&self, what: &str, seconds: u64, mut is_so: impl FnMut(&Value) -> bool) -> Duration {
        let began = Instant::now();
        loop {
            let run = self.ps();
            if is_so(&run) {
                return began.elapsed();
            }
            assert!(began.elapsed().as_secs() < seconds, "never {what}: {run}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn end(self) -> (Outcome, Stats) {
        fs::write(self.scratch.join("stop"), "").expect("a file");
        let outcome = self.running.wait().succeeded();
        let text = outcome.text();
        assert!(text.contains("all right"), "{text}");
        (outcome, Stats::read(&self.scratch.join("stats.json")))
    }
}

fn limit(run: &Value) -> u64 {
    run["limit_bytes"].as_u64().expect("a limit")
}

fn held(run: &Value) -> u64 {
    run["resident_bytes"].as_u64().expect("resident")
}

#[test]
fn it_settles_at_the_working_set() {
    let Some(program) = program::compile("it_settles", "hot_and_cold") else {
        return;
    };
    let auto = Auto::start(program, "16M..1G", HOT, COLD, &[]);
    let first = auto.ps();
    assert_eq!(limit(&first), 1024 * MIB, "{first}");
    assert_eq!(first["auto"]["least_bytes"], 16 * MIB);
    assert_eq!(first["auto"]["most_bytes"], 1024 * MIB);
    assert!(auto.tell(&["ps", "PID"]).contains("  auto, 1 GiB  "));
    // Cold pages leave until hot ones would have to, and the limit stays there.
    let most = (HOT + COLD / 3) * MIB;
    auto.until("comes down", 100, |run| limit(run) <= most);
    std::thread::sleep(Duration::from_secs(12));
    let run = auto.ps();
    let range = HOT * 7 / 8 * MIB..=most;
    assert!(range.contains(&limit(&run)), "{run}");
    let settled = run["auto"]["settled_bytes"].as_u64().expect("settled");
    assert!(range.contains(&settled), "{run}");

    // It needs the rest: a burst of faults gets it in seconds.
    let programs = auto.running.processes_named("hot_and_cold");
    kill_process(programs[0], Signal::USR1).expect("it lives");
    let took = auto.until("has all", 20, |run| {
        held(run) >= (HOT + COLD) * MIB * 15 / 16
    });
    assert!(took < Duration::from_secs(10), "{took:?}");

    // The user's word counts.
    let text = auto.tell(&["set", "PID", "memory=64M"]);
    assert!(text.contains("is 64 MiB now; it was auto, "), "{text}");
    auto.until("is down", 10, |run| held(run) <= 64 * MIB);
    std::thread::sleep(Duration::from_millis(500));
    let run = auto.ps();
    assert!(run["auto"].is_null() && limit(&run) == 64 * MIB, "{run}");
    let text = auto.tell(&["set", "PID", "memory=32M..2G"]);
    assert!(text.contains("auto (32 MiB..2 GiB), "), "{text}");
    auto.until("is up again", 10, |run| {
        held(run) >= (HOT + COLD) * MIB * 15 / 16
    });

    let (outcome, stats) = auto.end();
    assert!(stats.count("stalled_ns") > 0);
    assert_eq!(stats.0["memory_auto"]["most_bytes"], 2048 * MIB);
    assert!(
        outcome.stderr.contains("auto, 32 MiB..2 GiB"),
        "{}",
        outcome.stderr
    );
    assert!(
        !outcome.stderr.contains("above the limit"),
        "{}",
        outcome.stderr
    );
}

/// A cgroup (v1) of 512 MiB stands for a machine: another process takes most of it, and the kernel would kill one of
/// them if the run did not give back.
#[test]
fn memory_goes_back_when_others_need_it() {
    let test = "memory_goes_back";
    let Some(program) = program::compile(test, "hot_and_cold") else {
        return;
    };
    let Some(other) = program::compile(test, "unmanaged") else {
        return;
    };
    let has_memory = fs::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes").unwrap_or(false);
    if !requirement::root(test)
        || !requirement::required(has_memory, test, "cgroup v1's memory controller")
    {
        return;
    }
    let group = format!("/sys/fs/cgroup/memory/foreswap-test-{}", std::process::id());
    fs::create_dir(&group).expect("a cgroup can be made");
    let _remove = undo(&["rmdir", &group]);
    fs::write(format!("{group}/memory.limit_in_bytes"), "512M").expect("it has a limit");
    let enter = format!("echo $$ > {group}/tasks; exec \"$@\"");
    let enter = ["sh", "-c", &enter, "enter"];
    let auto = Auto::start(program, "auto", 16, 300, &enter);
    let run = auto.ps();
    assert!(held(&run) >= 316 * MIB && limit(&run) < 512 * MIB, "{run}");

    // They take 24 MiB at a time: what the kernel gives at once, it must have at once.
    let scratch = Scratch::new("others");
    let other = Job::new(other)
        .args(["shared", "24"])
        .arg(scratch.join("stop"))
        .under(enter)
        .timeout(60);
    let mut others = Vec::new();
    for taken in 1..=10 {
        let mut other = other.start();
        other.wait_for_output("ready");
        others.push(other);
        let most = 512 * MIB - taken * 24 * MIB;
        let took = auto.until("gives back", 5, |run| held(run) <= most);
        assert!(took < Duration::from_secs(1), "{took:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(held(&auto.ps()) <= 260 * MIB);
    fs::write(scratch.join("stop"), "").expect("a file");
    for other in others {
        let other = other.wait().succeeded();
        assert!(other.text().contains("as it should be"));
    }
    let (_, stats) = auto.end();
    assert!(stats.count("swap_out_bytes") >= 60 * MIB);
}

#[test]
fn bad_settings_are_refused_with_what_to_do() {
    for (setting, words) in [
        (
            "8G..512M",
            ["8G..512M", "give the smaller size first: 512M..8G"],
        ),
        ("512M..", ["512M..", "without its upper bound"]),
        ("..", ["..", "without its lower bound"]),
        (
            "auto..8G",
            ["auto..8G", "give both bounds, such as 512M..8G"],
        ),
        ("automatic", ["automatic", "or auto, or auto within bounds"]),
    ] {
        let output = Command::new(binary())
            .args(["run", "--memory", setting, "--", "true"])
            .output()
            .expect("foreswap starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{setting}: {text}");
        for word in words {
            assert!(text.contains(word), "{setting}: no {word:?} in {text}");
        }
    }
}
