//! Sizes of the command line (`4096`, `64K`, `512M`, `1.5G`; powers of two), parsed and printed.

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Pages of a size in bytes or with a unit.
///
/// # Errors
///
/// The expected form.
pub fn pages(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size of at least a page; write 64K, 512M or 1.5G");
    let lower = text.trim().to_ascii_lowercase();
    let stem = lower.trim_end_matches("ib").trim_end_matches('b');
    let units = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];
    let unit = units
        .iter()
        .find_map(|&(unit, shift)| Some((stem.strip_suffix(unit)?, shift)));
    let (digits, shift) = unit.unwrap_or((stem, 0));
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit() || c == b'.') {
        return Err(bad());
    }
    let number: f64 = digits.parse().map_err(|_| bad())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes < PAGE as f64 {
        return Err(bad());
    }
    if bytes > (1u64 << 50) as f64 {
        return Err(format!("{text:?} is larger than any memory"));
    }
    Ok(bytes as u64 / PAGE)
}

/// A readable size: in the largest unit of which it has at least one.
pub fn humane(pages: u64) -> String {
    let bytes = pages as f64 * PAGE as f64;
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let of = |shift: u32| bytes / (1u64 << shift) as f64;
    let (unit, shift) = units
        .into_iter()
        .find(|&(_, shift)| of(shift) >= 1.0)
        .unwrap_or(("KiB", 10));
    let value = of(shift);
    if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A count with commas.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(pages("8K"), Ok(2));
        assert_eq!(pages("1.5MiB"), Ok(384));
        assert_eq!(pages("4096"), Ok(1));
        for bad in ["", "x", "K", "1", "-5M", "1..5G", "9999999T"] {
            assert!(pages(bad).expect_err(bad).contains(bad));
        }
        assert_eq!(humane(1), "4 KiB");
        assert_eq!(humane(384), "1.5 MiB");
        assert_eq!(humane(0), "0 KiB");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(123), "123");
    }
}
