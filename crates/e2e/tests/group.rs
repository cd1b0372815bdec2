//! `--group`: commands that are started apart share one limit, whoever comes first, and whoever ends first.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::Scratch;
use foreswap_e2e::{MIB, Stats, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: u64 = 64;

/// A runtime folder of its own: no other group has its names.
struct Place {
    scratch: Scratch,
    verify: PathBuf,
}

/// A command of a group, killed if the test ends before it.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    fn new(test: &str) -> Option<Self> {
        let verify = program::compile(test, "verify_loop")?;
        let scratch = Scratch::new("group");
        fs::create_dir(scratch.join("run")).expect("a folder");
        Some(Self { scratch, verify })
    }

    fn foreswap(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(words)
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn tell(&self, words: &[&str]) -> Output {
        self.foreswap(words).output().expect("foreswap starts")
    }

    /// Verifies `mebibytes` of memory until the file `stop` is there. Returns once it has filled them.
    fn verifies(&self, mebibytes: u64, stop: &str, options: &[&str]) -> Member {
        let mut command = self.foreswap(&["run", "--group", "one"]);
        command.args(options).arg("--").arg(&self.verify);
        command
            .arg(mebibytes.to_string())
            .arg(self.scratch.join(stop));
        let mut member = Member(command.spawn().expect("foreswap starts"));
        let output = member.0.stdout.as_mut().expect("piped");
        let mut line = String::new();
        // Its other output, one line, is read at the end.
        BufReader::with_capacity(6, output)
            .read_line(&mut line)
            .expect("a line");
        assert_eq!(line, "ready\n", "{}", errors(&mut member));
        member
    }

    fn stop(&self, name: &str) {
        fs::write(self.scratch.join(name), "").expect("a file");
    }

    fn ps(&self) -> Value {
        let output = self.tell(&["ps", "--json"]);
        let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        // Root sees those of other tests as well.
        let ours = runs.as_array().expect("runs").iter();
        let ours = ours.filter(|run| run["group"] == "one");
        let path = self.scratch.path().to_str().expect("a path");
        let has_area = |run: &&Value| {
            run["areas"][0]["path"]
                .as_str()
                .is_some_and(|area| area.starts_with(path))
        };
        ours.filter(has_area).cloned().collect()
    }

    fn area(&self) -> String {
        self.scratch.path().display().to_string()
    }
}

fn errors(member: &mut Member) -> String {
    let mut text = String::new();
    let mut stream = member.0.stderr.take().expect("piped");
    let _ = stream.read_to_string(&mut text);
    text
}

/// Waits for its end; returns what it has printed.
#[track_caller]
fn ended(mut member: Member) -> String {
    let status = member.0.wait().expect("its end");
    let text = errors(&mut member);
    assert!(status.success(), "{status}: {text}");
    let mut output = String::new();
    let stream = member.0.stdout.as_mut().expect("piped");
    stream.read_to_string(&mut output).expect("its output");
    assert_eq!(output, "all right\n", "{text}");
    text
}

#[track_caller]
fn refused(output: &Output, parts: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn they_share_one_limit() {
    let Some(place) = Place::new("they_share_one_limit") else {
        return;
    };
    let (area, stats) = (place.area(), place.scratch.join("stats.json"));
    let begins = ["--memory", "64M", "--encrypt", "--swap", &area, "--stats"];
    let begins = [&begins[..], &[stats.to_str().expect("a path")]].concat();
    let first = place.verifies(48, "stop", &begins);
    // The same words are no obstacle to those that come later.
    let second = place.verifies(48, "stop others", &["--memory", "64M", "--encrypt"]);
    let third = place.verifies(48, "stop others", &["--swap", &area]);
    let run = &place.ps()[0];
    assert_eq!(run["limit_bytes"], LIMIT * MIB);
    assert_eq!(run["areas"][0]["encrypted"], true);
    assert_eq!(run["processes"].as_array().map(Vec::len), Some(3), "{run}");

    let join = |options: &[&str]| {
        place.tell(&[&["run", "--group", "one"], options, &["--", "true"]].concat())
    };
    refused(
        &join(&["--memory", "96M"]),
        &["a limit of 64 MiB", "asks for 96 MiB", "foreswap set"],
    );
    refused(
        &join(&["--thp", "never"]),
        &["did not begin with --thp never"],
    );
    refused(&join(&["--strict"]), &["did not begin with --strict;"]);
    refused(
        &join(&["--stats", "/tmp/x"]),
        &["--stats is about the whole group one"],
    );
    assert_eq!(join(&["--memory", "64M"]).status.code(), Some(0));

    // Its name stands for it.
    let set = place.tell(&["set", "one", "memory=80M"]);
    assert!(set.status.success(), "{set:?}");
    assert_eq!(place.ps()[0]["limit_bytes"], 80 * MIB);
    assert_eq!(join(&["--memory", "80M"]).status.code(), Some(0));
    let other = place.tell(&["set", "another", "memory=80M"]);
    let text = String::from_utf8_lossy(&other.stderr);
    assert!(
        text.contains("no run of foreswap is of group another"),
        "{text}"
    );
    let set = place.tell(&["set", "one", "memory=64M"]);
    assert!(set.status.success(), "{set:?}");

    place.stop("stop others");
    for member in [second, third] {
        let text = ended(member);
        assert!(text.contains("group one: this command took"), "{text}");
    }
    place.stop("stop");
    ended(first);
    let stats = Stats::read(&stats);
    assert!(stats.count("swap_in_bytes") > 0, "{}", stats.0);
    let peak = stats.count("peak_resident_bytes");
    assert!(peak <= 80 * MIB, "{peak} bytes");
    assert_eq!(stats.count("processes"), 3);
}

#[test]
fn the_first_may_end_first() {
    let Some(place) = Place::new("the_first_may_end_first") else {
        return;
    };
    let area = place.area();
    let nobody = || place.tell(&["run", "--group", "one", "--", "true"]);
    refused(&nobody(), &["no command of group one runs", "--memory 4G"]);
    let first = place.verifies(48, "stop first", &["--memory", "64M", "--swap", &area]);
    let second = place.verifies(48, "stop second", &[]);
    let leader = place.ps()[0]["supervisor"].as_i64();
    place.stop("stop first");
    let text = ended(first);
    assert!(
        text.contains("in the background, still within the limit"),
        "{text}"
    );
    // A copy of the first supervises now, and takes new commands.
    let third = place.verifies(48, "stop second", &[]);
    let run = &place.ps()[0];
    assert_ne!(run["supervisor"].as_i64(), leader);
    assert_eq!(run["processes"].as_array().map(Vec::len), Some(2), "{run}");
    place.stop("stop second");
    ended(second);
    ended(third);
    let end = Instant::now() + Duration::from_secs(20);
    while fs::read_dir(place.scratch.join("run/foreswap"))
        .expect("a folder")
        .count()
        > 0
    {
        assert!(Instant::now() < end, "the sockets of the group stay");
        std::thread::sleep(Duration::from_millis(10));
    }
    refused(&nobody(), &["no command of group one runs"]);
}

/// Eight commands with the same words begin at the same moment.
#[test]
fn one_of_many_leads() {
    let Some(place) = Place::new("one_of_many_leads") else {
        return;
    };
    let area = place.area();
    for _ in 0..3 {
        let words = [
            "run", "--group", "one", "--memory", "64M", "--swap", &area, "--", "sh", "-c", "exit 9",
        ];
        let members: Vec<Child> = (0..8)
            .map(|_| place.foreswap(&words).spawn().expect("foreswap starts"))
            .collect();
        for member in members {
            let output = member.wait_with_output().expect("its end");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(9), "{text}");
        }
    }
}

#[test]
fn each_ends_as_its_command_and_hears_of_all() {
    let Some(place) = Place::new("each_ends_as_its_command") else {
        return;
    };
    let Some(unmanaged) = program::compile("each_ends_as_its_command", "unmanaged") else {
        return;
    };
    let area = place.area();
    let mut first = place.verifies(16, "stop", &["--memory", "64M", "--swap", &area]);
    let end = place
        .tell(&["run", "--group", "one", "--", "sh", "-c", "kill -TERM $$"])
        .status;
    assert_eq!(end.signal(), Some(Signal::TERM.as_raw()));

    // A command that joins has what it would have without foreswap.
    let script = "ls /proc/self/fd; ulimit -a; umask; grep -e ^SigBlk -e ^SigIgn /proc/self/status; \
                  env | grep -v -e '^LD_PRELOAD=' -e '^FORESWAP_' -e '^_=' -e '^XDG_RUNTIME_DIR=' | sort";
    let bare = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output();
    let joined = place.tell(&["run", "--group", "one", "--", "sh", "-c", script]);
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&joined), text(&bare.expect("sh starts")));

    // What one of them holds beside the limit is told to all, also if another has joined it.
    let mut third = place.foreswap(&["run", "--group", "one", "--"]);
    third
        .arg(unmanaged)
        .args(["shared", "96"])
        .arg(place.scratch.join("stop"));
    let mut third = Member(third.spawn().expect("foreswap starts"));
    let mut line = String::new();
    let stream = first.0.stderr.as_mut().expect("piped");
    BufReader::new(stream).read_line(&mut line).expect("a line");
    assert!(
        line.contains("unmanaged") && line.contains("shared"),
        "{line}"
    );
    place.stop("stop");
    let status = third.0.wait().expect("its end");
    let text = errors(&mut third);
    assert!(
        status.success() && text.contains(line.trim_end()),
        "{status}: {text}"
    );
    let status = first.0.wait().expect("its end");
    assert!(status.success(), "{status}");
}

/// What is swapped out stays right, and what was lost is said.
#[test]
fn the_supervisor_is_killed() {
    let Some(place) = Place::new("the_supervisor_is_killed") else {
        return;
    };
    let area = place.area();
    let first = place.verifies(48, "stop", &["--memory", "64M", "--swap", &area]);
    let second = place.verifies(48, "stop", &[]);
    let supervisor = Pid::from_raw(first.0.id().cast_signed()).expect("a pid");
    kill_process(supervisor, Signal::KILL).expect("it lives");
    std::thread::sleep(Duration::from_millis(300));
    place.stop("stop");
    let text = ended(second);
    assert!(
        text.contains("the supervisor of group one was killed"),
        "{text}"
    );
    // Its name is free.
    let again = [
        "run", "--group", "one", "--memory", "64M", "--swap", &area, "--", "true",
    ];
    assert_eq!(place.tell(&again).status.code(), Some(0));
}

/// The folder of sockets is so deep that a pid fits into a socket's path, and the name does not.
#[test]
fn a_name_that_is_too_long_for_its_folder_is_refused() {
    // Not below the build's folder, which may be deeper.
    let top = format!("/tmp/foreswap-deep-{}-", std::process::id());
    let folder = format!("{top:x<83}");
    fs::create_dir(&folder).expect("a folder");
    let name = "n".repeat(32);
    let words = ["run", "--group", &name, "--memory", "64M", "--", "true"];
    let mut command = Command::new(binary());
    command.args(words).env("XDG_RUNTIME_DIR", &folder);
    let output = command.output().expect("foreswap starts");
    fs::remove_dir_all(&folder).expect("it is ours");
    refused(&output, &[&name, "could not find this one"]);
}

#[test]
fn a_name_is_plain() {
    for name in ["", "a/b", ".a", "a b", "4711", &"x".repeat(33)] {
        let words = ["run", "--group", name, "--memory", "64M", "--", "true"];
        let output = Command::new(binary())
            .args(words)
            .output()
            .expect("foreswap starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("expected 1 to 32 letters"), "{text}");
    }
}
