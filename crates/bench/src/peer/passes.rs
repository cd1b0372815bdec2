//! The I/O of a peer's memory management and of the device in the measured passes alone.
//!
//! Their totals at the end include the fill and the check. Their counters are therefore read at the moments that the
//! workload reports (`usemem/marks.rs`), and the differences are kept. Those of the measured passes are `pass_in_bytes`
//! and `pass_out_bytes`, as the memory management counts them (a page counts when it is read from the area, whether or
//! not it is used), and `pass_device_read_bytes` and `pass_device_written_bytes`, as the area's device counts them, for
//! all processes. The figures of the fill begin with `fill_`, those of the part of it with more than the limit in use
//! with `over_`, those of everything before the passes with `before_`.

use std::collections::BTreeMap;

use crate::system::device::Device;
use crate::usemem::Moment;

use super::Figures;

/// Bytes read and written since an arbitrary start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// From the area.
    pub in_bytes: u64,
    /// To the area.
    pub out_bytes: u64,
}

/// Counts at the moments.
pub struct Passes<'a> {
    device: Option<&'a Device>,
    counts: BTreeMap<Moment, Figures>,
}

/// The spans and the moments that bound them.
const SPANS: [(&str, Moment, Moment); 4] = [
    ("fill", Moment::Start, Moment::Filled),
    ("over", Moment::Full, Moment::Filled),
    ("before", Moment::Start, Moment::Begin),
    ("pass", Moment::Begin, Moment::End),
];

impl<'a> Passes<'a> {
    /// No counts yet; `device` is the one under the area, if any.
    pub fn new(device: Option<&'a Device>) -> Self {
        Self {
            device,
            counts: BTreeMap::new(),
        }
    }

    /// Counts at a moment; `moved` is the count of the memory management, if it has one.
    pub fn count(&mut self, moment: Moment, moved: Option<Moved>) {
        let mut figures = Figures::new();
        let mut put = |name: &str, bytes: u64| figures.insert(name.to_owned(), bytes as f64);
        if let Some(moved) = moved {
            put("in_bytes", moved.in_bytes);
            put("out_bytes", moved.out_bytes);
        }
        if let Some(counters) = self.device.and_then(Device::counters) {
            put("device_read_bytes", counters.read_bytes);
            put("device_written_bytes", counters.written_bytes);
        }
        self.counts.insert(moment, figures);
    }

    /// The counts between the moments.
    pub fn figures(&self) -> Figures {
        let mut figures = Figures::new();
        for (span, from, to) in SPANS {
            let (Some(from), Some(to)) = (self.counts.get(&from), self.counts.get(&to)) else {
                continue;
            };
            let since = |(name, now): (&String, &f64)| {
                let then = from.get(name)?;
                Some((format!("{span}_{name}"), (now - then).max(0.0)))
            };
            figures.extend(to.iter().filter_map(since));
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_moved_between_the_moments_counts() {
        let moved = |in_bytes, out_bytes| {
            Some(Moved {
                in_bytes,
                out_bytes,
            })
        };
        let mut passes = Passes::new(None);
        passes.count(Moment::Start, moved(0, 5));
        passes.count(Moment::Full, moved(0, 6));
        passes.count(Moment::Filled, moved(0, 1 << 19));
        passes.count(Moment::Begin, moved(4096, 1 << 20));
        passes.count(Moment::End, moved(12_288, 1 << 20));
        let figures = passes.figures();
        assert_eq!(figures["pass_in_bytes"], 8192.0);
        assert_eq!(figures["pass_out_bytes"], 0.0);
        assert_eq!(figures["fill_out_bytes"], f64::from((1 << 19) - 5));
        assert_eq!(figures["over_out_bytes"], f64::from((1 << 19) - 6));
        assert_eq!(figures["before_out_bytes"], f64::from((1 << 20) - 5));
        assert_eq!(figures.len(), 8);
    }

    #[test]
    fn nothing_is_told_of_what_was_not_counted_twice() {
        let moved = Moved {
            in_bytes: 1,
            out_bytes: 1,
        };
        let mut passes = Passes::new(None);
        passes.count(Moment::Begin, None);
        assert!(passes.figures().is_empty());
        passes.count(Moment::End, Some(moved));
        assert!(passes.figures().is_empty());
    }
}
