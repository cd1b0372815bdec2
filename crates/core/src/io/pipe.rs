//! How far ahead streams of a store are read: as many bytes as the store delivers in its latency. The engine has a pipe for
//! each swap area and file system, `CachedFile` one for each file.
//!
//! A store is a pipe. It delivers at full rate when the bytes in flight are at least its bandwidth times its latency.
//! Both are measured from completed reads, much as TCP BBR measures a path: the bandwidth is the highest rate at which
//! bytes arrived between the start and the end of one of the last reads, whichever reads they belonged to. The latency
//! is the lowest of the last reads that started on an idle store: any other time contains a queue, and a window that
//! grew with it would make the queue longer.
//!
//! A window of three times the product lets the measured rate grow threefold if the window was what bounded it, so it grows until the
//! store or the reader is the bound. When the rate has not grown for some windows, a quarter more than the product is
//! enough: what is above it waits in the store's queue, where it delays other reads, and is lost when the stream ends.
//! No window is less than what the store delivers in the time for which the kernel may let a thread wait.
//! The latency of a store that changes while it is never idle is not seen: it counts from the next pause of the stream on.

use crate::units::Nanos;

const SECOND: f64 = 1e9;
/// The least, in time: two ticks of a kernel with 250 Hz. So long the reader or the thread that starts reads may be off
/// the processor, while the store goes on.
const UNATTENDED: Nanos = 8_000_000;
/// The most bytes of a window.
const MOST: u64 = 64 << 20;
/// Reads of which the highest rate counts, in groups that are forgotten as a whole.
const GROUP: usize = 32;
const GROUPS: usize = 4;
/// The shortest time in which a rate is measured: completions come in bursts.
const BURST: Nanos = 1_000_000;
/// A window of this multiple of the product, while the rate grows, and when it does not.
const GROWING: f64 = 3.0;
const STEADY: f64 = 1.25;
/// The rate grows if it is so many times what it was, in one of so many windows.
const GROWTH: f64 = 1.25;
const WINDOWS: u32 = 3;
/// Reads of an idle store of which the lowest latency counts.
const IDLE_READS: usize = 8;

/// The start of a read.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    at: Nanos,
    delivered: u64,
    idle: bool,
}

/// What was measured of a store.
#[derive(Clone, Debug, Default)]
pub struct Pipe {
    /// The bytes of a window before anything is known, and the least.
    least: u64,
    delivered: u64,
    in_flight: u64,
    ended_at: Nanos,
    reads: usize,
    /// The highest rate of each group.
    rates: [f64; GROUPS],
    /// The time and the bytes of the last reads of an idle store.
    latencies: [Option<(Nanos, u64)>; IDLE_READS],
    idle_reads: usize,
    /// The rate when it last grew, the windows that arrived since then, and what is missing of another.
    base: f64,
    windows: u32,
    missing: u64,
}

impl Pipe {
    /// A store of which nothing is known; no window has fewer than `least` bytes.
    pub fn new(least: u64) -> Self {
        Pipe {
            least,
            ..Pipe::default()
        }
    }

    /// A read starts at this time of any clock that never goes back.
    pub fn on_start(&mut self, at: Nanos) -> Started {
        self.in_flight += 1;
        Started {
            at,
            delivered: self.delivered,
            idle: self.in_flight == 1,
        }
    }

    /// A read has ended, with so many bytes; 0 if it failed.
    pub fn on_end(&mut self, started: Started, at: Nanos, bytes: u64) {
        self.in_flight -= 1;
        self.ended_at = at;
        if bytes == 0 {
            return;
        }
        self.delivered += bytes;
        let time = at.saturating_sub(started.at);
        let delivered = (self.delivered - started.delivered) as f64;
        let rate = delivered * SECOND / time.max(BURST) as f64;
        let group = self.reads / GROUP % GROUPS;
        if self.reads.is_multiple_of(GROUP) {
            self.rates[group] = 0.0;
        }
        self.rates[group] = self.rates[group].max(rate);
        self.reads += 1;
        self.judge_growth(bytes);
        if started.idle {
            self.latencies[self.idle_reads % IDLE_READS] = Some((time, bytes));
            self.idle_reads += 1;
        }
    }

    /// So many bytes have arrived.
    fn judge_growth(&mut self, bytes: u64) {
        let rate = self.rate();
        if rate > self.base * GROWTH {
            (self.base, self.windows, self.missing) = (rate, 0, self.window());
        }
        // The store or the reader has become slower; what it was is no measure.
        self.base = self.base.min(rate);
        self.missing = self.missing.saturating_sub(bytes);
        if self.missing == 0 {
            self.windows = self.windows.saturating_add(1);
            self.missing = self.window();
        }
    }

    fn rate(&self) -> f64 {
        self.rates.into_iter().fold(0.0, f64::max)
    }

    /// The measured bandwidth, in bytes per second, and latency; `None` before the first read.
    pub fn measured(&self) -> Option<(f64, Nanos)> {
        let times = self.latencies.iter().flatten().map(|&(time, _)| time);
        Some((self.rate(), times.min()?))
    }

    /// What is left of the latency without the transfer of the bytes: the way to the store; 0 before the first read.
    pub fn way(&self) -> Nanos {
        let rate = self.rate().max(1.0);
        let transfer = |bytes: u64| (bytes as f64 * SECOND / rate) as Nanos;
        let reads = self.latencies.iter().flatten();
        let ways = reads.map(|&(time, bytes)| time.saturating_sub(transfer(bytes)));
        ways.min().unwrap_or(0)
    }

    /// Whether a read is in flight, or has ended since.
    pub fn was_used(&self, since: Nanos) -> bool {
        self.in_flight > 0 || self.ended_at >= since
    }

    /// How far ahead of its reader a stream may be, in time: no reader needs a window that it does not use up in that.
    pub fn horizon(&self) -> Nanos {
        let latency = self.measured().map_or(0, |(_, latency)| latency);
        ((GROWING * latency as f64) as Nanos).max(UNATTENDED)
    }

    /// The bytes of a window.
    pub fn window(&self) -> u64 {
        let Some((rate, latency)) = self.measured() else {
            return self.least;
        };
        let times = if self.windows < WINDOWS {
            GROWING
        } else {
            STEADY
        };
        let time = (times * latency as f64).max(UNATTENDED as f64);
        ((rate * time / SECOND) as u64).min(MOST).max(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    const LEAST: u64 = 4 << 20;
    const MICRO: Nanos = 1000;
    const MILLI: Nanos = 1_000_000;

    /// A reader that keeps a window in flight, in transfers of 512 KiB, on a store with this latency and bandwidth, and
    /// itself takes `reader` bytes a second. Returns the achieved part of what the slower of both can do, and the window.
    fn run(latency: Nanos, bandwidth: f64, reader: f64) -> (f64, u64) {
        const TRANSFER: u64 = 512 << 10;
        const TOTAL: u64 = 4 << 30;
        let mut pipe = Pipe::new(LEAST);
        let mut flights: VecDeque<(Started, Nanos)> = VecDeque::new();
        let (mut now, mut link_free) = (0, 0);
        let of = |rate: f64| (TRANSFER as f64 * SECOND / rate) as Nanos;
        let (mut begun, mut arrived, mut half) = (0, 0, 0);
        for read in 0..TOTAL / TRANSFER {
            while begun < TOTAL && begun < read * TRANSFER + pipe.window() {
                link_free = link_free.max(now) + of(bandwidth);
                flights.push_back((pipe.on_start(now), link_free + latency));
                begun += TRANSFER;
            }
            while arrived <= read || flights.front().is_some_and(|(_, end)| *end <= now) {
                let (started, end) = flights.pop_front().expect("a window holds a transfer");
                now = now.max(end);
                pipe.on_end(started, end, TRANSFER);
                arrived += 1;
            }
            now += of(reader);
            if read == TOTAL / TRANSFER / 2 {
                half = now;
            }
        }
        let rate = (TOTAL / 2) as f64 * SECOND / (now - half) as f64;
        (rate / bandwidth.min(reader), pipe.window())
    }

    #[test]
    fn the_window_fills_pipes_of_any_latency() {
        let latencies = [100, 1000, 20_000].into_iter();
        for (micros, rate) in latencies.flat_map(|micros| [(micros, 1e8), (micros, 1e9)]) {
            let (part, window) = run(micros * MICRO, rate, 8e9);
            let product = rate * micros as f64 / 1e6;
            assert!(
                part > 0.95,
                "{micros} us, {rate} bytes/s: {part} of the bandwidth, window {window}"
            );
            let most = (2.0 * product + rate * 2.0 * UNATTENDED as f64 / SECOND).max(LEAST as f64);
            assert!(
                window as f64 <= most,
                "{micros} us, {rate} bytes/s: a window of {window} for {product}"
            );
        }
    }

    #[test]
    fn large_reads_of_a_near_store_have_a_short_way() {
        let mut pipe = Pipe::default();
        assert_eq!(pipe.way(), 0);
        let mut read = |time: Nanos, bytes| {
            let started = pipe.on_start(0);
            pipe.on_end(started, time, bytes);
        };
        // 100 us, and 1 GB/s.
        read(2 * MILLI + 100 * MICRO, 2_000_000);
        read(8 * MILLI + 100 * MICRO, 8_000_000);
        let way = pipe.way();
        assert!(way < 130 * MICRO, "{way}");
    }

    #[test]
    fn a_slow_reader_needs_no_large_window() {
        let (part, window) = run(20 * MILLI, 1e9, 1e8);
        assert!(part > 0.9, "{part}");
        assert!(window < 16 << 20, "{window}");
    }

    #[test]
    fn a_store_that_becomes_slower_is_noticed() {
        let (mut pipe, mut at) = (Pipe::new(LEAST), 0);
        let mut read = |pipe: &mut Pipe, time: Nanos, bytes| {
            let started = pipe.on_start(at);
            at += time;
            pipe.on_end(started, at, bytes);
        };
        let (quick, slow) = (20 * MILLI, 80 * MILLI);
        (0..200).for_each(|_| read(&mut pipe, quick, 4 << 20));
        assert_eq!(pipe.window(), 5 << 20);
        (0..200).for_each(|_| read(&mut pipe, slow, 4 << 20));
        let (rate, latency) = pipe.measured().expect("reads");
        assert_eq!(latency, slow);
        assert!(rate < 60e6, "the old rate is forgotten: {rate}");
        // A failure says nothing.
        read(&mut pipe, MICRO, 0);
        assert_eq!(pipe.measured(), Some((rate, latency)));
    }
}
