//! Sizes on the command line: `4096`, `64K`, `512M`, `1.5G`; powers of two, as
//! everywhere in foreswap.

/// Why a size was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SizeError {
    /// Neither digits nor a known unit.
    #[error("{0:?} is not a size; write bytes or a unit, such as 4096, 64K, 512M or 1.5G")]
    Unparsable(String),
    /// Larger than an address space.
    #[error("{0:?} is larger than any memory")]
    TooLarge(String),
}

/// Reads a size in bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let bad = || SizeError::Unparsable(text.to_owned());
    let lower = text.trim().to_ascii_lowercase();
    let stem = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, shift) = match stem.as_bytes().last() {
        Some(b'k') => (&stem[..stem.len() - 1], 10),
        Some(b'm') => (&stem[..stem.len() - 1], 20),
        Some(b'g') => (&stem[..stem.len() - 1], 30),
        Some(b't') => (&stem[..stem.len() - 1], 40),
        _ => (stem, 0),
    };
    let plain = |c: u8| c.is_ascii_digit() || c == b'.';
    if digits.is_empty() || !digits.bytes().all(plain) {
        return Err(bad());
    }
    let number: f64 = digits.parse().map_err(|_| bad())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes > (1u64 << 47) as f64 {
        return Err(SizeError::TooLarge(text.to_owned()));
    }
    Ok(bytes as u64)
}

/// Bytes for people: the largest unit that leaves at least one whole.
pub fn humane(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1u64 << shift) as f64;
            return if bytes.is_multiple_of(1 << shift) {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64K"), Ok(64 << 10));
        assert_eq!(parse("512m"), Ok(512 << 20));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("2MB"), Ok(2 << 20));
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "M", "-1M", "1e9", "inf", "nan", "12Q", "1..5G", "1 2M"] {
            assert!(
                matches!(parse(text), Err(SizeError::Unparsable(_))),
                "{text:?}"
            );
        }
        assert!(matches!(parse("9999999T"), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn people_read_units() {
        assert_eq!(humane(1 << 30), "1 GiB");
        assert_eq!(humane(3 << 29), "1.5 GiB");
        assert_eq!(humane(512), "512 B");
    }
}
