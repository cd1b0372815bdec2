//! Servers, tools and virtual machines of others, each bare and in a quarter to a half of its memory: equal output,
//! equal status, and the limit held or the excess named. `make test` has small sizes of those that use the kernel most;
//! the others, and the full sizes, are `make test-full` (FORESWAP_E2E_FULL=1, `--include-ignored`).

mod machines;
mod tools;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::inputs::{self, Random, size};
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::{Job, MIB, Managed, Outcome, Stats, program, requirement};
use rustix::process::{Pid, Signal, kill_process};

/// A source or input of these tests.
fn source(name: &str) -> PathBuf {
    inputs::source("services").join(name)
}

/// The figures of the runs, for a table.
fn tell(test: &str, limit: u64, bare: &Outcome, managed: &Outcome) {
    let stats = managed.stats();
    eprintln!(
        "note {test}: limit {limit} MiB, managed peak {} MiB of {} MiB, swapped in {} MiB; {:.1} s bare, {:.1} s managed",
        stats.count("peak_resident_bytes") / MIB,
        stats.count("managed_bytes") / MIB,
        stats.count("swap_in_bytes") / MIB,
        bare.elapsed.as_secs_f64(),
        managed.elapsed.as_secs_f64()
    );
}

/// The memory figures of the statistics.
fn brief(stats: &Stats) -> String {
    let values = [
        "peak_resident_bytes",
        "managed_bytes",
        "swap_in_bytes",
        "processes",
        "over_limit_bytes",
        "unmanaged_bytes",
    ];
    let words = values.map(|key| format!("{key} {}", stats.0[key]));
    words.join(", ")
}

/// Whether the peak was within the limit, except for memory that the statistics name.
fn explained(stats: &Stats, limit: u64) -> bool {
    let over = &stats.0["over_limit_bytes"];
    let named = [&over["present"], &over["forks"]].map(|bytes| bytes.as_u64().unwrap_or(0));
    // As `Outcome::within_limit` allows several processes.
    stats.count("peak_resident_bytes") <= (limit + 1) * MIB + named.into_iter().max().unwrap_or(0)
}

/// Runs `job` bare and in `limit` mebibytes; output must be equal, and the limit hold but for memory that the statistics name,
/// as services start several processes. Returns the managed run.
#[track_caller]
fn same(test: &str, limit: u64, job: &Job) -> Outcome {
    let bare = job.run().succeeded();
    let managed = Managed::limit(limit).run(job);
    managed.equals(&bare);
    managed.within_limit_but_for_forks(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
    managed
}

/// A folder with a short path that any user may enter: sockets' paths are 107 bytes at most.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fs-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder can be made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A copy of `file` that any user may execute.
    fn take(&self, file: &Path) -> PathBuf {
        let copy = self.join(
            &file
                .file_name()
                .expect("a file has a name")
                .to_string_lossy(),
        );
        fs::copy(file, &copy).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("a mode can be set");
        copy
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Repeats until `answers` succeeds; the server must not end before.
#[track_caller]
fn await_server(server: &mut Running, mut answers: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(size(60, 300));
    while !answers() {
        assert!(
            Instant::now() < deadline && !server.has_ended(),
            "the server does not answer: {}",
            server.stdout_so_far()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The process named in a server's pid file.
#[track_caller]
fn pid_in(file: &Path) -> Pid {
    let text = fs::read_to_string(file).expect("the server has written its process' number");
    let number = text
        .lines()
        .next()
        .and_then(|line| line.trim().parse().ok());
    number.and_then(Pid::from_raw).expect("a number")
}

/// Sorts and hash joins of a backend, which the postmaster forks; the shared buffers are shared memory.
#[test]
fn postgresql() {
    let test = "postgresql";
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let folder = versions.map(|entry| entry.path().join("bin")).max();
    let found = folder.filter(|folder| folder.join("postgres").exists());
    if !requirement::required(found.is_some(), test, "postgresql") || !requirement::root(test) {
        return;
    }
    let (Some(programs), Some(launcher), Some(psql)) = (
        found,
        program::compile(test, "as_ordinary_user"),
        requirement::command(test, "psql"),
    ) else {
        return;
    };
    let place = Place::new(test);
    let foreswap = place.take(&binary());
    place.take(&binary().with_file_name("libforeswap_preload.so"));
    let launcher = place.take(&launcher);
    let script = place.take(&source("private_memory.sql"));
    let rows = size(250_000, 1_500_000);
    let limit = size(64, 256);

    let run = |managed: Option<&Path>| -> (String, Outcome, f64) {
        let data = place.join("data");
        fs::create_dir(&data).expect("a folder can be made");
        std::os::unix::fs::chown(&data, Some(65534), Some(65534)).expect("and given away");
        let user = |job: Job| {
            job.under([launcher.as_os_str(), "with".as_ref()])
                .cwd(&data)
        };
        let make = Job::new(programs.join("initdb")).arg("-D").arg(&data);
        let make = make.args([
            "-A",
            "trust",
            "-N",
            "--no-locale",
            "-E",
            "UTF8",
            "-U",
            "postgres",
        ]);
        user(make).run().succeeded();
        let server = Job::new(programs.join("postgres"))
            .args([
                "-h",
                "",
                "-c",
                "shared_buffers=16MB",
                "-c",
                "fsync=off",
                "-k",
            ])
            .args([data.as_os_str(), "-D".as_ref(), data.as_os_str()])
            .env("HOME", &data)
            .env("TMPDIR", &data)
            .env("XDG_RUNTIME_DIR", &data)
            .cwd(&data);
        let mut running = match managed {
            None => user(server).start(),
            Some(stats) => Managed::limit(limit)
                .binary(foreswap.clone())
                .started_by([launcher.as_os_str(), "with".as_ref()])
                .start(&server, stats),
        };
        let ask = || {
            Job::new(&psql)
                .args(["-U", "postgres", "-qAt", "-d", "postgres", "-h"])
                .arg(&data)
        };
        await_server(&mut running, || {
            ask().args(["-c", "SELECT 1"]).run().code() == 0
        });
        let work = ask()
            .args(["-v", &format!("rows={rows}"), "-f"])
            .arg(&script);
        let outcome = work.run().succeeded();
        kill_process(pid_in(&data.join("postmaster.pid")), Signal::INT)
            .expect("the server is there");
        let ended = running.wait().succeeded();
        // The statistics are there.
        let kept = managed.map(Stats::read);
        fs::remove_dir_all(&data).expect("the server has ended");
        (
            outcome.text(),
            Outcome {
                stats: kept,
                ..ended
            },
            outcome.elapsed.as_secs_f64(),
        )
    };
    let (bare, _, bare_took) = run(None);
    let stats = place.join("data/stats.json");
    let (said, outcome, took) = run(Some(&stats));
    assert_eq!(said, bare);
    let stats = outcome.stats();
    eprintln!(
        "note {test}: {bare_took:.1} s bare, {took:.1} s in {limit} MiB: {}",
        brief(stats)
    );
    // The C library's realloc copies a block of its heap to fresh memory before the engine is told.
    assert!(
        explained(stats, limit)
            && stats.0["over_limit_bytes"]["present"].as_u64() <= Some(33 * MIB),
        "{}",
        brief(stats)
    );
    outcome.swapped();
    let shared = outcome.stats().0["unmanaged_bytes"]["shared"].as_u64();
    assert!(
        shared >= Some(MIB),
        "the shared buffers were not named: {shared:?}"
    );
}

/// Load, update, kill -9, restart: after the same steps a server has the same tables.
#[test]
#[ignore = "make test-full"]
fn mariadb_after_a_crash() {
    let test = "mariadb_after_a_crash";
    let (Some(server), Some(client), Some(make)) = (
        requirement::command(test, "mariadbd"),
        requirement::command(test, "mariadb"),
        requirement::command(test, "mariadb-install-db"),
    ) else {
        return;
    };
    let rows = size(100_000, 400_000);
    let limit = size(96, 192);
    let place = Place::new(test);
    let run = |managed: Option<&Path>| -> (String, Vec<Stats>) {
        let data = place.join("data");
        let mut stats = Vec::new();
        Job::new(&make)
            .args([
                "--no-defaults",
                "--user=root",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ])
            .arg(format!("--datadir={}", data.display()))
            .run()
            .succeeded();
        let named = |option: &str, file: &str| format!("--{option}={}", data.join(file).display());
        let job = Job::new(&server)
            .args([
                "--no-defaults",
                "--user=root",
                "--skip-networking",
                "--skip-grant-tables",
                "--skip-log-bin",
            ])
            .arg(format!("--innodb-buffer-pool-size={}M", size(192, 512)))
            .args([
                named("datadir", ""),
                named("tmpdir", ""),
                named("socket", "s"),
                named("pid-file", "pid"),
            ]);
        let ask = |words: &str| {
            let client = Job::new(&client).args([
                "--no-defaults",
                "-Ns",
                &named("socket", "s"),
                "-e",
                words,
            ]);
            client.timeout(size(300, 2400)).run()
        };
        let start = || {
            let mut running = match managed {
                None => job.start(),
                Some(stats) => Managed::limit(limit).start(&job, stats),
            };
            await_server(&mut running, || ask("SELECT 1").code() == 0);
            running
        };
        let running = start();
        let load = format!(
            "CREATE DATABASE d; USE d; CREATE TABLE t (id INT PRIMARY KEY, k INT, v VARCHAR(200), w VARCHAR(500), KEY (k), \
             KEY (v)) ENGINE=InnoDB; INSERT INTO t SELECT seq, seq * 40503 % 10007, CONCAT(MD5(seq), SHA1(seq)), \
             REPEAT(MD5(seq * 3), 12) FROM seq_1_to_{rows}; UPDATE t SET v = CONCAT(v, 'x'), w = REVERSE(w) WHERE k % 3 = 0; \
             DELETE FROM t WHERE k % 7 = 1; UPDATE t SET k = k + 1 WHERE id % 2 = 0"
        );
        ask(&load).succeeded();
        kill_process(pid_in(&data.join("pid")), Signal::KILL).expect("the server is there");
        assert_eq!(running.wait().code(), 128 + 9, "how a killed server ends");
        stats.extend(managed.map(Stats::read));
        let running = start();
        let said = ask(
            "USE d; CHECKSUM TABLE t EXTENDED; SELECT COUNT(*), SUM(k), SUM(CRC32(w)) FROM t; \
             SELECT SUM(CRC32(v)) FROM (SELECT v FROM t ORDER BY w, id LIMIT 1000000000) s",
        )
        .succeeded()
        .text();
        kill_process(pid_in(&data.join("pid")), Signal::TERM).expect("the server is there");
        running.wait().succeeded();
        stats.extend(managed.map(Stats::read));
        fs::remove_dir_all(&data).expect("the server has ended");
        (said, stats)
    };
    let started = Instant::now();
    let (bare, _) = run(None);
    let between = Instant::now();
    let (said, stats) = run(Some(&place.join("stats.json")));
    assert_eq!(said, bare);
    let (bare_took, took) = (between - started, between.elapsed());
    for stats in stats {
        eprintln!(
            "note {test}: {bare_took:.1?} bare, {took:.1?} in {limit} MiB: {}",
            brief(&stats)
        );
        assert!(
            stats.count("peak_resident_bytes") <= limit * MIB,
            "{}",
            stats.0
        );
        assert!(stats.count("swap_in_bytes") > MIB, "{}", stats.0);
    }
}
