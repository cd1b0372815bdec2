//! How far a stream is read ahead: as many bytes as the store delivers in its latency. Pure; the times are the caller's.
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

use std::time::Duration;

/// The window before anything is known, and the least.
const LEAST: u64 = 4 << 20;
/// The least, in time: two ticks of a kernel with 250 Hz. So long the reader or the thread that starts reads may be off
/// the processor, while the store goes on.
const UNATTENDED: Duration = Duration::from_millis(8);
/// The most bytes of a window.
const MOST: u64 = 64 << 20;
/// Reads of which the highest rate counts, in groups that are forgotten as a whole.
const GROUP: usize = 32;
const GROUPS: usize = 4;
/// The shortest time in which a rate is measured: completions come in bursts.
const BURST: Duration = Duration::from_millis(1);
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
    at: Duration,
    delivered: u64,
    idle: bool,
}

/// What was measured of a store.
#[derive(Clone, Debug, Default)]
pub struct Pipe {
    delivered: u64,
    in_flight: u64,
    reads: usize,
    /// The highest rate of each group.
    rates: [f64; GROUPS],
    latencies: [Option<Duration>; IDLE_READS],
    idle_reads: usize,
    /// The rate when it last grew, the windows that arrived since then, and what is missing of another.
    base: f64,
    windows: u32,
    missing: u64,
}

impl Pipe {
    /// A read starts at this time of any clock that never goes back.
    pub fn on_start(&mut self, at: Duration) -> Started {
        self.in_flight += 1;
        Started {
            at,
            delivered: self.delivered,
            idle: self.in_flight == 1,
        }
    }

    /// A read has ended, with so many bytes; 0 if it failed.
    pub fn on_end(&mut self, started: Started, at: Duration, bytes: u64) {
        self.in_flight -= 1;
        if bytes == 0 {
            return;
        }
        self.delivered += bytes;
        let time = at.saturating_sub(started.at);
        let rate = (self.delivered - started.delivered) as f64 / time.max(BURST).as_secs_f64();
        let group = self.reads / GROUP % GROUPS;
        if self.reads.is_multiple_of(GROUP) {
            self.rates[group] = 0.0;
        }
        self.rates[group] = self.rates[group].max(rate);
        self.reads += 1;
        self.judge_growth(bytes);
        if started.idle {
            self.latencies[self.idle_reads % IDLE_READS] = Some(time);
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
    pub fn measured(&self) -> Option<(f64, Duration)> {
        let latency = self.latencies.iter().flatten().min()?;
        Some((self.rate(), *latency))
    }

    /// The bytes of a window.
    pub fn window(&self) -> u64 {
        let Some((rate, latency)) = self.measured() else {
            return LEAST;
        };
        let times = if self.windows < WINDOWS {
            GROWING
        } else {
            STEADY
        };
        let bytes = rate * (times * latency.as_secs_f64()).max(UNATTENDED.as_secs_f64());
        (bytes as u64).clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A reader that keeps a window in flight, in transfers of 512 KiB, on a store with this latency and bandwidth, and
    /// itself takes `reader` bytes a second. Returns the achieved part of what the slower of both can do, and the window.
    fn run(latency: Duration, bandwidth: f64, reader: f64) -> (f64, u64) {
        const TRANSFER: u64 = 512 << 10;
        const TOTAL: u64 = 4 << 30;
        let mut pipe = Pipe::default();
        let mut flights: VecDeque<(Started, Duration)> = VecDeque::new();
        let (mut now, mut link_free) = (Duration::ZERO, Duration::ZERO);
        let of = |rate: f64| Duration::from_secs_f64(TRANSFER as f64 / rate);
        let (mut begun, mut arrived, mut half) = (0, 0, Duration::ZERO);
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
        let rate = (TOTAL / 2) as f64 / (now - half).as_secs_f64();
        (rate / bandwidth.min(reader), pipe.window())
    }

    #[test]
    fn the_window_fills_pipes_of_any_latency() {
        let latencies = [100, 1000, 20_000].into_iter();
        for (micros, rate) in latencies.flat_map(|micros| [(micros, 1e8), (micros, 1e9)]) {
            let (part, window) = run(Duration::from_micros(micros), rate, 8e9);
            let product = rate * micros as f64 / 1e6;
            assert!(
                part > 0.95,
                "{micros} us, {rate} bytes/s: {part} of the bandwidth, window {window}"
            );
            let most = (2.0 * product + rate * 2.0 * UNATTENDED.as_secs_f64()).max(LEAST as f64);
            assert!(
                window as f64 <= most,
                "{micros} us, {rate} bytes/s: a window of {window} for {product}"
            );
        }
    }

    #[test]
    fn a_slow_reader_needs_no_large_window() {
        let (part, window) = run(Duration::from_millis(20), 1e9, 1e8);
        assert!(part > 0.9, "{part}");
        assert!(window < 16 << 20, "{window}");
    }

    #[test]
    fn a_store_that_becomes_slower_is_noticed() {
        let (mut pipe, mut at) = (Pipe::default(), Duration::ZERO);
        let mut read = |pipe: &mut Pipe, time, bytes| {
            let started = pipe.on_start(at);
            at += time;
            pipe.on_end(started, at, bytes);
        };
        let (quick, slow) = (Duration::from_millis(20), Duration::from_millis(80));
        (0..200).for_each(|_| read(&mut pipe, quick, 4 << 20));
        assert_eq!(pipe.window(), 5 << 20);
        (0..200).for_each(|_| read(&mut pipe, slow, 4 << 20));
        let (rate, latency) = pipe.measured().expect("reads");
        assert_eq!(latency, slow);
        assert!(rate < 60e6, "the old rate is forgotten: {rate}");
        // A failure says nothing.
        read(&mut pipe, Duration::from_micros(1), 0);
        assert_eq!(pipe.measured(), Some((rate, latency)));
    }
}
