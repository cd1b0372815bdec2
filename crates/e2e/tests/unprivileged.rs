//! An ordinary user: with access to `/dev/userfaultfd` everything works; without it the error names the remedy. The
//! copy of the device with other permissions is in its own mount namespace.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::{Job, Managed, Outcome, program, requirement};

/// Mebibytes.
const LIMIT: u64 = 64;

/// foreswap, its preload object and the test programs where any user may execute them.
struct Copies {
    folder: PathBuf,
}

impl Copies {
    fn new(test: &str, programs: &[&str]) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("foreswap-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        let copies = Self { folder };
        fs::set_permissions(&copies.folder, fs::Permissions::from_mode(0o755))
            .expect("its mode can be set");
        let foreswap = binary();
        let object = foreswap.with_file_name("libforeswap_preload.so");
        copies.take(&foreswap);
        copies.take(&object);
        for program in programs {
            copies.take(&program::compile(test, program)?);
        }
        let work = copies.folder.join("work");
        fs::create_dir_all(&work).expect("a folder can be made");
        std::os::unix::fs::chown(&work, Some(65534), Some(65534)).expect("and given away");
        Some(copies)
    }

    fn take(&self, file: &Path) {
        let name = file.file_name().expect("a file has a name");
        let copy = self.folder.join(name);
        fs::copy(file, &copy).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).expect("a mode can be set");
    }

    fn managed(&self, access: &str, options: &[&str]) -> Managed {
        Managed::limit(LIMIT)
            .binary(self.folder.join("foreswap"))
            .started_by([
                self.folder.join("as_ordinary_user").as_os_str(),
                access.as_ref(),
            ])
            .options(options)
    }

    fn job(&self, program: &str, part: &str) -> Job {
        Job::new(self.folder.join(program))
            .arg(part)
            .cwd(self.folder.join("work"))
            .env("TMPDIR", self.folder.join("work"))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The kernel must not allow userfaultfd to all users, or these tests show nothing.
fn restricted(test: &str) -> bool {
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    requirement::root(test)
        && requirement::required(
            setting.trim() == "0" && Path::new("/dev/userfaultfd").exists(),
            test,
            "/dev/userfaultfd with vm.unprivileged_userfaultfd = 0",
        )
}

#[track_caller]
fn same_as_bare(managed: &Managed, job: &Job) -> Outcome {
    let outcome = managed.equals_bare(job).succeeded();
    outcome.swapped();
    outcome
}

#[test]
fn access_to_the_device_is_enough() {
    let test = "access_to_the_device_is_enough";
    if !restricted(test) {
        return;
    }
    let programs = [
        "as_ordinary_user",
        "mapping_calls",
        "fork_calls",
        "system_calls",
        "heap_calls",
    ];
    let Some(copies) = Copies::new(test, &programs) else {
        return;
    };
    let parts = [
        ("fork_calls", "child_sees_parent"),
        ("mapping_calls", "mremap_move"),
        ("system_calls", "direct_files"),
        ("heap_calls", "aligned"),
        ("fork_calls", "killed_child"),
        ("system_calls", "futexes"),
    ];
    let every = copies.managed("with", &[]);
    for (program, part) in parts {
        same_as_bare(&every, &copies.job(program, part));
    }
    let threads = copies.managed("with", &["--io", "threads"]);
    for (program, part) in &parts[..2] {
        same_as_bare(&threads, &copies.job(program, part));
    }
}

#[test]
fn without_access_the_error_says_what_to_do() {
    let test = "without_access_the_error_says_what_to_do";
    if !restricted(test) {
        return;
    }
    let Some(copies) = Copies::new(test, &["as_ordinary_user", "small"]) else {
        return;
    };
    let outcome = copies
        .managed("without", &[])
        .run(&copies.job("small", "tasks"));
    assert_eq!(outcome.text(), "", "the command ran");
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    for word in ["/dev/userfaultfd", "udev", "root"] {
        assert!(
            outcome.stderr.contains(word),
            "no {word:?} in {}",
            outcome.stderr
        );
    }
}

/// The command of a run by root changes to another user before it needs an engine, as the entry points of containers do.
#[test]
fn other_users_of_a_run() {
    let test = "other_users_of_a_run";
    let Some(setpriv) = requirement::command(test, "setpriv").filter(|_| restricted(test)) else {
        return;
    };
    let Some(copies) = Copies::new(test, &["mapping_calls", "fork_calls"]) else {
        return;
    };
    for (program, part) in [
        ("mapping_calls", "dontneed"),
        ("fork_calls", "child_sees_parent"),
        ("fork_calls", "grandchildren"),
    ] {
        let job = Job::new(&setpriv)
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(copies.folder.join(program))
            .arg(part)
            .cwd(copies.folder.join("work"));
        let managed = Managed::limit(LIMIT).binary(copies.folder.join("foreswap"));
        same_as_bare(&managed.clone().options(["--other-users"]), &job);
        let outcome = managed.talkative().run(&job).succeeded();
        assert!(
            outcome.stderr.contains("--other-users"),
            "{}",
            outcome.stderr
        );
    }
}
