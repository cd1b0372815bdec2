//! The contract with the caller of `foreswap run`: the command's status, signals, streams, terminal and environment are
//! its own, statistics are complete, and a program that needs little memory is left alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use foreswap_e2e::foreswap::{NUMBERS, Stats};
use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, MIB, Managed, program, requirement};
use rustix::process::{Signal, kill_process};

/// Mebibytes.
const LIMIT: u64 = 64;

fn small(test: &str) -> Option<PathBuf> {
    program::compile(test, "small")
}

#[test]
fn exit_status_is_the_commands() {
    for status in [0, 1, 2, 42, 125, 126, 127, 255] {
        let outcome = Managed::limit(LIMIT).equals_bare(&Job::shell(&format!("exit {status}")));
        assert_eq!(outcome.code(), status);
        assert_eq!(outcome.stderr, "");
    }
}

#[test]
fn command_not_found_is_127() {
    let outcome = Managed::limit(LIMIT).run(&Job::new("no-such-command-anywhere"));
    assert_eq!(outcome.code(), 127, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("no-such-command-anywhere"),
        "{}",
        outcome.stderr
    );
    let outcome = Managed::limit(LIMIT).run(&Job::new("./no/such/path"));
    assert_eq!(outcome.code(), 127, "{}", outcome.stderr);
}

#[test]
fn command_not_executable_is_126() {
    let scratch = Scratch::new("not_executable");
    let path = scratch.join("plain-file");
    fs::write(&path, "text").expect("a file can be written");
    for job in [Job::new(&path), Job::new(scratch.path())] {
        let outcome = Managed::limit(LIMIT).run(&job);
        assert_eq!(outcome.code(), 126, "{}", outcome.stderr);
        assert!(!outcome.stderr.is_empty());
    }
}

#[test]
fn death_by_signal_is_told_as_a_shell_tells_it() {
    for signal in ["TERM", "SEGV", "KILL", "ABRT", "PIPE", "INT", "HUP"] {
        // Tests that a script runs in the background ignore INT, which no shell undoes.
        let shell = Job::shell(&format!("ulimit -c 0; kill -{signal} $$"));
        let job = shell.under(["env", "--default-signal"]);
        let outcome = Managed::limit(LIMIT).equals_bare(&job);
        assert!(outcome.code() > 128, "{signal}: {}", outcome.code());
    }
}

#[test]
fn death_by_signal_while_swapping() {
    let Some(path) = small("death_by_signal_while_swapping") else {
        return;
    };
    let job = Job::shell("ulimit -c 0; exec \"$0\" swaps_and_crashes").arg(path);
    let outcome = Managed::limit(LIMIT).equals_bare(&job);
    assert_eq!(outcome.code(), 128 + 11);
    assert_eq!(outcome.text(), "about to crash\n");
    outcome.swapped();
}

#[test]
fn signals_are_forwarded() {
    let Some(path) = small("signals_are_forwarded") else {
        return;
    };
    let scratch = Scratch::new("signals");
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::USR1,
        Signal::USR2,
        Signal::QUIT,
        Signal::WINCH,
    ] {
        let job = Job::new(&path).arg("waits_for_signal").timeout(30);
        let mut running = Managed::limit(LIMIT).start(&job, &scratch.join("stats.json"));
        running.wait_for_output("ready");
        kill_process(running.pid(), signal).expect("foreswap is there to be signalled");
        let outcome = running.wait();
        assert_eq!(
            outcome.text(),
            format!("ready\nsignal {}\n", signal.as_raw())
        );
        assert_eq!(outcome.code(), 40 + signal.as_raw());
    }
}

#[test]
fn terminal_and_interrupt_key_are_the_commands() {
    let test = "terminal_and_interrupt_key_are_the_commands";
    let (Some(path), Some(python)) = (small(test), requirement::command(test, "python3")) else {
        return;
    };
    let on_terminal = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/on_terminal.py");
    let scratch = Scratch::new(test);
    let job = Job::new(path).arg("counts_interrupts").timeout(90);
    let prefix = [python.as_os_str(), on_terminal.as_os_str()];
    let bare = job.under(prefix).run();
    let line = Managed::limit(LIMIT).command_line(&scratch.join("stats.json"));
    let managed = job.under(line).under(prefix).run();
    assert!(
        bare.text().contains("terminals 111, foreground 1") && bare.text().contains("1 interrupts"),
        "{}",
        bare.text()
    );
    assert_eq!(managed.text(), bare.text());
}

/// Ctrl-Z stops the command and foreswap with it, the shell reports it, and `fg` continues.
#[test]
fn job_control_is_the_commands() {
    let test = "job_control_is_the_commands";
    let (Some(path), Some(python)) = (small(test), requirement::command(test, "python3")) else {
        return;
    };
    if requirement::command(test, "bash").is_none() {
        return;
    }
    let job_control = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/job_control.py");
    let scratch = Scratch::new(test);
    let job = Job::new(path).arg("waits_for_file").timeout(90);
    let prefix = [python.as_os_str(), job_control.as_os_str()];
    let line = Managed::limit(LIMIT).command_line(&scratch.join("stats.json"));
    for job in [job.clone(), job.under(line)] {
        let (here, go_on) = (scratch.path(), scratch.join("go-on"));
        let outcome = job.under(prefix).cwd(here).run().succeeded();
        let text = outcome.text();
        assert_eq!(
            text, "ready\nstopped T\nwent on\nended 0\n",
            "{}",
            outcome.stderr
        );
        fs::remove_file(go_on).expect("the script made it");
    }
}

#[test]
fn streams_pass_untouched() {
    let scratch = Scratch::new("streams");
    let input = scratch.join("input");
    let bytes: Vec<u8> = (0..3_000_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(&input, &bytes).expect("the input can be written");
    let job = Job::shell("cat; echo to the other stream >&2").stdin(&input);
    let outcome = Managed::limit(LIMIT).equals_bare(&job);
    assert_eq!(outcome.stdout, bytes);
    assert_eq!(outcome.stderr, "to the other stream\n");
}

#[test]
fn descriptors_are_those_of_a_bare_run() {
    if let Some(path) = small("descriptors_are_those_of_a_bare_run") {
        Managed::limit(LIMIT).equals_bare(&Job::new(&path).arg("descriptors"));
        let outcome = Managed::limit(LIMIT)
            .equals_bare_swapping(&Job::new(&path).arg("descriptors_while_swapping"));
        assert!(outcome.note("absent") > 1024, "{}", outcome.stderr);
    }
}

#[test]
fn environment_is_the_callers() {
    let scratch = Scratch::new("environment");
    let script = "env | grep -v -e '^LD_PRELOAD=' -e '^FORESWAP_' -e '^_=' -e '^E2E_' | sort; pwd; umask; \
                  ulimit -a; nice; grep -e ^SigBlk -e ^SigIgn -e ^NoNewPrivs -e ^Seccomp: /proc/self/status; \
                  awk '{print $6}' /proc/self/stat; cat /proc/self/oom_score_adj";
    let job = Job::shell(script)
        .cwd(scratch.path())
        .env("ODD VALUE", "with\ttabs and = signs");
    Managed::limit(LIMIT).equals_bare(&job).succeeded();
}

/// The supervisor needs more descriptors than many shells allow.
#[test]
fn the_limit_of_descriptors_is_the_callers() {
    let few = ["sh", "-c", "ulimit -Sn 300 && exec \"$0\" \"$@\""];
    let job = Job::shell("ulimit -Sn; ulimit -Hn");
    let outcome = Managed::limit(LIMIT).started_by(few).run(&job).succeeded();
    let most = Job::shell("ulimit -Hn").run().succeeded();
    assert_eq!(outcome.text(), format!("300\n{}", most.text()));
}

#[test]
fn an_existing_preload_object_stays() {
    let job = Job::shell("echo \"$LD_PRELOAD\"").env("LD_PRELOAD", "libm.so.6");
    let outcome = Managed::limit(LIMIT).run(&job).succeeded();
    let text = outcome.text();
    let entries: Vec<_> = text.trim().split(':').collect();
    assert_eq!(entries.len(), 2, "{text}");
    assert!(entries[0].ends_with("libforeswap_preload.so"), "{text}");
    assert_eq!(entries[1], "libm.so.6");
}

#[test]
fn closing_words_go_to_standard_error_only() {
    let Some(path) = small("closing_words_go_to_standard_error_only") else {
        return;
    };
    let job = Job::new(path).arg("swaps_once");
    let quiet = Managed::limit(LIMIT).equals_bare_swapping(&job);
    assert!(
        quiet.stderr.lines().all(|line| line.starts_with("note ")),
        "--quiet said {:?}",
        quiet.stderr
    );
    let outcome = Managed::limit(LIMIT).talkative().run(&job).succeeded();
    assert_eq!(outcome.stdout, quiet.stdout);
    let words = outcome.stderr.to_lowercase();
    for word in ["limit 64 mib", "faults", "out", "latency"] {
        assert!(words.contains(word), "no {word:?} in {words:?}");
    }
    assert!(words.lines().count() < 20, "the block is long: {words}");
}

#[track_caller]
fn complete(stats: &Stats) {
    for key in NUMBERS {
        assert!(stats.number(key) >= 0.0, "{key}");
    }
    assert!(stats.0["window_histogram"].is_object());
    let vmas = stats.0["vmas"].as_array().expect("vmas is an array");
    for vma in vmas {
        for key in [
            "start",
            "bytes",
            "resident_bytes",
            "swapped_bytes",
            "hit_ratio",
        ] {
            assert!(vma[key].is_number(), "{key} of {vma}");
        }
    }
}

#[test]
fn statistics_are_complete() {
    let Some(path) = small("statistics_are_complete") else {
        return;
    };
    let outcome = Managed::limit(LIMIT).equals_bare_swapping(&Job::new(path).arg("swaps_once"));
    let stats = outcome.stats();
    complete(stats);
    assert_eq!(stats.count("processes"), 1);
    assert!(stats.count("managed_bytes") >= 160 * MIB);
    // 160 MiB written in order and read in order, at a limit of 64 MiB: at least the part that does not fit is written
    // and read, and no page is written or read more than a few times.
    for key in ["swap_out_bytes", "swap_in_bytes"] {
        let bytes = stats.count(key);
        assert!((96 * MIB..=480 * MIB).contains(&bytes), "{key} is {bytes}");
    }
    assert!(stats.count("faults_zero") + stats.count("managed_bytes") / 4096 >= 20_000);
    assert!(stats.count("swap_write_ios") > 0 && stats.count("swap_read_ios") > 0);
    assert!(stats.count("fault_ns_p50") > 0);
    assert!(stats.count("fault_ns_p50") <= stats.count("fault_ns_p99"));
    assert!(stats.count("fault_ns_p99") <= stats.count("fault_ns_max"));
    let elapsed = stats.number("elapsed_s");
    assert!(elapsed > 0.0 && elapsed <= outcome.elapsed.as_secs_f64());
}

#[test]
fn statistics_of_an_unmanaged_program() {
    let outcome = Managed::limit(LIMIT)
        .run(&Job::new("/bin/true"))
        .succeeded();
    let stats = outcome.stats();
    complete(stats);
    assert_eq!(stats.count("processes"), 0);
    assert_eq!(stats.count("swap_out_bytes"), 0);
}

#[test]
fn statistics_survive_a_kill() {
    let Some(path) = small("statistics_survive_a_kill") else {
        return;
    };
    let scratch = Scratch::new("kill");
    let stats = scratch.join("stats.json");
    let mut running = Managed::limit(LIMIT).start(&Job::new(path).arg("swaps_for_ever"), &stats);
    running.wait_for_output("ready");
    let pids = running.processes_named("small");
    assert_eq!(pids.len(), 1);
    kill_process(pids[0], Signal::KILL).expect("the command is there");
    let outcome = running.wait();
    assert_eq!(outcome.code(), 128 + 9);
    let stats = Stats::read(&stats);
    complete(&stats);
    assert!(stats.count("swap_out_bytes") > 0);
    assert_eq!(stats.count("processes"), 1);
}

/// A program that never needs much memory gets no thread, no descriptor, nothing.
#[test]
fn a_small_program_is_left_alone() {
    let Some(path) = small("a_small_program_is_left_alone") else {
        return;
    };
    let outcome = Managed::limit(LIMIT).equals_bare(&Job::new(&path).arg("tasks"));
    assert!(
        outcome.text().starts_with("1 tasks\n"),
        "{}",
        outcome.text()
    );
    assert_eq!(outcome.stats().count("processes"), 0);
}

/// A program that fits its limit swaps nothing.
#[test]
fn a_program_that_fits_swaps_nothing() {
    let Some(path) = small("a_program_that_fits_swaps_nothing") else {
        return;
    };
    let outcome = Managed::limit(LIMIT).equals_bare(&Job::new(&path).arg("fits"));
    assert_eq!(outcome.stats().count("swap_out_bytes"), 0);
    assert_eq!(outcome.stats().count("faults_major"), 0);
}

#[test]
fn runs_within_runs() {
    let Some(path) = small("runs_within_runs") else {
        return;
    };
    let scratch = Scratch::new("nested");
    let inner = Managed::limit(LIMIT / 2).command_line(&scratch.join("inner.json"));
    let job = Job::new(path).arg("swaps_once");
    let bare = job.run();
    let outer = Managed::limit(LIMIT).run(&job.under(inner));
    outer.equals(&bare);
    let stats = Stats::read(&scratch.join("inner.json"));
    assert!(stats.count("swap_out_bytes") > 0);
}

/// Scripts, and commands found along PATH, run as they would without us.
#[test]
fn scripts_and_paths() {
    let scratch = Scratch::new("scripts");
    let script = scratch.join("a-script");
    fs::write(&script, "#!/bin/sh\necho \"$0 $1\"; exit 5\n").expect("a script can be written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("and made executable");
    let job = Job::new(&script).arg("word");
    assert_eq!(Managed::limit(LIMIT).equals_bare(&job).code(), 5);
    let path = format!(
        "{}:{}",
        scratch.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let job = Job::new("env")
        .args(["a-script", "word"])
        .env("PATH", &path);
    assert_eq!(Managed::limit(LIMIT).equals_bare(&job).code(), 5);
    let direct = Managed::limit(LIMIT).run(&Job::new("a-script").arg("word").env("PATH", path));
    assert_eq!(direct.code(), 5, "{}", direct.stderr);
}
