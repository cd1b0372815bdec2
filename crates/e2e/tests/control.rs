//! The control plane: `ps`, `set`, `swapon` and `swapoff` on programs that verify their memory continuously.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::{Job, MIB, Managed, Outcome, Stats, program, requirement};
use rustix::process::{Pid, Signal, Uid, kill_process};
use rustix::thread::set_thread_res_uid;
use serde_json::Value;

/// A program under foreswap, with a runtime folder and swap folders of its own.
struct Session {
    running: Running,
    scratch: Scratch,
    program: i32,
}

fn named(
    test: &str,
    memory: u64,
    mebibytes: u64,
    options: &[&str],
    forks: bool,
) -> Option<Session> {
    let program = program::compile(test, "verify_loop")?;
    let scratch = Scratch::new("control");
    for folder in ["a", "b", "run"] {
        fs::create_dir(scratch.join(folder)).expect("a folder");
    }
    let job = Job::new(program)
        .arg(mebibytes.to_string())
        .arg(scratch.join("stop"))
        .arg(if forks { "forks" } else { "alone" })
        .env("XDG_RUNTIME_DIR", scratch.join("run"));
    let mut running = Managed::limit(memory)
        .options(["--swap".as_ref(), scratch.join("a").as_os_str()])
        .options(options)
        .talkative()
        .start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    let programs = running.processes_named("verify_loop");
    let program = programs.iter().map(|pid| pid.as_raw_nonzero().get()).min();
    Some(Session {
        running,
        scratch,
        program: program.expect("it runs"),
    })
}

fn session(test: &str, memory: u64, mebibytes: u64, options: &[&str]) -> Option<Session> {
    named(test, memory, mebibytes, options, false)
}

impl Session {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(words)
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .stdin(Stdio::null());
        command
    }

    fn tell(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("foreswap starts")
    }

    #[track_caller]
    fn done(&self, words: &[&str]) -> String {
        let output = self.tell(words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {text}");
        text
    }

    /// Refused with status 1 and a message that holds all `parts`.
    #[track_caller]
    fn refused(&self, words: &[&str], parts: &[&str]) {
        let output = self.tell(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{words:?}: no {part:?} in {text}");
        }
    }

    fn pid(&self) -> String {
        self.program.to_string()
    }

    fn supervisor(&self) -> i32 {
        self.running.pid().as_raw_nonzero().get()
    }

    fn socket(&self) -> PathBuf {
        let name = format!("run/foreswap/{}.sock", self.supervisor());
        self.scratch.join(name)
    }

    #[track_caller]
    fn ps(&self) -> Value {
        let output = self.tell(&["ps", "--json"]);
        let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let ours = |run: &&Value| run["supervisor"] == self.supervisor();
        let found = runs.as_array().expect("a list").iter().find(ours).cloned();
        found.unwrap_or_else(|| panic!("not listed: {runs}"))
    }

    fn folder(&self, name: &str) -> String {
        self.scratch.join(name).display().to_string()
    }

    fn begin(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        command.spawn().expect("foreswap starts")
    }

    /// Waits until `true`.
    #[track_caller]
    fn until(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let run = self.ps();
            if is_so(&run) {
                return;
            }
            assert!(Instant::now() < end, "never {what}: {run}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The program checks all of its memory once more and ends.
    #[track_caller]
    fn end(self) -> Outcome {
        fs::write(self.scratch.join("stop"), "").expect("a file");
        let stats = self.scratch.join("stats.json");
        let mut outcome = self.running.wait().succeeded();
        outcome.stats = Some(Stats::read(&stats));
        assert!(
            outcome.text().ends_with("all right\n"),
            "{}",
            outcome.text()
        );
        outcome
    }
}

fn bytes(run: &Value, key: &str) -> u64 {
    run[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {run}"))
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a pid");
    kill_process(pid, Signal::INT).expect("it lives");
}

#[test]
fn ps_lists_programs_and_areas_by_either_pid() {
    let Some(session) = session("ps_lists", 64, 160, &[]) else {
        return;
    };
    let run = session.ps();
    assert_eq!(bytes(&run, "limit_bytes"), 64 * MIB);
    assert!(bytes(&run, "resident_bytes") <= 64 * MIB);
    let process = &run["processes"][0];
    assert_eq!(process["pid"], session.program);
    assert!(
        process["command"]
            .as_str()
            .is_some_and(|c| c.contains("verify_loop"))
    );
    assert!(bytes(process, "swap_bytes") > 90 * MIB, "{run}");
    assert!(bytes(process, "managed_bytes") >= 160 * MIB);
    assert_eq!(run["areas"][0]["path"], session.folder("a"));
    assert!(bytes(&run["areas"][0], "used_bytes") > 90 * MIB, "{run}");

    // All evicted pages were written, and counted.
    assert!(bytes(&run["totals"], "swap_out_bytes") > 90 * MIB, "{run}");

    for pid in [session.pid(), session.supervisor().to_string()] {
        let output = session.tell(&["ps", "--json", &pid]);
        let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(runs.as_array().map(Vec::len), Some(1), "{runs}");
        assert_eq!(runs[0]["supervisor"], session.supervisor());
    }
    session.refused(&["ps", "1"], &["no run of foreswap has process 1"]);

    let output = session.tell(&["ps"]);
    let table = String::from_utf8_lossy(&output.stdout);
    for part in [
        "HIT RATIO",
        &session.pid(),
        "verify_loop",
        "64 MiB",
        "PRIORITY",
        &session.folder("a"),
    ] {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
    for pid in [session.pid(), session.supervisor().to_string()] {
        session.done(&["set", &pid, "memory=65M"]);
    }
    let socket = session.socket();
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().expect("its folder")), 0o700);
    session.end();
    assert!(!socket.exists(), "the socket is left behind");
}

#[test]
fn a_stale_socket_is_swept_and_a_missing_folder_is_no_obstacle() {
    let Some(mut session) = session("stale_socket", 64, 96, &[]) else {
        return;
    };
    let socket = session.socket();
    kill_process(session.running.pid(), Signal::KILL).expect("it lives");
    while !session.running.has_ended() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(socket.exists());
    let output = session.tell(&["ps"]);
    assert!(output.status.success());
    assert!(!socket.exists(), "ps removes it");

    let nowhere = Scratch::new("nowhere");
    let file = nowhere.join("file");
    fs::write(&file, "").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    let job = Job::shell("echo works").env("XDG_RUNTIME_DIR", &file);
    let outcome = Managed::limit(64).run(&job).succeeded();
    assert_eq!(outcome.text(), "works\n");
}

#[test]
fn wrong_words_are_refused_with_what_was_expected() {
    let Some(session) = session("wrong_words", 64, 96, &[]) else {
        return;
    };
    let pid = session.pid();
    let gone = "4194304";
    session.refused(&["set", gone, "memory=64M"], &[gone, "foreswap ps"]);
    session.refused(&["set", &pid, "memory=1M"], &["memory=1 MiB", "16 MiB"]);
    session.refused(&["set", &pid, "memory=20T"], &["20 TiB", "available"]);
    session.refused(
        &["swapoff", &pid, "/nowhere"],
        &["/nowhere", &session.folder("a")],
    );
    session.refused(&["swapon", &pid, "/nowhere"], &["/nowhere"]);
    session.refused(&["swapon", &pid, "/dev/null"], &["/dev/null"]);
    let one_page = session.folder("b");
    session.refused(&["swapon", &pid, &one_page, "--swap-size", "4K"], &["4"]);
    for words in [
        ["set", "x/y", "memory=1G"],
        ["set", "1", "memory"],
        ["set", "1", "memory=900T"],
        ["swapoff", "-1", "a"],
    ] {
        assert_eq!(session.tell(&words).status.code(), Some(2), "{words:?}");
    }
    assert_eq!(session.ps()["areas"].as_array().map(Vec::len), Some(1));
    session.end();
}

#[test]
fn swapoff_brings_everything_back_while_the_program_runs() {
    for io in ["auto", "threads"] {
        let Some(session) = session("swapoff_back", 64, 192, &["--io", io]) else {
            return;
        };
        let pid = session.pid();
        session.done(&["set", &pid, "memory=320M"]);
        let text = session.done(&["swapoff", &pid]);
        println!("{io}: {text}");
        let run = session.ps();
        assert_eq!(run["areas"].as_array().map(Vec::len), Some(0), "{run}");
        assert_eq!(bytes(&run["processes"][0], "swap_bytes"), 0);
        session.end();
    }
}

#[test]
fn swapoff_moves_to_another_area_what_does_not_fit() {
    for forks in [false, true] {
        let Some(session) = named("swapoff_moves", 64, 192, &[], forks) else {
            return;
        };
        let (pid, first, second) = (session.pid(), session.folder("a"), session.folder("b"));
        session.done(&["swapon", &pid, &second]);
        let used = |run: &Value| bytes(&run["areas"][0], "used_bytes");
        assert!(used(&session.ps()) > 100 * MIB);
        let text = session.done(&["swapoff", &session.supervisor().to_string(), &first]);
        println!("forks {forks}: {text}");
        let run = session.ps();
        assert_eq!(run["areas"][0]["path"], second);
        assert!(used(&run) > 100 * MIB, "{run}");
        let outcome = session.end();
        outcome.within_limit(64 * MIB);
    }
}

#[test]
fn swapoff_is_refused_when_there_is_no_room() {
    let Some(session) = session("swapoff_refused", 64, 192, &[]) else {
        return;
    };
    let pid = session.pid();
    session.refused(
        &["swapoff", &pid],
        &[
            "cannot be emptied",
            "MiB",
            "the limit of 64 MiB",
            "foreswap set",
            "foreswap swapon",
        ],
    );
    let run = session.ps();
    assert_eq!(run["areas"][0]["state"], "usable");
    session.end();
}

#[test]
fn an_interrupted_swapoff_leaves_the_area_in_use() {
    let Some(session) = session("swapoff_interrupted", 64, 512, &[]) else {
        return;
    };
    let (pid, second) = (session.pid(), session.folder("b"));
    session.done(&["swapon", &pid, &second, "--swap-size", "2G"]);
    let first = session.folder("a");
    let child = session.begin(&["swapoff", &pid, &first]);
    session.until("draining", |run| {
        run["areas"]
            .as_array()
            .is_some_and(|areas| areas.iter().any(|area| area["state"] == "draining"))
    });
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("in use as before"), "{text}");
    session.until("usable", |run| {
        run["areas"].as_array().is_some_and(|areas| {
            areas.len() == 2 && areas.iter().all(|area| area["state"] == "usable")
        })
    });
    session.done(&["swapoff", &pid, &first]);
    session.end();
}

#[test]
fn a_second_area_takes_what_the_first_cannot_hold() {
    let Some(session) = session("swapon_more", 64, 96, &["--swap-size", "64M"]) else {
        return;
    };
    let (pid, second) = (session.pid(), session.folder("b"));
    let text = session.done(&[
        "swapon",
        &pid,
        &second,
        "--swap-size",
        "1G",
        "--priority",
        "5",
    ]);
    assert!(text.contains("priority 5"), "{text}");
    let usr1 = Pid::from_raw(session.program).expect("a pid");
    kill_process(usr1, Signal::USR1).expect("it lives");
    let mut session = session;
    session.running.wait_for_output("grown");
    let run = session.ps();
    assert_eq!(
        run["areas"][0]["path"], second,
        "the highest priority first"
    );
    assert!(bytes(&run["areas"][0], "used_bytes") > 32 * MIB, "{run}");
    session.end();
}

#[test]
fn the_limit_follows_set() {
    let Some(session) = session("set_memory", 128, 256, &[]) else {
        return;
    };
    let pid = session.pid();
    session.done(&["set", &pid, "memory=48M"]);
    session.until("below the new limit", |run| {
        bytes(run, "limit_bytes") == 48 * MIB && bytes(run, "resident_bytes") <= 48 * MIB
    });
    session.done(&["set", &pid, "memory=200M"]);
    session.until("above the old limit", |run| {
        bytes(run, "resident_bytes") > 140 * MIB
    });
    session.end();
}

/// A program that fits keeps its memory without being managed, until the limit is lowered.
#[test]
fn a_lower_limit_reaches_a_program_that_fitted() {
    let Some(session) = session("set_fitted", 256, 128, &[]) else {
        return;
    };
    session.done(&["set", &session.pid(), "memory=48M"]);
    session.until("below the new limit", |run| {
        bytes(run, "resident_bytes") <= 48 * MIB
    });
    let outcome = session.end();
    drop(outcome);
}

#[test]
fn another_user_is_refused() {
    let test = "another_user_is_refused";
    if !requirement::root(test) || requirement::command(test, "setpriv").is_none() {
        return;
    }
    let Some(session) = session(test, 64, 96, &[]) else {
        return;
    };
    let copy = std::env::temp_dir().join(format!("foreswap-copy-{}", std::process::id()));
    fs::copy(binary(), &copy).expect("a copy");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("its mode");
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(["set", &session.pid(), "memory=32M"])
        .env("XDG_RUNTIME_DIR", session.scratch.join("run"))
        .current_dir("/")
        .output();
    fs::remove_file(&copy).expect("removed");
    let output = output.expect("setpriv starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("no run of foreswap"), "{text}");
    assert_eq!(bytes(&session.ps(), "limit_bytes"), 64 * MIB);
    session.end();
}

/// If another user reaches the socket in spite of the mode of its folder, the peer's credentials decide.
#[test]
fn a_connection_of_another_user_is_refused_by_its_credentials() {
    let test = "a_connection_of_another_user_is_refused_by_its_credentials";
    if !requirement::root(test) {
        return;
    }
    let Some(session) = session(test, 64, 96, &[]) else {
        return;
    };
    let open = std::env::temp_dir().join(format!("foreswap-socket-{}", std::process::id()));
    fs::hard_link(session.socket(), &open).expect("a second name where anybody may go");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).expect("its mode");
    let said = |user: u32| {
        let ask = || {
            let user = Uid::from_raw(user);
            // Of this thread alone; the kernel reports them as those of the peer.
            set_thread_res_uid(user, user, user).expect("root may become anybody");
            let mut socket = UnixStream::connect(&open).expect("the way is open");
            let request = concat!(r#"{"do":"set","memory":"32M"}"#, "\n");
            // A refused peer may find the connection closed already.
            let _ = socket.write_all(request.as_bytes());
            let mut answer = String::new();
            let _ = socket.read_to_string(&mut answer);
            answer
        };
        std::thread::scope(|scope| scope.spawn(ask).join().expect("no panic"))
    };
    let limit = || bytes(&session.ps(), "limit_bytes");
    let other = (said(65534), limit());
    let own = (said(0), limit());
    fs::remove_file(&open).expect("removed");
    let refusal = "this run belongs to user 0; only that user and root may control it";
    assert!(other.0.contains(refusal), "{other:?}");
    assert_eq!(other.1, 64 * MIB, "{other:?}");
    // The same request of the owner is executed.
    assert_eq!(own.1, 32 * MIB, "{own:?}");
    session.end();
}
