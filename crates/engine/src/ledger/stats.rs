//! The statistics of a process, in a form that survives its death.
//!
//! Engines add to these words with relaxed stores; no decision depends on them, and they need no order. The
//! supervisor takes a [`StatsSnapshot`] when the process has ended and adds it to the totals of the run.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// VMAs that a process can describe; the others are left out. A record has three pages in all.
pub const MAX_VMAS: usize = 60;
/// Readahead windows are 0 to 512 pages, each with its own count.
pub const WINDOW_BUCKETS: usize = 513;
/// Linear steps per power of two in the latency histogram: at most 6 % off.
const LATENCY_STEPS: usize = 16;
/// Up to 2^40 ns (18 minutes); slower faults land in the last bucket.
pub const LATENCY_BUCKETS: usize = LATENCY_STEPS * 38;

/// One managed VMA of a process.
#[repr(C)]
pub struct VmaWords {
    /// First address; meaningful where `bytes` is not zero.
    pub start: AtomicU64,
    /// Length; zero marks an unused entry.
    pub bytes: AtomicU64,
    /// Bytes resident now.
    pub resident_bytes: AtomicU64,
    /// Bytes on a swap area now.
    pub swapped_bytes: AtomicU64,
    /// Pages read ahead of a fault.
    pub readahead_pages: AtomicU64,
    /// The touched ones among them.
    pub readahead_hits: AtomicU64,
}

const _: () = assert!(size_of::<VmaWords>() == 48);

/// The statistics of one process, in the ledger.
#[repr(C)]
pub struct StatsRecord {
    /// Bytes of registered VMAs now; see [`StatsRecord::set_managed`].
    pub managed_bytes: AtomicU64,
    /// The maximum of `managed_bytes`.
    pub peak_managed_bytes: AtomicU64,
    /// Managed bytes resident now; see [`StatsRecord::set_resident`].
    pub resident_bytes: AtomicU64,
    /// The maximum of `resident_bytes`.
    pub peak_resident_bytes: AtomicU64,
    /// Faults that waited for the swap area.
    pub faults_major: AtomicU64,
    /// Faults served from memory.
    pub faults_minor: AtomicU64,
    /// Faults served with a zero page.
    pub faults_zero: AtomicU64,
    /// Bytes read from swap areas.
    pub swap_in_bytes: AtomicU64,
    /// Bytes read from mapped files.
    pub file_in_bytes: AtomicU64,
    /// Bytes of mapped files that left memory without a write.
    pub file_dropped_bytes: AtomicU64,
    /// Of `readahead_pages`, those of mapped files.
    pub file_readahead_pages: AtomicU64,
    /// The touched ones among them.
    pub file_readahead_hits: AtomicU64,
    /// Bytes resident now where files are mapped.
    pub file_resident_bytes: AtomicU64,
    /// Bytes of mapped files that are served now; see [`StatsRecord::set_files`].
    pub file_bytes: AtomicU64,
    /// The maximum of `file_bytes`.
    pub peak_file_bytes: AtomicU64,
    /// Bytes written to swap areas.
    pub swap_out_bytes: AtomicU64,
    /// Read requests.
    pub swap_read_ios: AtomicU64,
    /// Write requests.
    pub swap_write_ios: AtomicU64,
    /// Pages read without a fault on them.
    pub readahead_pages: AtomicU64,
    /// The touched ones among them.
    pub readahead_hits: AtomicU64,
    /// Huge pages read whole.
    pub huge_swap_in: AtomicU64,
    /// Huge pages evicted whole.
    pub huge_swap_out: AtomicU64,
    /// Huge pages that had to be split.
    pub huge_splits: AtomicU64,
    /// Evicted pages with a valid copy on the area.
    pub clean_drops: AtomicU64,
    /// Evicted pages that held only zeros.
    pub zero_drops: AtomicU64,
    /// Evicted pages filled by another word.
    pub filled_drops: AtomicU64,
    /// Times background reclaim was started.
    pub kswapd_wakeups: AtomicU64,
    /// Times a fault had to wait for reclaim.
    pub direct_reclaims: AtomicU64,
    /// Faults on pages evicted while they were still in use.
    pub refaults: AtomicU64,
    /// Memory of the engine itself.
    pub engine_bytes: AtomicU64,
    /// The part of it that the relay of far areas has mapped as well.
    pub channel_bytes: AtomicU64,
    /// Slowest fault, ns.
    pub fault_ns_max: AtomicU64,
    /// Time in which at least one thread waited for a page that more memory would have kept, ns.
    pub stalled_ns: AtomicU64,
    vma_count: AtomicU32,
    /// Pages shared with other processes of the family and not charged to this one.
    pub(super) owed_pages: AtomicU32,
    /// Of these, pages that are due.
    pub(super) due_pages: AtomicU32,
    /// Shared pages that no other is charged for.
    pub(super) shared_pages: AtomicU32,
    /// Not zero: the process asks the others before it copies shared pages.
    pub(super) protects: AtomicU32,
    /// Pages for which the others ask this process to pay.
    pub(super) asked_pages: AtomicU32,
    /// All pages that it has paid for.
    pub(super) paid_pages: AtomicU32,
    /// The processes that forks connect have the same number; 0: it has none.
    pub(super) family: AtomicU32,
    latency: [AtomicU64; LATENCY_BUCKETS],
    windows: [AtomicU64; WINDOW_BUCKETS],
    vmas: [VmaWords; MAX_VMAS],
}

const COUNTERS: usize = 33;
const _: () = assert!(
    size_of::<StatsRecord>()
        == COUNTERS * 8 + 32 + LATENCY_BUCKETS * 8 + WINDOW_BUCKETS * 8 + MAX_VMAS * 48
);

/// Adds `n` to a counter of a [`StatsRecord`].
pub fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

fn latency_bucket(ns: u64) -> usize {
    let steps = LATENCY_STEPS as u64;
    if ns < steps {
        return ns as usize;
    }
    let exponent = 63 - u64::from(ns.leading_zeros());
    let step = (ns >> (exponent - 4)) & (steps - 1);
    ((exponent - 3) * steps + step).min(LATENCY_BUCKETS as u64 - 1) as usize
}

/// The middle of a bucket, ns.
fn bucket_value(bucket: usize) -> u64 {
    let steps = LATENCY_STEPS;
    if bucket < steps {
        return bucket as u64;
    }
    let exponent = bucket / steps + 3;
    let width = 1u64 << (exponent - 4);
    (1u64 << exponent) + (bucket % steps) as u64 * width + width / 2
}

impl StatsRecord {
    /// Records the service time of one fault.
    pub fn on_fault_served(&self, ns: u64) {
        self.latency[latency_bucket(ns)].fetch_add(1, Relaxed);
        self.fault_ns_max.fetch_max(ns, Relaxed);
    }

    /// Records the size of one readahead window (0 where none was opened).
    pub fn on_window(&self, pages: u32) {
        let bucket = (pages as usize).min(WINDOW_BUCKETS - 1);
        self.windows[bucket].fetch_add(1, Relaxed);
    }

    /// Publishes the registered bytes.
    pub fn set_managed(&self, bytes: u64) {
        self.managed_bytes.store(bytes, Relaxed);
        self.peak_managed_bytes.fetch_max(bytes, Relaxed);
    }

    /// Publishes the bytes of mapped files, and how many of them are resident.
    pub fn set_files(&self, bytes: u64, resident: u64) {
        self.file_resident_bytes.store(resident, Relaxed);
        self.file_bytes.store(bytes, Relaxed);
        self.peak_file_bytes.fetch_max(bytes, Relaxed);
    }

    /// Publishes the resident bytes.
    pub fn set_resident(&self, bytes: u64) {
        self.resident_bytes.store(bytes, Relaxed);
        self.peak_resident_bytes.fetch_max(bytes, Relaxed);
    }

    /// Publishes the largest VMAs; entries beyond [`MAX_VMAS`] are left out. Costs a few stores per VMA: for a few
    /// times a second and the end, not for every fault.
    pub fn set_vmas(&self, vmas: &[VmaStats]) {
        let kept = vmas.len().min(MAX_VMAS);
        for (words, vma) in self.vmas.iter().zip(&vmas[..kept]) {
            words.start.store(vma.start, Relaxed);
            words.bytes.store(vma.bytes, Relaxed);
            words.resident_bytes.store(vma.resident_bytes, Relaxed);
            words.swapped_bytes.store(vma.swapped_bytes, Relaxed);
            words.readahead_pages.store(vma.readahead_pages, Relaxed);
            words.readahead_hits.store(vma.readahead_hits, Relaxed);
        }
        self.vma_count.store(kept as u32, Relaxed);
    }

    pub(super) fn clear(&self) {
        for word in self.counters() {
            word.store(0, Relaxed);
        }
        for word in self.latency.iter().chain(&self.windows) {
            word.store(0, Relaxed);
        }
        self.vma_count.store(0, Relaxed);
        let debt = [
            &self.owed_pages,
            &self.due_pages,
            &self.shared_pages,
            &self.protects,
            &self.asked_pages,
            &self.paid_pages,
            &self.family,
        ];
        for word in debt {
            word.store(0, Relaxed);
        }
    }

    fn counters(&self) -> [&AtomicU64; COUNTERS] {
        [
            &self.managed_bytes,
            &self.peak_managed_bytes,
            &self.resident_bytes,
            &self.peak_resident_bytes,
            &self.faults_major,
            &self.faults_minor,
            &self.faults_zero,
            &self.swap_in_bytes,
            &self.file_in_bytes,
            &self.file_dropped_bytes,
            &self.file_readahead_pages,
            &self.file_readahead_hits,
            &self.file_resident_bytes,
            &self.file_bytes,
            &self.peak_file_bytes,
            &self.swap_out_bytes,
            &self.swap_read_ios,
            &self.swap_write_ios,
            &self.readahead_pages,
            &self.readahead_hits,
            &self.huge_swap_in,
            &self.huge_swap_out,
            &self.huge_splits,
            &self.clean_drops,
            &self.zero_drops,
            &self.filled_drops,
            &self.kswapd_wakeups,
            &self.direct_reclaims,
            &self.refaults,
            &self.engine_bytes,
            &self.channel_bytes,
            &self.fault_ns_max,
            &self.stalled_ns,
        ]
    }

    /// Copies the words out.
    pub fn snapshot(&self) -> StatsSnapshot {
        let get = |word: &AtomicU64| word.load(Relaxed);
        let used = (self.vma_count.load(Relaxed) as usize).min(MAX_VMAS);
        StatsSnapshot {
            managed_bytes: get(&self.peak_managed_bytes),
            peak_resident_bytes: get(&self.peak_resident_bytes),
            faults_major: get(&self.faults_major),
            faults_minor: get(&self.faults_minor),
            faults_zero: get(&self.faults_zero),
            swap_in_bytes: get(&self.swap_in_bytes),
            file_in_bytes: get(&self.file_in_bytes),
            file_dropped_bytes: get(&self.file_dropped_bytes),
            file_readahead_pages: get(&self.file_readahead_pages),
            file_readahead_hits: get(&self.file_readahead_hits),
            file_bytes: get(&self.peak_file_bytes),
            swap_out_bytes: get(&self.swap_out_bytes),
            swap_read_ios: get(&self.swap_read_ios),
            swap_write_ios: get(&self.swap_write_ios),
            readahead_pages: get(&self.readahead_pages),
            readahead_hits: get(&self.readahead_hits),
            huge_swap_in: get(&self.huge_swap_in),
            huge_swap_out: get(&self.huge_swap_out),
            huge_splits: get(&self.huge_splits),
            clean_drops: get(&self.clean_drops),
            zero_drops: get(&self.zero_drops),
            filled_drops: get(&self.filled_drops),
            kswapd_wakeups: get(&self.kswapd_wakeups),
            direct_reclaims: get(&self.direct_reclaims),
            refaults: get(&self.refaults),
            engine_bytes: get(&self.engine_bytes),
            fault_ns_max: get(&self.fault_ns_max),
            stalled_ns: get(&self.stalled_ns),
            latency: self.latency.iter().map(get).collect(),
            windows: self.windows.iter().map(get).collect(),
            vmas: self.vmas[..used]
                .iter()
                .map(|words| VmaStats {
                    start: get(&words.start),
                    bytes: get(&words.bytes),
                    resident_bytes: get(&words.resident_bytes),
                    swapped_bytes: get(&words.swapped_bytes),
                    readahead_pages: get(&words.readahead_pages),
                    readahead_hits: get(&words.readahead_hits),
                })
                .filter(|vma| vma.bytes != 0)
                .collect(),
        }
    }
}

/// One VMA as reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmaStats {
    /// First address.
    pub start: u64,
    /// Length.
    pub bytes: u64,
    /// Bytes resident.
    pub resident_bytes: u64,
    /// Bytes on a swap area.
    pub swapped_bytes: u64,
    /// Pages read ahead of a fault.
    pub readahead_pages: u64,
    /// The touched ones among them.
    pub readahead_hits: u64,
}

/// The final statistics of one process, or of several added together. The fields are those of [`StatsRecord`];
/// `managed_bytes` is the maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StatsSnapshot {
    pub managed_bytes: u64,
    pub peak_resident_bytes: u64,
    pub faults_major: u64,
    pub faults_minor: u64,
    pub faults_zero: u64,
    pub swap_in_bytes: u64,
    pub file_in_bytes: u64,
    pub file_dropped_bytes: u64,
    pub file_readahead_pages: u64,
    pub file_readahead_hits: u64,
    pub file_bytes: u64,
    pub swap_out_bytes: u64,
    pub swap_read_ios: u64,
    pub swap_write_ios: u64,
    pub readahead_pages: u64,
    pub readahead_hits: u64,
    pub huge_swap_in: u64,
    pub huge_swap_out: u64,
    pub huge_splits: u64,
    pub clean_drops: u64,
    pub zero_drops: u64,
    pub filled_drops: u64,
    pub kswapd_wakeups: u64,
    pub direct_reclaims: u64,
    pub refaults: u64,
    pub engine_bytes: u64,
    pub fault_ns_max: u64,
    pub stalled_ns: u64,
    pub latency: Vec<u64>,
    pub windows: Vec<u64>,
    pub vmas: Vec<VmaStats>,
}

impl StatsSnapshot {
    /// Adds the report of another process: counters are summed, the slowest fault is the slower one.
    pub fn add(&mut self, other: &Self) {
        self.managed_bytes += other.managed_bytes;
        self.peak_resident_bytes += other.peak_resident_bytes;
        self.faults_major += other.faults_major;
        self.faults_minor += other.faults_minor;
        self.faults_zero += other.faults_zero;
        self.swap_in_bytes += other.swap_in_bytes;
        self.file_in_bytes += other.file_in_bytes;
        self.file_dropped_bytes += other.file_dropped_bytes;
        self.file_readahead_pages += other.file_readahead_pages;
        self.file_readahead_hits += other.file_readahead_hits;
        self.file_bytes += other.file_bytes;
        self.swap_out_bytes += other.swap_out_bytes;
        self.swap_read_ios += other.swap_read_ios;
        self.swap_write_ios += other.swap_write_ios;
        self.readahead_pages += other.readahead_pages;
        self.readahead_hits += other.readahead_hits;
        self.huge_swap_in += other.huge_swap_in;
        self.huge_swap_out += other.huge_swap_out;
        self.huge_splits += other.huge_splits;
        self.clean_drops += other.clean_drops;
        self.zero_drops += other.zero_drops;
        self.filled_drops += other.filled_drops;
        self.kswapd_wakeups += other.kswapd_wakeups;
        self.direct_reclaims += other.direct_reclaims;
        self.refaults += other.refaults;
        self.engine_bytes += other.engine_bytes;
        self.fault_ns_max = self.fault_ns_max.max(other.fault_ns_max);
        self.stalled_ns += other.stalled_ns;
        add_buckets(&mut self.latency, &other.latency);
        add_buckets(&mut self.windows, &other.windows);
        self.vmas.extend_from_slice(&other.vmas);
    }

    /// The number of faults served in less than 2^`power` ns; the last bucket has no end.
    pub fn faults_within(&self, power: u32) -> u64 {
        let buckets = latency_bucket(1 << power);
        self.latency.iter().take(buckets).sum()
    }

    /// The time of all faults, ns: each counts as the middle of its bucket, which is at most 1/32 off.
    pub fn fault_ns_sum(&self) -> u64 {
        let buckets = self.latency.iter().enumerate();
        buckets.map(|(bucket, n)| n * bucket_value(bucket)).sum()
    }

    /// The latency below which the fraction `p` (0 to 1) of the faults lie, ns; 0 without faults.
    pub fn fault_ns_percentile(&self, p: f64) -> u64 {
        let total: u64 = self.latency.iter().sum();
        let rank = (total as f64 * p).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, n) in self.latency.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return bucket_value(bucket).min(self.fault_ns_max);
            }
        }
        0
    }
}

fn add_buckets(sum: &mut Vec<u64>, more: &[u64]) {
    if sum.len() < more.len() {
        sum.resize(more.len(), 0);
    }
    for (total, n) in sum.iter_mut().zip(more) {
        *total += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lands_within_six_percent() {
        let mut ns = 1u64;
        while ns < 1 << 39 {
            for v in [ns, ns + ns / 3, ns + ns / 2] {
                let told = bucket_value(latency_bucket(v));
                let off = told.abs_diff(v) as f64 / v as f64;
                assert!(off <= 0.0626, "{v} ns told as {told}");
            }
            ns *= 2;
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
    }

    #[test]
    fn percentiles_of_a_sum_of_processes() {
        let mut sum = StatsSnapshot::default();
        assert_eq!(sum.fault_ns_percentile(0.5), 0);
        let mut one = StatsSnapshot {
            latency: vec![0; LATENCY_BUCKETS],
            fault_ns_max: 1_000_000,
            ..Default::default()
        };
        one.latency[latency_bucket(1000)] = 99;
        one.latency[latency_bucket(1_000_000)] = 1;
        sum.add(&one);
        sum.add(&one);
        assert!(sum.fault_ns_percentile(0.5).abs_diff(1000) < 62);
        assert!(sum.fault_ns_percentile(0.99).abs_diff(1000) < 62);
        assert!(sum.fault_ns_percentile(1.0).abs_diff(1_000_000) < 62_000);
        assert!(sum.fault_ns_percentile(1.0) <= 1_000_000);
        let within = [9, 10, 19, 20].map(|power| sum.faults_within(power));
        assert_eq!(within, [0, 198, 198, 200]);
        assert!(sum.fault_ns_sum().abs_diff(2_198_000) < 2_198_000 / 32);
    }
}
