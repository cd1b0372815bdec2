//! Small fleets.

use clap::Parser;

use super::published::{CLIENT_LINK, NETWORK, PAUSE, SERVICE, SERVICE_PAGE};
use super::*;
use crate::sim::rng::Rng;

const MILLI: Nanos = SECOND / 1000;
const PAGE: u64 = 4096;

fn setting(workload: Workload, clients: u32, servers: u32) -> Setting {
    Setting {
        clients,
        servers,
        mirror: false,
        workload,
        failure: Failure::None,
        memory: 512,
        data: 2048,
        think: 1000,
        time: 300 * MILLI,
        timeout: 100 * MILLI,
        link: published::LINK,
        threads: published::THREADS,
        seed: 1,
    }
}

/// Runs it, and checks what is true of every run.
fn run(setting: Setting) -> Figures {
    let mut fleet = Fleet::new(setting);
    let figures = fleet.run().expect("no rule is broken");
    let left: u64 = fleet
        .pool
        .clients
        .iter()
        .map(|client| client.machine.transfers_left())
        .sum();
    // Those that a machine has begun and not handed over yet are events.
    let begun = fleet.pool.begun + fleet.pool.agenda.not_begun();
    assert_eq!(begun, fleet.pool.ended + left, "every transfer ends once");
    // Of each server both ways, and what was under way at the begin.
    let clients = u64::from(setting.clients) * 2 * setting.memory * PAGE;
    let most = u64::from(setting.servers) * 2 * setting.link * setting.time / SECOND + clients;
    assert!(figures.counts.read + figures.counts.written < most);
    for busy in figures.load {
        assert!((0.0..1.01).contains(&busy), "{busy}");
    }
    figures
}

#[test]
fn a_client_alone_waits_as_long_as_the_distributions_say() {
    let figures = run(Setting {
        time: 4 * SECOND,
        ..setting(Workload::Random, 1, 1)
    });
    let mut rng = Rng::new(9);
    let transfer = |link: u64| PAGE * SECOND / link;
    let rest = SERVICE_PAGE + transfer(published::LINK) + transfer(CLIENT_LINK);
    let mut wanted: Vec<Nanos> = (0..100_000)
        .map(|_| NETWORK.draw(&mut rng) + SERVICE.draw(&mut rng) + rest)
        .collect();
    wanted.sort_unstable();
    for (part, wanted) in [
        (500, wanted[50_000]),
        (900, wanted[90_000]),
        (990, wanted[99_000]),
    ] {
        // The engine wakes up, maps the page and wakes the thread.
        let found = figures.latencies.quantile(part, 1000);
        let engine = 10_000..40_000;
        let range = wanted * 9 / 10 + engine.start..wanted * 11 / 10 + engine.end;
        assert!(range.contains(&found), "{part}: {found}, {wanted}");
    }
    assert!(figures.load[1] < 0.1, "{:?}", figures.load);
}

#[test]
fn a_full_server_is_shared_fairly_and_not_more_than_full() {
    for workload in [Workload::Scan, Workload::Random] {
        // A fifth of the bandwidth and a thread: twelve clients are too many.
        let figures = run(Setting {
            link: published::LINK / 5,
            threads: 1,
            ..setting(workload, 12, 1)
        });
        let [least, most] = figures.client_rates;
        assert!(
            least > 0.6 * most,
            "{workload:?}: {:?}",
            figures.client_rates
        );
        let busiest = figures.load[0].max(figures.load[1]);
        assert!(busiest > 0.97, "{workload:?}: {:?}", figures.load);
    }
}

#[test]
fn more_servers_carry_more() {
    let total = |servers| {
        let figures = run(Setting {
            link: published::LINK / 5,
            ..setting(Workload::Scan, 12, servers)
        });
        figures.counts.read
    };
    let (one, four) = (total(1), total(4));
    assert!(
        four > 3 * one && four < 4 * one + (12 << 21),
        "{one}, {four}"
    );
}

#[test]
fn a_server_that_crashes_costs_time_outs_without_a_mirror_and_none_with_one() {
    for workload in [Workload::Scan, Workload::Random, Workload::Mixed] {
        let of = Setting {
            failure: Failure::Crash,
            ..setting(workload, 6, 3)
        };
        let alone = run(of);
        assert!(
            alone.counts.timeouts > 0,
            "{workload:?}: {:?}",
            alone.counts
        );
        assert!(alone.bus_errors[0] > 0, "{workload:?}: {:?}", alone.counts);
        let two = run(Setting { mirror: true, ..of });
        assert_eq!(
            (two.counts.timeouts, two.counts.lost),
            (0, 0),
            "{workload:?}"
        );
        assert_eq!(two.bus_errors, [0, 0], "{workload:?}");
        assert!(two.counts.retries > 0, "{workload:?}");
        // It is silent: only half of the time-out says that it is gone.
        assert!(
            (40 * MILLI..80 * MILLI).contains(&two.longest),
            "{}",
            two.longest
        );
        assert!(two.counts.read > 2 * alone.counts.read, "{workload:?}");
    }
}

#[test]
fn a_server_that_stands_still_delays_and_loses_nothing() {
    let of = Setting {
        failure: Failure::Pause,
        timeout: SECOND,
        ..setting(Workload::Mixed, 4, 2)
    };
    let figures = run(of);
    assert!((PAUSE - MILLI..PAUSE + 50 * MILLI).contains(&figures.longest));
    assert_eq!((figures.counts.broken, figures.bus_errors), (0, [0, 0]));
    // A client with less patience gives the connection up, and gets it back.
    let figures = run(Setting {
        timeout: 100 * MILLI,
        mirror: true,
        ..of
    });
    assert!(figures.counts.broken > 0 && figures.counts.retries > 0);
    assert_eq!(figures.bus_errors, [0, 0]);
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ClientsArgs,
}

fn command(words: &[&str]) -> Result<String, String> {
    let cli = Cli::try_parse_from(std::iter::once("clients").chain(words.iter().copied()));
    let args = cli.map_err(|error| error.to_string())?.args;
    let mut out = Vec::new();
    run_all(&args, &mut out).map_err(|error| format!("{error:#}"))?;
    Ok(String::from_utf8(out).expect("text"))
}

const SMALL: [&str; 10] = [
    "--memory",
    "2M",
    "--data",
    "6M",
    "--time",
    "50",
    "--clients",
    "1,3",
    "--servers",
    "1,2",
];

#[test]
fn the_same_seed_gives_the_same_table_whatever_jobs_says() {
    let all = |more: &[&str]| command(&[&SMALL, more].concat()).expect("simulated");
    let text = all(&["--jobs", "1"]);
    assert_eq!(all(&["--jobs", "3"]), text);
    assert_ne!(all(&["--seed", "2"]), text);
    for (workload, rows) in [("scan", 6), ("random", 6), ("mixed", 6)] {
        let lines = text.lines().filter(|line| line.starts_with(workload));
        assert_eq!(lines.count(), rows, "{text}");
    }
    assert!(text.contains("1: 131 days, 2: 65.4 days"), "{text}");
}

#[test]
fn runs_are_printed_as_json_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let plot = folder.path().join("p.svg");
    let more = [
        "--json",
        "--plot",
        plot.to_str().expect("text"),
        "--workload",
        "scan,random",
    ];
    let json = command(&[&SMALL, &more[..]].concat()).expect("simulated");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let runs = json["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 12);
    for run in runs {
        let rate = run["bytes_per_s"].as_f64().expect("a rate");
        let bytes = run["swap_in_bytes"].as_f64().expect("bytes")
            + run["swap_out_bytes"].as_f64().expect("bytes");
        assert!((rate * 0.05 - bytes).abs() < 1.0 && rate > 1e6, "{run}");
        assert!(
            run["fault_p50_s"].as_f64() <= run["fault_p999_s"].as_f64(),
            "{run}"
        );
    }
    let drawn = std::fs::read_to_string(plot).expect("drawn");
    // Of each workload: one server, two, and two with a mirror.
    assert_eq!(drawn.matches("<polyline").count(), 6);
    assert!(
        drawn.contains("scan: throughput") && drawn.contains("random: 99.9th"),
        "{drawn}"
    );
    assert!(drawn.contains("2 servers, mirror: 1 "), "{drawn}");
}

#[test]
fn wrong_words_are_named_with_what_is_right() {
    for (option, value, expected) in [
        ("--clients", "0", "from 1 to 4,000"),
        ("--clients", "10,many", "'many'"),
        ("--servers", "1001", "from 1 to 1,000"),
        ("--workload", "sleep", "scan, random, mixed"),
        ("--mirror", "three", "no, yes"),
        ("--failure", "fire", "none, pause, crash"),
        ("--memory", "64K", "the least is 1 MiB"),
        ("--time", "1", "10..=600000"),
        ("--area-timeout", "0", "10..=600000"),
        ("--link", "5", "1000000..="),
        ("--threads", "0", "1..=4096"),
        ("--jobs", "0", "from 1 to 1024"),
    ] {
        let error = command(&[option, value]).expect_err("refused");
        assert!(
            error.contains(option) && error.contains(expected),
            "{error}"
        );
    }
    for (words, expected) in [
        (
            &["--memory", "24M"][..],
            "--data 24 MiB fits into --memory 24 MiB: nothing would go to the servers; give more data",
        ),
        (
            &["--mirror", "yes", "--servers", "1"],
            "--mirror yes needs two servers; give --servers 2",
        ),
        (
            &["--data", "2G", "--clients", "1,1000"],
            "--data 2 GiB times 1,000 clients is more than is simulated, 128 GiB; give less data",
        ),
    ] {
        let error = command(words).expect_err("refused");
        assert!(error.contains(expected), "{error}");
    }
}
