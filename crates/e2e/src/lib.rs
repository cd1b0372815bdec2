//! The tools of every end-to-end test of foreswap: a program (C, compiled for the test, or an installed one), its bare
//! run, its run under `foreswap run`, and the comparison of the two.
//!
//! The comparison is the purpose: standard output and exit status must be those of the bare run, the peak must stay
//! within the limit, and pages must really have been swapped, or the test proves nothing. Every run has a time-out.
//! Only processes that a run started are ever killed: a tag in their environment identifies them.
//!
//! A missing tool or kernel feature is a failure if `CI` is set and a named skip otherwise.

pub mod copies;
pub mod fences;
pub mod foreswap;
pub mod inputs;
pub mod nbd;
pub mod process;
pub mod program;
pub mod redis;
pub mod requirement;
pub mod s3;
pub mod system;

pub use foreswap::{Managed, Stats};
pub use process::{Job, Outcome};
pub use requirement::full_size;

/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;

/// A test for each name: `parts!(run: a b)` makes the tests `a`, which calls `run("a")`, and `b`.
#[macro_export]
macro_rules! parts {
    ($run:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $run(stringify!($name));
            }
        )*
    };
}
