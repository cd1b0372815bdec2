use foreswap::sys::uffd::Features;

use super::super::check::Verdict;
use super::super::permission::Device;
use super::super::who::tests::{contained, root};
use super::*;

fn permission(opened: Result<(), UffdError>) -> PermissionFacts {
    PermissionFacts {
        opened,
        forks: true,
        device: Device::Missing,
        minor: None,
        sysctl: None,
        group: None,
    }
}

fn facts(release: &str) -> SystemFacts {
    SystemFacts {
        release: release.into(),
        machine: "x86_64".into(),
        proc: ProcFacts {
            own_memory: true,
            own_namespace: true,
            meminfo: true,
        },
        calls: ["pidfd_open", "kcmp"].map(|name| (name, Ok(()))).into(),
        filtered: false,
        object: Ok("/usr/lib/foreswap/libforeswap_preload.so".into()),
        shell: Ok("/bin/sh".into()),
    }
}

#[test]
fn kernels() {
    let judged = |release: &str, opened| kernel(&facts(release), &permission(opened)).verdict;
    assert_eq!(judged("6.18.44", Ok(())), Verdict::Ok);
    let lacking = UffdError::FeatureMissing {
        missing: Features::MOVE,
        kernel: "6.1.0".into(),
    };
    let check = kernel(&facts("6.1.0-18-amd64"), &permission(Err(lacking)));
    assert_eq!(check.verdict, Verdict::Failure);
    assert!(check.found.contains("lacks MOVE"), "{}", check.found);
    assert!(check.remedies[0].commands[0].contains("backports"));
    assert_eq!(
        judged("6.18.0", Err(UffdError::NoSupport)),
        Verdict::Failure
    );
    // Without permission the features are unknown, and the version tells.
    let denied = || UffdError::NoPermission {
        device: Errno::ACCESS,
        call: Errno::PERM,
    };
    assert_eq!(judged("6.8.0-41-generic", Err(denied())), Verdict::Ok);
    assert_eq!(judged("6.7.9", Err(denied())), Verdict::Failure);
    assert_eq!(judged("5.15.0", Err(denied())), Verdict::Failure);
    assert_eq!(version("7.0-rc1"), Some((7, 0)));
    assert_eq!(version("odd"), None);
}

#[test]
fn proc_file_systems() {
    let all = facts("6.18.0").proc;
    let judged = |facts| proc(facts).verdict;
    assert_eq!(judged(all), Verdict::Ok);
    let hidden = ProcFacts {
        meminfo: false,
        ..all
    };
    assert_eq!(judged(hidden), Verdict::Warning);
    let foreign = ProcFacts {
        own_namespace: false,
        ..all
    };
    assert_eq!(judged(foreign), Verdict::Warning);
    let none = ProcFacts {
        own_memory: false,
        ..all
    };
    let check = proc(none);
    assert_eq!(check.verdict, Verdict::Failure);
    assert_eq!(check.remedies[0].commands, ["mount -t proc proc /proc"]);
}

#[test]
fn filters() {
    let mut facts = facts("6.18.0");
    assert_eq!(calls(&facts, &root()).verdict, Verdict::Ok);
    facts.filtered = true;
    assert_eq!(calls(&facts, &root()).verdict, Verdict::Ok);
    facts.calls[1].1 = Err(Errno::PERM);
    let check = calls(&facts, &contained(Place::Container));
    assert_eq!(check.verdict, Verdict::Note);
    assert!(check.remedies[0].commands[0].contains("--security-opt"));
    facts.calls[0].1 = Err(Errno::PERM);
    let check = calls(&facts, &contained(Place::Kubernetes));
    assert_eq!(check.verdict, Verdict::Failure);
    assert!(check.found.contains("pidfd_open, kcmp"), "{}", check.found);
    assert!(check.remedies[0].commands[0].contains("Unconfined"));
    // All are permitted where tests run.
    assert!(tried_calls().iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn objects_and_other_libraries() {
    let missing = PreloadError::NotFound {
        looked: "/x/libforeswap_preload.so".into(),
    };
    let check = object(&Err(missing));
    assert_eq!(check.verdict, Verdict::Failure);
    assert_eq!(check.remedies[0].commands, ["make build"]);
    assert_eq!(object(&facts("6.8").object).verdict, Verdict::Ok);
    let musl = ProgramError::Unmanageable {
        path: "/bin/sh".into(),
        why: "it starts through /lib/ld-musl-x86_64.so.1".into(),
        remedy: "use one that is linked against glibc",
    };
    let check = shell(&Err(musl));
    assert_eq!(check.verdict, Verdict::Warning);
    assert!(check.found.contains("musl"), "{}", check.found);
    assert_eq!(shell(&facts("6.8").shell).verdict, Verdict::Ok);
}
