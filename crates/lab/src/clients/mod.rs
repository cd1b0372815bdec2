//! `foreswap lab clients`: how throughput and tail grow with the clients of a pool of servers.
//!
//! Each client is a machine of `lab replay`, with the core that ships, and an area on servers. `server` and `link` are a server,
//! `pool` has the clients and the servers, `relay` is how a client uses several, `fleet` lets all happen in one time (`agenda`),
//! and `workload` is what the clients do.
//! `published` has every number of the model with its source. Runs depend on nothing but their setting.

mod agenda;
mod distribution;
mod fleet;
mod link;
mod pool;
mod published;
mod relay;
mod report;
mod server;
mod setting;
#[cfg(test)]
mod tests;
mod workload;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use foreswap_core::units::Nanos;

use crate::jobs;
use crate::size;
use fleet::{Figures, Fleet};
use report::Report;
use setting::{Failure, Setting};
use workload::Workload;

/// The least memory of a client, in pages (1 MiB).
const LEAST: u64 = 256;
/// The most data of all clients, in pages (128 GiB). A page takes 44 bytes of this machine's memory.
const MOST: u64 = 1 << 25;
/// The most clients. Each takes half a megabyte, besides its pages: a run stays below 4 GiB.
const MOST_CLIENTS: u32 = 4_000;
const SECOND: Nanos = 1_000_000_000;

/// `foreswap lab clients`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct ClientsArgs {
    /// Numbers of clients to try
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clients)]
    clients: Vec<u32>,

    /// Numbers of servers to try
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,4,16", value_parser = servers)]
    servers: Vec<u32>,

    /// What the clients do
    #[arg(
        long,
        value_enum,
        value_name = "WORKLOADS",
        value_delimiter = ',',
        default_value = "scan,random,mixed"
    )]
    workload: Vec<Workload>,

    /// Whether each page is on two servers (--swap A+B)
    #[arg(
        long,
        value_enum,
        value_name = "MIRRORS",
        value_delimiter = ',',
        default_value = "no,yes"
    )]
    mirror: Vec<Mirror>,

    /// What happens to one of the servers
    #[arg(
        long,
        value_enum,
        value_name = "FAILURES",
        value_delimiter = ',',
        default_value = "none"
    )]
    failure: Vec<Failure>,

    /// Memory of each client
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = memory)]
    memory: u64,

    /// What each client's program touches; the rest of it is on the servers
    #[arg(long, value_name = "SIZE", default_value = "24M", value_parser = memory)]
    data: u64,

    /// A program's work between two touches, in nanoseconds
    #[arg(long, value_name = "NS", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    think: u64,

    /// How long what is counted takes, in milliseconds, once all clients have prepared their memory
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = clap::value_parser!(u64).range(10..=600_000))]
    time: u64,

    /// `--area-timeout` of the clients, in milliseconds
    #[arg(long, value_name = "MS", default_value = "30000", value_parser = clap::value_parser!(u64).range(10..=600_000))]
    area_timeout: u64,

    /// Bandwidth of a server's link, each way, in bytes per second
    #[arg(long, value_name = "BYTES", default_value_t = published::LINK, value_parser = clap::value_parser!(u64).range(1_000_000..=1_000_000_000_000))]
    link: u64,

    /// Requests that a server works on at a time
    #[arg(long, value_name = "N", default_value_t = published::THREADS, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Runs at a time [default: the number of CPUs]
    #[arg(long, value_name = "J", value_parser = jobs::count)]
    jobs: Option<NonZeroUsize>,

    /// Draw throughput and tail by clients to an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  foreswap lab clients
  foreswap lab clients --clients 1,50 --servers 2 --workload random
  foreswap lab clients --failure crash --area-timeout 2000 --time 4000 --clients 100 --servers 4
  foreswap lab clients --plot clients.svg --json

Each client runs the engine's own memory manager on a simulated machine; its area is spread over the
servers in chunks of 256 KiB. Servers have a link that all transfers share, threads, a queue, and
latencies from published measurements; docs/CLIENTS.md of the repository has their sources.

Every number of clients is tried with every number of servers, workload, mirror and failure; a
mirror of one server is left out. Percentiles are of faults that had to wait; `longest` includes
those that still wait at the end. The same arguments give the same bytes, whatever --jobs says.

The exit status is 2 when an argument is wrong or a run failed.";

/// `--mirror`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Mirror {
    /// Each page is on one server
    No,
    /// Each page is on two servers
    Yes,
}

fn count(text: &str, most: u32, of: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| {
            let most = size::count(most.into());
            format!(
                "expected a number of {of} from 1 to {most}, or several with commas, as 1,10,100"
            )
        })
}

fn clients(text: &str) -> Result<u32, String> {
    count(text, MOST_CLIENTS, "clients")
}

fn servers(text: &str) -> Result<u32, String> {
    count(text, 1_000, "servers")
}

fn memory(text: &str) -> Result<u64, String> {
    match size::pages(text)? {
        pages if pages < LEAST => Err(format!(
            "too little to work in; the least is {}",
            size::humane(LEAST)
        )),
        pages => Ok(pages),
    }
}

/// One run.
struct Run {
    of: Setting,
    figures: Figures,
}

impl ClientsArgs {
    fn check(&self) -> Result<(), String> {
        let [memory, data] = [self.memory, self.data].map(size::humane);
        if self.data <= self.memory {
            return Err(format!(
                "--data {data} fits into --memory {memory}: nothing would go to the servers; give more data or less memory"
            ));
        }
        let most = self.clients.iter().copied().max().unwrap_or(1);
        if self.data.saturating_mul(most.into()) > MOST {
            return Err(format!(
                "--data {data} times {} clients is more than is simulated, {}; give less data or fewer clients",
                size::count(most.into()),
                size::humane(MOST)
            ));
        }
        if self.settings().is_empty() {
            return Err(
                "--mirror yes needs two servers; give --servers 2 or more, or --mirror no".into(),
            );
        }
        Ok(())
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &workload in &self.workload {
            for &failure in &self.failure {
                for &mirror in &self.mirror {
                    for &servers in &self.servers {
                        if mirror == Mirror::Yes && servers < 2 {
                            continue;
                        }
                        settings.extend(self.clients.iter().map(|&clients| Setting {
                            clients,
                            servers,
                            mirror: mirror == Mirror::Yes,
                            workload,
                            failure,
                            memory: self.memory,
                            data: self.data,
                            think: self.think,
                            time: self.time * SECOND / 1000,
                            timeout: self.area_timeout * SECOND / 1000,
                            link: self.link,
                            threads: self.threads,
                            seed: self.seed,
                        }));
                    }
                }
            }
        }
        settings
    }
}

/// Runs all combinations and reports to `out`.
///
/// # Errors
///
/// The arguments contradict each other, a run failed, or something cannot be written.
pub fn run_all(args: &ClientsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    args.check().map_err(anyhow::Error::msg)?;
    let settings = args.settings();
    let run = |of: &Setting| {
        let figures = Fleet::new(*of).run().map_err(|error| {
            let (clients, servers) = (of.clients, of.servers);
            anyhow::anyhow!("{clients} clients, {servers} servers: {error}")
        })?;
        Ok(Run { of: *of, figures })
    };
    let runs = jobs::each(jobs::number(args.jobs), &settings, run);
    let runs = runs.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let report = Report { runs: &runs };
    if let Some(path) = &args.plot {
        crate::write_file(path, report.picture().as_bytes())?;
    }
    if args.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        report.table(out)?;
    }
    out.flush()?;
    Ok(())
}
