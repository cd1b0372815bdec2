//! Areas in an object store behind a small area in memory: the same bytes, nothing left, failures, what is refused, and what
//! `foreswap clean` finds.

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::s3::{BUCKET, Server};

use super::redis::{LOST, RIGHT};
use super::*;

/// Most pages go past the area in memory.
fn behind(address: &str) -> Managed {
    Managed::limit(LIMIT).options(["--swap", "ram:8M", "--swap", address])
}

fn job(test: &str) -> Option<Job> {
    Some(Server::log_in(&full_area(test, "reads_after_damage")?))
}

#[test]
fn programs_run_as_on_a_disk_and_leave_no_object() {
    let test = "programs_run_as_on_a_disk_and_leave_no_object";
    let cases: [(&str, &[&str], &[&str]); 4] = [
        ("torture", &["7", "3", "60"], &[]),
        ("torture", &["8", "2", "50"], &["--encrypt=never"]),
        ("huge_pages", &["in_parts"], &["--thp", "always"]),
        ("fork_calls", &["fork_and_exec"], &[]),
    ];
    let Some(server) = Server::start(test) else {
        return;
    };
    for (name, arguments, options) in cases {
        let Some(program) = program::compile(test, name) else {
            return;
        };
        let job = Server::log_in(&Job::new(program).args(arguments));
        let managed = behind(&server.address()).options(options);
        let outcome = managed.run(&job).succeeded();
        match name {
            "torture" => assert!(outcome.stats().count("swap_out_bytes") >= MIB),
            _ => outcome.swapped(),
        }
        assert_eq!(server.objects(), [""; 0], "{name}");
    }
}

/// A program that writes its memory again and again: objects with dead pages are cleaned and removed meanwhile.
#[test]
fn objects_do_not_pile_up() {
    let test = "objects_do_not_pile_up";
    let scratch = Scratch::new(test);
    let (Some(server), Some(program)) =
        (Server::start(test), program::compile(test, "verify_loop"))
    else {
        return;
    };
    let stop = scratch.join("stop");
    let job = Server::log_in(&Job::new(program).arg("160").arg(&stop));
    let managed = behind(&server.address()).options(["--swap-size", "192M"]);
    let managed = managed.talkative();
    let mut running = managed.start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    // Of the area's 192 MiB each place has a page at most; a fourth of what is stored may be dead, and a few objects more.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let objects = server.objects();
        let numbers = objects.iter().filter_map(|name| name.rsplit('/').next());
        let numbers: Vec<usize> = numbers.filter_map(|name| name.parse().ok()).collect();
        assert!(numbers.len() <= 280, "{} objects", numbers.len());
        assert_eq!(objects.len(), numbers.len() + 1, "{objects:?}");
        if numbers.iter().max().is_some_and(|last| *last > 400) {
            break;
        }
        assert!(Instant::now() < end, "{numbers:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    fs::write(&stop, "").expect("a file");
    let outcome = running.wait().succeeded();
    assert!(
        outcome.text().ends_with("all right\n"),
        "{}",
        outcome.stderr
    );
    assert_eq!(server.objects(), [""; 0]);
}

#[test]
fn a_store_that_stands_still_is_waited_for() {
    let test = "a_store_that_stands_still_is_waited_for";
    let scratch = Scratch::new(test);
    let (Some(server), Some(job)) = (Server::start(test), job(test)) else {
        return;
    };
    let managed = behind(&server.address()).options(["--area-timeout", "20s"]);
    let running = start(&job, &scratch, &managed);
    server.signal(Signal::STOP);
    go_on(&scratch);
    std::thread::sleep(Duration::from_millis(1500));
    server.signal(Signal::CONT);
    let outcome = running.wait();
    assert_eq!(outcome.text(), RIGHT, "{}", outcome.stderr);
    assert_eq!(server.objects(), [""; 0]);
}

/// One that does not come back, and one that comes back with nothing: bus errors there alone.
#[test]
fn a_store_that_has_lost_its_objects_costs_these_alone() {
    let test = "a_store_that_has_lost_its_objects_costs_these_alone";
    for comes_back in [false, true] {
        let scratch = Scratch::new(test);
        let (Some(mut server), Some(job)) = (Server::start(test), job(test)) else {
            return;
        };
        // It is filled before the objects.
        let words = ["memory", "64M"];
        let Some(nearer) = foreswap_e2e::nbd::Server::nbdkit(test, &scratch, "n", &words) else {
            return;
        };
        let managed = behind(&server.address());
        let managed = managed.options(["--swap", &nearer.address(""), "--area-timeout", "2s"]);
        let job = job.env("XDG_RUNTIME_DIR", scratch.path());
        let running = start(&job, &scratch, &managed);
        server.kill();
        if comes_back {
            server.restart();
            server.make_bucket();
        }
        // Room for what is evicted from now on.
        let [pid, disk] = [
            running.pid().to_string(),
            scratch.path().display().to_string(),
        ];
        tell(scratch.path(), &["swapon", &pid, &disk]);
        go_on(&scratch);
        let outcome = running.wait();
        assert_eq!(outcome.text(), LOST, "{}", outcome.stderr);
        assert!(outcome.note("lost") > 0);
        says(&outcome, &["s3://", "SIGBUS"]);
        match comes_back {
            true => says(&outcome, &["s3://", "has lost what was on it"]),
            false => says(&outcome, &["s3://", "the store does not answer"]),
        }
    }
}

/// The relay of a run is killed: its objects are left, found and removed.
#[test]
fn what_a_killed_run_leaves_is_cleaned() {
    let test = "what_a_killed_run_leaves_is_cleaned";
    let scratch = Scratch::new(test);
    let (Some(server), Some(job)) = (Server::start(test), job(test)) else {
        return;
    };
    let managed = behind(&server.address()).options(["--full-timeout", "2s"]);
    let running = start(&job, &scratch, &managed);
    kill_the_relay(&running);
    go_on(&scratch);
    let outcome = running.wait();
    says(&outcome, &["relay", "has ended"]);
    // Compressed memory, which is full, refuses writes all the time: they do not make the wait longer.
    assert!(
        outcome.elapsed < Duration::from_secs(30),
        "{:?}",
        outcome.elapsed
    );
    let left = server.objects();
    assert!(left.len() > 20, "{left:?}");
    let clean = |words: &[&str]| {
        let job = Job::new(binary()).arg("clean").arg(server.address());
        Server::log_in(&job.args(words)).run().succeeded().text()
    };
    let text = clean(&[]);
    assert!(text.contains("may be in use, left alone"), "{text}");
    let text = clean(&["--older-than", "0s", "--dry-run"]);
    assert!(text.contains("would be removed"), "{text}");
    assert_eq!(server.objects(), left);
    let text = clean(&["--older-than", "0s"]);
    let count = format!("{} objects", left.len());
    assert!(
        text.contains(&count) && text.contains(": removed"),
        "{text}"
    );
    assert_eq!(server.objects(), [""; 0]);
    let text = clean(&[]);
    assert!(text.contains("no run has left anything"), "{text}");
}

#[test]
fn stores_that_cannot_be_used_are_refused_with_the_reason() {
    let test = "stores_that_cannot_be_used_are_refused_with_the_reason";
    let Some(server) = Server::start(test) else {
        return;
    };
    let job = Server::log_in(&Job::new("/bin/true"));
    let nowhere = format!("s3://{BUCKET}?endpoint=http://127.0.0.1:1");
    let elsewhere = format!("s3://nobody?endpoint={}", server.endpoint());
    for (managed, expected) in [
        (managed(&server.address()), &["--swap ram:512M"][..]),
        (behind(&nowhere), &["refused", "AWS_ENDPOINT_URL"]),
        (behind(&elsewhere), &["NoSuchBucket", "make the bucket"]),
    ] {
        let outcome = managed.run(&job);
        assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
        says(&outcome, expected);
    }
    let outcome =
        behind(&server.address()).run(&Job::new("/bin/true").env("AWS_ACCESS_KEY_ID", "only"));
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    says(&outcome, &["AWS_SECRET_ACCESS_KEY"]);
    assert_eq!(server.objects(), [""; 0]);
}

/// By TLS: the certificate of the store must be one that the folder's authority has signed. The bucket is missing, which
/// only a store that is trusted can say.
#[test]
fn tls_is_spoken_with_the_right_store_alone() {
    let test = "tls_is_spoken_with_the_right_store_alone";
    let scratch = Scratch::new(test);
    let Some([right, wrong]) = tls::certificates(test, &scratch) else {
        return;
    };
    let [certificate, key] = ["cert", "key"].map(|kind| format!("{right}/server-{kind}.pem"));
    let Some(server) = Server::start_by_tls(test, &certificate, &key) else {
        return;
    };
    let endpoint = server.endpoint().replace("127.0.0.1", "localhost");
    for (folder, expected) in [(&right, "NoSuchBucket"), (&wrong, "certificate")] {
        let address = format!("s3://{BUCKET}?endpoint={endpoint}&tls-certificates={folder}");
        let outcome = behind(&address).run(&Server::log_in(&Job::new("/bin/true")));
        assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
        says(&outcome, &[expected]);
    }
}
