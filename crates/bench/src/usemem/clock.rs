//! A clock cheap enough to be read twice per page.
//!
//! A stream that moves huge pages whole takes about a microsecond per page. Two calls of `clock_gettime` (about 30 ns
//! each on a virtual machine) would be a visible part of the measured time. If the processor has a time-stamp counter
//! that the kernel itself trusts as its clock source, it is read instead (under 10 ns) and converted by a factor
//! calibrated once. Otherwise `clock_gettime` is used. [`Clock::name`] tells which.

use std::time::{Duration, Instant};

/// How long the calibration spins; its error is a clock reading's jitter over this.
const CALIBRATION: Duration = Duration::from_millis(5);
/// Binary digits after the point of the factor.
const FRACTION: u32 = 24;

/// A monotonic clock in ticks of its own.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    /// The time-stamp counter, and nanoseconds per tick with `FRACTION` binary digits.
    Counter(u64),
    /// `clock_gettime`, from an origin.
    System(Instant),
}

impl Clock {
    /// The best clock of this machine, calibrated.
    pub fn calibrated() -> Self {
        const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let trusted = std::fs::read_to_string(SOURCE).is_ok_and(|s| s.trim() == "tsc");
        match (trusted, ticks()) {
            (true, Some(first)) => {
                let start = Instant::now();
                while start.elapsed() < CALIBRATION {
                    std::hint::spin_loop();
                }
                let ns = start.elapsed().as_nanos() as u64;
                let passed = ticks().unwrap_or(first).wrapping_sub(first).max(1);
                Self::Counter(((u128::from(ns) << FRACTION) / u128::from(passed)) as u64)
            }
            _ => Self::System(Instant::now()),
        }
    }

    /// The present moment, in ticks.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        match self {
            Self::Counter(_) => ticks().unwrap_or(0),
            Self::System(origin) => origin.elapsed().as_nanos() as u64,
        }
    }

    /// Nanoseconds between two moments of this clock.
    #[inline(always)]
    pub fn between(&self, from: u64, to: u64) -> u64 {
        let ticks = to.saturating_sub(from);
        match self {
            Self::Counter(factor) => ((u128::from(ticks) * u128::from(*factor)) >> FRACTION) as u64,
            Self::System(_) => ticks,
        }
    }

    /// The name of the clock, for the report.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Counter(_) => "time-stamp counter, every touch",
            Self::System(_) => "clock_gettime, every touch",
        }
    }
}

/// The time-stamp counter, if there is one. It needs no fence: an access that faults is taken before anything younger
/// is kept, and only faults count here.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ticks() -> Option<u64> {
    // SAFETY: RDTSC is part of x86-64; it reads a register and touches no memory.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_agree() {
        for clock in [Clock::calibrated(), Clock::System(Instant::now())] {
            let (start, first) = (Instant::now(), clock.now());
            std::thread::sleep(Duration::from_millis(20));
            let measured = clock.between(first, clock.now()) as f64;
            let real = start.elapsed().as_nanos() as f64;
            assert!(
                (measured / real - 1.0).abs() < 0.05,
                "{clock:?}: {measured} {real}"
            );
        }
    }
}
