//! What a peer's memory management and the device did in the measured passes alone.
//!
//! What they tell when all is over is of the filling and the check as well. So they are asked
//! when the workload says that its passes begin and end (`usemem/marks.rs`), and the difference
//! is kept: `pass_in_bytes` and `pass_out_bytes` as the memory management counts them (a page is
//! counted when it is read from the area, whether or not it is used), `pass_device_read_bytes`
//! and `pass_device_written_bytes` as the area's device does, anybody's.

use crate::system::device::Device;
use crate::usemem::Moment;

use super::Figures;

/// Bytes that came in and went out since some moment long ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// From the area.
    pub in_bytes: u64,
    /// To the area.
    pub out_bytes: u64,
}

/// Counts at the beginning and at the end of the passes.
pub struct Passes<'a> {
    device: Option<&'a Device>,
    begin: Option<Figures>,
    end: Option<Figures>,
}

impl<'a> Passes<'a> {
    /// Nothing yet; `device` is the one under the area, if one is.
    pub fn new(device: Option<&'a Device>) -> Self {
        Self {
            device,
            begin: None,
            end: None,
        }
    }

    /// Counts at a moment; `moved` is what the memory management tells, if it does.
    pub fn count(&mut self, moment: Moment, moved: Option<Moved>) {
        let mut figures = Figures::new();
        let mut put = |name: &str, bytes: u64| figures.insert(name.to_owned(), bytes as f64);
        if let Some(moved) = moved {
            put("pass_in_bytes", moved.in_bytes);
            put("pass_out_bytes", moved.out_bytes);
        }
        if let Some(counters) = self.device.and_then(Device::counters) {
            put("pass_device_read_bytes", counters.read_bytes);
            put("pass_device_written_bytes", counters.written_bytes);
        }
        match moment {
            Moment::Begin => self.begin = Some(figures),
            Moment::End => self.end = Some(figures),
        }
    }

    /// What was counted from the beginning to the end.
    pub fn figures(self) -> Figures {
        let (Some(begin), Some(end)) = (self.begin, self.end) else {
            return Figures::new();
        };
        let since = |(name, now): (String, f64)| {
            let then = begin.get(&name)?;
            Some((name, (now - then).max(0.0)))
        };
        end.into_iter().filter_map(since).collect()
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
        passes.count(Moment::Begin, moved(4096, 1 << 20));
        passes.count(Moment::End, moved(12_288, 1 << 20));
        let figures = passes.figures();
        assert_eq!(figures["pass_in_bytes"], 8192.0);
        assert_eq!(figures["pass_out_bytes"], 0.0);
        assert_eq!(figures.len(), 2);
    }

    #[test]
    fn nothing_is_told_of_passes_that_were_not_counted_twice() {
        let mut passes = Passes::new(None);
        passes.count(Moment::Begin, None);
        assert!(passes.figures().is_empty());
        let mut passes = Passes::new(None);
        passes.count(Moment::Begin, None);
        let moved = Moved {
            in_bytes: 1,
            out_bytes: 1,
        };
        passes.count(Moment::End, Some(moved));
        assert!(passes.figures().is_empty());
    }
}
