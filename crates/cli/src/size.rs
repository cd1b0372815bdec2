//! Sizes and durations of the command line, parsed and printed.
//!
//! `512M`, `1.5G`, `64KiB` (powers of two, whatever the spelling), bare bytes, and `40%` of the available memory.
//! Errors name the value, the expected form, and an example.

use std::str::FromStr;
use std::time::Duration;

/// A size from the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A fraction (0 to 1) of the available memory.
    OfMemory(f64),
}

/// Why a size or duration was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a unit.
    #[error("expected a size such as 512M, 1.5G, 64KiB, a number of bytes, or 40% of memory")]
    Size,
    /// Below 0 % or above 100 %.
    #[error("expected a percentage above 0% and up to 100%, such as 40%")]
    Percentage,
    /// More than an address space.
    #[error("larger than any memory; expected a size such as 512M or 1.5G")]
    TooLarge,
    /// Nothing at all.
    #[error("zero; expected a size such as 512M or 1.5G")]
    Zero,
    /// Not a time.
    #[error("expected a duration such as 10s, 500ms, 2m, or 0 for none")]
    Duration,
}

impl Size {
    /// In bytes, with `memory` bytes available.
    pub fn resolve(self, memory: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::OfMemory(fraction) => (memory as f64 * fraction) as u64,
        }
    }
}

/// A plain decimal number: no sign, no exponent, no `inf`.
fn number(digits: &str) -> Option<f64> {
    let plain = |c: u8| c.is_ascii_digit() || c == b'.';
    let has_digit = digits.bytes().any(|c| c.is_ascii_digit());
    (has_digit && digits.bytes().all(plain))
        .then(|| digits.parse().ok())
        .flatten()
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    (digits, unit.trim())
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let (digits, unit) = split_unit(text.trim());
        let number = number(digits).ok_or(SizeError::Size)?;
        let shift = match unit.to_ascii_lowercase().as_str() {
            "%" if number > 0.0 && number <= 100.0 => return Ok(Self::OfMemory(number / 100.0)),
            "%" => return Err(SizeError::Percentage),
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(SizeError::Size),
        };
        let bytes = number * (1u64 << shift) as f64;
        if bytes >= (1u64 << 47) as f64 {
            return Err(SizeError::TooLarge);
        }
        if bytes < 1.0 {
            return Err(SizeError::Zero);
        }
        Ok(Self::Bytes(bytes as u64))
    }
}

/// Parses `10s`, `500ms`, `2m`, `1h`, `0`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, SizeError> {
    let (digits, unit) = split_unit(text.trim());
    let number = number(digits).ok_or(SizeError::Duration)?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(SizeError::Duration),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| SizeError::Duration)
}

/// A readable size: at most four characters and the unit.
pub fn humane(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1u64 << shift) as f64;
            let whole = bytes.is_multiple_of(1 << shift) || value >= 100.0;
            return if whole {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
    }
    format!("{bytes} B")
}

/// A size without rounding, in the largest unit of which it is a multiple, or one and a half and so on.
pub fn exact(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits =
        |&&(_, shift): &&(&str, u32)| bytes >= 1 << shift && bytes.is_multiple_of(1 << (shift - 1));
    let Some((unit, shift)) = UNITS.iter().find(fits) else {
        return format!("{bytes} B");
    };
    let half = if bytes.is_multiple_of(1 << shift) {
        ""
    } else {
        ".5"
    };
    format!("{}{half} {unit}", bytes >> shift)
}

/// A readable time.
pub fn humane_ns(ns: u64) -> String {
    let value = ns as f64;
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (value / 1e3, "µs"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    if value >= 100.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sizes_can_be_typed() {
        let mib = |n: u64| exact(n << 20);
        assert_eq!(
            [mib(512), mib(1024), mib(1536)],
            ["512 MiB", "1 GiB", "1.5 GiB"]
        );
        assert_eq!([mib(1280), mib(1088)], ["1280 MiB", "1088 MiB"]);
        assert_eq!(
            [exact(0), exact(1023), exact(1536)],
            ["0 B", "1023 B", "1.5 KiB"]
        );
    }

    #[test]
    fn sizes() {
        let bytes = |text: &str| text.parse::<Size>();
        assert_eq!(bytes("4096"), Ok(Size::Bytes(4096)));
        assert_eq!(bytes("512M"), Ok(Size::Bytes(512 << 20)));
        assert_eq!(bytes("512MiB"), Ok(Size::Bytes(512 << 20)));
        assert_eq!(bytes("64 kb"), Ok(Size::Bytes(64 << 10)));
        assert_eq!(bytes("1.5G"), Ok(Size::Bytes(3 << 29)));
        assert_eq!(bytes(".5g"), Ok(Size::Bytes(1 << 29)));
        assert_eq!(bytes("40%"), Ok(Size::OfMemory(0.4)));
        assert_eq!(bytes("40%").map(|s| s.resolve(1000)), Ok(400));
        for bad in [
            "", "M", "-1", "1e9", "inf", "nan", "1.2.3", "12X", "1 2", "0x10", ".",
        ] {
            assert_eq!(bytes(bad), Err(SizeError::Size), "{bad:?}");
        }
        assert_eq!(bytes("0"), Err(SizeError::Zero));
        assert_eq!(bytes("0M"), Err(SizeError::Zero));
        assert_eq!(bytes("0%"), Err(SizeError::Percentage));
        assert_eq!(bytes("101%"), Err(SizeError::Percentage));
        assert_eq!(bytes("999999T"), Err(SizeError::TooLarge));
        assert_eq!(bytes(&"9".repeat(400)), Err(SizeError::TooLarge));
    }

    #[test]
    fn durations() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for bad in ["", "s", "-1s", "10 parsecs", &"9".repeat(40)] {
            assert_eq!(duration(bad), Err(SizeError::Duration), "{bad:?}");
        }
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(humane(0), "0 B");
        assert_eq!(humane(1023), "1023 B");
        assert_eq!(humane(256 << 20), "256 MiB");
        assert_eq!(humane(3 << 29), "1.5 GiB");
        assert_eq!(humane((200 << 20) + 4096), "200 MiB");
        assert_eq!(humane_ns(999), "999 ns");
        assert_eq!(humane_ns(48_200), "48.2 µs");
        assert_eq!(humane_ns(213_000), "213 µs");
        assert_eq!(humane_ns(2_500_000_000), "2.5 s");
    }
}
