//! Memory that foreswap does not manage is counted, named, and reported when it exceeds the limit. With `--strict` it
//! ends the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Outcome, Running, Scratch, processes_with_tag};
use foreswap_e2e::{Job, MIB, Managed, Stats, program, requirement};
use serde_json::Value;

/// Mebibytes.
const LIMIT: u64 = 64;
const HELD: u64 = 96;
/// Unmanaged memory of programs and libraries themselves.
const BESIDE: u64 = 12 * MIB;

const KINDS: [&str; 6] = [
    "shared",
    "locked",
    "executable",
    "stacks",
    "files",
    "unknown",
];

/// A program that holds memory until it is told to end.
struct Held {
    running: Running,
    scratch: Scratch,
}

/// Starts `unmanaged KIND MEBIBYTES`, built with `build`, under `wrapper`.
fn hold(test: &str, kind: &str, held: u64, build: &[&str], wrapper: &[&str]) -> Option<Held> {
    let program = program::compile_with(test, "unmanaged", build)?;
    let scratch = Scratch::new(test);
    let job = Job::new(program)
        .args([kind, &held.to_string()])
        .arg(scratch.join("stop"))
        .under(wrapper);
    Some(start(scratch, job, Managed::limit(LIMIT).talkative()))
}

fn start(scratch: Scratch, job: Job, managed: Managed) -> Held {
    fs::create_dir(scratch.join("run")).expect("a folder");
    let job = job.env("XDG_RUNTIME_DIR", scratch.join("run")).timeout(120);
    let mut running = managed.start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    Held { running, scratch }
}

impl Held {
    fn ps(&self) -> Value {
        let output = Command::new(binary())
            .args(["ps", "--json"])
            .arg(self.running.pid().as_raw_nonzero().to_string())
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .output()
            .expect("foreswap starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let runs: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}, {}: {said}", output.status));
        runs[0].clone()
    }

    /// The output of `ps` when it is `done` for the third time, as nothing is reported before.
    #[track_caller]
    fn ps_until(&self, mut done: impl FnMut(&Value) -> bool) -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        let mut times = 0;
        loop {
            let run = self.ps();
            times += u32::from(done(&run));
            if times == 3 {
                return run;
            }
            assert!(Instant::now() < end, "it never comes: {run}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets the program run to its end.
    fn end(self) -> (Outcome, Stats) {
        fs::write(self.scratch.join("stop"), "").expect("a file");
        let outcome = self.running.wait();
        let stats = Stats::read(&self.scratch.join("stats.json"));
        (outcome, stats)
    }
}

fn of(run: &Value, kind: &str) -> u64 {
    let bytes = run["unmanaged_bytes"][kind].as_u64();
    bytes.unwrap_or_else(|| panic!("no unmanaged_bytes.{kind} in {run}"))
}

fn said<'a>(outcome: &'a Outcome, word: &str) -> Vec<&'a str> {
    let lines = outcome.stderr.lines();
    lines.filter(|line| line.contains(word)).collect()
}

/// Memory of kind `kind`, all of it, is in `ps`, in the line, in the closing block and in the statistics.
#[track_caller]
fn told(held: Held, bytes: u64, kind: &str, words: &[&str]) {
    let run = held.ps_until(|run| of(run, kind) >= bytes);
    for other in KINDS {
        let most = if other == kind {
            bytes + BESIDE
        } else {
            BESIDE
        };
        assert!(of(&run, other) <= most, "{other}: {run}");
    }
    let processes = run["others"].as_array().into_iter();
    let mut processes = processes.chain(run["processes"].as_array()).flatten();
    assert!(processes.any(|process| of(process, kind) >= bytes), "{run}");

    let (outcome, stats) = held.end();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.text().contains("as it should be"));
    let lines = said(&outcome, "more than the limit of");
    assert!(!lines.is_empty(), "{}", outcome.stderr);
    for word in words {
        assert!(lines[0].contains(word), "no {word:?} in {lines:?}");
    }
    // Reported again only when it has doubled, and it is at most half as much again as the limit.
    assert!(lines.len() == 1, "{lines:?}");
    assert!(
        said(&outcome, "nothing needed").is_empty(),
        "{}",
        outcome.stderr
    );
    let block = said(&outcome, &format!("MiB {kind}"));
    assert!(!block.is_empty(), "{}", outcome.stderr);
    assert!(of(&stats.0, kind) >= bytes, "{}", stats.0);
    assert!(of(&stats.0, "total") >= bytes && of(&stats.0, "total") <= bytes + 2 * BESIDE);
}

#[test]
fn shared_memory_of_all_sorts() {
    for kind in ["shared", "memfd", "tmpfs", "headless"] {
        let Some(held) = hold("shared_memory_of_all_sorts", kind, HELD, &[], &[]) else {
            return;
        };
        told(
            held,
            HELD * MIB,
            "shared",
            &["(unmanaged)", "of shared memory", "MAP_PRIVATE"],
        );
    }
}

#[test]
fn shared_memory_of_python() {
    let test = "shared_memory_of_python";
    let Some(python) = requirement::command(test, "python3") else {
        return;
    };
    let scratch = Scratch::new(test);
    let script = format!(
        "import mmap, os, time\n\
         m = mmap.mmap(-1, {HELD} << 20)\n\
         for i in range(0, len(m), 4096): m[i] = 1\n\
         print('ready', flush=True)\n\
         while not os.path.exists({:?}): time.sleep(0.02)\n\
         print('as it should be')\n",
        scratch.join("stop")
    );
    let job = Job::new(python).args(["-c", &script]);
    let held = start(scratch, job, Managed::limit(LIMIT).talkative());
    told(
        held,
        HELD * MIB,
        "shared",
        &["python", "of shared memory", "flags=mmap.MAP_PRIVATE"],
    );
}

#[test]
fn locked_memory() {
    let test = "locked_memory";
    if !requirement::root(test) {
        return;
    }
    let Some(held) = hold(test, "locked", HELD, &[], &[]) else {
        return;
    };
    let run = held.ps_until(|run| of(run, "locked") >= HELD * MIB);
    // It is charged as well: it was adopted before it turned out to be immovable.
    assert!(of(&run, "locked") <= HELD * MIB + BESIDE, "{run}");
    let (outcome, stats) = held.end();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    let lines = said(&outcome, "of locked memory");
    assert!(lines.len() == 1 && lines[0].contains("mlock"), "{lines:?}");
    // The peak is therefore above the limit, and explained.
    let peak = stats.count("peak_resident_bytes");
    let over = peak.saturating_sub(LIMIT * MIB);
    assert!(over > 0, "{}", stats.0);
    assert_eq!(stats.0["over_limit_bytes"]["present"], over);
    let block = said(&outcome, "MiB above the limit: pages that");
    assert_eq!(block.len(), 1, "{}", outcome.stderr);
}

#[test]
fn copies_of_files_and_stacks() {
    let test = "copies_of_files_and_stacks";
    for (kind, words) in [
        ("files", ["copies of pages of files", "read the file"]),
        ("stacks", ["threads' stacks", "fewer threads"]),
    ] {
        let Some(held) = hold(test, kind, HELD, &[], &[]) else {
            return;
        };
        told(held, HELD * MIB, kind, &words);
    }
}

/// A static program started by a managed one, one without the preload object in its own namespaces, one whose file
/// system lacks it: they are not managed, but still accounted for.
#[test]
fn programs_without_an_engine() {
    let test = "programs_without_an_engine";
    let shell = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    if let Some(held) = hold(test, "private", HELD, &["-static"], &shell) {
        let words = ["runs unmanaged", "statically linked"];
        told(held, HELD * MIB, "unknown", &words);
    }
    if requirement::root(test)
        && let Some(unshare) = requirement::command(test, "unshare")
        && let Some(unshare) = unshare.to_str()
    {
        let words = "--net --pid --fork env -u LD_PRELOAD FORESWAP_SOCKET=";
        let apart: Vec<&str> = [unshare].into_iter().chain(words.split(' ')).collect();
        if let Some(held) = hold(test, "private", HELD, &[], &apart) {
            told(
                held,
                HELD * MIB,
                "unknown",
                &["runs unmanaged", "FORESWAP_SOCKET is set to nothing"],
            );
        }
    }
    if let Some(bwrap) = requirement::command(test, "bwrap")
        && let Some(bwrap) = bwrap.to_str()
    {
        let folder = binary();
        let folder = folder.parent().and_then(Path::to_str).expect("a folder");
        let line = [bwrap, "--dev-bind", "/", "/", "--tmpfs", folder];
        if let Some(held) = hold(test, "private", HELD, &[], &line) {
            told(held, HELD * MIB, "unknown", &["its file system has no"]);
        }
    }
}

/// A program in its own network namespace, as in build sandboxes, is managed. If the supervisor's socket is not visible
/// either, that is reported.
#[test]
fn programs_in_other_namespaces_are_managed_or_named() {
    let test = "programs_in_other_namespaces_are_managed_or_named";
    let mut lines = Vec::new();
    if requirement::root(test)
        && let Some(unshare) = requirement::command(test, "unshare")
    {
        lines.push((unshare, "--net --pid --fork", true));
    }
    if let Some(bwrap) = requirement::command(test, "bwrap") {
        let words = "--dev-bind / / --proc /proc --unshare-net --unshare-pid";
        lines.push((bwrap.clone(), words, true));
        lines.push((
            bwrap,
            "--dev-bind / / --tmpfs RUN --tmpfs /tmp --tmpfs /run --unshare-net",
            false,
        ));
    }
    for (launcher, words, managed) in lines {
        let launcher = launcher.to_str().expect("a path");
        let scratch = Scratch::new(test);
        let run = scratch.join("run");
        let words = words.replace("RUN", run.to_str().expect("a path"));
        let line: Vec<&str> = [launcher].into_iter().chain(words.split(' ')).collect();
        let Some(path) = program::compile(test, "unmanaged") else {
            return;
        };
        let job = Job::new(path)
            .args(["private", &HELD.to_string()])
            .arg(scratch.join("stop"))
            .under(&line);
        let held = start(scratch, job, Managed::limit(LIMIT).talkative());
        let swaps = |run: &Value| run["totals"]["swap_out_bytes"].as_u64() > Some(MIB);
        let unknown = |run: &Value| run["unmanaged_bytes"]["unknown"].as_u64().unwrap_or(0);
        let run = held.ps_until(|run| swaps(run) || unknown(run) >= HELD * MIB);
        assert_eq!(swaps(&run), managed, "{line:?}: {run}");
        if !managed {
            told(held, HELD * MIB, "unknown", &["network namespace"]);
        }
    }
}

/// Neither children that map the same memory nor a process that has the same address space add to the count.
#[test]
fn shared_memory_counts_once() {
    let test = "shared_memory_counts_once";
    const ONCE: u64 = 40;
    for kind in ["children", "beside"] {
        let Some(held) = hold(test, kind, ONCE, &[], &[]) else {
            return;
        };
        // A close enough look shows all of it.
        let run = held.ps_until(|run| of(run, "shared") >= ONCE * MIB - MIB);
        assert!(of(&run, "shared") <= ONCE * MIB + BESIDE, "{run}");
        let (outcome, stats) = held.end();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        assert!(of(&stats.0, "total") <= ONCE * MIB + BESIDE, "{}", stats.0);
        assert!(said(&outcome, "more than the limit").is_empty());
        assert_eq!(said(&outcome, "nothing needed managing").len(), 1);
    }
}

#[test]
fn nothing_is_said_where_nothing_has_to_be() {
    let test = "nothing_is_said_where_nothing_has_to_be";
    let outcome = Managed::limit(LIMIT).talkative().run(&Job::new("true"));
    assert_eq!(
        outcome.stderr,
        "foreswap: nothing needed managing: the peak stayed below 64 MiB\n"
    );
    // If a descendant that runs unmanaged was named, this is not reported, however small it was.
    let Some(small) = program::compile_with(test, "small", &["-static"]) else {
        return;
    };
    let job = Job::shell("\"$0\" tasks; exit 0").arg(&small);
    let outcome = Managed::limit(LIMIT).talkative().run(&job);
    assert_eq!(said(&outcome, "runs unmanaged").len(), 1);
    assert!(
        said(&outcome, "nothing needed").is_empty(),
        "{}",
        outcome.stderr
    );
    assert_eq!(said(&outcome, "nothing was managed").len(), 1);
    // Managed memory is not named as unmanaged.
    let Some(held) = hold(test, "private", HELD, &[], &[]) else {
        return;
    };
    held.ps_until(|run| run["resident_bytes"].as_u64() >= Some(LIMIT * MIB / 2));
    let (outcome, stats) = held.end();
    assert!(
        said(&outcome, "not managed").is_empty(),
        "{}",
        outcome.stderr
    );
    assert!(of(&stats.0, "total") <= BESIDE, "{}", stats.0);
    assert!(stats.count("peak_resident_bytes") <= LIMIT * MIB);
    // Nor is anything reported with --quiet.
    let Some(program) = program::compile(test, "unmanaged") else {
        return;
    };
    let scratch = Scratch::new(test);
    let job = Job::new(program)
        .args(["shared", "96"])
        .arg(scratch.join("stop"));
    let held = start(scratch, job, Managed::limit(LIMIT));
    held.ps_until(|run| of(run, "shared") >= HELD * MIB);
    let (outcome, _) = held.end();
    assert_eq!(outcome.stderr, "");
}

/// Without a /proc that shows the processes nothing is claimed, and no other process is taken for one of the run.
#[test]
fn a_foreign_proc_is_not_believed() {
    let test = "a_foreign_proc_is_not_believed";
    if !requirement::root(test) || requirement::command(test, "unshare").is_none() {
        return;
    }
    let apart = ["unshare", "--pid", "--fork"];
    let job = Job::shell("sleep 1.5");
    let managed = Managed::limit(LIMIT).talkative().started_by(apart);
    let outcome = managed.clone().run(&job).succeeded();
    assert_eq!(
        said(&outcome, "cannot be seen in /proc").len(),
        1,
        "{}",
        outcome.stderr
    );
    let outcome = managed.options(["--strict"]).run(&job);
    assert_eq!(outcome.code(), 125);
    assert_eq!(said(&outcome, "--strict").len(), 1, "{}", outcome.stderr);
}

/// Too short to be looked at.
#[test]
fn memory_that_was_not_seen_is_unknown() {
    let test = "memory_that_was_not_seen_is_unknown";
    let Some(path) = program::compile(test, "unmanaged") else {
        return;
    };
    let scratch = Scratch::new(test);
    fs::write(scratch.join("stop"), "").expect("a file");
    let stop: PathBuf = scratch.join("stop");
    let job = Job::new(path).args(["shared", "256"]).arg(&stop);
    let outcome = Managed::limit(LIMIT).talkative().run(&job).succeeded();
    assert!(
        said(&outcome, "nothing needed").is_empty(),
        "{}",
        outcome.stderr
    );
    assert_eq!(
        said(&outcome, "nothing was managed").len(),
        1,
        "{}",
        outcome.stderr
    );
}

#[track_caller]
fn ends_strictly(job: &Job, scratch: &Scratch) -> Duration {
    let managed = Managed::limit(LIMIT).options(["--strict"]);
    let running = managed.start(&job.clone().timeout(60), &scratch.join("stats.json"));
    let tag = running.tag().to_owned();
    let began = Instant::now();
    let outcome = running.wait();
    let took = began.elapsed();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    let lines = said(&outcome, "ended by --strict");
    assert!(
        lines.len() == 1 && lines[0].contains("of shared memory"),
        "{}",
        outcome.stderr
    );
    assert!(processes_with_tag(&tag).is_empty(), "somebody was left");
    let stats = Stats::read(&scratch.join("stats.json"));
    assert_eq!(stats.count("exit_status"), 125);
    took
}

#[test]
fn strict_ends_the_command_and_all_its_descendants() {
    let test = "strict_ends_the_command_and_all_its_descendants";
    let Some(path) = program::compile(test, "unmanaged") else {
        return;
    };
    let never = Path::new("/nonexistent/stop");
    let scratch = Scratch::new(test);
    let job = Job::new(&path).args(["shared", "96"]).arg(never);
    ends_strictly(&job, &scratch);
    // Two processes with one address space.
    let job = Job::new(&path).args(["beside", "96"]).arg(never);
    ends_strictly(&job, &scratch);
    // No process obeys, and one has left its parent and its session.
    let script = "trap '' TERM; (setsid sleep 1000 &); \"$0\" shared 96 /nonexistent/stop & \
                  while true; do sleep 1; done";
    let job = Job::shell(script).arg(&path);
    let took = ends_strictly(&job, &scratch);
    assert!(took >= Duration::from_secs(2), "they had time to obey");
    // Managed memory may be as large as it likes.
    let stop = scratch.join("stop");
    fs::write(&stop, "").expect("a file");
    let job = Job::new(&path).args(["private", "96"]).arg(&stop);
    let managed = Managed::limit(LIMIT).options(["--strict"]);
    let outcome = managed.run(&job).succeeded();
    assert!(outcome.stats().count("swap_out_bytes") >= MIB);
}

/// `ulimit` is for the program: it neither keeps the engine from its work nor counts the engine's memory. If it cannot
/// be raised without a privilege that this machine may not give, the program still runs, and that is reported.
#[test]
fn limits_of_the_shell() {
    let test = "limits_of_the_shell";
    let Some(program) = program::compile(test, "adoption") else {
        return;
    };
    let job = |limits: &str| {
        // As they were set, in the shell and in its children.
        let script = format!(
            "{limits}; ulimit -v; ulimit -d; \"$0\" named_a_stack && sh -c 'ulimit -v; ulimit -d'"
        );
        Job::shell(&script).arg(&program)
    };
    // The size of files, descriptors, address space, data, CPU time.
    for limits in [
        "ulimit -S -f 1000",
        "ulimit -S -n 6",
        "ulimit -S -v 450000",
        "ulimit -S -d 420000",
        "ulimit -S -t 60 -l 0 -s 1024",
    ] {
        Managed::limit(LIMIT).equals_bare_swapping(&job(limits));
    }
    for limits in ["ulimit -f 1000", "ulimit -v 450000", "ulimit -d 420000"] {
        let outcome = Managed::limit(LIMIT).talkative().equals_bare(&job(limits));
        let is_said = outcome.stderr.contains("is not managed");
        assert!(
            is_said || outcome.stats().count("swap_out_bytes") > 0,
            "{}",
            outcome.stderr
        );
    }
}
