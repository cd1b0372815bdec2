//! The three defects of background reclaim that seed 001 repairs, by name.

use core::fmt;

/// The defects that are on. None by default: that is the repaired variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Defects {
    /// `strict-zone-check`: the test before sleeping requires every zone to be balanced, while reclaim is content with
    /// one. Reclaim that has nothing left to do is kept awake.
    pub strict_zone_check: bool,
    /// `early-flag-clear`: the node's flags (congested, dirty, under writeback) are cleared as soon as one zone is
    /// found balanced, not when the node is.
    pub early_flag_clear: bool,
    /// `zero-classzone`: "no request" looks like a request for zone 0. A balanced lowest zone is then enough for sleep,
    /// however short the requested zones are.
    pub zero_classzone: bool,
}

/// A name that is not the name of a defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownDefect;

impl fmt::Display for UnknownDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected one of {}, or \"base\" for all",
            Defects::NAMES.join(", ")
        )
    }
}

impl core::error::Error for UnknownDefect {}

impl Defects {
    /// Their names, in the order of the seed's patches.
    pub const NAMES: [&'static str; 3] =
        ["strict-zone-check", "early-flag-clear", "zero-classzone"];

    /// All three: the base with which the seed compares.
    pub const BASE: Defects = Defects {
        strict_zone_check: true,
        early_flag_clear: true,
        zero_classzone: true,
    };

    /// Switches one on, or all with `base`.
    ///
    /// # Errors
    ///
    /// There is no defect of this name.
    pub fn with(mut self, name: &str) -> Result<Self, UnknownDefect> {
        match name {
            "strict-zone-check" => self.strict_zone_check = true,
            "early-flag-clear" => self.early_flag_clear = true,
            "zero-classzone" => self.zero_classzone = true,
            "base" => self = Defects::BASE,
            _ => return Err(UnknownDefect),
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn each_is_switched_by_its_name() {
        let mut all = Defects::default();
        for name in Defects::NAMES {
            let one = Defects::default().with(name).expect("known");
            assert_ne!(one, Defects::default());
            all = all.with(name).expect("known");
        }
        assert_eq!(all, Defects::BASE);
        assert_eq!(Defects::default().with("base"), Ok(Defects::BASE));
        let error = Defects::default().with("strict").expect_err("unknown");
        assert!(error.to_string().contains("strict-zone-check"));
    }
}
