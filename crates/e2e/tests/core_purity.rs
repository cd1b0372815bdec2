//! `scripts/check-core` keeps the core free of the outside world. The tests show that the check passes the real core
//! and can fail.

use std::fs;
use std::path::Path;

use foreswap_e2e::Job;
use foreswap_e2e::process::{Outcome, Scratch};
use foreswap_e2e::requirement::workspace;

fn check(folder: &Path) -> Outcome {
    Job::new(workspace().join("scripts/check-core"))
        .arg(folder)
        .run()
}

#[test]
fn the_core_passes() {
    check(&workspace().join("crates/core")).succeeded();
}

const MANIFEST: &str =
    "[package]\nname = \"x\"\n\n[dependencies]\n\n[dev-dependencies]\nproptest = \"1\"\n";
const SOURCE: &str = "//! Reads no std::time.\n#![no_std]\n#![forbid(unsafe_code)]\nfn f() {} // not std::thread\n\
                      #[cfg(test)]\nextern crate std;\n#[cfg(test)]\nmod tests {\n    use std::vec::Vec;\n}\n";

#[track_caller]
fn verdict(manifest: &str, source: &str) -> i32 {
    let scratch = Scratch::new("core");
    fs::create_dir(scratch.join("src")).expect("a folder can be made");
    fs::write(scratch.join("Cargo.toml"), manifest).expect("a file can be written");
    fs::write(scratch.join("src/lib.rs"), source).expect("a file can be written");
    check(scratch.path()).code()
}

#[test]
fn each_way_outside_is_seen() {
    assert_eq!(verdict(MANIFEST, SOURCE), 0);
    let with = |line: &str| SOURCE.replace("fn f() {}", line);
    for line in [
        "use std::collections::HashMap;",
        "fn f() { std::thread::yield_now() }",
        "fn f(at: Instant) {}",
        "fn f() { unsafe { libc::getpid(); } }",
        "extern crate std;",
        "fn f() { rand::random() }",
        "use rustix::process;",
    ] {
        assert_eq!(verdict(MANIFEST, &with(line)), 1, "{line}");
    }
    for attribute in ["#![no_std]\n", "#![forbid(unsafe_code)]\n"] {
        assert_eq!(
            verdict(MANIFEST, &SOURCE.replace(attribute, "")),
            1,
            "{attribute}"
        );
    }
    for dependency in [
        "[dependencies]\nlibc = \"0.2\"\n",
        "[dependencies.libc]\nversion = \"1\"\n",
        "[build-dependencies]\ncc = \"1\"\n",
        "[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n",
    ] {
        assert_eq!(verdict(dependency, SOURCE), 1, "{dependency}");
    }
}
