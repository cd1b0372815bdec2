//! Language runtimes, each with an idiomatic program that keeps most of its memory live: allocators, garbage collectors
//! and just-in-time compilers of others. Each is run bare, then with a part of the memory of its largest process;
//! output and status must be equal. The limit is also checked from outside, by the kernel's counts of each process.
//!
//! `make test` has the runtimes with the most unusual use of memory. `make test-full` runs the others, which
//! `scripts/setup-full` installs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foreswap_e2e::inputs;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::requirement::{self, workspace};
use foreswap_e2e::{Job, MIB, Managed, Outcome, Stats, full_size};
use rustix::process::Pid;

/// Memory of a process in the kernel's count beside its managed memory: the engine, copies of file pages, stacks, and
/// growth between two looks if a runtime maps memory past the C library.
const BESIDE: u64 = 40 * MIB;
/// How often a run is examined, and its processes are searched.
const LOOK: Duration = Duration::from_millis(10);
const SEARCH: Duration = Duration::from_millis(200);

/// Mebibytes that a program is asked to hold: in `make test`, and in `make test-full`.
fn size(scaled: u64, full: u64) -> String {
    inputs::size(scaled, full).to_string()
}

fn source(name: &str) -> PathBuf {
    inputs::source("languages").join(name)
}

/// Anonymous memory and shared memory of a process, in bytes.
fn memory(pid: Pid) -> (u64, u64) {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = fs::read_to_string(path).unwrap_or_default();
    let field = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
        kib.unwrap_or(0_u64) * 1024
    };
    (field("RssAnon:"), field("RssShmem:"))
}

/// Waits for the end of `running`; returns the largest memory of one of its processes.
#[track_caller]
fn watch(mut running: Running, foreswap: Option<Pid>) -> (Outcome, u64, u64) {
    let (mut anonymous, mut shared) = (0, 0);
    let (mut processes, mut searched) = (Vec::new(), None::<Instant>);
    while !running.has_ended() && !running.is_overdue() {
        if searched.is_none_or(|at| at.elapsed() >= SEARCH) {
            // An engine has the same memory as its program.
            let engines = running.engines();
            processes = running.processes();
            processes.retain(|pid| !engines.contains(pid) && Some(*pid) != foreswap);
            searched = Some(Instant::now());
        }
        for &pid in &processes {
            let (private, common) = memory(pid);
            anonymous = anonymous.max(private);
            shared = shared.max(common);
        }
        std::thread::sleep(LOOK);
    }
    (running.wait(), anonymous, shared)
}

/// Runs `job` bare, then in `percent` of the memory that its largest process had.
#[track_caller]
fn in_part_of_its_memory(test: &str, job: &Job, percent: u64) -> Outcome {
    let job = job.clone().timeout(if full_size() { 1800 } else { 300 });
    let (bare, peak, _) = watch(job.start(), None);
    let bare = bare.succeeded();
    let limit = peak * percent / 100 / MIB;
    let scratch = Scratch::new(test);
    let stats = scratch.join("stats.json");
    let running = Managed::limit(limit).talkative().start(&job, &stats);
    let foreswap = running.pid();
    let (mut managed, held, _) = watch(running, Some(foreswap));
    managed.stats = stats.exists().then(|| Stats::read(&stats));
    println!(
        "{test}: bare {} MiB in {:.1} s; in {limit} MiB: {} MiB in {:.1} s, {} processes, {} MiB out, {} MiB in, at most {} ms for a fault",
        peak / MIB,
        bare.elapsed.as_secs_f64(),
        held / MIB,
        managed.elapsed.as_secs_f64(),
        managed.stats().count("processes"),
        managed.stats().count("swap_out_bytes") / MIB,
        managed.stats().count("swap_in_bytes") / MIB,
        managed.stats().count("fault_ns_max") / 1_000_000,
    );
    managed.equals(&bare);
    managed.within_limit_but_for_forks(limit * MIB);
    managed.swapped();
    assert!(
        held <= limit * MIB + BESIDE,
        "a process had {held} bytes, the limit is {limit} MiB: {}",
        managed.stderr
    );
    // The closing block begins with memory; anything before it is an error or a warning.
    let first = managed.stderr.lines().find(|l| l.starts_with("foreswap: "));
    assert!(
        first.is_some_and(|line| line.contains(" of memory in ")),
        "{}",
        managed.stderr
    );
    managed
}

/// Compiles with `compiler`, which gets `arguments` and leaves its output at `made` in `scratch`.
#[track_caller]
fn compiled(compiler: Job, scratch: &Scratch, made: &str) -> PathBuf {
    compiler.cwd(scratch.path()).run().succeeded();
    scratch.join(made)
}

/// A job that `interpreter` runs from one of our sources.
#[track_caller]
fn interpreted(test: &str, interpreter: &str, options: &[&str], name: &str) -> Option<Job> {
    let interpreter = requirement::command(test, interpreter)?;
    Some(Job::new(interpreter).args(options).arg(source(name)))
}

/// Compaction moves objects, also in a forked child. Parent and child together need twice as much.
#[test]
fn ruby_with_compaction() {
    let test = "ruby_with_compaction";
    if let Some(job) = interpreted(test, "ruby", &[], "compact.rb") {
        let outcome = in_part_of_its_memory(test, &job.arg(size(40, 120)), 75);
        assert!(outcome.stats().count("processes") >= 2);
    }
}

#[test]
fn perl() {
    let test = "perl";
    if let Some(job) = interpreted(test, "perl", &[], "table.pl") {
        let outcome = in_part_of_its_memory(test, &job.arg(size(50, 220)), 75);
        assert!(outcome.stats().count("processes") >= 3);
    }
}

/// Its heap is executable in part, and protected page by page.
#[test]
fn sbcl() {
    let test = "sbcl";
    let options = ["--dynamic-space-size", "4GB", "--script"];
    if let Some(job) = interpreted(test, "sbcl", &options, "lists.lisp") {
        in_part_of_its_memory(test, &job.arg(size(80, 400)), 45);
    }
}

/// A Java program with a heap that `HeapJob` nearly fills.
fn java(test: &str, collector: &str, scratch: &Scratch, heap: u64) -> Option<Job> {
    let (java, javac) = (
        requirement::command(test, "java")?,
        requirement::command(test, "javac")?,
    );
    let class = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/HeapJob.java");
    Job::new(javac)
        .arg("-d")
        .arg(scratch.path())
        .arg(class)
        .run()
        .succeeded();
    Some(
        Job::new(java)
            .args([format!("-Xms{heap}m"), format!("-Xmx{heap}m")])
            .args([collector, "-cp"])
            .arg(scratch.path())
            .arg("HeapJob")
            .arg((heap * 2 / 3).to_string()),
    )
}

#[test]
fn java_with_g1() {
    let test = "java_with_g1";
    let scratch = Scratch::new(test);
    let heap = if full_size() { 900 } else { 160 };
    if let Some(job) = java(test, "-XX:+UseG1GC", &scratch, heap) {
        in_part_of_its_memory(test, &job, 45);
    }
}

/// Its heap is shared memory, mapped at several places: not managed, but reported.
#[test]
fn java_with_zgc() {
    let test = "java_with_zgc";
    let scratch = Scratch::new(test);
    let (heap, limit) = if full_size() { (900, 256) } else { (160, 64) };
    let Some(job) = java(test, "-XX:+UseZGC", &scratch, heap) else {
        return;
    };
    let (bare, _, shared) = watch(job.start(), None);
    let bare = bare.succeeded();
    assert!(shared > limit * MIB, "{shared} bytes of shared memory");
    let managed = Managed::limit(limit).talkative().run(&job);
    managed.equals(&bare);
    managed.within_limit(limit * MIB);
    let unmanaged = &managed.stats().0["unmanaged_bytes"];
    assert!(
        unmanaged["shared"].as_u64() >= Some(limit * MIB),
        "{unmanaged}"
    );
    let is_said =
        |line: &str| line.contains("more than the limit of") && line.contains("of shared memory");
    let said = managed.stderr.lines().filter(|line| is_said(line)).count();
    assert!(said >= 1, "{}", managed.stderr);
}

/// Dynamically linked, as a static one would be refused. It calls the kernel for memory itself.
#[test]
fn go() {
    let test = "go";
    let Some(go) = requirement::command(test, "go") else {
        return;
    };
    let scratch = Scratch::new(test);
    let cache = workspace().join("target/go-cache");
    let go = Job::new(go)
        .args(["build", "-buildmode=pie", "-ldflags=-linkmode=external"])
        .args(["-o", "maps"])
        .arg(source("maps.go"))
        .env("GOCACHE", cache);
    let job = Job::new(compiled(go, &scratch, "maps")).arg(size(70, 350));
    in_part_of_its_memory(test, &job, 50);
}

#[test]
#[ignore = "make test-full"]
fn ocaml() {
    let test = "ocaml";
    let Some(compiler) = requirement::command(test, "ocamlopt") else {
        return;
    };
    let scratch = Scratch::new(test);
    // It writes its output beside the source.
    fs::copy(source("trees.ml"), scratch.join("trees.ml")).expect("a copy");
    let compiler = Job::new(compiler).args(["trees.ml", "-o", "trees"]);
    let job = Job::new(compiled(compiler, &scratch, "trees")).arg(size(80, 500));
    in_part_of_its_memory(test, &job, 50);
}

#[test]
#[ignore = "make test-full"]
fn haskell() {
    let test = "haskell";
    let Some(compiler) = requirement::command(test, "ghc") else {
        return;
    };
    let scratch = Scratch::new(test);
    fs::copy(source("Trees.hs"), scratch.join("Trees.hs")).expect("a copy");
    let compiler = Job::new(compiler).args(["-O1", "-threaded", "Trees.hs", "-o", "trees"]);
    let job = Job::new(compiled(compiler, &scratch, "trees")).arg(size(40, 200));
    in_part_of_its_memory(test, &job, 50);
}

#[test]
#[ignore = "make test-full"]
fn erlang() {
    let test = "erlang";
    let (Some(erl), Some(erlc)) = (
        requirement::command(test, "erl"),
        requirement::command(test, "erlc"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    compiled(Job::new(erlc).arg(source("tables.erl")), &scratch, "");
    let job = Job::new(erl)
        .args(["-noshell", "-pa", ".", "-run", "tables", "main"])
        .arg(size(70, 350))
        .cwd(scratch.path());
    in_part_of_its_memory(test, &job, 50);
}

#[test]
#[ignore = "make test-full"]
fn node() {
    let test = "node";
    if let Some(job) = interpreted(test, "node", &["--max-old-space-size=4096"], "heaps.js") {
        in_part_of_its_memory(test, &job.arg(size(50, 250)), 50);
    }
}

#[test]
#[ignore = "make test-full"]
fn php() {
    let test = "php";
    if let Some(job) = interpreted(test, "php", &[], "arrays.php") {
        let outcome = in_part_of_its_memory(test, &job.arg(size(50, 220)), 50);
        assert!(outcome.stats().count("processes") >= 3);
    }
}

#[test]
#[ignore = "make test-full"]
fn r() {
    let test = "r";
    if let Some(job) = interpreted(test, "Rscript", &[], "frames.R") {
        let outcome = in_part_of_its_memory(test, &job.arg(size(50, 120)), 75);
        assert!(outcome.stats().count("processes") >= 4);
    }
}

/// A job for the Python of `.venv-full`.
#[track_caller]
fn python(test: &str, name: &str, arguments: &[&str]) -> Option<Job> {
    let python = workspace().join(".venv-full/bin/python");
    let there = requirement::required(python.exists(), test, ".venv-full (scripts/setup-full)");
    let job = Job::new(python).arg(source(name)).args(arguments);
    let job = job
        .env("PYTHONHASHSEED", "0")
        .env("OPENBLAS_NUM_THREADS", "2");
    there.then_some(job)
}

#[test]
#[ignore = "make test-full"]
fn duckdb() {
    let test = "duckdb";
    if let Some(job) = python(test, "duckdb_job.py", &[]) {
        in_part_of_its_memory(test, &job.arg(size(40, 150)), 50);
    }
}

#[test]
#[ignore = "make test-full"]
fn polars() {
    let test = "polars";
    if let Some(job) = python(test, "polars_job.py", &[]) {
        in_part_of_its_memory(test, &job.arg(size(60, 250)), 50);
    }
}

#[test]
#[ignore = "make test-full"]
fn scikit_learn_with_forked_workers() {
    let test = "scikit_learn_with_forked_workers";
    if let Some(job) = python(test, "forked_fits.py", &["fork"]) {
        let outcome = in_part_of_its_memory(test, &job.arg(size(60, 300)), 60);
        assert!(outcome.stats().count("processes") >= 3);
    }
}

/// Its workers are started again, and get their data by a file. Each has all of it, so this is a third of their memory.
#[test]
#[ignore = "make test-full"]
fn scikit_learn_with_joblib() {
    let test = "scikit_learn_with_joblib";
    if let Some(job) = python(test, "forked_fits.py", &["loky"]) {
        let outcome = in_part_of_its_memory(test, &job.arg(size(60, 120)), 100);
        assert!(outcome.stats().count("processes") >= 3);
    }
}
