//! Faults inside system calls, and other ways in which the kernel or another process accesses swapped memory. The
//! checks are in `programs/system_calls.c`.

use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, MIB, Managed, Outcome, Stats, parts, program, requirement};

/// Mebibytes.
const LIMIT: u64 = 64;

#[track_caller]
fn part(name: &str) -> Option<Outcome> {
    let path = program::compile(name, "system_calls")?;
    let scratch = Scratch::new(name);
    let job = Job::new(path).arg(name).cwd(scratch.path());
    let outcome = Managed::limit(LIMIT).equals_bare_swapping(&job);
    assert!(
        outcome.note("absent") > 1024,
        "little was out of memory: {}",
        outcome.stderr
    );
    Some(outcome)
}

parts!(
    part:
    files
    direct_files
    sockets
    tcp
    pipes
    small_results
    uring
    uring_direct
    uring_registered
    futexes
    robust_mutexes
    own_limits
    signal_stack
    from_outside
    own_proc_mem
    threads_fault_at_once
);

/// gdb attaches to a program most of whose memory is swapped out, examines it and detaches. It sees the resident
/// variable, does not hang on the swapped one, and the program continues correctly.
#[test]
fn gdb_attaches_and_detaches() {
    let test = "gdb_attaches_and_detaches";
    let (Some(path), Some(gdb)) = (
        program::compile(test, "system_calls"),
        requirement::command(test, "gdb"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    let job = Job::new(&path).arg("waits_for_gdb").cwd(scratch.path());
    let stats = scratch.join("stats.json");
    let mut running = Managed::limit(LIMIT).start(&job, &stats);
    running.wait_for_output("ready");
    let pids = running.processes_named("system_calls");
    assert_eq!(pids.len(), 1, "the one process to attach to");
    let core = scratch.join("core");
    for _ in 0..2 {
        let seen = Job::new(&gdb)
            .args(["--batch", "--quiet", "-nx", "-p"])
            .arg(pids[0].as_raw_nonzero().to_string())
            .args(["-ex", "set pagination off"])
            .args(["-ex", "thread apply all backtrace 3"])
            .args(["-ex", "print/x gdb_resident"])
            .args(["-ex", "x/2gx gdb_region + 1048576"])
            .arg("-ex")
            .arg(format!("generate-core-file {}", core.display()))
            .args(["-ex", "detach"])
            .timeout(60)
            .run();
        assert!(
            seen.text().contains("0x600df00d"),
            "gdb saw {} and said {}",
            seen.text(),
            seen.stderr
        );
        small_core(&core);
    }
    std::fs::write(scratch.join("go-on"), "").expect("the signal to go on can be given");
    let outcome = running.wait().succeeded();
    assert_eq!(outcome.text(), "ready\nwaits_for_gdb: as it should be\n");
    let shared = Stats::read(&stats).0["unmanaged_bytes"]["shared"].as_u64();
    assert!(shared < Some(16 * MIB), "{shared:?} bytes of shared memory");
}

/// A core holds the memory of the program, and not that of foreswap, which a dump would allocate.
#[track_caller]
fn small_core(path: &std::path::Path) {
    let size = std::fs::metadata(path).expect("a core").len();
    std::fs::remove_file(path).expect("a core that is not needed");
    assert!(size < 1024 * MIB, "a core of {size} bytes");
}

/// A core dump ends, and the status is that of the bare run.
#[test]
fn core_dump_ends() {
    let Some(path) = program::compile("core_dump_ends", "system_calls") else {
        return;
    };
    let scratch = Scratch::new("core_dump_ends");
    let job = Job::new(path)
        .arg("dumps_core")
        .cwd(scratch.path())
        .timeout(60);
    let outcome = Managed::limit(LIMIT).equals_bare(&job);
    assert_eq!(outcome.code(), 128 + 6);
    assert_eq!(outcome.text(), "about to abort\n");
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("procfs");
    let cores = std::fs::read_dir(scratch.path()).expect("the folder");
    let cores: Vec<_> = cores.map(|core| core.expect("an entry").path()).collect();
    // Elsewhere the core goes to a program or to another folder.
    assert!(
        !cores.is_empty() || pattern.starts_with(['|', '/']),
        "no core"
    );
    cores.iter().for_each(|core| small_core(core));
}
