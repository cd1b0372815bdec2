//! The figures of a run over time: a bounded number of samples, at regular intervals.
//!
//! When there are too many, every second one is dropped and the interval doubles. Counters are sums since the start, so
//! nothing that happened between two samples is lost; of what goes up and down, the most is kept.

use std::time::Duration;

/// The most samples.
const MOST: usize = 480;
/// The first interval.
const FIRST: Duration = Duration::from_millis(50);

/// The run at a moment. Counters are sums over all processes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Since the start.
    pub at: Duration,
    /// The memory limit.
    pub limit_bytes: u64,
    /// Managed memory that counts towards it.
    pub held_bytes: u64,
    /// Memory that is not managed, at the last look.
    pub unmanaged_bytes: u64,
    /// Used bytes of the areas.
    pub swapped_bytes: u64,
    /// Faults that waited for an area or a file.
    pub faults_major: u64,
    /// Faults served from memory.
    pub faults_minor: u64,
    /// Faults served with zeros.
    pub faults_zero: u64,
    /// Bytes read from areas.
    pub in_bytes: u64,
    /// Bytes read from mapped files.
    pub file_in_bytes: u64,
    /// Bytes written to areas.
    pub out_bytes: u64,
    /// Time in which a thread waited for a page that more memory would have kept, summed over processes.
    pub stalled_ns: u64,
}

/// The samples of a run.
#[derive(Clone, Debug)]
pub struct Timeline {
    samples: Vec<Sample>,
    every: Duration,
    due: Duration,
    limit_changed: bool,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            samples: Vec::new(),
            every: FIRST,
            due: Duration::ZERO,
            limit_changed: false,
        }
    }
}

impl Timeline {
    /// How soon the next sample is due, `now` after the start.
    pub fn due_in(&self, now: Duration) -> Duration {
        self.due.saturating_sub(now)
    }

    /// Adds a sample. Times do not fall.
    pub fn push(&mut self, sample: Sample) {
        let last = self.samples.last();
        self.limit_changed |= last.is_some_and(|last| last.limit_bytes != sample.limit_bytes);
        self.samples.push(sample);
        if self.samples.len() > MOST {
            self.halve();
        }
        self.due = sample.at + self.every;
    }

    /// The last one stays as it is.
    fn halve(&mut self) {
        self.every *= 2;
        let mut kept = vec![self.samples[0]];
        for pair in self.samples[1..].chunks(2) {
            let mut last = pair[pair.len() - 1];
            for sample in pair {
                last.held_bytes = last.held_bytes.max(sample.held_bytes);
                last.unmanaged_bytes = last.unmanaged_bytes.max(sample.unmanaged_bytes);
                last.swapped_bytes = last.swapped_bytes.max(sample.swapped_bytes);
            }
            kept.push(last);
        }
        self.samples = kept;
    }

    /// The samples, by time.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Whether two samples in succession had different limits.
    pub fn limit_changed(&self) -> bool {
        self.limit_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_a_week_has_as_many_samples_as_one_of_a_minute() {
        let mut timeline = Timeline::default();
        let week = Duration::from_secs(7 * 86_400);
        let (mut now, mut taken) = (Duration::ZERO, 0);
        while now < week {
            assert!(timeline.due_in(now).is_zero());
            taken += 1;
            timeline.push(Sample {
                at: now,
                held_bytes: if taken == 1000 { 77 } else { 7 },
                faults_major: taken,
                ..Sample::default()
            });
            now += timeline.due_in(now);
        }
        let samples = timeline.samples();
        assert!(
            (MOST / 2..=MOST).contains(&samples.len()),
            "{}",
            samples.len()
        );
        assert!(samples.is_sorted_by(|a, b| a.at < b.at && a.faults_major < b.faults_major));
        assert_eq!(samples[0].at, Duration::ZERO);
        assert_eq!(samples.last().map(|last| last.faults_major), Some(taken));
        // The peak of a moment is kept.
        assert_eq!(
            samples.iter().map(|sample| sample.held_bytes).max(),
            Some(77)
        );
        assert!(!timeline.limit_changed());
    }
}
