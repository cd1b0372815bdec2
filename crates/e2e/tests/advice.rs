//! The program's advice about its memory (madvise) has an effect, and its return values are those without foreswap.

use foreswap_e2e::{Job, MIB, Managed, Outcome, program};

/// Mebibytes; the programs map more and fill less.
const LIMIT: u64 = 64;
/// Bytes that they fill and page out.
const PART: u64 = 24 * MIB;
/// Pages that they read back in order.
const READ: u64 = 4 * MIB / 4096;

#[track_caller]
fn run_with(name: &str, options: &[&str]) -> Option<Outcome> {
    let job = Job::new(program::compile(name, "advice_calls")?).arg(name);
    let managed = Managed::limit(LIMIT).options(options);
    Some(managed.equals_bare(&job).succeeded())
}

/// As [`run_with`]; all of the filled memory must have been evicted.
#[track_caller]
fn paged_out_with(name: &str, options: &[&str]) -> Option<Outcome> {
    let outcome = run_with(name, options)?;
    assert_eq!(outcome.note("absent"), PART / 4096, "{}", outcome.stderr);
    Some(outcome)
}

#[test]
fn results_and_errors_are_the_kernels() {
    run_with("results", &[]);
}

#[test]
fn pageout_writes_pages_and_frees_their_memory() {
    let Some(outcome) = paged_out_with("pageout", &[]) else {
        return;
    };
    let written = outcome.stats().count("swap_out_bytes");
    assert!(written >= PART, "{written} bytes written");
}

#[test]
fn willneed_reads_pages_before_they_are_touched() {
    let options = ["--readahead", "none"];
    let (Some(with), Some(without)) = (
        paged_out_with("willneed", &options),
        paged_out_with("no_willneed", &options),
    ) else {
        return;
    };
    let major = |outcome: &Outcome| outcome.stats().count("faults_major");
    assert!(major(&without) >= READ - 8);
    assert!(
        major(&with) < major(&without) / 2,
        "{} major faults with it, {} without",
        major(&with),
        major(&without)
    );
    assert!(with.stats().count("readahead_hits") > READ / 2);
}

#[test]
fn cold_memory_goes_first() {
    let Some(outcome) = run_with("cold", &[]) else {
        return;
    };
    let (cold, warm) = (outcome.note("absent"), outcome.note("warm_absent"));
    assert!(cold > 1024 && warm * 4 < cold, "{cold} cold, {warm} warm");
}

#[test]
fn hints_decide_the_windows() {
    let ahead = |name| {
        let stats = paged_out_with(name, &[])?.stats?;
        Some((stats.count("readahead_pages"), stats.count("faults_major")))
    };
    // The last faults of a process may miss its statistics.
    let Some((pages, major)) = ahead("no_hint") else {
        return;
    };
    // The first half is a huge page, which is read for the fault itself, as the program filled memory from there.
    assert!(pages >= READ / 2 && major < READ / 2, "{pages} {major}");
    for name in [
        "random_hint",
        "random_hint_before",
        "random_hint_in_a_child",
    ] {
        let (pages, major) = ahead(name).expect("compiled already");
        assert!(pages == 0 && major >= READ - 8, "{name}: {pages} {major}");
    }
    let (pages, sequential) = ahead("sequential_hint").expect("compiled already");
    // The largest window is 32 pages, used from the first miss on; or a huge page is read for the fault itself, as
    // above.
    assert!(
        pages >= READ / 2 && sequential <= READ / 32 + 4,
        "{pages} {sequential}"
    );
}

#[test]
fn advice_from_everywhere_harms_nothing() {
    let Some(outcome) = run_with("storm", &[]) else {
        return;
    };
    outcome.swapped();
}
