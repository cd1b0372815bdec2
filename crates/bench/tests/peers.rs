//! Peers in turns, and above all: they leave no change behind, however a bench ends.
//!
//! Tests that need root say so and are skipped without it. The tests of the kernel's peers take turns with each other,
//! since one bench at a time may change the system.

mod place;

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use place::{EXE, Place, bench, command, is_root, kernel_alone, signal, swapping, system};

/// A bench that runs longer than any test waits.
const LONG: &str = "rand-write --runner kernel --against kernel --total 64M --memory 32M \
                    --turns 9 --seconds 5";

#[test]
fn bare_turns_give_a_report_and_json() {
    let place = Place::new("bare");
    let json = place.0.join("out.json");
    let words = format!(
        "seq-read --runner bare --total 8M --turns 3 --against bare --json {}",
        json.display()
    );
    let output = bench(&place, &words);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("seq-read: 8 MiB in 256 MiB"), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(report["peers"][0]["peer"], "bare");
    assert_eq!(report["peers"][0]["turns"].as_array().unwrap().len(), 3);
    assert!(
        report["peers"][0]["figures"]["ns_per_page"]["median"]
            .as_f64()
            .unwrap()
            > 0.0
    );
}

#[test]
fn a_wrong_byte_ends_the_bench() {
    let place = Place::new("wrong");
    let output = bench(
        &place,
        "seq-read --runner bare --total 1M --against bare --corrupt-word 5",
    );
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("wrong data") && errors.contains("word 5 of it"),
        "{errors}"
    );
}

#[test]
fn without_root_the_kernel_is_reported_as_not_run() {
    let place = Place::new("user");
    let mut words = command(
        &place,
        "seq-read --runner bare --total 1M --turns 2 --against kernel",
    );
    if is_root() {
        // The build's directory may be closed to others.
        let copy = place.0.join("copy");
        fs::copy(EXE, &copy).unwrap();
        let mut other = Command::new(copy);
        other.args(words.get_args());
        other.uid(65534).gid(65534);
        words = other;
    }
    let output = words.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("not run: it needs root"), "{text}");
}

#[test]
fn the_kernels_peers_swap_and_leave_nothing() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("kernel");
    let before = system(&place);
    let words = "seq-write --runner bare --against kernel,kernel-default --total 64M --memory 32M --turns 2";
    let json = std::env::temp_dir().join(format!("foreswap-peers-{}.json", std::process::id()));
    let output = bench(&place, &format!("{words} --json {}", json.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    for peer in [1, 2] {
        let figures = &report["peers"][peer]["figures"];
        assert!(
            figures["swap_out_bytes"]["median"].as_f64().unwrap() >= f64::from(32 << 20),
            "{text}"
        );
        assert!(
            figures["peak_bytes"]["max"].as_f64().unwrap() <= f64::from(32 << 20),
            "{text}"
        );
    }
    assert_eq!(report["ratios"].as_array().unwrap().len(), 6, "{text}");
    assert_eq!(system(&place), before);
}

#[test]
fn a_pass_over_clean_data_writes_nothing_on_the_kernel_at_its_best() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("clean");
    let before = system(&place);
    let words =
        "seq-read --runner kernel --against kernel --total 256M --memory 64M --turns 1 --warm-up 1";
    let json = std::env::temp_dir().join(format!("foreswap-clean-{}.json", std::process::id()));
    let output = bench(&place, &format!("{words} --json {}", json.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text} {errors}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    let of = |peer: usize, figure: &str| {
        let figures = &report["peers"][peer]["figures"];
        figures[figure]["median"].as_f64().unwrap_or(f64::NAN)
    };
    // The measured pass alone reads at least three quarters of the data; the device reads no less.
    assert!(of(0, "pass_in_bytes") >= f64::from(192 << 20), "{text}");
    assert!(
        of(0, "pass_in_bytes") <= of(0, "swap_in_bytes") / 1.5,
        "{text}"
    );
    assert!(
        of(0, "pass_device_read_bytes") >= of(0, "pass_in_bytes"),
        "{text}"
    );
    // More than half of a small swap file would be in use, and all pages that are read would be written again. Some MiB
    // are the process' own memory besides the data, which the kernel evicts at any time.
    let again = of(0, "pass_again_bytes");
    assert!(again < of(0, "pass_in_bytes") / 4.0, "{again} {text}");
    assert!(of(0, "fill_out_bytes") >= f64::from(160 << 20), "{text}");
    // The device alone is beside it.
    assert_eq!(report["peers"][1]["peer"], "device, 1 x 2 MiB");
    assert!(of(3, "pass_in_bytes_per_s") > 0.0, "{text}");
    assert!(
        text.contains("bytes/s in to the area's fastest direct reads"),
        "{text}"
    );
    assert_eq!(system(&place), before);
}

#[test]
fn a_signal_undoes_everything() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("signal");
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let before = system(&place);
        let mut child = swapping(&place, LONG, 0);
        assert_ne!(system(&place), before);
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
        assert_eq!(system(&place), before, "{name}");
    }
}

#[test]
fn a_killed_bench_is_undone_by_hand_or_by_the_next() {
    let _alone = kernel_alone();
    if !is_root() {
        return;
    }
    let place = Place::new("killed");
    for remedy in [
        "--undo",
        "seq-read --runner kernel --against kernel --total 8M --memory 32M --turns 1",
    ] {
        let before = system(&place);
        let mut child = swapping(&place, LONG, 0);
        signal(&child, "KILL");
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert_ne!(system(&place), before);
        let output = bench(&place, remedy);
        assert!(
            output.status.success(),
            "{remedy}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(system(&place), before, "{remedy}");
    }
}
