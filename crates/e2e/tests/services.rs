//! Servers, tools and virtual machines that nobody here wrote, each bare and in a quarter to a half of its memory: equal
//! output, equal status, the limit held or what passes it named. `make test` has small sizes of those that ask most of the
//! kernel; the others, and the full sizes, are `make test-full` (FORESWAP_E2E_FULL=1, `--include-ignored`).

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::{Job, MIB, Managed, Outcome, Stats, full_size, program, requirement};
use rustix::process::{Pid, Signal, kill_process};

/// `scaled` in `make test`, `full` in `make test-full`.
fn size(scaled: u64, full: u64) -> u64 {
    if full_size() { full } else { scaled }
}

/// A source or input of these tests.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs/services")
        .join(name)
}

/// A generator with a fixed seed: the same input for every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What the runs took, for a table.
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

/// What statistics say of memory.
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

/// Whether the peak was within the limit, but for what the statistics name.
fn explained(stats: &Stats, limit: u64) -> bool {
    let over = &stats.0["over_limit_bytes"];
    let named = [&over["present"], &over["forks"]].map(|bytes| bytes.as_u64().unwrap_or(0));
    // As `Outcome::within_limit` allows several processes.
    stats.count("peak_resident_bytes") <= (limit + 1) * MIB + named.into_iter().max().unwrap_or(0)
}

/// Runs `job` bare and in `limit` mebibytes; the same must come of both, and the limit hold. Returns the managed run.
#[track_caller]
fn same(test: &str, limit: u64, job: &Job) -> Outcome {
    let bare = job.run().succeeded();
    let managed = Managed::limit(limit).run(job);
    managed.equals(&bare);
    managed.within_limit(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
    managed
}

/// A folder with a short path that anybody may enter: sockets' paths are 107 bytes at most.
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

    /// A copy of `file` that anybody may execute.
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

/// Asks until `answers` does; the server must not end before.
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

/// The process that a server's file names.
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
        // Statistics lie there.
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
    // The C library's realloc copies a block of its heap to fresh memory before anybody hears of it.
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

/// Delta compression by two threads over files of megabytes; every object must come out as it went in.
#[test]
fn git_repack() {
    let test = "git_repack";
    let Some(git) = requirement::command(test, "git") else {
        return;
    };
    let scratch = Scratch::new(test);
    let stream = scratch.join("stream");
    let (files, commits) = (size(4, 10), size(4, 12));
    fast_import(&stream, files, commits);
    let git = |folder: &Path| {
        Job::new(&git)
            .arg("-C")
            .arg(folder)
            .args([
                "-c",
                "pack.threads=2",
                "-c",
                "gc.auto=0",
                "-c",
                "core.bigFileThreshold=1g",
            ])
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
    };
    let repository = |name: &str| {
        let folder = scratch.join(name);
        fs::create_dir(&folder).expect("a folder can be made");
        git(&folder)
            .args(["init", "-q", "--bare"])
            .run()
            .succeeded();
        git(&folder)
            .args(["fast-import", "--quiet"])
            .stdin(&stream)
            .run()
            .succeeded();
        folder
    };
    let repack = |folder: &Path| {
        let window = format!("--window-memory={}m", size(100, 400));
        git(folder).args(["repack", "-adfq", "--window=30", &window])
    };
    let objects = |folder: &Path| {
        let all = git(folder).args(["cat-file", "--batch-all-objects", "--batch"]);
        all.stdout(folder.join("objects.txt")).run().succeeded();
        folder.join("objects.txt")
    };
    let (before, after) = (repository("bare"), repository("managed"));
    let bare = repack(&before).run().succeeded();
    let limit = size(64, 256);
    let managed = Managed::limit(limit).run(&repack(&after));
    managed.equals(&bare);
    git(&after)
        .args(["fsck", "--full", "--strict", "main"])
        .run()
        .succeeded();
    Job::new("cmp")
        .arg(objects(&before))
        .arg(objects(&after))
        .run()
        .succeeded();
    managed.within_limit(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// A stream for `git fast-import`: `files` files of 3 MB of words, of which each commit changes a part.
fn fast_import(path: &Path, files: u64, commits: u64) {
    let mut random = Random(7);
    let mut line = || {
        format!(
            "{:016x} {:012x} {:x}",
            random.next(),
            random.below(1 << 40),
            random.next()
        )
    };
    let mut texts: Vec<Vec<String>> = (0..files)
        .map(|_| (0..65_000).map(|_| line()).collect())
        .collect();
    let mut choice = Random(8);
    let mut file = BufWriter::new(File::create(path).expect("the stream can be made"));
    let mut put = |text: &str| {
        file.write_all(text.as_bytes())
            .expect("the stream can be written")
    };
    for commit in 0..commits {
        put(&format!(
            "commit refs/heads/main\ncommitter A <a@b> {} +0000\ndata 1\n{}\n",
            1_000_000_000 + commit,
            commit % 10
        ));
        for (number, text) in texts.iter_mut().enumerate() {
            for _ in 0..2000 {
                let at = choice.below(text.len() as u64) as usize;
                text[at] = line();
            }
            let all = text.join("\n");
            put(&format!(
                "M 100644 inline f{number}\ndata {}\n{all}\n",
                all.len()
            ));
        }
        put("\n");
    }
}

/// Four compilers at a time and a link that optimizes all of the program: the same executable, byte for byte.
#[test]
fn cpp_with_link_time_optimization() {
    let test = "cpp_with_link_time_optimization";
    let (Some(make), Some(_)) = (
        requirement::command(test, "make"),
        requirement::command(test, "g++"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    cpp_sources(scratch.path(), 4, size(2, 24));
    let job = Job::new(make)
        .args(["-sj4", "-C"])
        .arg(scratch.path())
        .timeout(size(300, 2400));
    let bare = job.run().succeeded();
    let keep = |name: &str| {
        fs::rename(scratch.join("job"), scratch.join(name)).expect("the program was linked")
    };
    keep("bare");
    Job::new("make")
        .args(["-s", "clean", "-C"])
        .arg(scratch.path())
        .run()
        .succeeded();
    let limit = size(200, 800);
    let managed = Managed::limit(limit).run(&job);
    managed.equals(&bare);
    keep("managed");
    Job::new("cmp")
        .args([scratch.join("bare"), scratch.join("managed")])
        .run()
        .succeeded();
    Job::new(scratch.join("managed")).run().succeeded();
    managed.within_limit(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// `files` sources with `classes` instances each of templates of the standard library, and how to build them.
fn cpp_sources(folder: &Path, files: u64, classes: u64) {
    let template = fs::read_to_string(source("instances.cpp")).expect("the template is there");
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).expect("a source can be written")
    };
    let (mut declared, mut called, mut objects) = (String::new(), String::new(), String::new());
    for file in 0..files {
        let (first, last) = (file * classes, (file + 1) * classes);
        let defines =
            format!("#define FIRST {first}\n#define LAST {last}\n#define PART part{file}\n");
        write(&format!("part{file}.cpp"), &(defines + &template));
        declared += &format!("long part{file}(long);\n");
        called += &format!("    sum = part{file}(sum);\n");
        objects += &format!(" part{file}.o");
    }
    write(
        "main.cpp",
        &format!(
            "#include <cstdio>\n{declared}int main()\n{{\n    long sum = 1;\n{called}    std::printf(\"%ld\\n\", sum);\n}}\n"
        ),
    );
    write(
        "Makefile",
        &format!(
            "flags = -std=c++17 -O2 -g -flto=4\n\
             job: main.o{objects}\n\tg++ $(flags) -frandom-seed=job -o $@ $^\n\
             %.o: %.cpp\n\tg++ $(flags) -frandom-seed=$* -c -o $@ $<\n\
             clean:\n\trm -f *.o job\n"
        ),
    );
}

/// Four ranks that exchange their arrays over shared memory.
#[test]
fn mpi_with_four_ranks() {
    let test = "mpi_with_four_ranks";
    let (Some(mpicc), Some(mpirun)) = (
        requirement::command(test, "mpicc"),
        requirement::command(test, "mpirun"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    let ranks = scratch.join("ranks");
    let build = Job::new(mpicc).args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    build.args([&ranks, &source("ranks.c")]).run().succeeded();
    let job = Job::new(mpirun)
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-np",
            "4",
            "--mca",
            "btl",
            "self,vader",
        ])
        .arg(&ranks)
        .arg(size(24, 128).to_string())
        .env("TMPDIR", "/tmp");
    let managed = same(test, size(96, 400), &job);
    let processes = managed.stats().count("processes");
    assert!(processes >= 4, "only {processes} processes were managed");
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

/// Browser, zygote and renderers.
#[test]
#[ignore = "make test-full"]
fn headless_chromium() {
    let test = "headless_chromium";
    let Some(chromium) = requirement::command(test, "chromium") else {
        return;
    };
    let scratch = Scratch::new(test);
    let page = scratch.join("page.html");
    fs::copy(source("page.html"), &page).expect("the page can be copied");
    let job = Job::new(chromium)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args([
            "--disable-extensions",
            "--disable-background-networking",
            "--virtual-time-budget=100000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            scratch.join("profile").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}#{}", page.display(), size(100, 400)))
        .env("HOME", scratch.path());
    let managed = same(test, size(160, 350), &job);
    assert!(
        managed.text().contains("elements</pre>"),
        "{}",
        managed.text()
    );
    let processes = managed.stats().count("processes");
    assert!(processes >= 3, "only {processes} processes were managed");
}

/// A virtual machine without KVM, all of whose memory the guest fills and verifies.
#[test]
#[ignore = "make test-full"]
fn qemu() {
    let test = "qemu";
    let (Some(qemu), Some(gcc)) = (
        requirement::command(test, "qemu-system-x86_64"),
        requirement::command(test, "gcc"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    let guest = scratch.join("guest");
    let mebibytes = size(128, 512);
    Job::new(gcc)
        .args([
            "-m32",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffreestanding",
            "-fno-pic",
            "-fno-stack-protector",
        ])
        .args([
            "-fno-asynchronous-unwind-tables",
            "-nostdlib",
            "-static",
            "-Wl,-Ttext=0x100000,--build-id=none",
        ])
        .arg(format!("-DMEBIBYTES={mebibytes}u"))
        .arg("-o")
        .args([&guest, &source("machine.S"), &source("machine.c")])
        .run()
        .succeeded();
    let job = Job::new(qemu)
        .args([
            "-accel",
            "tcg",
            "-nodefaults",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-no-reboot",
        ])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-m"])
        .arg((mebibytes + 32).to_string())
        .arg("-kernel")
        .arg(&guest);
    let bare = job.run();
    assert!(
        bare.code() == 33 && bare.text().contains("wrong 00000000"),
        "{}",
        bare.text()
    );
    let limit = size(64, 192);
    let managed = Managed::limit(limit).run(&job);
    managed.equals(&bare);
    managed.within_limit(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// Turns on the system's swap, sets its watchdog or the types of its memory, or fills all of its shared memory.
const NOT_RUN: [&str; 5] = ["swap", "watchdog", "physpage", "dev-shm", "tmpfs"];

/// What does not fail bare must not fail here, for each stressor of the class on its own.
#[test]
fn stress_ng() {
    let test = "stress_ng";
    let Some(stress) = requirement::command(test, "stress-ng") else {
        return;
    };
    let scratch = Scratch::new(test);
    let class = Job::new(&stress).args(["--class", "vm?"]).run();
    let said = class.text() + &class.stderr;
    let names = said
        .split("stressors:")
        .nth(1)
        .expect("the stressors of the class");
    let names: Vec<_> = names
        .split_whitespace()
        .filter(|name| !NOT_RUN.contains(name))
        .collect();
    assert!(names.len() > 25, "{said}");
    let (limit, bytes) = (size(48, 128), size(96, 384));
    let sized = [
        ("vm", format!("--vm-bytes={bytes}M")),
        ("mmap", format!("--mmap-bytes={bytes}M")),
        ("mremap", format!("--mremap-bytes={bytes}M")),
        ("vm-rw", format!("--vm-rw-bytes={}M", bytes / 2)),
    ];
    let (mut failures, mut swapped) = (String::new(), 0);
    for name in names {
        let seconds = size(1, 4).to_string();
        let sizes = sized
            .iter()
            .filter(|(of, _)| *of == name)
            .map(|(_, option)| option);
        let job = Job::new(&stress)
            .args([&format!("--{name}"), "1", "--verify", "--timeout", &seconds])
            .args(sizes)
            .cwd(scratch.path())
            .timeout(size(120, 300));
        let managed = Managed::limit(limit).run(&job);
        let failed = |outcome: &Outcome| {
            let said = outcome.text() + &outcome.stderr;
            outcome.code() != 0 || said.contains("fail:") || said.contains("died unexpectedly")
        };
        if failed(&managed) && !failed(&job.run()) {
            failures += &format!(
                "{name}: {} {} {}\n",
                managed.code(),
                managed.text(),
                managed.stderr
            );
        }
        if !explained(managed.stats(), limit) {
            failures += &format!("{name}: {}\n", brief(managed.stats()));
        }
        eprintln!(
            "note {test}: {name} in {limit} MiB: {}",
            brief(managed.stats())
        );
        swapped += u32::from(managed.stats().count("swap_in_bytes") > MIB);
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(swapped >= 4, "only {swapped} stressors swapped");
}

/// Two crates without dependencies: the same executable.
#[test]
#[ignore = "make test-full"]
fn cargo_build() {
    let test = "cargo_build";
    let Some(cargo) = requirement::command(test, "cargo") else {
        return;
    };
    let scratch = Scratch::new(test);
    cargo_sources(scratch.path(), size(20, 80));
    let job = Job::new(cargo)
        .args(["build", "--quiet", "--release", "--offline"])
        .cwd(scratch.path())
        .env("CARGO_TARGET_DIR", scratch.join("built"))
        .env("CARGO_INCREMENTAL", "0");
    let bare = job.run().succeeded();
    let keep = |name: &str| {
        fs::rename(scratch.join("built/release/job"), scratch.join(name)).expect("a program")
    };
    keep("bare");
    fs::remove_dir_all(scratch.join("built")).expect("what was built");
    let limit = size(128, 256);
    let managed = Managed::limit(limit).run(&job);
    managed.equals(&bare);
    keep("managed");
    Job::new("cmp")
        .args([scratch.join("bare"), scratch.join("managed")])
        .run()
        .succeeded();
    Job::new(scratch.join("managed")).run().succeeded();
    managed.within_limit(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// A workspace: a library with `types` types and a program that uses them all.
fn cargo_sources(folder: &Path, types: u64) {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder"))
            .expect("a folder can be made");
        fs::write(path, text).expect("a source can be written");
    };
    let manifest = |name: &str, rest: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n{rest}")
    };
    write(
        "Cargo.toml",
        "[workspace]\nresolver = \"2\"\nmembers = [\"parts\", \"job\"]\n[profile.release]\ndebug = true\n",
    );
    write("parts/Cargo.toml", &manifest("parts", ""));
    write(
        "job/Cargo.toml",
        &manifest("job", "[dependencies]\nparts = { path = \"../parts\" }\n"),
    );
    let template = fs::read_to_string(source("part.rs.in")).expect("the template is there");
    let parts: String = (0..types)
        .map(|n| template.replace("NUMBER", &n.to_string()))
        .collect();
    write("parts/src/lib.rs", &parts);
    let calls: String = (0..types)
        .map(|n| format!("    sum = parts::part{n}(sum);\n"))
        .collect();
    write(
        "job/src/main.rs",
        &format!("fn main() {{\n    let mut sum = 1;\n{calls}    println!(\"{{sum}}\");\n}}\n"),
    );
}
