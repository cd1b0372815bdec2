//! Invariants of the tables, whatever their figures.

use std::path::Path;
use std::sync::OnceLock;

use clap::Parser;

use super::*;
use crate::sim::machine::Setup;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ReproduceArgs,
}

/// The exit status as text, and the output.
fn run(words: &[&str]) -> (String, String, String) {
    let words = ["reproduce"].iter().chain(words);
    let args = Cli::parse_from(words).args;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = reproduce(&args, &mut out, &mut err).expect("written");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (format!("{status:?}"), text(out), text(err))
}

fn code(n: u8) -> String {
    format!("{:?}", ExitCode::from(n))
}

fn experiment(name: &str) -> (&'static Experiment, Parameters) {
    let experiment = EXPERIMENTS.iter().find(|e| e.name == name).expect(name);
    let machine = Parameters::named(experiment.machine).expect("a machine");
    (experiment, machine)
}

/// The figures of an experiment at its scale, shared by several tests, as they take the longest.
fn figures(name: &str) -> &'static [Figures; 3] {
    static KNOWN: OnceLock<Vec<OnceLock<[Figures; 3]>>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| EXPERIMENTS.iter().map(|_| OnceLock::new()).collect());
    let place = EXPERIMENTS.iter().position(|e| e.name == name);
    known[place.expect(name)].get_or_init(|| {
        let (experiment, machine) = experiment(name);
        let jobs = jobs::number(None);
        let figures = experiment.figures(&machine, experiment.scale, 1, jobs);
        figures.expect("figures")
    })
}

#[test]
fn the_same_arguments_give_the_same_bytes() {
    for words in [
        &["vma-readahead", "--scale", "512", "--json"][..],
        &["swapoff", "--scale", "256", "--markdown"],
        &["thp-swap", "--scale", "512"],
        &["ondemand-readahead", "--scale", "128"],
        // Below this, hardly anything is left.
        &["ondemand-readahead", "--scale", "1024", "--json"],
        &["policies", "--scale", "1024"],
        &["thp-threads", "--scale", "256", "--markdown"],
        &["kswapd", "--scale", "5"],
    ] {
        let (status, first, err) = run(words);
        assert_eq!((status, err.as_str()), (code(0), ""));
        assert!(first.len() > 500);
        let one_at_a_time = [words, &["--jobs", "1"]].concat();
        assert_eq!(run(&one_at_a_time).1, first, "{words:?}");
    }
    let json = |random| {
        run(&[
            "vma-readahead",
            "--scale",
            "512",
            "--json",
            "--random",
            random,
        ])
        .1
    };
    assert_ne!(json("1"), json("2"), "the random writers do not matter");
}

#[test]
fn the_plot_shows_each_row() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plot.svg");
    let name = path.display().to_string();
    let (status, ..) = run(&["swapoff", "--scale", "256", "--plot", &name]);
    assert_eq!(status, code(0));
    let svg = std::fs::read_to_string(path).expect("written");
    let seeds = published::seeds().expect("readable");
    let seed = seeds
        .iter()
        .find(|seed| seed.seed == "swapoff")
        .expect("there");
    for row in seed.tables.iter().flat_map(|table| &table.rows) {
        assert!(svg.contains(&row.label), "{}", row.label);
    }
}

#[test]
fn a_seed_that_is_not_built_is_refused_not_faked() {
    for seed in Seed::EACH {
        if seed.experiments().next().is_some() {
            continue;
        }
        let (status, out, err) = run(&[seed.name()]);
        assert_eq!((status, out.as_str()), (code(2), ""));
        assert!(
            err.contains(seed.name()) && err.contains("not built yet"),
            "{err}"
        );
    }
}

#[test]
fn every_policy_is_tried_on_every_pattern() {
    let machine = Parameters::named(policies::MACHINE).expect("a machine");
    let table = policies::table(&machine, 1024, 1, jobs::number(None)).expect("figures");
    let of = |pattern: &str, policy: &str| {
        let mut cells = table.cells.iter();
        let cell = cells.find(|cell| cell.pattern == pattern && cell.policy == policy);
        cell.expect("there").clone()
    };
    assert_eq!(table.cells.len(), 30);
    for pattern in [
        "sequential",
        "reverse",
        "stride 8",
        "4 pages of 8",
        "4 scans in turn",
        "random",
    ] {
        let none = of(pattern, "none");
        assert_eq!((none.ahead, none.wasted, none.hit_ratio), (0, 0, None));
    }
    let rows = of("4 pages of 8", "streams");
    assert!(rows.hit_ratio > Some(90.0), "{rows:?}");
    assert!(rows.speed > 2.0 * of("4 pages of 8", "cluster").speed);
    let streams = of("sequential", "streams");
    assert!(streams.hit_ratio > Some(95.0), "{streams:?}");
    assert!(streams.speed > 1.5 && streams.speed > of("sequential", "vma").speed);
    // On a disk, streams side by side would send the head to and fro.
    let disk = Parameters::named("two-socket-disk").expect("a machine");
    let table = policies::table(&disk, 1024, 1, jobs::number(None)).expect("figures");
    let mut rows = table.cells.iter();
    let rows = rows.find(|cell| cell.pattern == "4 pages of 8" && cell.policy == "streams");
    assert!(rows.is_some_and(|cell| cell.speed > 2.0), "{rows:?}");
    let (status, _, err) = run(&["policies", "--plot", "nowhere.svg"]);
    assert_eq!(status, code(2));
    assert!(err.contains("leave --plot out"), "{err}");
}

/// The statements of docs/LAB.md.
#[test]
fn more_threads_gain_more_by_huge_pages_until_the_locks_hold_them_up() {
    let machine = Parameters::named(thp_threads::MACHINE).expect("a machine");
    let table = thp_threads::table(&machine, 64, jobs::number(None)).expect("figures");
    assert_eq!(table.cells.len(), 28);
    let of = |threads: u64, variant: &str| {
        let mut cells = table.cells.iter();
        let cell = cells.find(|cell| cell.threads == threads && cell.variant.ends_with(variant));
        cell.expect("there").clone()
    };
    for cell in &table.cells {
        let huge = cell.variant.ends_with("huge pages");
        assert_eq!(huge, cell.huge_out > 0, "{cell:?}");
        assert_eq!(cell.variant == "base", cell.speed == 1.0, "{cell:?}");
    }
    // With one thread there is no wait for locks; with many they limit base.
    assert!(of(1, "base").lock_wait_percent < 5.0);
    assert!(of(36, "base").lock_wait_percent > 60.0);
    assert!((of(1, "late").speed - 1.0).abs() < 0.05);
    assert!(of(16, "late").speed > 1.05 && of(36, "late").speed > of(4, "late").speed);
    for threads in [1, 2, 4, 8, 16] {
        let (base, huge) = (of(threads, "base"), of(threads, "huge pages"));
        assert!(huge.speed > 2.0, "{huge:?}");
        assert!(huge.lock_wait_s < base.lock_wait_s / 10.0, "{huge:?}");
        assert!(huge.elapsed_s < base.elapsed_s, "{huge:?}");
        let single = of(threads, "single pages");
        assert!((single.speed - 1.0).abs() < 0.1, "{single:?}");
    }
    assert!(of(16, "huge pages").speed > 2.0 * of(1, "huge pages").speed);
}

#[test]
fn threads_are_plotted_and_told_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plot.svg");
    let name = path.display().to_string();
    let words = ["thp-threads", "--scale", "512", "--json", "--plot", &name];
    let (status, json, err) = run(&words);
    assert_eq!((status, err.as_str()), (code(0), ""));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let cell = &json["cells"][27];
    assert_eq!(cell["threads"].as_u64(), Some(72));
    assert!(cell["swap_out_bytes_per_s"].as_f64() > Some(0.0), "{cell}");
    let svg = std::fs::read_to_string(path).expect("written");
    assert_eq!(svg.matches("<polyline").count(), 4);
    assert!(svg.contains(">threads</text>") && svg.contains(">foreswap, huge pages</text>"));
}

#[test]
fn a_wrong_machine_file_is_named_with_its_line() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "name = x\ncpus = many\n").expect("written");
    let path = file.path().display().to_string();
    let (status, out, err) = run(&["swapoff", "--machine", &path]);
    assert_eq!((status, out.as_str()), (code(2), ""));
    assert!(
        err.contains(&format!("{path}:2: `cpus` is `many`; expected")),
        "{err}"
    );
}

#[test]
fn a_machine_that_was_made_too_small_is_refused() {
    let (status, _, err) = run(&["kswapd", "--scale", "1024"]);
    assert_eq!(status, code(2));
    for part in ["simoop", "stutter", "pages of memory", "smaller --scale"] {
        assert!(err.contains(part), "{part:?} is not in {err:?}");
    }
}

/// The permitted change of a figure when memory and time are scaled down once more: a tenth, unless named here.
fn allowed(key: &str) -> Option<f64> {
    match key {
        // Other random numbers alone change this tail by a twentieth to a tenth.
        "simoop/allocation_p95" => Some(0.2),
        // The misses of the base begin here, on either side.
        "usemem/p70" => None,
        // The hits of the last pass depend on the position of reclaim at its start, and a mean over five sizes still
        // moves by a sixth.
        "linpack/seconds" => Some(0.2),
        // Bursts are those of the full machine: dirty pages reach the end of a shorter list before they are written,
        // and one in a hundred waits for the disk, unlike at the table's scale and at full size.
        "simoop/write_p99" | "simoop/allocation_p99" => None,
        _ => Some(0.1),
    }
}

/// The memory is scaled down to shorten the run; half of it again changes little, in any row.
#[test]
fn the_figures_do_not_depend_on_the_scale() {
    let seeds = published::seeds().expect("readable");
    let tables = seeds.iter().flat_map(|seed| &seed.tables);
    let rows: Vec<&str> = tables
        .flat_map(|table| &table.rows)
        .map(|row| row.key.as_str())
        .collect();
    let mut looked_at = 0;
    for name in EXPERIMENTS.iter().filter(|e| e.scale > 1).map(|e| e.name) {
        let first = figures(name);
        let (experiment, machine) = experiment(name);
        let [base, optimized, _] = experiment.setups();
        let machine = machine.scaled(2 * experiment.scale);
        let run = |setup: &Setup| (experiment.run)(&machine, setup, 1).expect("figures");
        let second = jobs::each(jobs::number(None), &[base, optimized], run);
        for key in rows.iter().filter(|key| first[0].contains_key(**key)) {
            let Some(part) = allowed(key) else { continue };
            let own = key.split_once('/').map_or(*key, |(_, own)| own);
            for n in 0..2 {
                let (a, b) = (first[n][*key], second[n][own]);
                assert!((a - b).abs() <= part * a, "{key}, variant {n}: {a} and {b}");
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 30, "{looked_at}");
}

/// The statements of the notes under the tables of seed 001. The threads of the base seldom sleep while their node is
/// short, those of the repaired variant never do, and few direct reclaims fall into the time after that. These become
/// fewer with more free memory at the start of a burst, and the tails follow: more is free with a larger distance
/// between watermarks, by which foreswap's column differs from the repaired variant.
#[test]
fn the_tails_of_seed_001_follow_what_is_free_when_a_burst_comes() {
    let apart = |name: &str| {
        let (experiment, machine) = experiment(name);
        let [_, repaired, ours] = experiment.setups();
        let apart = Setup {
            headroom: ours.headroom,
            ..repaired
        };
        let machine = machine.scaled(experiment.scale);
        (experiment.run)(&machine, &apart, 1).expect("figures")
    };
    let [base, repaired, _] = figures("simoop");
    let of = |figures: &Figures, key: &str| figures[&format!("simoop/{key}")];
    let too_soon = 1.0..0.03 * of(base, "naps");
    assert!(too_soon.contains(&of(base, "slept_short")), "{base:?}");
    assert_eq!(of(repaired, "slept_short"), 0.0, "{repaired:?}");
    let after = of(base, "direct_after");
    assert!(after < 0.05 * of(base, "direct"), "{base:?}");
    let simoop = apart("simoop");
    for (key, most) in [
        ("reclaimed_direct", 0.5),
        ("write_p99", 0.95),
        ("allocation_p95", 0.95),
        ("allocation_p99", 0.8),
    ] {
        let part = simoop[key] / of(repaired, key);
        assert!(part < most, "{key}: {part}");
    }
    let [_, repaired, _] = figures("stutter");
    assert!(apart("stutter")["p90"] < 0.95 * repaired["stutter/p90"]);
}

/// The statements of the notes under the tables of seed 004: its headlines hold, and no change beyond noise has the
/// other direction.
#[test]
fn readahead_on_demand_gains_where_the_seed_says_so() {
    let seeds = published::seeds().expect("readable");
    let rows = seeds.iter().flat_map(|s| &s.tables).flat_map(|t| &t.rows);
    let rows: Vec<_> = rows.collect();
    let mut headlines = 0;
    for name in ["oltp", "thrashing"] {
        let [base, optimized, _] = figures(name);
        for row in rows.iter().filter(|row| base.contains_key(&row.key)) {
            let change = published::Change::between(&row.unit, base[&row.key], optimized[&row.key]);
            let (_, verdict) = row.judge(change);
            assert_ne!(verdict, published::Verdict::Fails, "{}", row.key);
            if row.headline {
                assert_eq!(verdict, published::Verdict::Holds, "{}", row.key);
                headlines += 1;
            }
        }
    }
    assert_eq!(headlines, 2);
}

/// The statements of the notes under the tables of seed 003: with cluster readahead the headline holds, with
/// readahead by address its direction; the windows' counts do likewise. Windows of four and eight occur in the base
/// as well.
#[test]
fn swapoff_gains_where_the_seed_says_so() {
    let seeds = published::seeds().expect("readable");
    let rows = seeds.iter().flat_map(|s| &s.tables).flat_map(|t| &t.rows);
    let rows: Vec<_> = rows.collect();
    for (name, headline) in [
        ("cluster", published::Verdict::Holds),
        ("vma", published::Verdict::Direction),
    ] {
        let [base, optimized, ours] = figures(name);
        for row in rows.iter().filter(|row| base.contains_key(&row.key)) {
            let (before, after) = (base[&row.key], optimized[&row.key]);
            let (_, verdict) = row.judge(published::Change::between(&row.unit, before, after));
            if row.headline {
                assert_eq!(verdict, headline, "{}", row.key);
                assert!(ours[&row.key] < after / 5.0, "{}", row.key);
            } else if !row.key.ends_with("_4") {
                assert_ne!(verdict, published::Verdict::Fails, "{}", row.key);
            } else {
                assert!(before > 0.0 && after > 0.0, "{}", row.key);
            }
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            let text = std::fs::read_to_string(&path).expect("text");
            found.push((path.display().to_string(), text));
        }
    }
}

/// No published figure is in the code or the machine files, only in the data file.
#[test]
fn no_published_figure_is_in_what_computes_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src/sim", "src/work", "src/reproduce", "machines"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 20);
    let seeds = published::seeds().expect("readable");
    let rows = seeds.iter().flat_map(|s| &s.tables).flat_map(|t| &t.rows);
    let figures: Vec<String> = rows
        .flat_map(|row| [row.base, row.optimized])
        .map(|figure| figure.to_string())
        .filter(|text| text.len() >= 4)
        .collect();
    assert!(figures.len() > 20);
    for (name, text) in &files {
        let numbers: Vec<String> = text
            .split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
            .map(|word| word.replace('_', ""))
            .collect();
        for figure in &figures {
            assert!(!numbers.contains(figure), "{figure} stands in {name}");
        }
    }
}
