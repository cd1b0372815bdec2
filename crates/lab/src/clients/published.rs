//! The numbers of the model and where each comes from. *Assumed* means that no source was found; the reason is given.

use foreswap_core::units::Nanos;

use super::distribution::Distribution;

const MICRO: Nanos = 1_000;
const MILLI: Nanos = 1_000 * MICRO;
const SECOND: Nanos = 1_000 * MILLI;
const MINUTE: Nanos = 60 * SECOND;

/// A round trip in a datacentre, with the kernels of both ends and without the server's own work.
///
/// - Half of them: 200 us, the typical latency of a network in "Diagnosing latency issues" (redis.io, for 1 Gbit/s).
/// - 80 %: 500 us. E. Jones, "Network Latencies in the Data Center" (evanjones.ca, 2021-09-24): TCP echo between virtual
///   machines of one cloud region; 500 us was about the 80th percentile.
/// - The slowest: 5 ms, the worst that Jones saw without any network between the ends.
/// - Assumed: the fastest takes half of the median, and 99 % twice the 80th percentile. The table of Jones has those, but
///   was not at hand.
pub const NETWORK: Distribution = Distribution(&[
    (0, 100 * MICRO),
    (500_000, 200 * MICRO),
    (800_000, 500 * MICRO),
    (990_000, MILLI),
    (1_000_000, 5 * MILLI),
]);

/// The time for which a request occupies one of a server's threads.
///
/// - Half of them: 76 us, a page of Redis by loopback as measured here (`docs/FAR.md`). That includes both ends of the
///   loopback, so it is a little long.
/// - The tail: J. Dean and L. A. Barroso, "The Tail at Scale" (CACM 56(2), 2013), table 1: of the requests to one random
///   leaf 95 % end within 5 times and 99 % within 10 times the median; the slowest of all leaves takes 40 times the median,
///   in half of the cases.
/// - Assumed: the fastest takes half of the median.
pub const SERVICE: Distribution = Distribution(&[
    (0, 38 * MICRO),
    (500_000, 76 * MICRO),
    (950_000, 5 * 76 * MICRO),
    (990_000, 10 * 76 * MICRO),
    (1_000_000, 40 * 76 * MICRO),
]);

/// In addition, for each page of a request: a string of 256 KiB comes from Redis at 2174 MiB/s (`docs/FAR.md`).
pub const SERVICE_PAGE: Nanos = 1_800;

/// Requests that a server works on at a time: as many as nbdkit has threads for a connection (nbdkit(1), `--threads`).
/// Assumed for the whole server, because more threads than CPUs gain nothing.
pub const THREADS: u32 = 16;

/// Bandwidth of a server's link, each way, in bytes a second: 10 Gbit/s. Assumed: what servers have at least today.
pub const LINK: u64 = 1_250_000_000;

/// Bandwidth of a client's link, each way. Assumed: the same.
pub const CLIENT_LINK: u64 = LINK;

/// A server stands still while it forks to save its memory: S. Sanfilippo measured 181 ms for 16 GB
/// (gist.github.com/antirez/372356). Assumed: servers have 16 GB; the time is proportional to it.
pub const PAUSE: Nanos = 181 * MILLI;

/// Until a server that has crashed is back, empty. D. Ford et al., "Availability in Globally Distributed Storage Systems"
/// (OSDI 2010): less than 10 % of the times in which a node is away are longer than 15 minutes. J. Dean (Google I/O 2008):
/// machines of a rack that fails are away for 1 to 6 hours. Assumed: nothing is back before half a minute, which a
/// machine needs to boot.
pub const RESTART: Distribution = Distribution(&[
    (0, 30 * SECOND),
    (900_000, 15 * MINUTE),
    (1_000_000, 6 * 60 * MINUTE),
]);

/// Days between two failures of a server: 4.3 months (Ford et al., table 2: a node). J. Dean (Google I/O 2008) gave 1,000
/// failures of machines a year in a cluster of 1,800, one in 22 months: Ford's nodes also restart for other reasons.
pub const FAILURE_DAYS: f64 = 4.3 * 365.25 / 12.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::distribution::WHOLE;
    use crate::sim::rng::Rng;

    #[test]
    fn draws_have_the_percentiles_and_the_mean() {
        for distribution in [NETWORK, SERVICE, RESTART] {
            assert!(distribution.0.is_sorted());
            let mut rng = Rng::new(3);
            let mut draws: Vec<Nanos> = (0..200_000).map(|_| distribution.draw(&mut rng)).collect();
            draws.sort_unstable();
            for share in [100_000, 500_000, 900_000, 990_000] {
                let found = draws[(share * draws.len() as u64 / WHOLE) as usize];
                let wanted = distribution.at(share);
                assert!(found.abs_diff(wanted) < wanted / 10, "{found}, {wanted}");
            }
            let mean = draws.iter().sum::<Nanos>() / draws.len() as Nanos;
            assert!(mean.abs_diff(distribution.mean()) < mean / 50, "{mean}");
        }
    }
}
