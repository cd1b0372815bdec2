use std::os::unix::fs::PermissionsExt;

use super::*;

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(path).expect("the file")).expect("JSON")
}

fn run() -> Run {
    let mut run = Run::default();
    run.totals.stats.windows = vec![0, 0, 7];
    run.totals.stats.vmas = vec![VmaStats {
        start: 4096,
        bytes: 8192,
        ..Default::default()
    }];
    run
}

#[test]
fn every_promised_key_is_there() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("stats.json");
    StatsFile::check(&path)
        .expect("writable")
        .write(&run())
        .expect("written");
    let found = json(&path);
    for key in
        "elapsed_s processes memory_limit_bytes managed_bytes peak_resident_bytes faults_major \
                faults_minor faults_zero swap_in_bytes file_bytes file_in_bytes file_dropped_bytes \
                file_readahead_pages file_readahead_hits swap_out_bytes swap_read_ios swap_write_ios \
                readahead_pages readahead_hits readahead_hit_ratio huge_swap_in huge_swap_out \
                huge_splits clean_drops kswapd_wakeups direct_reclaims refaults fault_ns_p50 \
                fault_ns_p99 fault_ns_max"
            .split_whitespace()
    {
        assert!(found[key].is_number(), "{key}: {}", found[key]);
    }
    for key in "total shared locked executable stacks files unknown".split(' ') {
        assert!(found["unmanaged_bytes"][key].is_number(), "{key}");
    }
    for key in ["forks", "present", "found"] {
        assert!(found["over_limit_bytes"][key].is_number(), "{key}");
    }
    assert_eq!(found["window_histogram"], serde_json::json!({ "2": 7 }));
    for key in [
        "start",
        "bytes",
        "resident_bytes",
        "swapped_bytes",
        "readahead_pages",
        "readahead_hits",
        "hit_ratio",
    ] {
        assert!(found["vmas"][0][key].is_number(), "{key}");
    }
}

#[test]
fn files_are_replaced_whole_and_links_followed() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("stats.json");
    let link = folder.path().join("link");
    fs::write(&path, "x".repeat(100_000)).expect("an old file");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    StatsFile::check(&link)
        .expect("writable")
        .write(&run())
        .expect("written");
    assert!(json(&path)["processes"].is_number());
    assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 2);
}

#[test]
fn pipes_are_written_directly() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo")
        .arg(&path)
        .status()
        .expect("mkfifo");
    assert!(made.success());
    let file = StatsFile::check(&path).expect("writable");
    let reader = std::thread::spawn({
        let path = path.clone();
        move || json(&path)
    });
    file.write(&run()).expect("written");
    assert!(reader.join().expect("read")["processes"].is_number());
}

#[test]
fn an_unwritable_file_is_reported_at_once() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    for path in [
        folder.path().to_owned(),
        folder.path().join("no/such"),
        "/dev/fd/999".into(),
    ] {
        let error = StatsFile::check(&path)
            .expect_err("not writable")
            .to_string();
        assert!(error.contains(path.to_str().expect("UTF-8")), "{error}");
    }
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: permissions do not bind root");
        return;
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).expect("its mode");
    assert!(StatsFile::check(&folder.path().join("stats.json")).is_err());
}
