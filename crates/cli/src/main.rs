//! The executable of the `foreswap` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    foreswap_cli::main()
}
