//! Areas on Redis in the life of a run: they come and go, a group has one, keys are renewed, the relay is killed.

use std::io::Read;
use std::process::Child;

use foreswap_e2e::redis::Server;

use super::*;

/// A command of a group, killed if the test ends before it.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An area that is closed has left nothing, a moment later.
fn wait_until_empty(server: &Server) {
    let end = Instant::now() + Duration::from_secs(5);
    while !server.keys().is_empty() {
        assert!(Instant::now() < end, "{:?}", server.keys());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `swapoff` takes what the user gave to `swapon`, with its password, and what the list shows.
#[test]
fn areas_with_a_password_come_and_go() {
    let test = "areas_with_a_password_come_and_go";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let words = ["--requirepass", "opensesame"];
    let Some(mut server) = Server::start(test, &scratch, &words) else {
        return;
    };
    server.log_in(&["-a", "opensesame"]);
    let [far, shown] =
        ["opensesame", "***"].map(|word| format!("redis://:{word}@127.0.0.1:{}", server.port));
    let changed = Changed::start(program, &scratch);
    let (near, pid) = (&changed.near, &changed.pid);
    let ask = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_RUNTIME_DIR", &changed.runtime);
        let output = command.output().expect("foreswap starts");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    for name in [&far, &shown] {
        changed.tell(&["swapon", pid, &far]);
        let missing = ask(&["swapoff", pid, "redis://:opensesame@127.0.0.1:1"]);
        assert!(missing.contains("no swap area"), "{missing}");
        changed.tell(&["swapoff", pid, near]);
        assert!(server.keys().len() > 100, "{:?}", server.keys());
        let listed = ask(&["ps", "--json", pid]);
        assert!(listed.contains(&shown), "{listed}");
        for text in [listed, missing] {
            assert!(!text.contains("opensesame"), "{text}");
        }
        changed.tell(&["swapon", pid, near]);
        changed.tell(&["swapoff", pid, name]);
        wait_until_empty(&server);
    }
    let outcome = changed.ends_right();
    assert!(!outcome.stderr.contains("opensesame"), "{}", outcome.stderr);
}

/// Two commands of a group share an area; the first one ends before the second.
#[test]
fn a_group_has_its_area_on_redis() {
    let test = "a_group_has_its_area_on_redis";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::start(test, &scratch, &[]) else {
        return;
    };
    let runtime = scratch.join("run");
    fs::create_dir(&runtime).expect("a folder");
    let start = |name: &str| {
        let mut command = Command::new(binary());
        command.args(["run", "--memory", "40M", "--quiet", "--group", "one"]);
        command.args(["--swap", &server.address(), "--"]);
        command.arg(&program).arg("80").arg(scratch.join(name));
        let child = command
            .arg("forks")
            .env("XDG_RUNTIME_DIR", &runtime)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut member = Member(child.expect("foreswap starts"));
        let output = member.0.stdout.as_mut().expect("piped");
        let mut ready = [0; 6];
        output.read_exact(&mut ready).expect("it is ready");
        assert_eq!(&ready, b"ready\n");
        member
    };
    let members = ["first", "second"].map(|name| (name, start(name)));
    let mut prefixes = server.keys();
    prefixes.iter_mut().for_each(|key| key.truncate(40));
    prefixes.sort();
    prefixes.dedup();
    assert_eq!(prefixes.len(), 1, "{prefixes:?}");
    for (name, mut member) in members {
        assert!(!server.keys().is_empty(), "{name}");
        fs::write(scratch.join(name), "").expect("a file");
        let mut text = String::new();
        let output = member.0.stdout.as_mut().expect("piped");
        output.read_to_string(&mut text).expect("its output");
        assert!(member.0.wait().expect("it ends").success(), "{name}");
        assert!(text.ends_with("all right\n"), "{name}: {text}");
    }
    wait_until_empty(&server);
}

/// Keys that were about to expire are renewed in time: after a quarter of `?expire=`.
#[test]
fn keys_that_expire_are_renewed() {
    let test = "keys_that_expire_are_renewed";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::start(test, &scratch, &[]) else {
        return;
    };
    let managed = managed(&format!("{}?expire=60", server.address()));
    let running = start(&job, &scratch, &managed);
    let keys = server.keys();
    assert!(keys.len() > 100, "{keys:?}");
    // As if most of the time had passed: 18 of 60 seconds are left, and 15 of them are the interval of renewals.
    let shorten =
        "for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('EXPIRE', key, 18) end";
    server.ask(&["EVAL", shorten, "0"]);
    std::thread::sleep(Duration::from_secs(19));
    // A write that was under way may have added one.
    let left = server.keys();
    let lost: Vec<_> = keys.iter().filter(|key| !left.contains(key)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    go_on(&scratch);
    let outcome = running.wait();
    assert_eq!(outcome.text(), crate::redis::RIGHT, "{}", outcome.stderr);
    assert_eq!(server.keys(), [""; 0]);
}

/// The relay itself is killed: its pages are lost, which is said, and its keys expire.
#[test]
fn without_the_relay_the_keys_expire() {
    let test = "without_the_relay_the_keys_expire";
    let Some(job) = full_area(test, "reads_after_damage") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(server) = Server::start(test, &scratch, &["--maxmemory", "90mb"]) else {
        return;
    };
    let disk = scratch.path().display().to_string();
    let managed = managed(&format!("{}?expire=60", server.address())).options(["--swap", &disk]);
    let running = start(&job, &scratch, &managed);
    kill_the_relay(&running);
    go_on(&scratch);
    let outcome = running.wait();
    assert_eq!(outcome.text(), crate::redis::LOST, "{}", outcome.stderr);
    says(&outcome, &["relay", "has ended"]);
    says(&outcome, &["redis://", "SIGBUS"]);
    let keys = server.keys();
    assert!(!keys.is_empty());
    for key in &keys {
        let left: i64 = server.ask(&["TTL", key]).parse().expect("a time");
        assert!((1..=60).contains(&left), "{key}: {left}");
    }
}
