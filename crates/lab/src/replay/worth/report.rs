//! The ratios, by heuristic and device.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{Run, Taken};

/// The names of what the numbers of a [`Run`] stand for.
pub struct Names {
    pub groups: Vec<String>,
    pub devices: Vec<&'static str>,
    pub inputs: Vec<String>,
}

/// One run in relation to the run with all heuristics.
pub struct Ratio {
    run: Run,
    time: f64,
    pages_in: f64,
    pages_out: f64,
}

/// A change of so many pages is none: a workload that reads next to nothing would have any ratio.
const FEW: u64 = 256;

fn ratio(without: u64, with: u64) -> f64 {
    (without.max(1)) as f64 / (with.max(1)) as f64
}

/// Pages without a heuristic to pages with it.
fn pages(without: u64, with: u64) -> f64 {
    ratio(without + FEW, with + FEW)
}

/// All runs in relation to those with all heuristics.
pub fn ratios(results: &[(Run, Taken)]) -> Vec<Ratio> {
    let key = |run: &Run| (run.device, run.cpus, run.input, run.turn);
    let base = results.iter().filter(|(run, _)| run.off == 0);
    let base: HashMap<_, _> = base.map(|(run, taken)| (key(run), taken)).collect();
    let others = results.iter().filter(|(run, _)| run.off > 0);
    let single = others
        .filter_map(|(run, taken)| {
            let with = base.get(&key(run))?;
            Some(Ratio {
                run: *run,
                time: ratio(taken.time, with.time),
                pages_in: pages(taken.pages_in, with.pages_in),
                pages_out: pages(taken.pages_out, with.pages_out),
            })
        })
        .collect::<Vec<_>>();
    let alike = |a: &Ratio, b: &Ratio| {
        let key = |run: &Run| (run.off, run.device, run.cpus, run.input);
        key(&a.run) == key(&b.run)
    };
    let mut sorted = single;
    sorted.sort_by_key(|Ratio { run, .. }| (run.off, run.device, run.cpus, run.input));
    let turns = sorted.chunk_by(alike);
    turns.filter_map(mean).collect()
}

/// The geometric mean of the repetitions of a run.
fn mean(turns: &[Ratio]) -> Option<Ratio> {
    let of = |of: fn(&Ratio) -> f64| {
        let sum: f64 = turns.iter().map(|ratio| of(ratio).ln()).sum();
        (sum / turns.len() as f64).exp()
    };
    turns.first().map(|first| Ratio {
        run: first.run,
        time: of(|ratio| ratio.time),
        pages_in: of(|ratio| ratio.pages_in),
        pages_out: of(|ratio| ratio.pages_out),
    })
}

/// The geometric mean of some ratios, and the least and the greatest of them with their runs.
struct Summary<'a> {
    mean: f64,
    least: (f64, &'a Ratio),
    most: (f64, &'a Ratio),
}

fn summary<'a>(ratios: &[&'a Ratio], of: fn(&Ratio) -> f64) -> Option<Summary<'a>> {
    let sum: f64 = ratios.iter().map(|ratio| of(ratio).ln()).sum();
    let order = |a: &&&Ratio, b: &&&Ratio| of(a).total_cmp(&of(b));
    let (least, most) = (ratios.iter().min_by(order)?, ratios.iter().max_by(order)?);
    Some(Summary {
        mean: (sum / ratios.len() as f64).exp(),
        least: (of(least), least),
        most: (of(most), most),
    })
}

fn of_group(ratios: &[Ratio], group: usize, device: Option<usize>) -> Vec<&Ratio> {
    let fits = |ratio: &&Ratio| {
        ratio.run.off == group && device.is_none_or(|device| ratio.run.device == device)
    };
    ratios.iter().filter(fits).collect()
}

fn place(names: &Names, ratio: &Ratio) -> String {
    format!("{}, {}", names.inputs[ratio.run.input], ratio.run.cpus)
}

/// A block per heuristic, a line per device.
pub fn table(names: &Names, ratios: &[Ratio], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:28} {:7} {:>6} {:32} {:32} {:>6} {:>6}",
        "time without / with", "", "mean", "least (workload, CPUs)", "most", "in", "out"
    )?;
    for (group, name) in names.groups.iter().enumerate().skip(1) {
        for (device, kind) in names.devices.iter().enumerate() {
            let of = of_group(ratios, group, Some(device));
            let Some(time) = summary(&of, |ratio| ratio.time) else {
                continue;
            };
            let mean = |of: Option<Summary>| of.map_or(1.0, |summary| summary.mean);
            let pages_in = mean(summary(&of, |ratio| ratio.pages_in));
            let pages_out = mean(summary(&of, |ratio| ratio.pages_out));
            let at = |(value, ratio): (f64, &Ratio)| format!("{value:.3} {}", place(names, ratio));
            let (mean, least, most) = (time.mean, at(time.least), at(time.most));
            writeln!(
                out,
                "{name:23} {kind:12} {mean:6.3} {least:32} {most:32} {pages_in:6.3} {pages_out:6.3}"
            )?;
        }
    }
    Ok(())
}

/// A row per heuristic: its worth on each device (the mean, and the greatest ratio), and where it harms most.
pub fn markdown(names: &Names, ratios: &[Ratio], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "| heuristic | {} | worth most | harms most |",
        names.devices.join(" | ")
    )?;
    writeln!(
        out,
        "| --- |{} --- | --- |",
        " --- |".repeat(names.devices.len())
    )?;
    for (group, name) in names.groups.iter().enumerate().skip(1) {
        write!(out, "| {name} |")?;
        for device in 0..names.devices.len() {
            let of = of_group(ratios, group, Some(device));
            match summary(&of, |ratio| ratio.time) {
                Some(time) => write!(out, " {:.3} |", time.mean)?,
                None => write!(out, " |")?,
            }
        }
        let of = of_group(ratios, group, None);
        if let Some(time) = summary(&of, |ratio| ratio.time) {
            let at = |(value, ratio): (f64, &Ratio)| {
                let device = names.devices[ratio.run.device];
                format!("{value:.2}: {}, {device}", place(names, ratio))
            };
            write!(out, " {} | {} |", at(time.most), at(time.least))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Every ratio, in columns that are separated by tabs.
pub fn all(names: &Names, ratios: &[Ratio], out: &mut impl Write) -> io::Result<()> {
    for ratio in ratios {
        let Run {
            device,
            cpus,
            input,
            off,
            turn: _,
        } = ratio.run;
        let (name, device, input) = (
            &names.groups[off],
            names.devices[device],
            &names.inputs[input],
        );
        let (time, pages_in, pages_out) = (ratio.time, ratio.pages_in, ratio.pages_out);
        writeln!(
            out,
            "{name}\t{device}\t{cpus}\t{input}\t{time:.4}\t{pages_in:.4}\t{pages_out:.4}"
        )?;
    }
    Ok(())
}
