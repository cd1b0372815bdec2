//! `foreswap bench` runs the same bytes on foreswap and on its peers and reports both.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use foreswap_e2e::Job;
use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::Scratch;
use foreswap_e2e::requirement::venv_python;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// `foreswap bench WORDS`, its files in `scratch`.
fn bench(scratch: &Scratch, words: &str) -> Job {
    Job::new(binary())
        .arg("bench")
        .args(words.split_whitespace())
        .arg("--dir")
        .arg(scratch.path())
        .timeout(180)
}

/// Runs it to its end; returns its output and its JSON.
#[track_caller]
fn report(words: &str) -> (String, Value) {
    let scratch = Scratch::new("bench");
    let json = scratch.join("bench.json");
    let job = bench(&scratch, words).arg("--json").arg(&json);
    let outcome = job.run().succeeded();
    let text = std::fs::read_to_string(&json).expect("the report was written");
    let report = serde_json::from_str(&text).expect("the report is JSON");
    (outcome.text(), report)
}

fn median(report: &Value, peer: usize, figure: &str) -> f64 {
    let figures = &report["peers"][peer]["figures"];
    figures[figure]["median"].as_f64().unwrap_or(f64::NAN)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    entries
        .map(|entry| entry.expect("an entry").file_name().display().to_string())
        .collect()
}

#[test]
fn a_bench_runs_foreswap_and_its_peer_and_writes_what_it_found() {
    let (text, report) = report("seq-read --total 96M --memory 32M --turns 1 --against bare");
    assert!(text.contains("foreswap / bare"), "{text}");
    assert_eq!(report["peers"][0]["peer"], "foreswap");
    assert_eq!(report["peers"][1]["peer"], "bare");
    let median = |peer, figure| median(&report, peer, figure);
    assert!(median(0, "bytes_per_s") > 0.0 && median(1, "bytes_per_s") > 0.0);
    // A third fits: at least two thirds had to be written and read.
    assert!(median(0, "swap_in_bytes") >= f64::from(48 << 20));
    assert!(median(0, "stats.peak_resident_bytes") <= f64::from(32 << 20));
    // Every page that came in has cost a fault or was read beside one that did.
    assert!(median(0, "faults_per_page") > 0.0 && median(0, "pages_per_major") >= 1.0);
    assert!(text.contains("windows of foreswap"), "{text}");
}

/// The I/O of the measured passes alone, by the run's own count and by the device's.
#[test]
fn the_passes_are_counted_by_themselves_and_held_against_the_device() {
    let (text, report) =
        report("seq-write --tasks 2 --total 96M --memory 32M --turns 1 --against foreswap");
    let whole = median(&report, 0, "swap_out_bytes");
    let passes = median(&report, 0, "pass_out_bytes");
    let fill = median(&report, 0, "fill_out_bytes");
    // At least two thirds in the fill, and again in the pass; the check is in neither.
    assert!(fill >= f64::from(48 << 20), "{fill}: {text}");
    assert!(passes >= f64::from(48 << 20), "{passes}: {text}");
    assert!(
        fill + passes <= whole,
        "{fill} and {passes} of {whole}: {text}"
    );
    assert!(
        median(&report, 0, "pass_device_written_bytes") > 0.0,
        "{text}"
    );
    assert!(median(&report, 0, "pass_in_bytes_per_s") > 0.0, "{text}");
    let rows: Vec<&Value> = report["peers"].as_array().expect("rows")[1..]
        .iter()
        .collect();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["peer"].as_str()).collect();
    let expected = [
        "device, 1 x 2 MiB writes",
        "device, 4 x 2 MiB writes",
        "device, 8 x 2 MiB writes",
        "device, 1 x 2 MiB first writes",
        "device, 4 x 2 MiB first writes",
        "device, 8 x 2 MiB first writes",
        "device, 8 x 2 MiB, half writes",
    ];
    assert_eq!(names, expected, "{text}");
    for target in [
        "bytes/s out to the area's fastest direct writes",
        "bytes/s out while it is filled to the area's fastest first writes",
        "faults per 2 MiB",
        "huge pages split",
    ] {
        assert!(text.contains(target), "{target}: {text}");
    }
}

#[test]
fn compressed_memory_has_no_device_beside_it() {
    let (text, report) = report(
        "seq-read --total 96M --memory 32M --turns 1 --against bare --fill compressible \
         --run-option=--swap=ram:96M",
    );
    assert_eq!(report["peers"].as_array().map(Vec::len), Some(2), "{text}");
    assert!(median(&report, 0, "pass_in_bytes") > 0.0, "{text}");
    assert!(!text.contains("fastest direct reads"), "{text}");
    assert!(
        text.contains("seq-read, in ram:, huge pages split"),
        "{text}"
    );
}

/// Processes once starved each other here: a process kept the whole limit that it was granted while it was alone.
#[test]
fn combined_runs_under_foreswap() {
    for mode in ["thread", "process"] {
        let (text, report) = report(&format!(
            "combined --mode {mode} --memory 32M --sequential-tasks 1 --random-tasks 1 --seconds 1 \
             --turns 1 --against bare"
        ));
        for figure in [
            "bytes_per_s",
            "touch_p50_ns",
            "touch_p99_ns",
            "random.pages_per_s",
            "swap_in_bytes",
            "own_hit_ratio",
        ] {
            assert!(median(&report, 0, figure) > 0.0, "{mode} {figure}: {text}");
        }
        assert!(median(&report, 0, "own_hit_ratio") <= 1.0, "{mode}: {text}");
    }
}

#[test]
fn linpack_is_right_under_foreswap() {
    let Some(python) = venv_python("linpack_is_right_under_foreswap") else {
        return;
    };
    let words = "linpack --total 80M --memory 64M --turns 1 --against bare --python";
    let (text, report) = report(&format!("{words} {}", python.display()));
    assert!(median(&report, 0, "residual") < 16.0, "{text}");
    assert!(
        median(&report, 0, "swap_in_bytes") > f64::from(1 << 20),
        "{text}"
    );
    assert_eq!(
        median(&report, 0, "residual"),
        median(&report, 1, "residual"),
        "{text}"
    );
}

/// The bench compares the object files.
#[test]
#[ignore = "make test-full"]
fn build_is_equal_under_foreswap() {
    let (text, report) = report("build --turns 1 --against bare");
    assert!(
        median(&report, 0, "swap_in_bytes") > f64::from(1 << 20),
        "{text}"
    );
}

/// The user's own command, and one of the list: their outputs are compared.
#[test]
fn programs_run_at_a_part_of_their_own_memory() {
    let words = "programs --turns 1 --against bare --part 0.5 --run-option=--thp=never";
    let numbers = "print(sum(len(str(i)) for i in list(range(1500000))))";
    let own = format!("{words} --json JSON -- python3 -c CODE");
    let scratch = Scratch::new("programs");
    let json = scratch.join("bench.json");
    let job = Job::new(binary()).arg("bench").cwd(scratch.path());
    let job = own.split_whitespace().fold(job, |job, word| match word {
        "JSON" => job.arg(&json),
        "CODE" => job.arg(numbers),
        word => job.arg(word),
    });
    let text = job.timeout(180).run().succeeded().text();
    let written = std::fs::read_to_string(&json).expect("the report was written");
    let own: Value = serde_json::from_str(&written).expect("the report is JSON");
    assert!(text.contains("outputs of all runs"), "{text}");
    let (text, listed) = report(&format!("{words} --rows sort"));
    assert!(text.contains("in MiB"), "{text}");
    for report in [own, listed] {
        let sizes = report["parameters"]["programs"].as_object().expect("sizes");
        let (name, size) = sizes.iter().next().expect("a program");
        let [limit, peak] = ["limit_bytes", "peak_bytes"].map(|key| size[key].as_f64().unwrap());
        assert!((0.45..=0.5).contains(&(limit / peak)), "{name}: {size}");
        assert!(
            median(&report, 0, "swap_in_bytes") > f64::from(1 << 20),
            "{name}"
        );
        assert!(median(&report, 0, "peak_bytes") <= limit, "{name}");
        let bare = report["peers"][1]["peer"].as_str().unwrap();
        assert!(bare.ends_with(": bare"), "{bare}");
    }
}

/// Nothing is left of the list's folder either, nor of what a shell runs that is ended.
#[test]
fn programs_that_cannot_be_compared_are_an_error() {
    let scratch = Scratch::new("programs");
    let against = "programs --turns 1 --against bare";
    let cases = [
        ("seq-read", "true", "seq-read has its own"),
        (
            "programs --rows nothing",
            "",
            "the names are: python: dictionaries;",
        ),
        (
            "programs --rows Polars --python /no",
            "",
            "no program of --rows is installed",
        ),
        (
            "programs --part 1.5",
            "true",
            "--part 1.5: the limit as a part",
        ),
        (
            against,
            "exec no-such-program",
            "no-such-program: not found",
        ),
        (against, "exit 3", "failed without a limit"),
        (
            against,
            "cat /proc/self/stat",
            "differs from its output without a limit",
        ),
        ("programs --timeout 1", "sleep 300 | cat", "ended after 1 s"),
    ];
    for (words, script, message) in cases {
        let job = Job::new(binary())
            .arg("bench")
            .args(words.split_whitespace());
        let job = match script {
            "" => job,
            script => job.args(["--", "sh", "-c", script]),
        };
        let running = job.env("TMPDIR", scratch.path()).timeout(180).start();
        let tag = running.tag().to_owned();
        let outcome = running.wait();
        assert_eq!(outcome.code(), 1, "{words}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(message),
            "{words}: {}",
            outcome.stderr
        );
        let left = names(scratch.path()).into_iter();
        let left: Vec<_> = left.filter(|name| name.contains("bench")).collect();
        assert!(left.is_empty(), "{words}: {left:?}");
        let left = foreswap_e2e::process::processes_with_tag(&tag);
        assert!(left.is_empty(), "{words}: {left:?} still run");
    }
}

#[test]
fn swapoff_brings_a_program_back_under_foreswap() {
    let (text, report) = report("swapoff --total 96M --memory 32M --turns 1 --against foreswap");
    // All except the 16 MiB of the squeezed limit, and foreswap's own memory.
    assert!(
        median(&report, 0, "back_bytes") >= f64::from(64 << 20),
        "{text}"
    );
    assert!(median(&report, 0, "bytes_per_s") > 0.0, "{text}");
    assert!(
        median(&report, 0, "stats.peak_resident_bytes") >= f64::from(96 << 20),
        "{text}"
    );
    assert!(text.contains("device, 4 x 2 MiB"), "{text}");
}

#[test]
fn an_interrupted_bench_leaves_no_process_and_no_file() {
    let mut cases = vec![
        "combined --memory 32M --seconds 60 --turns 1 --against bare --mode thread".to_owned(),
        "swapoff --total 512M --memory 32M --turns 90 --against foreswap".to_owned(),
    ];
    if let Some(python) = venv_python("an_interrupted_bench_leaves_no_process_and_no_file") {
        let words = "linpack --total 512M --memory 64M --turns 1 --against bare --python";
        cases.push(format!("{words} {}", python.display()));
    }
    for words in cases {
        let scratch = Scratch::new("interrupted");
        let running = bench(&scratch, &words).start();
        let start = Instant::now();
        // The bench, `foreswap run`, and the workload in it.
        while running.processes().len() < 3 {
            assert!(start.elapsed() < Duration::from_secs(60), "{words}");
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(500));
        let tag = running.tag().to_owned();
        kill_process(running.pid(), Signal::INT).expect("the bench can be told to end");
        let outcome = running.wait();
        assert_eq!(outcome.code(), 130, "{words}: {}", outcome.stderr);
        assert!(
            names(scratch.path()).is_empty(),
            "{:?}",
            names(scratch.path())
        );
        // The workload dies with its run.
        let start = Instant::now();
        while !foreswap_e2e::process::processes_with_tag(&tag).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(10), "{words}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn slots_are_taken_from_both_allocators() {
    let (text, report) = report("slots --total 64M --turns 2");
    let peers = report["peers"].as_array().expect("rows");
    let row = |name: &str| {
        let of_name = |peer: &&Value| peer["peer"] == name;
        let found = peers.iter().find(of_name);
        found.unwrap_or_else(|| panic!("no row {name}: {text}"))
    };
    for request in ["1 slot", "16 slots", "512 slots"] {
        for area in ["empty", "fragmented"] {
            for tasks in ["1 task", "2 tasks"] {
                for allocator in ["foreswap", "one lock per slot"] {
                    let row = row(&format!("{request}, {area}, {tasks}: {allocator}"));
                    assert_eq!(row["turns"].as_array().map(Vec::len), Some(2));
                    let figure = |name: &str| row["figures"][name]["median"].as_f64();
                    let (slots, calls) = (figure("slots_per_s"), figure("calls_per_s"));
                    assert!(calls > Some(0.0) && slots >= calls, "{row}");
                    assert!(figure("put_slots_per_s") > Some(0.0), "{row}");
                    let to_lock = figure("slots_per_s_to_one_lock");
                    assert_eq!(to_lock.is_some(), allocator == "foreswap", "{row}");
                }
            }
        }
        // An empty area gives each request everything that it asks for.
        let row = row(&format!("{request}, empty, 1 task: foreswap"));
        let of_call = row["turns"][0]["slots_per_s"].as_f64().expect("a figure")
            / row["turns"][0]["calls_per_s"].as_f64().expect("a figure");
        let slots: f64 = request
            .split(' ')
            .next()
            .expect("a word")
            .parse()
            .expect("a number");
        assert!(
            (of_call - slots).abs() < 1e-6,
            "{of_call} slots a call: {text}"
        );
    }
    let refused = row("512 slots, fragmented, none left: foreswap");
    assert!(refused["figures"]["calls_per_s"]["median"].as_f64() > Some(0.0));
}

#[test]
fn the_page_hash_is_held_against_memcpy() {
    let (text, report) = report("digest --total 4M --turns 1");
    let rows = ["hash", "zero pages", "memcpy"];
    let names = rows.map(|row| [format!("{row}, in cache"), format!("{row}, in memory")]);
    for (peer, name) in names.as_flattened().iter().enumerate() {
        assert_eq!(report["peers"][peer]["peer"], name.as_str());
        assert!(median(&report, peer, "bytes_per_s") > 0.0, "{text}");
    }
    let ratio = median(&report, 1, "bytes_per_s") / median(&report, 5, "bytes_per_s");
    let found = report["targets"][0]["found"].as_f64().expect("a figure");
    // JSON may cost a figure its last bit.
    assert!((found / ratio - 1.0).abs() < 1e-9, "{found}: {text}");
    assert!(text.contains("to those that memcpy copies"), "{text}");
}

#[test]
fn sizes_that_cannot_be_measured_are_refused() {
    let scratch = Scratch::new("bench");
    let cases = [
        (
            "slots --total 3M",
            "3145728 bytes (--total): it should have 64M to 64G",
        ),
        ("slots --total 65M", "68157440 bytes (--total)"),
        ("slots --total 1T", "1099511627776 bytes (--total)"),
        (
            "digest --total 4098K",
            "4196352 bytes of pages (--total): it should be 1M to 64G",
        ),
        ("digest --total 64K", "65536 bytes of pages (--total)"),
    ];
    for (words, message) in cases {
        let outcome = bench(&scratch, words).run();
        assert_eq!(outcome.code(), 1, "{words}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(message),
            "{words}: {}",
            outcome.stderr
        );
    }
}
