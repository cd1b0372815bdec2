//! Programs with worlds of their own: a browser, an emulator, and stress-ng, which exercises all of the kernel.

use super::*;

/// Browser, zygote and renderers.
#[test]
#[ignore = "make test-full"]
fn headless_chromium() {
    let test = "headless_chromium";
    let Some(chromium) = requirement::command(test, "chromium") else {
        return;
    };
    let scratch = Scratch::new(test);
    let page = scratch.join("page.html");
    fs::copy(source("page.html"), &page).expect("the page can be copied");
    let job = Job::new(chromium)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args([
            "--disable-extensions",
            "--disable-background-networking",
            "--virtual-time-budget=100000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            scratch.join("profile").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}#{}", page.display(), size(100, 400)))
        .env("HOME", scratch.path());
    let managed = same(test, size(160, 350), &job);
    assert!(
        managed.text().contains("elements</pre>"),
        "{}",
        managed.text()
    );
    let processes = managed.stats().count("processes");
    assert!(processes >= 3, "only {processes} processes were managed");
}

/// A virtual machine without KVM, all of whose memory the guest fills and verifies.
#[test]
#[ignore = "make test-full"]
fn qemu() {
    let test = "qemu";
    let (Some(qemu), Some(gcc)) = (
        requirement::command(test, "qemu-system-x86_64"),
        requirement::command(test, "gcc"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    let guest = scratch.join("guest");
    let mebibytes = size(128, 512);
    Job::new(gcc)
        .args([
            "-m32",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffreestanding",
            "-fno-pic",
            "-fno-stack-protector",
        ])
        .args([
            "-fno-asynchronous-unwind-tables",
            "-nostdlib",
            "-static",
            "-Wl,-Ttext=0x100000,--build-id=none",
        ])
        .arg(format!("-DMEBIBYTES={mebibytes}u"))
        .arg("-o")
        .args([&guest, &source("machine.S"), &source("machine.c")])
        .run()
        .succeeded();
    let job = Job::new(qemu)
        .args([
            "-accel",
            "tcg",
            "-nodefaults",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-no-reboot",
        ])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-m"])
        .arg((mebibytes + 32).to_string())
        .arg("-kernel")
        .arg(&guest);
    let bare = job.run();
    assert!(
        bare.code() == 33 && bare.text().contains("wrong 00000000"),
        "{}",
        bare.text()
    );
    let limit = size(64, 192);
    let managed = Managed::limit(limit).run(&job);
    managed.equals(&bare);
    managed.within_limit_but_for_forks(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// These turn on the system's swap, set its watchdog or memory types, or fill all of its shared memory.
const NOT_RUN: [&str; 5] = ["swap", "watchdog", "physpage", "dev-shm", "tmpfs"];

/// A stressor that does not fail bare must not fail here, for each stressor of the class alone.
#[test]
fn stress_ng() {
    let test = "stress_ng";
    let Some(stress) = requirement::command(test, "stress-ng") else {
        return;
    };
    let scratch = Scratch::new(test);
    let class = Job::new(&stress).args(["--class", "vm?"]).run();
    let said = class.text() + &class.stderr;
    let names = said
        .split("stressors:")
        .nth(1)
        .expect("the stressors of the class");
    let names: Vec<_> = names
        .split_whitespace()
        .filter(|name| !NOT_RUN.contains(name))
        .collect();
    assert!(names.len() > 25, "{said}");
    let (limit, bytes) = (size(48, 128), size(96, 384));
    let sized = [
        ("vm", format!("--vm-bytes={bytes}M")),
        ("mmap", format!("--mmap-bytes={bytes}M")),
        ("mremap", format!("--mremap-bytes={bytes}M")),
        ("vm-rw", format!("--vm-rw-bytes={}M", bytes / 2)),
    ];
    let (mut failures, mut swapped) = (String::new(), 0);
    for name in names {
        let seconds = size(1, 4).to_string();
        let sizes = sized
            .iter()
            .filter(|(of, _)| *of == name)
            .map(|(_, option)| option);
        let job = Job::new(&stress)
            .args([&format!("--{name}"), "1", "--verify", "--timeout", &seconds])
            .args(sizes)
            .cwd(scratch.path())
            .timeout(size(120, 300));
        let managed = Managed::limit(limit).run(&job);
        let failed = |outcome: &Outcome| {
            let said = outcome.text() + &outcome.stderr;
            outcome.code() != 0 || said.contains("fail:") || said.contains("died unexpectedly")
        };
        if failed(&managed) && !failed(&job.run()) {
            failures += &format!(
                "{name}: {} {} {}\n",
                managed.code(),
                managed.text(),
                managed.stderr
            );
        }
        if !explained(managed.stats(), limit) {
            failures += &format!("{name}: {}\n", brief(managed.stats()));
        }
        eprintln!(
            "note {test}: {name} in {limit} MiB: {}",
            brief(managed.stats())
        );
        swapped += u32::from(managed.stats().count("swap_in_bytes") > MIB);
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(swapped >= 4, "only {swapped} stressors swapped");
}
