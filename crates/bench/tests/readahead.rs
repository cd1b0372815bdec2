//! combined, swapoff and linpack on the kernel's peers: each works as described, and leaves no change behind, also when
//! it is interrupted. Under foreswap they are tested in `crates/e2e`.

mod place;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use place::{Place, bench, is_root, kernel_alone, scipy, signal, swapped, swapping, system};

fn report(place: &Place, words: &str) -> (String, serde_json::Value) {
    let json = std::env::temp_dir().join(format!(
        "{}.json",
        place.0.file_name().unwrap().to_str().unwrap()
    ));
    let output = bench(place, &format!("{words} --json {}", json.display()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {text} {errors}");
    let report = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    (text, report)
}

fn median(report: &serde_json::Value, peer: usize, figure: &str) -> f64 {
    report["peers"][peer]["figures"][figure]["median"]
        .as_f64()
        .unwrap_or_else(|| panic!("no {figure} in {}", report["peers"][peer]))
}

#[test]
fn combined_reports_both_groups() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("combined");
    let before = system(&place);
    for mode in ["process", "thread"] {
        let words = format!(
            "combined --runner kernel --against kernel-defaults --memory 32M --seconds 0.5 \
             --turns 1 --mode {mode} --sequential-tasks 2 --random-tasks 2 --random-total 48M"
        );
        let (text, report) = report(&place, &words);
        for peer in [0, 1] {
            assert!(median(&report, peer, "pages_per_s") > 0.0, "{text}");
            assert!(median(&report, peer, "random.pages_per_s") > 0.0, "{text}");
            assert!(median(&report, peer, "touch_p99_ns") > 0.0, "{text}");
            // More than the limit is walked again and again.
            assert!(median(&report, peer, "swap_in_bytes") > 0.0, "{text}");
        }
        assert!(text.contains("scale: seed 000"), "{text}");
        assert!(text.contains("more is better") && text.contains("less is better"));
    }
    assert_eq!(system(&place), before);
}

#[test]
fn combined_has_two_sizes() {
    let output = bench(&Place::new("sizes"), "combined --total 8M");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("--sequential-total"), "{errors}");
}

#[test]
fn swapoff_brings_everything_back() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("swapoff");
    let before = system(&place);
    let words =
        "swapoff --runner kernel --against kernel-defaults --total 96M --memory 32M --turns 1";
    let (text, report) = report(&place, words);
    for peer in [0, 1] {
        // All except the squeezed limit.
        assert!(
            median(&report, peer, "back_bytes") >= f64::from(64 << 20),
            "{text}"
        );
        assert!(median(&report, peer, "bytes_per_s") > 0.0, "{text}");
    }
    let rows = report["peers"].as_array().unwrap()[2..].iter();
    let devices: Vec<_> = rows.filter_map(|row| row["peer"].as_str()).collect();
    let expected = [
        "device, 1 x 2 MiB",
        "device, 4 x 2 MiB",
        "device, 8 x 2 MiB",
        "device, 1 x 2 MiB, one buffer",
    ];
    assert_eq!(devices, expected, "{text}");
    assert!(
        text.contains("to the area's fastest direct reads"),
        "{text}"
    );
    assert_eq!(system(&place), before);
}

#[test]
fn linpack_checks_what_it_computed() {
    let Some(python) = scipy() else { return };
    let place = Place::new("linpack");
    let words = format!(
        "linpack --runner bare --against bare --total 4M --turns 1 --python {}",
        python.display()
    );
    let (text, report) = report(&place, &words);
    // 0.9 of 4 MiB in numbers of 8 bytes, squared.
    assert_eq!(report["parameters"]["n"], 686, "{text}");
    assert!(median(&report, 0, "residual") < 16.0, "{text}");
    assert!(median(&report, 0, "factor_ns") > 0.0, "{text}");
    assert!(place.files().is_empty(), "{:?}", place.files());
}

#[test]
fn linpack_finds_a_wrong_factor() {
    let Some(python) = scipy() else { return };
    const SPOILED: &str = "\
import runpy, sys, numpy
from scipy.linalg import lapack
script = runpy.run_path(sys.argv[1])
n = 300
matrix = numpy.empty((n, n), order='F')
for first, part in script['columns'](7, n):
    matrix[:, first : first + len(part)] = part.T
factors, pivots, info = lapack.dgetrf(matrix, overwrite_a=1)
print(script['residual'](factors, pivots, 7, n))
for place in [(150, 150), (290, 3), (3, 290)]:
    good = factors[place]
    factors[place] += 1e-6
    print(script['residual'](factors, pivots, 7, n))
    factors[place] = good
";
    let output = Command::new(python)
        .args(["-c", SPOILED])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/linpack.py"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let residuals: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(residuals.len(), 4, "{text} {errors}");
    assert!(residuals[0] < 16.0, "{text}");
    assert!(residuals[1..].iter().all(|found| *found > 16.0), "{text}");
}

#[test]
fn without_scipy_linpack_says_how_to_get_it() {
    let place = Place::new("no-scipy");
    for python in ["/bin/false", "/nonexistent/python"] {
        let output = bench(
            &place,
            &format!("linpack --runner bare --against bare --python {python}"),
        );
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains(python)
                && errors.contains("make setup")
                && errors.contains("pip install"),
            "{errors}"
        );
    }
}

#[test]
fn all_of_readahead_ends_in_a_table() {
    let Some(python) = scipy() else { return };
    let place = Place::new("table");
    let words = format!(
        "readahead --runner bare --against bare --total 4M --memory 32M --seconds 0.1 --turns 1 \
         --python {}",
        python.display()
    );
    let (text, report) = report(&place, &words);
    let parts = report["parts"].as_array().unwrap();
    let names: Vec<_> = parts.iter().map(|part| &part["bench"]).collect();
    assert_eq!(names.len(), 9, "{names:?}");
    // Six patterns, three of combined, two of swapoff, one of linpack; without the kernel only those of the device and
    // the hit ratio.
    let targets = report["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 12, "{text}");
    let table = text.rsplit("readahead: what was asked").next().unwrap();
    for line in [
        "figure",
        "seq-read, bytes/s",
        "interleaved read, 2 scans",
        "interleaved read, 8 scans",
        "stride-7 read",
        "rand-read, time per page",
        "swapoff, bytes/s to the kernel's",
        "linpack, elapsed",
    ] {
        assert!(table.contains(line), "{line}: {table}");
    }
    assert!(place.files().is_empty(), "{:?}", place.files());
}

#[test]
fn all_that_issue_4_names_ends_in_a_table() {
    let place = Place::new("huge");
    let words = "huge --runner bare --against bare --total 4M --memory 32M --seconds 0.1 --turns 1";
    let (text, report) = report(&place, words);
    assert_eq!(report["parts"].as_array().unwrap().len(), 16, "{text}");
    // Against the kernel: two reads, five writers, reverse, two of interleaved, stride, two of
    // random, the two that are otherwise against zram; three of combined.
    let targets = report["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 18, "{text}");
    let table = text.rsplit("huge: what was asked").next().unwrap();
    for line in [
        "seq-read, bytes/s to the kernel's",
        "seq-write, 16 tasks, bytes/s to the kernel's",
        "rand-write, time per page",
        "combined, bytes/s",
    ] {
        assert!(table.contains(line), "{line}: {table}");
    }
    assert!(place.files().is_empty(), "{:?}", place.files());
}

#[test]
fn without_scipy_readahead_goes_on_and_fails_in_the_end() {
    let place = Place::new("goes-on");
    let output = bench(
        &place,
        "readahead --runner bare --against bare --total 1M --memory 32M --seconds 0.1 --turns 1 \
         --python /bin/false",
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAILED: linpack: linpack needs"), "{text}");
    assert!(text.contains("seq-read, bytes/s"), "{text}");
}

#[test]
fn an_interruption_leaves_nothing() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("interrupted");
    let mut cases = vec![
        (
            "combined --runner kernel --against kernel --memory 32M --seconds 60 --turns 1"
                .to_owned(),
            "INT",
            130,
        ),
        (
            "swapoff --runner kernel --against kernel --total 96M --memory 32M --turns 9"
                .to_owned(),
            "TERM",
            143,
        ),
    ];
    if let Some(python) = scipy() {
        let words = format!(
            "linpack --runner kernel --against kernel --total 160M --memory 64M --turns 9 --python {}",
            python.display()
        );
        cases.push((words, "INT", 130));
    }
    for (words, name, code) in cases {
        let before = system(&place);
        let mut child = swapping(&place, &words, 8);
        assert_ne!(system(&place), before, "{words}");
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{words}");
        assert_eq!(system(&place), before, "{words}");
    }
}

#[test]
fn an_interruption_of_the_system_call_swapoff_leaves_nothing() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("swapoff-call");
    let before = system(&place);
    let words = "swapoff --runner kernel --against kernel --total 192M --memory 32M --turns 9";
    let mut child = swapping(&place, words, 160);
    // It takes a second to swap that in.
    let start = Instant::now();
    while swapped(&place) > 128 << 20 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(2));
    }
    signal(&child, "INT");
    let signalled = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(signalled.elapsed() < Duration::from_secs(20));
    assert_eq!(system(&place), before);
}
