use super::*;
use crate::control::words::{Area, Process};
use crate::unmanaged::Unmanaged;

fn figures() -> Figures {
    let run = Run {
        supervisor: 100,
        command_pid: Some(101),
        command: "/usr/bin/python3 job.py --password=x".into(),
        group: None,
        limit_bytes: 64 << 20,
        auto: None,
        resident_bytes: 60 << 20,
        unmanaged_bytes: Unmanaged::default(),
        processes: vec![Process {
            pid: 101,
            command: "/usr/bin/a\"b\\c\nd --secret".into(),
            managed_bytes: 200 << 20,
            resident_bytes: 60 << 20,
            file_bytes: 0,
            file_resident_bytes: 0,
            swap_bytes: 140 << 20,
            readahead_hit_ratio: None,
            faults_major: 7,
            swap_in_bytes: 0,
            swap_out_bytes: 0,
            stalled_ns: 0,
            unmanaged_bytes: Unmanaged::default(),
            waits_for_memory: true,
        }],
        others: Vec::new(),
        areas: vec![Area {
            number: 0,
            path: "/tmp".into(),
            bytes: 1 << 30,
            used_bytes: 140 << 20,
            memory: None,
            priority: -1,
            state: "usable".into(),
            encrypted: false,
        }],
        totals: None,
        mappings: Vec::new(),
    };
    let mut latency = vec![0; 608];
    // 2^10 to 2^10 + 2^6 ns, and the last bucket.
    latency[112] = 3;
    latency[607] = 1;
    let stats = StatsSnapshot {
        faults_major: 7,
        stalled_ns: 1_500_000_000,
        latency,
        ..StatsSnapshot::default()
    };
    Figures { run, stats }
}

#[test]
fn each_format_has_its_own_spelling_of_the_same_samples() {
    let [classic, open] =
        [Format::Prometheus, Format::OpenMetrics].map(|format| figures().text(format));
    let samples = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(samples(&classic), samples(&open));
    assert!(classic.contains("# TYPE foreswap_faults_total counter\n"));
    assert!(open.contains("# TYPE foreswap_faults counter\n"));
    assert!(open.contains("# UNIT foreswap_stalled_seconds seconds\n"));
    assert!(open.ends_with("\n# EOF\n") && !classic.contains("EOF") && !classic.contains("UNIT"));
}

#[test]
fn values_are_those_of_the_run() {
    let text = figures().text(Format::Prometheus);
    for line in [
        "foreswap_memory_limit_bytes{run=\"100\"} 67108864",
        "foreswap_faults_total{run=\"100\",kind=\"major\"} 7",
        "foreswap_stalled_seconds_total{run=\"100\"} 1.5",
        "foreswap_waiting_processes{run=\"100\"} 1",
        "foreswap_run_info{run=\"100\",command=\"python3\",version=\"0.1.0\"} 1",
        "foreswap_area_used_bytes{run=\"100\",area=\"0\",path=\"/tmp\"} 146800640",
        "foreswap_process_major_faults_total{run=\"100\",pid=\"101\",command=\"a\\\"b\\\\c\\nd\"} 7",
        "foreswap_fault_duration_seconds_bucket{run=\"100\",le=\"1.024e-6\"} 0",
        "foreswap_fault_duration_seconds_bucket{run=\"100\",le=\"4.096e-6\"} 3",
        "foreswap_fault_duration_seconds_bucket{run=\"100\",le=\"17.179869184\"} 3",
        "foreswap_fault_duration_seconds_bucket{run=\"100\",le=\"+Inf\"} 4",
        "foreswap_fault_duration_seconds_count{run=\"100\"} 4",
    ] {
        assert!(
            text.lines().any(|other| other == line),
            "no {line} in\n{text}"
        );
    }
    assert!(!text.contains("secret") && !text.contains("password"));
}

/// The dashboard asks only for samples that there are.
#[test]
fn the_dashboard_knows_the_names() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../contrib/grafana-dashboard.json"
    );
    let dashboard = std::fs::read_to_string(path).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    let text = figures().text(Format::Prometheus);
    let names: std::collections::HashSet<&str> = text
        .lines()
        .filter_map(|line| line.split('{').next())
        .collect();
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut asked = 0;
    for target in targets {
        let query = target["expr"].as_str().expect("a query");
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("foreswap_")) {
            assert!(names.contains(name), "{name}");
            asked += 1;
        }
    }
    assert!(asked > 8, "{asked} names");
}
