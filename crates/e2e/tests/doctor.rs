//! `foreswap doctor` finds planted obstacles, and its remedies work: their commands are taken from its own output and
//! executed. The obstacles are planted in mount namespaces, limits and filters of single processes; the system stays
//! as it is. Sysctls are files of the namespace.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use foreswap_e2e::copies::Copies;
use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::Scratch;
use foreswap_e2e::system::undo;
use foreswap_e2e::{Job, program, requirement};
use serde_json::Value;

/// Everything that doctor found.
struct Findings(Value);

impl Findings {
    #[track_caller]
    fn of(job: &Job) -> Self {
        let outcome = job.clone().timeout(120).run();
        let value: Value = serde_json::from_str(&outcome.text()).unwrap_or_else(|error| {
            panic!("{error}: {:?} {:?}", outcome.text(), outcome.stderr);
        });
        let works = value["works"].as_bool().expect("a verdict");
        assert_eq!(outcome.code(), i32::from(!works), "{value}");
        Self(value)
    }

    fn works(&self) -> bool {
        self.0["works"] == true
    }

    #[track_caller]
    fn check(&self, name: &str) -> &Value {
        let checks = self.0["checks"].as_array().expect("checks");
        let found = checks.iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    /// The check must have this verdict; then its remedies, as scripts.
    #[track_caller]
    fn says(&self, name: &str, verdict: &str) -> Vec<String> {
        let check = self.check(name);
        assert_eq!(check["verdict"], verdict, "{check}");
        let remedies = check["remedies"].as_array().expect("remedies");
        let script = |remedy: &Value| {
            let commands = remedy["commands"].as_array().expect("commands");
            let commands = commands.iter().filter_map(Value::as_str);
            commands.collect::<Vec<_>>().join("\n")
        };
        remedies.iter().map(script).collect()
    }

    /// As [`Self::says`], of a failure with which foreswap does not work, and which is to be removed first.
    #[track_caller]
    fn fails(&self, name: &str) -> Vec<String> {
        assert!(!self.works(), "{}", self.0);
        assert_eq!(self.0["first"], name, "{}", self.0);
        self.says(name, "failure")
    }

    /// The obstacle is gone.
    #[track_caller]
    fn satisfied(&self, name: &str) {
        self.says(name, "ok");
        assert!(self.works(), "{}", self.0);
    }
}

#[track_caller]
fn with<'a>(remedies: &'a [String], word: &str) -> &'a str {
    let found = remedies.iter().find(|remedy| remedy.contains(word));
    found.unwrap_or_else(|| panic!("no {word} in {remedies:?}"))
}

fn doctor() -> Job {
    Job::new(binary()).args(["doctor", "--quick", "--json"])
}

/// The script, and then doctor, in one shell.
fn after(script: &str) -> Job {
    let script = format!("set -e\n{script}\nexec \"$@\"");
    doctor().under(["sh", "-c", &script, "sh"])
}

/// A mount namespace with a tmpfs at /mnt, as long as this lives.
struct Namespace(Child);

impl Namespace {
    #[track_caller]
    fn new(script: &str) -> Self {
        // The shell ends when the pipe does.
        let child = Command::new("unshare")
            .args(["-m", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("unshare starts");
        let mut byte = [0];
        let ready = child.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(ready, &mut byte).expect("the namespace is there");
        let namespace = Self(child);
        namespace.does(&format!("mount -t tmpfs foreswap-e2e /mnt\n{script}"));
        namespace
    }

    fn inside(&self, job: &Job) -> Job {
        job.under(["nsenter", "-m", "-t", &self.0.id().to_string(), "--"])
    }

    /// As root.
    #[track_caller]
    fn does(&self, script: &str) {
        let outcome = self.inside(&Job::new("sh").args(["-ec", script])).run();
        assert_eq!(outcome.code(), 0, "{script}: {}", outcome.stderr);
    }

    fn finds(&self, job: &Job) -> Findings {
        Findings::of(&self.inside(job))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn namespaces(test: &str) -> bool {
    requirement::root(test)
        && ["unshare", "nsenter", "setpriv"]
            .iter()
            .all(|command| requirement::command(test, command).is_some())
}

/// doctor as the user nobody, with the groups of the namespace.
fn as_nobody(copies: &Copies) -> Job {
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--init-groups"];
    Job::new(copies.join("foreswap"))
        .args(["doctor", "--quick", "--json"])
        .under(user)
        .cwd(copies.join("work"))
        .env("TMPDIR", copies.join("work"))
}

/// A copy of /etc that commands may change, and the device for root alone.
const OWN_ETC: &str = "\
mkdir /mnt/upper /mnt/work
mount -t overlay foreswap-e2e -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
mkdir -p /etc/udev/rules.d
";
const CLOSED_DEVICE: &str = "\
mknod -m 600 /mnt/device c $(stat -c '0x%t 0x%T' /dev/userfaultfd)
mount --bind /mnt/device /dev/userfaultfd
";

fn restricted(test: &str) -> bool {
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    namespaces(test)
        && requirement::required(
            setting.trim() == "0" && Path::new("/dev/userfaultfd").exists(),
            test,
            "/dev/userfaultfd with vm.unprivileged_userfaultfd = 0",
        )
}

#[test]
fn works_here() {
    let findings = Findings::of(&Job::new(binary()).args(["doctor", "--json"]));
    assert!(findings.works(), "{}", findings.0);
    let area = &findings.check("area")["facts"];
    for key in ["write_bytes_per_s", "read_bytes_per_s", "random_read_ns"] {
        assert!(area[key].as_f64().is_some_and(|n| n > 0.0), "{area}");
    }
    let trial = &findings.check("trial")["facts"];
    assert!(
        trial["swap_in_bytes"].as_u64().is_some_and(|n| n > 0),
        "{trial}"
    );
    let text = Job::new(binary()).args(["doctor", "--quick"]).run().text();
    assert!(text.contains("\nforeswap works here"), "{text}");
    assert!(!text.contains('\x1b'), "no terminal, no colours");
    let fits = |line: &str| line.chars().count() <= 80 || line.starts_with("             ");
    assert!(text.lines().all(fits), "{text}");
}

#[test]
fn user_without_permission() {
    let test = "user_without_permission";
    let (true, Some(copies)) = (restricted(test), Copies::new(test, &[])) else {
        return;
    };
    let namespace = Namespace::new(&format!("{OWN_ETC}{CLOSED_DEVICE}"));
    let job = as_nobody(&copies);
    let remedies = namespace.finds(&job).fails("userfaultfd");
    let group = with(&remedies, "chgrp");
    namespace.does(group);
    let findings = namespace.finds(&job);
    // Permitted, but forks past the C library are not seen.
    findings.says("userfaultfd", "note");
    assert!(findings.works(), "{}", findings.0);
}

#[test]
fn device_that_is_missing() {
    let test = "device_that_is_missing";
    let (true, Some(copies)) = (restricted(test), Copies::new(test, &[])) else {
        return;
    };
    let devices = "mkdir /mnt/dev\nmount -t tmpfs foreswap-e2e /mnt/dev\n\
                   cp -a /dev/null /dev/zero /dev/urandom /mnt/dev\nmount --move /mnt/dev /dev";
    let namespace = Namespace::new(&format!("{OWN_ETC}{devices}"));
    let job = as_nobody(&copies);
    let remedies = namespace.finds(&job).fails("userfaultfd");
    namespace.does(with(&remedies, "mknod"));
    let findings = namespace.finds(&job);
    findings.says("userfaultfd", "note");
    assert!(findings.works(), "{}", findings.0);
}

#[test]
fn userfaultfd_that_a_filter_refuses() {
    let test = "userfaultfd_that_a_filter_refuses";
    let refuse = program::compile(test, "refuse_calls");
    let (true, Some(refuse)) = (restricted(test), refuse) else {
        return;
    };
    let namespace = Namespace::new("mount --bind /dev/null /dev/userfaultfd");
    let filtered = doctor().under([refuse.as_os_str(), "userfaultfd".as_ref()]);
    let findings = namespace.finds(&filtered);
    with(&findings.fails("userfaultfd"), "userfaultfd");
    assert_eq!(findings.check("seccomp")["facts"]["filtered"], true);
    // Without the filter, root needs no device.
    namespace.finds(&doctor()).satisfied("userfaultfd");
}

#[test]
fn calls_that_a_filter_refuses() {
    let test = "calls_that_a_filter_refuses";
    let Some(refuse) = program::compile(test, "refuse_calls") else {
        return;
    };
    let under = |names: &str| doctor().under([refuse.as_os_str(), names.as_ref()]);
    let findings = Findings::of(&under("io_uring"));
    let remedies = findings.says("io_uring", "warning");
    assert_eq!(remedies.len(), 1, "{remedies:?}");
    let cost = findings.check("io_uring")["why"].as_str();
    assert!(cost.is_some_and(|why| why.contains("threads")), "{cost:?}");
    assert!(findings.works(), "{}", findings.0);
    Findings::of(&under("pidfd_open")).fails("seccomp");
    let findings = Findings::of(&under("kcmp"));
    findings.says("seccomp", "note");
    assert!(findings.works(), "{}", findings.0);
}

#[test]
fn folder_of_the_area() {
    let scratch = Scratch::new("folder_of_the_area");
    let missing = scratch.join("missing");
    let job = |script: &str| after(script).env("TMPDIR", &missing);
    let remedies = Findings::of(&job("")).fails("area");
    Findings::of(&job(with(&remedies, "mkdir"))).satisfied("area");

    let test = "folder_of_the_area";
    let (true, Some(copies)) = (restricted(test), Copies::new(test, &["as_ordinary_user"])) else {
        return;
    };
    let folder = scratch.join("of-root");
    fs::create_dir(&folder).expect("a folder can be made");
    let launcher = copies.join("as_ordinary_user");
    let job = Job::new(copies.join("foreswap"))
        .args(["doctor", "--quick", "--json"])
        .under([launcher.as_os_str(), "with".as_ref()])
        .env("TMPDIR", copies.join("foreign"));
    fs::create_dir(copies.join("foreign")).expect("a folder can be made");
    let remedies = Findings::of(&job).fails("area");
    let remedy = with(&remedies, "install -d");
    let (own, export) = remedy.split_once('\n').expect("two commands");
    assert_eq!(Job::shell(own).run().code(), 0, "{own}");
    let place = export.split_once('=').expect("an export").1;
    let findings = Findings::of(&job.env("TMPDIR", place));
    assert!(findings.works(), "{}", findings.0);
}

#[test]
fn file_systems_without_room_or_in_memory() {
    let test = "file_systems_without_room_or_in_memory";
    if !namespaces(test) {
        return;
    }
    let namespace = Namespace::new("mkdir /mnt/full\nmount -t tmpfs -o size=600k none /mnt/full");
    let full = |script: &str| after(script).env("TMPDIR", "/mnt/full");
    let remedies = namespace.finds(&full("")).fails("area");
    namespace
        .finds(&full(with(&remedies, "export TMPDIR")))
        .satisfied("area");
    namespace.does("mkdir /mnt/large\nmount -t tmpfs -o size=4G none /mnt/large");
    let memory = |script: &str| after(script).env("TMPDIR", "/mnt/large");
    let findings = namespace.finds(&memory(""));
    assert!(findings.works(), "{}", findings.0);
    let remedies = findings.says("area", "warning");
    namespace
        .finds(&memory(with(&remedies, "export TMPDIR")))
        .satisfied("area");
}

/// Root may raise hard limits; a root without that privilege sees the obstacle only.
#[test]
fn limits_of_the_shell() {
    for (limit, name) in [
        ("ulimit -n 64", "open-files"),
        ("ulimit -f 1000", "file-size"),
    ] {
        let remedies = Findings::of(&after(limit)).fails(name);
        let both = format!("{limit}\n{}", with(&remedies, "prlimit"));
        if Job::shell(&both).run().code() == 0 {
            Findings::of(&after(&both)).satisfied(name);
        }
    }
    // A soft limit, which its owner may raise.
    let limit = "ulimit -S -v 1000000";
    let remedies = Findings::of(&after(limit)).fails("address-space");
    let both = format!("{limit}\n{}", with(&remedies, "ulimit"));
    Findings::of(&after(&both)).satisfied("address-space");
    // The supervisor raises this one.
    Findings::of(&after("ulimit -S -n 64")).satisfied("open-files");
}

#[test]
fn limits_of_an_ordinary_user() {
    let test = "limits_of_an_ordinary_user";
    let (true, Some(copies)) = (restricted(test), Copies::new(test, &["as_ordinary_user"])) else {
        return;
    };
    let launcher = copies.join("as_ordinary_user");
    let limited = |limit: &str| {
        Job::new(copies.join("foreswap"))
            .args(["doctor", "--quick", "--json"])
            .under(["prlimit", limit])
            .under([launcher.as_os_str(), "with".as_ref()])
            .env("TMPDIR", copies.join("work"))
    };
    for (limit, name) in [
        ("--as=8000000000", "address-space"),
        ("--data=300000000", "data"),
        ("--nproc=3", "processes"),
    ] {
        let remedies = Findings::of(&limited(limit)).fails(name);
        with(&remedies, "prlimit");
    }
    // Kernels differ in whether a ring counts as locked memory.
    let findings = Findings::of(&limited("--memlock=0"));
    assert!(findings.works(), "{}", findings.0);
    if findings.check("io_uring")["facts"]["available"] == false {
        with(&findings.says("io_uring", "warning"), "--memlock");
    }
}

/// The files of the namespace stand for the kernel's.
#[test]
fn sysctls_and_huge_pages() {
    let test = "sysctls_and_huge_pages";
    if !namespaces(test) || requirement::command(test, "sysctl").is_none() {
        return;
    }
    let namespace = Namespace::new(
        "echo 1000 > /mnt/mappings; echo 2 > /mnt/overcommit; echo 'always madvise [never]' > /mnt/huge
         mount --bind /mnt/mappings /proc/sys/vm/max_map_count
         mount --bind /mnt/overcommit /proc/sys/vm/overcommit_memory
         mount --bind /mnt/huge /sys/kernel/mm/transparent_hugepage/enabled",
    );
    let findings = namespace.finds(&doctor());
    assert!(findings.works(), "{}", findings.0);
    for name in ["mappings", "overcommit"] {
        namespace.does(with(&findings.says(name, "warning"), "sysctl -w"));
    }
    namespace.does(with(
        &findings.says("huge-pages", "warning"),
        "echo madvise",
    ));
    let findings = namespace.finds(&doctor());
    findings.satisfied("mappings");
    findings.satisfied("overcommit");
    // Now the file has the word alone; the kernel would show it among the others.
    let written = namespace.inside(&Job::shell("cat /mnt/huge")).run().text();
    assert_eq!(written, "madvise\n");
}

#[test]
fn proc_that_is_missing_or_foreign() {
    let test = "proc_that_is_missing_or_foreign";
    if !namespaces(test) {
        return;
    }
    // nsenter needs /proc: one shell does all.
    let in_one = |script: &str| after(script).under(["unshare", "-m"]);
    let remedies = Findings::of(&in_one("umount -l /proc")).fails("proc");
    let both = format!("umount -l /proc\n{}", remedies[0]);
    Findings::of(&in_one(&both)).satisfied("proc");

    let foreign = |script: &str| after(script).under(["unshare", "-m", "-p", "-f"]);
    let findings = Findings::of(&foreign(""));
    assert!(findings.works(), "{}", findings.0);
    let remedies = findings.says("proc", "warning");
    Findings::of(&foreign(&remedies[0])).satisfied("proc");
}

#[test]
fn folder_of_the_sockets() {
    let test = "folder_of_the_sockets";
    let runtime = "export XDG_RUNTIME_DIR=/no/such/folder";
    let findings = Findings::of(&after(runtime));
    let remedies = findings.says("sockets", "note");
    let both = format!("{runtime}\n{}", with(&remedies, "unset"));
    Findings::of(&after(&both)).satisfied("sockets");
    if !namespaces(test) {
        return;
    }
    let scratch = Scratch::new(test);
    let namespace = Namespace::new(
        "mkdir /mnt/run /mnt/own; chmod 755 /mnt/own; mkdir -p -m 700 /tmp/foreswap-0
         mount --bind /mnt/run /run; mount --bind /mnt/own /tmp/foreswap-0",
    );
    let job = |script: &str| {
        let script = format!("unset XDG_RUNTIME_DIR TMPDIR\n{script}");
        after(&script).env("HOME", scratch.path())
    };
    let findings = namespace.finds(&job(""));
    assert!(findings.works(), "{}", findings.0);
    let remedies = findings.says("sockets", "warning");
    namespace.finds(&job(&remedies[0])).satisfied("sockets");
}

#[test]
fn cgroup_that_is_small() {
    let test = "cgroup_that_is_small";
    let memory = Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    if !requirement::root(test) || !requirement::required(memory.exists(), test, "cgroups, v1") {
        return;
    }
    let group = format!(
        "/sys/fs/cgroup/memory/foreswap-doctor-{}",
        std::process::id()
    );
    fs::create_dir(&group).expect("a cgroup can be made");
    let _undo = undo(&["rmdir", &group]);
    for (limit, verdict, works) in [
        ("1G", "note", true),
        ("60M", "warning", true),
        ("12M", "failure", false),
    ] {
        let join =
            format!("echo {limit} > {group}/memory.limit_in_bytes; echo $$ > {group}/cgroup.procs");
        let findings = Findings::of(&after(&join));
        assert_eq!(findings.works(), works, "{}", findings.0);
        findings.says("memory", verdict);
    }
}

#[test]
fn preload_object_that_is_missing() {
    let scratch = Scratch::new("preload_object");
    let alone = scratch.join("foreswap");
    fs::copy(binary(), &alone).expect("it can be copied");
    let job = Job::new(&alone).args(["doctor", "--quick", "--json"]);
    let remedies = Findings::of(&job).fails("preload");
    let export = with(&remedies, "export FORESWAP_PRELOAD=");
    let object = binary().with_file_name("libforeswap_preload.so");
    let export = export.replace(
        "/path/to/libforeswap_preload.so",
        &object.display().to_string(),
    );
    let script = format!("{export}\nexec \"$@\"");
    Findings::of(&job.under(["sh", "-c", &script, "sh"])).satisfied("preload");
}

/// Once, and with the area that was named.
#[test]
fn errors_of_run_name_doctor() {
    let run = |options: &[&str]| {
        let job = Job::new(binary()).args(["run", "--memory", "64M"]);
        job.args(options).args(["--", "true"])
    };
    let missing = run(&["--swap", "/no/such/folder"]).run();
    let named = "`foreswap doctor --swap /no/such/folder` says more";
    assert_eq!(missing.stderr.matches("foreswap doctor").count(), 1);
    assert!(missing.stderr.contains(named), "{}", missing.stderr);
    let object = run(&[]).env("FORESWAP_PRELOAD", "/no/such/object.so").run();
    assert!(
        object.stderr.contains("`foreswap doctor` says more"),
        "{}",
        object.stderr
    );
    // What the command line alone is to blame for.
    for options in [&["--swap", "ram:1M"][..], &["--memory", "64K"]] {
        let outcome = run(options).run();
        assert!(!outcome.stderr.contains("doctor"), "{}", outcome.stderr);
    }
}
