//! Areas on one Redis server: the same bytes, nothing to read there, what is refused, and failures.

use foreswap_e2e::redis::Server;

use super::*;

pub const RIGHT: &str =
    "ready\n0 wrong, none lost, most right: 1\nreads_after_damage: as it should be\n";
pub const LOST: &str =
    "ready\n0 wrong, some lost, most right: 1\nreads_after_damage: as it should be\n";

#[test]
fn programs_run_as_on_a_disk_and_leave_nothing() {
    let test = "programs_run_as_on_a_disk_and_leave_nothing";
    let cases: [(&str, &[&str], &[&str]); 5] = [
        ("torture", &["7", "3", "60"], &[]),
        ("torture", &["8", "2", "50"], &["--encrypt=never"]),
        ("huge_pages", &["in_parts"], &["--thp", "always"]),
        ("fork_calls", &["fork_and_exec"], &[]),
        ("full_area", &["fits_both"], &["--swap", "ram:8M"]),
    ];
    let scratch = Scratch::new(test);
    let Some(server) = Server::start(test, &scratch, &[]) else {
        return;
    };
    for (name, arguments, options) in cases {
        let Some(program) = program::compile(test, name) else {
            return;
        };
        let outcome = Managed::limit(LIMIT)
            .options(options)
            .options(["--swap", &server.address()])
            .run(&Job::new(program).args(arguments))
            .succeeded();
        match name {
            "torture" => assert!(outcome.stats().count("swap_out_bytes") >= MIB),
            _ => outcome.swapped(),
        }
        assert_eq!(server.keys(), [""; 0], "{name}");
    }
}

/// Two runs use one server; their keys are apart, and expire.
#[test]
fn keys_are_of_one_run_and_expire() {
    let test = "keys_are_of_one_run_and_expire";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = [Scratch::new(test), Scratch::new(test)];
    let Some(server) = Server::start(test, &scratch[0], &[]) else {
        return;
    };
    let managed = managed(&format!("{}?expire=100", server.address()));
    let running = [0, 1].map(|which| start(&job, &scratch[which], &managed));
    let keys = server.keys();
    let mut prefixes: Vec<_> = keys.iter().map(|key| key.split(':').nth(1)).collect();
    prefixes.sort();
    prefixes.dedup();
    assert_eq!(prefixes.len(), 2, "{keys:?}");
    for key in &keys {
        let left: i64 = server.ask(&["TTL", key]).parse().expect("a time");
        assert!((1..=100).contains(&left), "{key}: {left}");
    }
    scratch.iter().for_each(go_on);
    for running in running {
        let outcome = running.wait();
        assert_eq!(outcome.text(), RIGHT, "{}", outcome.stderr);
    }
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn a_server_that_cannot_be_used_is_refused_with_the_reason() {
    let test = "a_redis_that_cannot_be_used_is_refused_with_the_reason";
    let scratch = Scratch::new(test);
    let lru = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let secret = ["--requirepass", "opensesame"];
    for (options, login, expected) in [
        (
            &lru[..],
            "",
            &["allkeys-lru", "CONFIG SET maxmemory-policy noeviction"][..],
        ),
        (&secret, "", &["password", "password-file"]),
        (&secret, ":wrongpw@", &["the user or the password"]),
        (&[], "poor:pw@", &["may not do", "SETRANGE"]),
        (&["--maxmemory", "1mb"], "", &["maxmemory", "room"]),
    ] {
        let Some(server) = Server::start(test, &scratch, options) else {
            return;
        };
        if login.starts_with("poor") {
            server.ask(&["ACL", "SETUSER", "poor", "on", ">pw", "~*", "+info"]);
        }
        let address = format!("redis://{login}127.0.0.1:{}", server.port);
        let outcome = managed(&address).run(&Job::new("/bin/true"));
        assert_eq!(outcome.code(), 125, "{options:?}: {}", outcome.stderr);
        says(&outcome, expected);
        assert!(!outcome.stderr.contains("wrongpw"), "{}", outcome.stderr);
    }
    let outcome = managed("redis://127.0.0.1:1").run(&Job::new("/bin/true"));
    assert_eq!(outcome.code(), 125);
    says(&outcome, &["redis://127.0.0.1:1", "refused"]);
}

/// A password from the address and from a file, and a memory that is too small for all: the rest goes to the disk.
#[test]
fn a_full_server_loses_nothing() {
    let test = "a_full_server_loses_nothing";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let words = ["--requirepass", "opensesame", "--maxmemory", "40mb"];
    let Some(mut server) = Server::start(test, &scratch, &words) else {
        return;
    };
    server.log_in(&["-a", "opensesame"]);
    let file = scratch.join("password");
    fs::write(&file, "opensesame\n").expect("a file");
    let disk = scratch.path().display().to_string();
    for address in [
        format!("redis://:opensesame@127.0.0.1:{}", server.port),
        format!("{}?password-file={}", server.address(), file.display()),
    ] {
        let _ = fs::remove_file(scratch.join("go-on"));
        // More than the server has room for.
        let managed = managed(&address).options(["--swap-size", "256M", "--swap", &disk]);
        let running = start(&job, &scratch, &managed);
        go_on(&scratch);
        let outcome = running.wait();
        assert_eq!(outcome.text(), RIGHT, "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("opensesame"), "{}", outcome.stderr);
        assert_eq!(server.keys(), [""; 0]);
    }
}

#[test]
fn a_server_that_stands_still_is_waited_for() {
    let test = "a_redis_that_stands_still_is_waited_for";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::start(test, &scratch, &[]) else {
        return;
    };
    let running = start(&job, &scratch, &managed(&server.address()));
    server.signal(Signal::STOP);
    go_on(&scratch);
    std::thread::sleep(Duration::from_millis(1500));
    server.signal(Signal::CONT);
    let outcome = running.wait();
    assert_eq!(outcome.text(), RIGHT, "{}", outcome.stderr);
}

/// The server is gone for good, or comes back empty: bus errors, never zeros, and it is said.
#[test]
fn pages_that_are_lost_are_bus_errors() {
    let test = "pages_that_are_lost_are_bus_errors";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    for (comes_back, encrypt) in [(false, "far"), (true, "far"), (true, "never")] {
        let scratch = Scratch::new(test);
        let Some(mut server) = Server::start(test, &scratch, &["--maxmemory", "90mb"]) else {
            return;
        };
        let disk = scratch.path().display().to_string();
        let encrypt = format!("--encrypt={encrypt}");
        let managed =
            managed(&server.address()).options(["--swap", &disk, "--area-timeout", "2s", &encrypt]);
        let running = start(&job, &scratch, &managed);
        server.kill();
        if comes_back {
            server.restart();
            std::thread::sleep(Duration::from_millis(500));
        }
        go_on(&scratch);
        let outcome = running.wait();
        assert_eq!(outcome.text(), LOST, "{}", outcome.stderr);
        match comes_back {
            true => says(&outcome, &["redis://", "has lost what was on it"]),
            false => says(&outcome, &["redis://", "no answer for 2 s"]),
        }
    }
}

/// With persistence, a server that is killed again and again has every page; a mirror needs none.
#[test]
fn a_server_that_comes_back_has_every_page() {
    let test = "a_redis_that_comes_back_has_every_page";
    let scratch = Scratch::new(test);
    let words = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = Server::start(test, &scratch, &words) else {
        return;
    };
    let Some(running) = Restless::start(test, &scratch, &server.address()) else {
        return;
    };
    for pause in [10, 300] {
        server.kill();
        std::thread::sleep(Duration::from_millis(pause));
        server.restart();
        std::thread::sleep(Duration::from_millis(1500));
    }
    let outcome = running.end();
    says(&outcome, &["the server is back"]);
}

#[test]
fn a_mirror_of_two_kinds_loses_nothing_with_one_server() {
    let test = "a_mirror_of_two_kinds_loses_nothing_with_one_server";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    for comes_back in [false, true] {
        let scratch = Scratch::new(test);
        let Some(mut server) = Server::start(test, &scratch, &[]) else {
            return;
        };
        let nbd = foreswap_e2e::nbd::Server::nbdkit(test, &scratch, "s", &["memory", "256M"]);
        let Some(nbd) = nbd else {
            return;
        };
        let address = format!("{}+{}", server.address(), nbd.address(""));
        let running = start(&job, &scratch, &managed(&address));
        server.kill();
        if comes_back {
            server.restart();
            std::thread::sleep(Duration::from_millis(500));
        }
        go_on(&scratch);
        let outcome = running.wait();
        assert_eq!(outcome.text(), RIGHT, "{}", outcome.stderr);
    }
}
