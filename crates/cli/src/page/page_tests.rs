//! The page as a whole: what it says, and that names in it stay text.

use std::time::{Duration, SystemTime};

use super::activity::{Activity, tests::cyclic};
use super::names::Names;
use super::timeline::Sample;
use super::*;
use crate::unmanaged::Kind;

/// The text of a page: without style, tags and repeated white space.
fn text(page: &str) -> String {
    let body = page.split("</style>").nth(1).unwrap_or_default();
    let parts = body
        .split('<')
        .map(|part| part.split_once('>').map_or("", |(_, text)| text));
    let text = parts.collect::<Vec<_>>().join(" ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn run() -> Run {
    let mut run = Run {
        elapsed: Duration::from_secs(10),
        limit_bytes: 200 << 10,
        peak_bytes: 200 << 10,
        ..Run::default()
    };
    run.totals.processes = 1;
    let stats = &mut run.totals.stats;
    stats.managed_bytes = 400 << 10;
    (stats.faults_major, stats.faults_zero) = (200, 100);
    (stats.swap_out_bytes, stats.swap_in_bytes) = (1000 << 10, 800 << 10);
    stats.stalled_ns = 4_000_000_000;
    stats.fault_ns_max = 3_000_000;
    stats.latency = vec![0; 300];
    stats.latency[200] = 300;
    run.unmanaged.count(Kind::Stacks, 3 << 20);
    run
}

fn process(command: &str) -> Process {
    Process {
        pid: 7,
        command: command.to_owned(),
        managed_bytes: 400 << 10,
        stalled_ns: 4_000_000_000,
        ..Process::default()
    }
}

/// The page of a run of `title` over ten seconds.
fn page(title: &str, run: &Run, found: &Found, processes: &[Process]) -> String {
    let mut timeline = Timeline::default();
    for second in 0..=10 {
        timeline.push(Sample {
            at: Duration::from_secs(second),
            limit_bytes: run.limit_bytes,
            held_bytes: run.peak_bytes,
            in_bytes: second * (80 << 10),
            stalled_ns: second * 400_000_000,
            ..Sample::default()
        });
    }
    let area = Area {
        number: 0,
        path: title.to_owned(),
        bytes: 1 << 30,
        used_bytes: 1 << 20,
        memory: None,
        priority: -1,
        state: "usable".to_owned(),
        encrypted: false,
    };
    Story {
        title: title.to_owned(),
        found,
        measured: Some(Measured {
            run,
            timeline: &timeline,
            areas: &[area],
            processes,
            more_processes: 0,
            functions: &[],
            began: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        }),
        cut_off: false,
    }
    .page()
}

#[test]
fn the_page_tells_what_happened_and_what_it_cost() {
    let found = cyclic(10_000_000_000).finish();
    let text = text(&page("./job", &run(), &found, &[process("./job")]));
    for part in [
        "2023-11-14 22:13:20 UTC ./job It ran for 10 s with a limit of 200 KiB and ended without an error.",
        "It used 400 KiB of memory and held at most 200 KiB at a time: 1000 KiB went out, and 800 KiB came back. \
         For 4 s, 40 % of the time, at least one thread waited for a page that more memory would have kept.",
        // 100 pages in turn do not fit in 50, and do in 1 MiB: the least round size.
        "With 1 MiB, next to nothing would have come back, and it would have taken about 6 s, 40 % less.",
        "Limit Comes back Major faults Waiting Run time 200 KiB this run 800 KiB 100 % 200 4 s 10 s +67 % \
         1 MiB 0 B 0 % 0 0 ms 6 s +0 %",
        "./job (process 7) 64 KiB per row",
        "Half of the faults took at most",
        "stacks of threads 3 MiB",
        "./job 1 GiB 1 MiB -1",
    ] {
        assert!(text.contains(part), "{part}\n in\n{text}");
    }
    assert!(!text.contains("lost"));
}

#[test]
fn several_processes_have_no_common_run_time() {
    let found = cyclic(10_000_000_000).finish();
    let mut run = run();
    run.totals.processes = 2;
    let processes = [3, 1].map(|seconds| Process {
        stalled_ns: seconds * 1_000_000_000,
        ..process("./job")
    });
    let text = text(&page("./job", &run, &found, &processes));
    assert!(text.contains("Its processes together waited 4 s"), "{text}");
    assert!(
        !text.contains("Run time 200 KiB")
            && text.contains("how long the run would have taken is not known")
    );
}

/// Tags and attributes of names are shown, not obeyed.
#[test]
fn names_are_text() {
    let evil = "</title><script>alert(1)</script>\" onload='x' &amp;";
    let mut activity = cyclic(1000);
    activity.names(7, |names: &mut Names| {
        names.learn(&format!(
            "05000000-06000000 rw-p 00000000 00:01 5 /{evil}\n"
        ));
    });
    let found = activity.finish();
    let page = page(evil, &run(), &found, &[process(evil)]);
    assert!(
        !page.contains("<script") && !page.contains("\" onload"),
        "{page}"
    );
    // The title, the heading, the process twice, the area, the mapping's label and its line in the table.
    let shown = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload='x' &amp;amp;";
    assert!(page.matches(shown).count() >= 6, "{page}");
}

#[test]
fn a_run_that_fits_says_so() {
    let run = Run {
        elapsed: Duration::from_millis(850),
        limit_bytes: 1 << 30,
        exit_status: 3,
        ..Run::default()
    };
    let found = Activity::new(1 << 18).finish();
    let text = text(&page("ls -l", &run, &found, &[]));
    let said = "It ran for 850 ms with a limit of 1 GiB and ended with status 3. Nothing needed managing: the peak stayed below 1 GiB.";
    assert!(text.contains(said), "{text}");
    assert!(!text.contains("With another limit") && !text.contains("Over time"));
}

#[test]
fn a_limit_that_moved_has_no_other_limits() {
    let found = cyclic(10_000_000_000).finish();
    let mut run = run();
    run.auto = Some(crate::auto_memory::Auto {
        least_bytes: 1 << 20,
        most_bytes: 1 << 30,
        settled_bytes: None,
    });
    let text = text(&page("./job", &run, &found, &[]));
    assert!(
        text.contains("The limit was not the same all the time") && !text.contains("this run"),
        "{text}"
    );
}

#[test]
fn a_page_of_a_trace_names_what_it_lacks() {
    let found = cyclic(10_000_000_000).finish();
    let story = Story {
        title: "job.trace".to_owned(),
        found: &found,
        measured: None,
        cut_off: true,
    };
    let text = text(&story.page());
    for part in [
        "from a trace job.trace The trace of a run with a limit of 200 KiB: in 10 s, 1 process had 200 major faults; \
         1000 KiB of pages were evicted, and 800 KiB came back. The end of the trace is missing",
        "A trace does not tell how long faults waited",
        "Process 7 64 KiB per row",
        "0x5000000 448 KiB 800 KiB 1000 KiB",
        "A trace has no times of waiting, latencies",
    ] {
        assert!(text.contains(part), "{part}\n in\n{text}");
    }
    let empty = Activity::new(50).finish();
    let story = Story {
        found: &empty,
        cut_off: false,
        ..story
    };
    assert!(self::text(&story.page()).contains("Nothing was managed: everything fitted."));
}
