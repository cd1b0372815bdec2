//! `scripts/check-core` keeps the core free of the outside world, and its files free of circles of imports. The tests
//! show that the check passes the real core and can fail.

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
fn verdict_on(files: &[(&str, &str)]) -> i32 {
    let scratch = Scratch::new("core");
    fs::create_dir(scratch.join("src")).expect("a folder can be made");
    for (name, content) in files {
        fs::write(scratch.join(name), content).expect("a file can be written");
    }
    check(scratch.path()).code()
}

#[track_caller]
fn verdict(manifest: &str, source: &str) -> i32 {
    verdict_on(&[("Cargo.toml", manifest), ("src/lib.rs", source)])
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

#[test]
fn a_circle_of_imports_is_seen() {
    let with = |b: &str| {
        verdict_on(&[
            ("Cargo.toml", MANIFEST),
            ("src/lib.rs", SOURCE),
            ("src/a.rs", "use crate::b::B;\nfn f(c: crate::c::C) {}\n"),
            ("src/b.rs", b),
            (
                "src/c.rs",
                "// use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n",
            ),
        ])
    };
    assert_eq!(with("use crate::c::C;\n"), 0);
    for circle in [
        "use super::a::A;\n",
        "use crate::{\n    a,\n};\n",
        "fn f(a: crate::a::A) {}\n",
    ] {
        assert_eq!(with(circle), 1, "{circle}");
    }
}
