//! Servers that refuse, stand still, are killed, come back or do not; mirrors; the end of the relay.

use super::*;

/// A tenth of all requests fails, and every reply takes a while.
#[test]
fn a_server_that_fails_now_and_then_is_asked_again() {
    let test = "a_server_that_fails_now_and_then_is_asked_again";
    let Some(program) = program::compile(test, "torture") else {
        return;
    };
    for seed in ["11", "12"] {
        let scratch = Scratch::new(test);
        let words = [
            "--filter=error",
            "--filter=delay",
            "memory",
            "512M",
            "error-rate=10%",
            "delay-read=1ms",
            "delay-write=1ms",
        ];
        let Some(server) = Server::nbdkit(test, &scratch, "s", &words) else {
            return;
        };
        let job = Job::new(&program).args([seed, "3", "40"]);
        let outcome = managed(&server.address("")).run(&job).succeeded();
        assert!(outcome.stats().count("swap_out_bytes") >= MIB);
    }
}

/// The server is killed and started anew again and again, with what was on it.
#[test]
fn a_server_that_comes_back_has_every_page() {
    let test = "a_server_that_comes_back_has_every_page";
    let scratch = Scratch::new(test);
    let image = file(&scratch, "image", 512);
    let Some(mut server) = Server::nbdkit(test, &scratch, "s", &["file", &image]) else {
        return;
    };
    let Some(running) = Restless::start(test, &scratch, &server.address("")) else {
        return;
    };
    for pause in [10, 300, 700, 50] {
        server.kill();
        std::thread::sleep(Duration::from_millis(pause));
        server.restart();
        std::thread::sleep(Duration::from_millis(700));
    }
    let outcome = running.end();
    says(
        &outcome,
        &["pages go to other areas until the server is back"],
    );
    says(&outcome, &["the server is back"]);
}

/// A server that stands still for a while: reads wait, and nothing is lost.
#[test]
fn a_server_that_stands_still_is_waited_for() {
    let test = "a_server_that_stands_still_is_waited_for";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::nbdkit(test, &scratch, "s", &["memory", "256M"]) else {
        return;
    };
    let running = start(&job, &scratch, &managed(&server.address("")));
    server.signal(Signal::STOP);
    go_on(&scratch);
    std::thread::sleep(Duration::from_millis(1500));
    server.signal(Signal::CONT);
    let outcome = running.wait();
    let expected =
        "ready\n0 wrong, none lost, most right: 1\nreads_after_damage: as it should be\n";
    assert_eq!(outcome.text(), expected, "{}", outcome.stderr);
}

/// A server that does not come back: its pages are bus errors after the time-out, all others are right, and the disk takes
/// what is evicted from then on.
#[test]
fn a_server_that_is_gone_costs_its_pages_alone() {
    let test = "a_server_that_is_gone_costs_its_pages_alone";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(mut server) = Server::nbdkit(test, &scratch, "s", &["memory", "64M"]) else {
        return;
    };
    let disk = scratch.path().display().to_string();
    let managed = managed(&server.address(""))
        .options(["--swap", &disk, "--area-timeout", "1s"])
        .talkative();
    let running = start(&job, &scratch, &managed);
    server.kill();
    let began = Instant::now();
    go_on(&scratch);
    let outcome = running.wait();
    assert!(began.elapsed() < Duration::from_secs(100));
    assert_eq!(
        outcome.text(),
        "ready\n0 wrong, some lost, most right: 1\nreads_after_damage: as it should be\n",
        "{}",
        outcome.stderr
    );
    let lost = outcome.note("lost") * PAGE as u64;
    assert!(lost > 16 * MIB && lost <= 64 * MIB, "{lost} bytes");
    says(&outcome, &["nbd+unix", "pages go to other areas"]);
    says(
        &outcome,
        &["nbd+unix", "no answer for 1 s", "--area-timeout"],
    );
    says(&outcome, &["nbd+unix", "ETIMEDOUT", "SIGBUS"]);
}

/// Of two servers that mirror each other, one goes for good, or comes back without what it had: no page is lost.
#[test]
fn a_mirror_loses_nothing_with_one_server() {
    let test = "a_mirror_loses_nothing_with_one_server";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    for (which, comes_back) in [(0, false), (1, false), (0, true)] {
        let scratch = Scratch::new(test);
        let words = ["memory", "256M"];
        let servers = ["a", "b"].map(|name| Server::nbdkit(test, &scratch, name, &words));
        let [Some(a), Some(b)] = servers else {
            return;
        };
        let mut servers = [a, b];
        let address = format!("{}+{}", servers[0].address(""), servers[1].address(""));
        let running = start(&job, &scratch, &managed(&address));
        servers[which].kill();
        if comes_back {
            servers[which].restart();
            std::thread::sleep(Duration::from_millis(500));
        }
        go_on(&scratch);
        let outcome = running.wait();
        let expected =
            "ready\n0 wrong, none lost, most right: 1\nreads_after_damage: as it should be\n";
        assert_eq!(outcome.text(), expected, "{}", outcome.stderr);
        says(&outcome, &["its mirror has the pages"]);
        if comes_back {
            says(
                &outcome,
                &["has lost what was on it", "its mirror has the pages"],
            );
        }
    }
}

/// Both servers of a mirror are killed in turn, again and again, and come back with what was on them.
#[test]
fn a_mirror_survives_one_server_after_the_other() {
    let test = "a_mirror_survives_one_server_after_the_other";
    let scratch = Scratch::new(test);
    let images = ["image-a", "image-b"].map(|name| file(&scratch, name, 512));
    let servers = [("a", &images[0]), ("b", &images[1])];
    let servers =
        servers.map(|(name, image)| Server::nbdkit(test, &scratch, name, &["file", image]));
    let [Some(a), Some(b)] = servers else {
        return;
    };
    let mut servers = [a, b];
    let address = format!("{}+{}", servers[0].address(""), servers[1].address(""));
    let Some(running) = Restless::start(test, &scratch, &address) else {
        return;
    };
    for which in [0, 1, 0, 1] {
        servers[which].kill();
        std::thread::sleep(Duration::from_millis(200));
        servers[which].restart();
        std::thread::sleep(Duration::from_millis(800));
    }
    let outcome = running.end();
    says(
        &outcome,
        &["its mirror has the pages until the server is back"],
    );
}

/// The relay itself is killed.
#[test]
fn without_the_relay_pages_are_lost_and_that_is_said() {
    let test = "without_the_relay_pages_are_lost_and_that_is_said";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::nbdkit(test, &scratch, "s", &["memory", "64M"]) else {
        return;
    };
    let disk = scratch.path().display().to_string();
    let managed = managed(&server.address("")).options(["--swap", &disk]);
    let running = start(&job, &scratch, &managed);
    kill_the_relay(&running);
    go_on(&scratch);
    let outcome = running.wait();
    assert_eq!(
        outcome.text(),
        "ready\n0 wrong, some lost, most right: 1\nreads_after_damage: as it should be\n",
        "{}",
        outcome.stderr
    );
    says(&outcome, &["relay", "has ended"]);
    says(&outcome, &["nbd+unix", "SIGBUS"]);
}
