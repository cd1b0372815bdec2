//! The packages that users install: each is built, installed in a clean place, used and removed. The scripts say how, and
//! each can be run alone.

use std::process::{Command, Stdio};

use foreswap_e2e::requirement::{command, root, workspace};

fn passes(script: &str) {
    let status = Command::new(workspace().join("scripts").join(script))
        .stdin(Stdio::null())
        .status()
        .expect("a script of the workspace");
    assert!(status.success(), "scripts/{script}: {status}");
}

#[test]
#[ignore = "builds the command anew for packages: ten minutes (make test-full)"]
fn deb() {
    let test = "packages::deb";
    let met = ["debootstrap", "lintian", "dpkg-deb"].map(|tool| command(test, tool).is_some());
    if root(test) && met == [true; 3] {
        passes("test-deb");
    }
}

#[test]
#[ignore = "builds the command anew for packages: ten minutes (make test-full)"]
fn wheel() {
    if command("packages::wheel", "python3").is_some() {
        passes("test-wheel");
    }
}
