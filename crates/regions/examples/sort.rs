//! Sorts an array of four times the memory that it may have.

use foreswap_regions::{Engine, Error};

/// Fills, sorts and checks it.
pub fn main() -> Result<(), Error> {
    let engine = Engine::open(["--memory=32M"])?;
    let mut region = engine.map(128 << 20)?;
    // SAFETY: the region is aligned to a page, and any bytes are numbers.
    let (_, numbers, _) = unsafe { region.align_to_mut::<u64>() };
    let mut state = 1_u64;
    for number in numbers.iter_mut() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        *number = state >> 16;
    }
    let sum = |numbers: &[u64]| numbers.iter().fold(0_u64, |sum, n| sum.wrapping_add(*n));
    let before = sum(numbers);
    numbers.sort_unstable();
    assert!(numbers.is_sorted() && sum(numbers) == before);
    println!("{} numbers are sorted", numbers.len());
    Ok(())
}
