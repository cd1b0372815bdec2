//! Tools that build, pack and compute: git, compilers, cargo, MPI.

use super::*;

/// Delta compression by two threads over files of megabytes; every object must be unchanged.
#[test]
fn git_repack() {
    let test = "git_repack";
    let Some(git) = requirement::command(test, "git") else {
        return;
    };
    let scratch = Scratch::new(test);
    let stream = scratch.join("stream");
    let (files, commits) = (size(4, 10), size(4, 12));
    fast_import(&stream, files, commits);
    let git = |folder: &Path| {
        Job::new(&git)
            .arg("-C")
            .arg(folder)
            .args([
                "-c",
                "pack.threads=2",
                "-c",
                "gc.auto=0",
                "-c",
                "core.bigFileThreshold=1g",
            ])
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
    };
    let repository = |name: &str| {
        let folder = scratch.join(name);
        fs::create_dir(&folder).expect("a folder can be made");
        git(&folder)
            .args(["init", "-q", "--bare"])
            .run()
            .succeeded();
        git(&folder)
            .args(["fast-import", "--quiet"])
            .stdin(&stream)
            .run()
            .succeeded();
        folder
    };
    let repack = |folder: &Path| {
        let window = format!("--window-memory={}m", size(100, 400));
        git(folder).args(["repack", "-adfq", "--window=30", &window])
    };
    let objects = |folder: &Path| {
        let all = git(folder).args(["cat-file", "--batch-all-objects", "--batch"]);
        all.stdout(folder.join("objects.txt")).run().succeeded();
        folder.join("objects.txt")
    };
    let (before, after) = (repository("bare"), repository("managed"));
    let bare = repack(&before).run().succeeded();
    let limit = size(64, 256);
    let managed = Managed::limit(limit).run(&repack(&after));
    managed.equals(&bare);
    git(&after)
        .args(["fsck", "--full", "--strict", "main"])
        .run()
        .succeeded();
    Job::new("cmp")
        .arg(objects(&before))
        .arg(objects(&after))
        .run()
        .succeeded();
    managed.within_limit_but_for_forks(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// A stream for `git fast-import`: `files` files of 3 MB of words, of which each commit changes a part.
fn fast_import(path: &Path, files: u64, commits: u64) {
    let mut random = Random(7);
    let mut line = || {
        format!(
            "{:016x} {:012x} {:x}",
            random.number(),
            random.below(1 << 40),
            random.number()
        )
    };
    let mut texts: Vec<Vec<String>> = (0..files)
        .map(|_| (0..65_000).map(|_| line()).collect())
        .collect();
    let mut choice = Random(8);
    let mut file = BufWriter::new(File::create(path).expect("the stream can be made"));
    let mut put = |text: &str| {
        file.write_all(text.as_bytes())
            .expect("the stream can be written")
    };
    for commit in 0..commits {
        put(&format!(
            "commit refs/heads/main\ncommitter A <a@b> {} +0000\ndata 1\n{}\n",
            1_000_000_000 + commit,
            commit % 10
        ));
        for (number, text) in texts.iter_mut().enumerate() {
            for _ in 0..2000 {
                let at = choice.below(text.len() as u64) as usize;
                text[at] = line();
            }
            let all = text.join("\n");
            put(&format!(
                "M 100644 inline f{number}\ndata {}\n{all}\n",
                all.len()
            ));
        }
        put("\n");
    }
}

/// Four compilers at a time and a link that optimizes all of the program: the same executable, byte for byte.
#[test]
fn cpp_with_link_time_optimization() {
    let test = "cpp_with_link_time_optimization";
    let (Some(make), Some(_)) = (
        requirement::command(test, "make"),
        requirement::command(test, "g++"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    cpp_sources(scratch.path(), 4, size(2, 8));
    let job = Job::new(make)
        .args(["-sj4", "-C"])
        .arg(scratch.path())
        .timeout(size(300, 2400));
    let bare = job.run().succeeded();
    let keep = |name: &str| {
        fs::rename(scratch.join("job"), scratch.join(name)).expect("the program was linked")
    };
    keep("bare");
    Job::new("make")
        .args(["-s", "clean", "-C"])
        .arg(scratch.path())
        .run()
        .succeeded();
    let limit = size(200, 500);
    let managed = Managed::limit(limit).run(&job);
    managed.equals(&bare);
    keep("managed");
    built_alike(&scratch);
    managed.within_limit_but_for_forks(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// `files` sources with `classes` instances each of templates of the standard library, and how to build them.
fn cpp_sources(folder: &Path, files: u64, classes: u64) {
    let template = fs::read_to_string(source("instances.cpp")).expect("the template is there");
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).expect("a source can be written")
    };
    let (mut declared, mut called, mut objects) = (String::new(), String::new(), String::new());
    for file in 0..files {
        let (first, last) = (file * classes, (file + 1) * classes);
        let defines =
            format!("#define FIRST {first}\n#define LAST {last}\n#define PART part{file}\n");
        write(&format!("part{file}.cpp"), &(defines + &template));
        declared += &format!("long part{file}(long);\n");
        called += &format!("    sum = part{file}(sum);\n");
        objects += &format!(" part{file}.o");
    }
    write(
        "main.cpp",
        &format!(
            "#include <cstdio>\n{declared}int main()\n{{\n    long sum = 1;\n{called}    std::printf(\"%ld\\n\", sum);\n}}\n"
        ),
    );
    write(
        "Makefile",
        &format!(
            "flags = -std=c++17 -O2 -g -flto=4\n\
             job: main.o{objects}\n\tg++ $(flags) -frandom-seed=job -o $@ $^\n\
             %.o: %.cpp\n\tg++ $(flags) -frandom-seed=$* -c -o $@ $<\n\
             clean:\n\trm -f *.o job\n"
        ),
    );
}

/// Four ranks that exchange their arrays over shared memory.
#[test]
fn mpi_with_four_ranks() {
    let test = "mpi_with_four_ranks";
    let (Some(mpicc), Some(mpirun)) = (
        requirement::command(test, "mpicc"),
        requirement::command(test, "mpirun"),
    ) else {
        return;
    };
    let scratch = Scratch::new(test);
    let ranks = scratch.join("ranks");
    let build = Job::new(mpicc).args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    build.args([&ranks, &source("ranks.c")]).run().succeeded();
    let job = Job::new(mpirun)
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-np",
            "4",
            "--mca",
            "btl",
            "self,vader",
        ])
        .arg(&ranks)
        .arg(size(24, 128).to_string())
        .env("TMPDIR", "/tmp");
    let managed = same(test, size(96, 400), &job);
    let processes = managed.stats().count("processes");
    assert!(processes >= 4, "only {processes} processes were managed");
}

/// Two crates without dependencies: the same executable.
#[test]
#[ignore = "make test-full"]
fn cargo_build() {
    let test = "cargo_build";
    let Some(cargo) = requirement::command(test, "cargo") else {
        return;
    };
    let scratch = Scratch::new(test);
    cargo_sources(scratch.path(), size(20, 80));
    let job = Job::new(cargo)
        .args(["build", "--quiet", "--release", "--offline"])
        .cwd(scratch.path())
        .env("CARGO_TARGET_DIR", scratch.join("built"))
        .env("CARGO_INCREMENTAL", "0");
    let bare = job.run().succeeded();
    let keep = |name: &str| {
        fs::rename(scratch.join("built/release/job"), scratch.join(name)).expect("a program")
    };
    keep("bare");
    fs::remove_dir_all(scratch.join("built")).expect("what was built");
    let limit = size(128, 256);
    let managed = Managed::limit(limit).run(&job);
    managed.equals(&bare);
    keep("managed");
    built_alike(&scratch);
    managed.within_limit_but_for_forks(limit * MIB);
    managed.swapped();
    tell(test, limit, &bare, &managed);
}

/// A workspace: a library with `types` types and a program that uses them all.
fn cargo_sources(folder: &Path, types: u64) {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder"))
            .expect("a folder can be made");
        fs::write(path, text).expect("a source can be written");
    };
    let manifest = |name: &str, rest: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n{rest}")
    };
    write(
        "Cargo.toml",
        "[workspace]\nresolver = \"2\"\nmembers = [\"parts\", \"job\"]\n[profile.release]\ndebug = true\n",
    );
    write("parts/Cargo.toml", &manifest("parts", ""));
    write(
        "job/Cargo.toml",
        &manifest("job", "[dependencies]\nparts = { path = \"../parts\" }\n"),
    );
    let template = fs::read_to_string(source("part.rs.in")).expect("the template is there");
    let parts: String = (0..types)
        .map(|n| template.replace("NUMBER", &n.to_string()))
        .collect();
    write("parts/src/lib.rs", &parts);
    let calls: String = (0..types)
        .map(|n| format!("    sum = parts::part{n}(sum);\n"))
        .collect();
    write(
        "job/src/main.rs",
        &format!("fn main() {{\n    let mut sum = 1;\n{calls}    println!(\"{{sum}}\");\n}}\n"),
    );
}

/// The bare and the managed build are equal, and work.
#[track_caller]
fn built_alike(scratch: &Scratch) {
    let [bare, managed] = ["bare", "managed"].map(|name| scratch.join(name));
    Job::new("cmp").args([&bare, &managed]).run().succeeded();
    Job::new(managed).run().succeeded();
}
