//! The recipes in `contrib/`: what can be run here is run, with stand-ins for what is not here (`srun`, a runner of GitHub,
//! a container engine). The README of each says what was not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use foreswap_e2e::foreswap::{Stats, binary};
use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, Outcome, requirement};
use serde_json::Value;

/// A job that wants some 160 MiB, and prints one line.
const JOB: &str = "shuf -i 1-800000 | sort -n --buffer-size=160M | tail -1";

fn contrib(name: &str) -> PathBuf {
    requirement::workspace().join("contrib").join(name)
}

fn text(name: &str) -> String {
    let path = contrib(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[track_caller]
fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// The strings of a list.
#[track_caller]
fn words(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
        .iter()
        .map(string)
        .collect()
}

/// A job in `folder`, where the command under test and the stand-ins of `folder` are found first.
fn job(program: &str, folder: &Path) -> Job {
    let command = binary();
    let own = command.parent().expect("the command lies in a folder");
    let rest = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}/bin:{}:{rest}", folder.display(), own.display());
    Job::new(program)
        .cwd(folder)
        .env("PATH", path)
        .env("TMPDIR", folder)
        .env("XDG_RUNTIME_DIR", folder)
}

/// A program of `folder`'s own.
fn stand_in(folder: &Path, name: &str, script: &str) {
    fs::create_dir_all(folder.join("bin")).expect("a folder");
    let path = folder.join("bin").join(name);
    fs::write(&path, script).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

/// `foreswap run --help` with the options before `--` parses them and runs nothing.
#[track_caller]
fn options_are_accepted(arguments: &[&str]) {
    let end = arguments.iter().position(|word| *word == "--");
    let options = &arguments[..end.expect("a command after --")];
    let outcome = Job::new(binary())
        .arg("run")
        .args(options)
        .args(["--", "/nonexistent"])
        .run();
    assert_eq!(outcome.code(), 127, "{options:?}: {}", outcome.stderr);
}

#[track_caller]
fn swapped(stats: &Stats) {
    assert!(stats.count("swap_out_bytes") > 1 << 20, "{}", stats.0);
}

#[test]
fn slurm_runs_the_program_in_a_share_of_the_job() {
    let scratch = Scratch::new("slurm");
    let folder = scratch.path();
    // As srun does: its options, then the command.
    let srun = "#!/bin/sh\necho \"$1\" >srun-options\nshift\nexec \"$@\"\n";
    stand_in(folder, "srun", srun);
    let script = contrib("slurm/foreswap.sbatch");
    let run = |words: &[&str]| -> Outcome {
        let job = job("sh", folder).arg(&script).args(words);
        let job = job.env("SLURM_JOB_ID", "17").env("FORESWAP_MEMORY", "32M");
        job.run()
    };
    let outcome = run(&["sh", "-c", JOB]).succeeded();
    assert_eq!(outcome.text(), "800000\n");
    let stats = Stats::read(&folder.join("foreswap-17.json"));
    assert_eq!(stats.count("memory_limit_bytes"), 32 << 20);
    swapped(&stats);
    let options = fs::read_to_string(folder.join("srun-options")).expect("srun was called");
    assert_eq!(options, "--ntasks=1\n");

    assert_eq!(run(&["sh", "-c", "exit 7"]).code(), 7);
    let outcome = run(&[]);
    assert_eq!(outcome.code(), 2);
    assert!(outcome.stderr.contains("no command"), "{}", outcome.stderr);
    // Without a size, a share.
    assert!(text("slurm/foreswap.sbatch").contains("${FORESWAP_MEMORY:-80%}"));
}

/// Nextflow writes a task's script to `.command.sh` and runs it by the words of `shell`.
#[test]
fn nextflow_runs_the_script_of_a_task() {
    let config = text("nextflow/foreswap.config");
    let line = config
        .lines()
        .find_map(|line| line.trim().strip_prefix("shell = "));
    let list = line.expect("a shell").replace('\'', "\"");
    let list: Value = serde_json::from_str(&list).expect("a list of words");
    let shell = words(&list);
    assert_eq!(shell[..2], ["foreswap", "run"]);
    let scratch = Scratch::new("nextflow");
    let script = format!("{JOB}\necho \"$FORESWAP_SOCKET\" >managed\nfalse | true\n");
    fs::write(scratch.join(".command.sh"), script).expect("a file");
    let outcome = job(shell[0], scratch.path())
        .args(&shell[1..])
        .arg(".command.sh")
        .run();
    // By pipefail the last line fails, as in Nextflow's recommended shell.
    assert_eq!(
        (outcome.code(), &*outcome.text()),
        (1, "800000\n"),
        "{}",
        outcome.stderr
    );
    let managed = fs::read_to_string(scratch.join("managed")).expect("the script ran");
    assert_ne!(managed.trim(), "");
}

/// The rule's command, filled in as Snakemake does.
#[test]
fn snakemake_runs_the_rule_in_its_memory() {
    let file = text("snakemake/Snakefile");
    let quoted = |start: &str| -> String {
        let line = file
            .lines()
            .find_map(|line| line.trim().strip_prefix(start));
        line.unwrap_or_else(|| panic!("no {start}"))
            .trim_matches('"')
            .to_owned()
    };
    let line = quoted("FORESWAP = \"") + &quoted("FORESWAP + \"");
    let filled = [
        ("{resources.mem_mb}", "32"),
        ("{log}", "sort.json"),
        ("{input}", "numbers.txt"),
        ("{output}", "sorted.txt"),
    ]
    .iter()
    .fold(line, |line, (name, value)| line.replace(name, value));
    assert!(!filled.contains('{'), "{filled}");
    let scratch = Scratch::new("snakemake");
    let numbers = quoted("\"shuf").replace("{output}", "numbers.txt");
    let script = format!("shuf{numbers}\n{filled}\nsort -nc sorted.txt");
    job("bash", scratch.path())
        .args(["-euc", &script])
        .run()
        .succeeded();
    let stats = Stats::read(&scratch.join("sort.json"));
    assert_eq!(stats.count("memory_limit_bytes"), 32 << 20);
    swapped(&stats);
}

/// A run under the profile, with io_uring, and what the profile must refuse. libseccomp is in the place of the engine.
#[test]
fn the_seccomp_profile_lets_foreswap_run_and_refuses_namespaces() {
    let test = "recipes::seccomp";
    let Some(python) = requirement::command(test, "python3") else {
        return;
    };
    if !requirement::required(
        Path::new("/usr/lib/x86_64-linux-gnu/libseccomp.so.2").exists(),
        test,
        "libseccomp2",
    ) {
        return;
    }
    let program = requirement::workspace().join("crates/e2e/programs/under_seccomp.py");
    let scratch = Scratch::new("seccomp");
    let under = |command: &[&str]| -> Outcome {
        let job = job(&python.to_string_lossy(), scratch.path());
        job.arg(&program)
            .arg(contrib("docker/seccomp.json"))
            .args(command)
            .run()
    };
    let run = [
        "foreswap",
        "run",
        "--memory",
        "32M",
        "--io",
        "uring",
        "--stats",
        "stats.json",
        "--",
        "sh",
        "-c",
        JOB,
    ];
    assert_eq!(under(&run).succeeded().text(), "800000\n");
    swapped(&Stats::read(&scratch.join("stats.json")));
    for refused in [
        &["unshare", "--user", "true"][..],
        &["python3", "-c", "import socket; socket.socket(40, 1)"],
    ] {
        let outcome = under(refused);
        assert!(
            outcome.code() == 1 && outcome.stderr.contains("not permitted"),
            "{refused:?}: {}",
            outcome.stderr
        );
    }
    let profile: Value = serde_json::from_str(&text("docker/seccomp.json")).expect("JSON");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let always = words(&profile["syscalls"][0]["names"]);
    for name in [
        "userfaultfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
    ] {
        assert!(always.contains(&name), "{name}");
    }
    for name in [
        "mount",
        "bpf",
        "kexec_load",
        "init_module",
        "swapon",
        "unshare",
        "setns",
        "clone3",
        "keyctl",
    ] {
        assert!(!always.contains(&name), "{name}");
    }
}

#[test]
fn docker_names_files_that_are_there() {
    let compose = yaml("docker/compose.yaml");
    let job = &compose["services"]["job"];
    assert_eq!(words(&job["devices"]), ["/dev/userfaultfd"]);
    let profile = words(&job["security_opt"])[0].strip_prefix("seccomp=");
    assert!(contrib("docker").join(profile.expect("a profile")).exists());
    let context = contrib("docker").join(string(&job["build"]["context"]));
    assert!(
        context.join("Cargo.toml").exists()
            && context.join(string(&job["build"]["dockerfile"])).exists()
    );
    options_are_accepted(&words(&job["command"]));
    let volume = words(&job["volumes"])[0];
    let (name, place) = volume.split_once(':').expect("a volume and its place");
    assert!(compose["volumes"].get(name).is_some(), "{name}");
    let image = text("docker/Dockerfile");
    assert!(
        image.contains(&format!("ENV TMPDIR={place}\n"))
            && image.contains(&format!("mkdir -m 1777 {place}\n"))
    );
    // Of the name that the package has.
    let package = "target/packages/foreswap_*_amd64.deb";
    assert!(image.contains(&format!("COPY {package} /tmp/")));
    let script = fs::read_to_string(requirement::workspace().join("scripts/package-deb"))
        .expect("the script");
    assert!(script.contains("foreswap_${version}_amd64.deb"));
}

#[test]
fn kubernetes_offers_the_device_that_the_job_asks_for() {
    let plugin = yaml("kubernetes/device-plugin.yaml");
    let spec = &plugin["spec"];
    assert_eq!(
        spec["selector"]["matchLabels"],
        spec["template"]["metadata"]["labels"]
    );
    let pod = &spec["template"]["spec"];
    let device: Value =
        serde_json::from_str(words(&pod["containers"][0]["args"])[1]).expect("the device is JSON");
    assert_eq!(device["groups"][0]["paths"][0]["path"], "/dev/userfaultfd");

    let job = yaml("kubernetes/job.yaml");
    let job_pod = &job["spec"]["template"]["spec"];
    let resource = format!("squat.ai/{}", string(&device["name"]));
    assert_eq!(
        job_pod["containers"][0]["resources"]["limits"][&resource],
        1
    );
    options_are_accepted(&words(&job_pod["containers"][0]["args"]));

    for pod in [pod, job_pod] {
        let names = |list: &Value| -> Vec<String> {
            let list = list.as_array().expect("a list").iter();
            list.map(|one| string(&one["name"]).to_owned()).collect()
        };
        let mounts = names(&pod["containers"][0]["volumeMounts"]);
        assert_eq!(mounts, names(&pod["volumes"]));
    }
}

/// The steps of the action, with the environment of a runner.
#[test]
fn the_action_installs_and_runs() {
    let action = yaml("action.yml");
    assert_eq!(action["runs"]["using"], "composite");
    let steps = action["runs"]["steps"].as_array().expect("steps");
    let scratch = Scratch::new("action");
    let step = |at: usize, inputs: &[(&str, &str)]| -> Outcome {
        let step = &steps[at];
        let given = step["env"].as_object().expect("an environment");
        // As a runner starts `shell: bash`.
        let flags = ["--noprofile", "--norc", "-eo", "pipefail", "-c"];
        let mut job = job("bash", scratch.path())
            .args(flags)
            .arg(string(&step["run"]));
        for (variable, expression) in given {
            let name = string(expression)
                .trim_start_matches("${{ inputs.")
                .trim_end_matches(" }}");
            let default = action["inputs"][name]["default"].as_str();
            let input = inputs.iter().find(|(input, _)| *input == name);
            let value = input.map(|(_, value)| *value).or(default);
            job = job.env(variable, value.unwrap_or_else(|| panic!("no input {name}")));
        }
        let files = scratch.path();
        job.env("RUNNER_TEMP", files)
            .env("GITHUB_PATH", scratch.join("path"))
            .run()
    };
    let installed = step(0, &[]).succeeded();
    assert!(
        installed.text().contains("foreswap works here"),
        "{}",
        installed.text()
    );
    let outcome = step(0, &[("package", "foreswap.rpm")]);
    assert!(
        outcome.code() == 2
            && outcome
                .text()
                .contains("'foreswap.rpm': expected a .deb or a .whl")
    );

    let stats = ["--stats", "step.json", "--quiet"].join(" ");
    let commands = format!("{JOB}\nfalse | true\necho not reached");
    let inputs = [("memory", "32M"), ("options", &*stats), ("run", &*commands)];
    let outcome = step(1, &inputs);
    assert_eq!(
        (outcome.code(), &*outcome.text()),
        (1, "800000\n"),
        "{}",
        outcome.stderr
    );
    swapped(&Stats::read(&scratch.join("step.json")));
}
