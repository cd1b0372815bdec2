//! The gain of swapping huge pages whole, and the cases that must not become slower for it.

use super::series::{self, Part};
use crate::args::{BenchArgs, BenchName, Fill, PeerName};
use crate::peer::Session;
use crate::report::Report;

/// Tasks of the sequential writers.
const WRITERS: [u32; 5] = [1, 2, 4, 8, 16];
/// Passes after which nearly all pages have been evicted once.
const PASSES_BEFORE: u32 = 5;
/// Scans of the interleaved ones.
const SCANS: [u64; 2] = [2, 8];

/// Runs all of them.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    series::run(BenchName::Huge, parts(args), args, session)
}

fn parts(args: &BenchArgs) -> Vec<Part> {
    use BenchName::*;
    let part = |name, detail: &str, change: &dyn Fn(&mut BenchArgs)| {
        let mut args = series::arguments(args, name, &[PeerName::Kernel]);
        // The parts set these themselves.
        (args.usemem.tasks, args.usemem.warm_up) = (1, 0);
        change(&mut args);
        Part {
            name,
            detail: detail.to_owned(),
            args,
        }
    };
    let plain = |name| part(name, "", &|_| ());
    let mut parts = vec![
        plain(SeqRead),
        part(SeqRead, "of clean data", &|args| {
            args.usemem.warm_up = PASSES_BEFORE;
            args.usemem.repeat = 2;
        }),
    ];
    for tasks in WRITERS {
        // The writers of seed 002, swap-w-seq.
        parts.push(part(SeqWrite, &format!("{tasks} tasks"), &|args| {
            args.usemem.tasks = tasks;
            args.usemem.fill = Fill::Random;
        }));
    }
    parts.push(plain(Reverse));
    for scans in SCANS {
        parts.push(part(Interleaved, &format!("{scans} scans"), &|args| {
            args.usemem.scans = scans;
        }));
    }
    parts.push(plain(Stride));
    parts.extend([Combined, RandRead, RandWrite].map(plain));
    for name in [SeqRead, RandRead] {
        parts.push(part(name, "compressible, in ram:", &in_ram));
    }
    parts
}

/// Compressed memory for both; its size is that of the data without compression.
fn in_ram(part: &mut BenchArgs) {
    part.usemem.fill = Fill::Compressible;
    // If other peers than the kernel's were named, these are left out as well.
    if part
        .against
        .as_ref()
        .is_some_and(|peers| peers.contains(&PeerName::Kernel))
    {
        part.against = Some(vec![PeerName::Zram]);
    }
    let mut is_area = false;
    part.run_options.retain(|word| {
        let of_before = std::mem::take(&mut is_area);
        is_area = word == "--swap";
        !of_before && !is_area && !word.starts_with("--swap=")
    });
    let bytes = part.usemem.total_bytes();
    part.run_options.push(format!("--swap=ram:{bytes}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn parts_of(words: &str) -> Vec<Part> {
        parts(&args::parse(&format!("huge {words}")))
    }

    #[test]
    fn all_that_issue_4_names_is_run() {
        let parts = parts_of("--total 64M --seconds 3");
        let names: Vec<String> = parts
            .iter()
            .map(|part| format!("{:?} {}", part.name, part.detail))
            .collect();
        assert_eq!(names.len(), 16, "{names:?}");
        let writers: Vec<(u32, Fill)> = parts
            .iter()
            .filter(|part| part.name == BenchName::SeqWrite)
            .map(|part| (part.args.usemem.tasks, part.args.usemem.fill))
            .collect();
        assert_eq!(writers, WRITERS.map(|tasks| (tasks, Fill::Random)));
        let of = |name| parts.iter().find(|part| part.name == name).unwrap();
        assert_eq!(of(BenchName::Combined).args.usemem.seconds, Some(3.0));
        assert_eq!(of(BenchName::Combined).args.usemem.total, None);
        assert_eq!(of(BenchName::RandWrite).args.usemem.seconds, None);
        assert_eq!(of(BenchName::SeqRead).args.usemem.total, Some(64 << 20));
        assert_eq!(
            of(BenchName::SeqRead).args.against,
            Some(vec![PeerName::Kernel])
        );
        assert_eq!(parts[1].args.usemem.warm_up, PASSES_BEFORE);
    }

    #[test]
    fn compressed_memory_is_held_against_zram_alone() {
        let words = "--total 64M --run-option=--swap --run-option=/x --run-option=--quiet \
                     --run-option=--swap=/y --run-option=--swap-size=1G";
        let parts = parts_of(words);
        for part in &parts[14..] {
            let args = &part.args;
            assert_eq!(args.usemem.fill, Fill::Compressible);
            assert_eq!(args.against, Some(vec![PeerName::Zram]));
            let options = ["--quiet", "--swap-size=1G", "--swap=ram:67108864"];
            assert_eq!(args.run_options, options);
        }
        assert_eq!(parts[0].args.run_options.len(), 5);
        let parts = parts_of("--against bare");
        assert_eq!(parts[14].args.against, Some(vec![PeerName::Bare]));
    }
}
