//! `foreswap top` in a terminal of tmux, on a program that pages.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, Managed, program, requirement};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(10);

/// A tmux server of its own with one terminal of 100x30, in which a shell runs.
struct Terminal {
    scratch: Scratch,
}

impl Terminal {
    fn new(test: &str) -> Option<Self> {
        requirement::command(test, "tmux")?;
        let terminal = Self {
            scratch: Scratch::new("top"),
        };
        fs::create_dir(terminal.scratch.join("run")).expect("a folder");
        let began = terminal.tmux(&[
            "new-session",
            "-d",
            "-x",
            "100",
            "-y",
            "30",
            "env PS1='$ ' sh",
        ]);
        assert!(began.status.success(), "{began:?}");
        Some(terminal)
    }

    fn tmux(&self, words: &[&str]) -> Output {
        Command::new("tmux")
            .arg("-S")
            .arg(self.scratch.join("tmux"))
            .args(["-f", "/dev/null"])
            .args(words)
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .output()
            .expect("tmux starts")
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The screen once it holds all `parts`.
    #[track_caller]
    fn shows(&self, parts: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if parts.iter().all(|part| screen.contains(part)) {
                return screen;
            }
            assert!(
                Instant::now() < until,
                "no {parts:?} on the screen:\n{screen}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the line that begins with `head` has one of these symbols.
    #[track_caller]
    fn line(&self, head: &str, symbols: &[char]) {
        let until = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            let mut lines = screen.lines().filter(|line| line.starts_with(head));
            if lines.any(|line| line.contains(symbols)) {
                return;
            }
            assert!(Instant::now() < until, "no {symbols:?}:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn limit(&self, supervisor: i32) -> u64 {
        let output = Command::new(binary())
            .args(["ps", &supervisor.to_string(), "--json"])
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .output()
            .expect("foreswap starts");
        let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        runs[0]["limit_bytes"].as_u64().expect("a limit")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn a_run_is_watched_and_changed_and_the_terminal_is_given_back() {
    let test = "top";
    let (Some(terminal), Some(program)) =
        (Terminal::new(test), program::compile(test, "verify_loop"))
    else {
        return;
    };
    let scratch = &terminal.scratch;
    let job = Job::new(program)
        .arg("160")
        .arg(scratch.join("stop"))
        .arg("alone")
        .env("XDG_RUNTIME_DIR", scratch.join("run"));
    let mut running = Managed::limit(64).start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    let supervisor = running.pid().as_raw_nonzero().get();

    // By its pid: root sees the runs of others as well.
    let top = format!("{} top -i 200ms {supervisor}", binary().display());
    let start = format!("{top}; echo status $?");
    terminal.keys(&[&start, "Enter"]);
    let screen = terminal.shows(&["of 64 MiB", "MiB/s", "/s   minor", "verify_loop", "AREA"]);
    assert!(
        !screen.contains("echo status"),
        "the shell's screen is kept:\n{screen}"
    );
    terminal.line("space", &['░', '▒', '▓', '█']);

    terminal.keys(&["l", "96X", "Enter"]);
    terminal.shows(&["new limit", "96X: expected a size"]);
    terminal.keys(&["BSpace", "M", "Enter"]);
    terminal.shows(&["of 96 MiB"]);
    assert_eq!(terminal.limit(supervisor), 96 << 20);

    terminal.keys(&["a", "ram:32M", "Enter"]);
    terminal.shows(&["ram:32M ("]);
    terminal.keys(&["e", "ram:32M", "Enter"]);
    terminal.shows(&["ram:32M is empty"]);

    terminal.keys(&["q"]);
    let screen = terminal.shows(&["status 0"]);
    assert!(
        screen.contains("echo status") && !screen.contains("of 96 MiB"),
        "{screen}"
    );

    // A signal restores the terminal as well.
    terminal.keys(&[&start, "Enter"]);
    terminal.shows(&["of 96 MiB"]);
    let pane = terminal.tmux(&["list-panes", "-F", "#{pane_pid}"]);
    let shell = String::from_utf8_lossy(&pane.stdout).trim().to_owned();
    let killed = Command::new("pkill").args(["-TERM", "-P", &shell]).status();
    assert!(killed.expect("pkill starts").success());
    terminal.shows(&["status 143"]);

    // So does the end of the run, with its last figures.
    terminal.keys(&["clear", "Enter"]);
    terminal.keys(&[&start.replace("status", "end"), "Enter"]);
    terminal.shows(&["of 96 MiB"]);
    fs::write(scratch.join("stop"), "").expect("the file");
    running.wait().succeeded();
    let screen = terminal.shows(&["\nend 0"]);
    let sentence = format!("foreswap: run {supervisor} (");
    for part in [
        &*sentence,
        "verify_loop",
        "has ended",
        "limit 96 MiB",
        " major",
        " out",
    ] {
        assert!(screen.contains(part), "no {part:?} in {screen}");
    }

    terminal.keys(&[&format!("clear; {top}; echo gone $?"), "Enter"]);
    let screen = terminal.shows(&["\ngone 1"]);
    assert!(
        screen.contains(&format!("no run of foreswap has process {supervisor}")),
        "{screen}"
    );
}

/// A closed terminal ends it at once, by SIGHUP: it neither stays nor dies of what it can no longer print.
#[test]
fn a_closed_terminal_ends_it() {
    let test = "top::closed";
    let Some(terminal) = Terminal::new(test) else {
        return;
    };
    let status = terminal.scratch.join("status");
    // A shell that is not interactive outlives its terminal, and tells the status.
    let (top, file) = (binary(), status.display());
    let line = format!(
        "sh -c 'trap \"\" HUP; {} top; echo $? >{file}'",
        top.display()
    );
    terminal.keys(&[&line, "Enter"]);
    terminal.shows(&["quit"]);
    terminal.tmux(&["kill-server"]);
    let until = Instant::now() + PATIENCE;
    loop {
        let told = fs::read_to_string(&status).unwrap_or_default();
        if told.ends_with('\n') {
            assert_eq!(told, "129\n");
            return;
        }
        assert!(Instant::now() < until, "it has not ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_a_terminal_it_names_ps() {
    let output = Command::new(binary())
        .arg("top")
        .stdin(Stdio::null())
        .output()
        .expect("foreswap starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("terminal") && text.contains("foreswap ps"),
        "{text}"
    );
}
