//! How a Redis server is reached: TLS, sockets in the file system, passwords.

use foreswap_e2e::redis::{Cluster, Server};

use super::*;
use crate::tls::certificates;

/// TLS with the right server and the right client alone; one server, and a cluster.
#[test]
fn tls_is_spoken_with_the_right_redis_alone() {
    let test = "tls_is_spoken_with_the_right_redis_alone";
    let Some(job) = full_area(test, "fits_both") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some([right, wrong]) = certificates(test, &scratch) else {
        return;
    };
    let Some(server) = Server::start_by_tls(test, &scratch, &right, &[]) else {
        return;
    };
    let plain = server.address();
    let tls = plain.replacen("redis://", "rediss://", 1);
    let known = format!("tls-certificates={right}&tls-hostname=localhost");
    let outcome = managed(&format!("{tls}?{known}")).run(&job).succeeded();
    outcome.swapped();
    assert_eq!(server.keys(), [""; 0]);
    for (address, words) in [
        (plain, &["TLS", "rediss://"][..]),
        (
            format!("{tls}?tls-certificates={wrong}&tls-hostname=localhost"),
            &["TLS", "certificate"],
        ),
        (
            format!("{tls}?tls-certificates={right}"),
            &["TLS", "certificate", "127.0.0.1"],
        ),
        (
            format!("{tls}?tls-certificates=/nowhere"),
            &["/nowhere/ca-cert.pem"],
        ),
    ] {
        let outcome = managed(&address).run(&Job::new("/bin/true"));
        assert_eq!(outcome.code(), 125, "{address}");
        says(&outcome, words);
    }
    drop(server);
    let Some(cluster) = Cluster::start_by_tls(test, &scratch, &right) else {
        return;
    };
    let address = cluster.address().replacen("redis+", "rediss+", 1);
    let outcome = managed(&format!("{address}?{known}")).run(&job).succeeded();
    outcome.swapped();
    for server in &cluster.servers[..3] {
        assert_eq!(server.keys(), [""; 0]);
    }
}

/// By a socket, in another database, with the password from the environment.
#[test]
fn a_socket_and_a_password_from_the_environment() {
    let test = "a_socket_and_a_password_from_the_environment";
    let Some(job) = full_area(test, "fits_both") else {
        return;
    };
    let scratch = Scratch::new(test);
    let socket = scratch.join("s").display().to_string();
    let words = ["--unixsocket", &socket, "--requirepass", "opensesame"];
    let Some(mut server) = Server::start(test, &scratch, &words) else {
        return;
    };
    server.log_in(&["-a", "opensesame"]);
    let address = format!("redis+unix:///2?socket={socket}");
    let outcome = managed(&address).run(&Job::new("/bin/true"));
    assert_eq!(outcome.code(), 125);
    says(&outcome, &["password", "FORESWAP_REDIS_PASSWORD"]);
    let wrong = Job::new("/bin/true").env("FORESWAP_REDIS_PASSWORD", "wrongpw");
    let outcome = managed(&address).run(&wrong);
    assert_eq!(outcome.code(), 125);
    says(&outcome, &["the user or the password"]);
    assert!(!outcome.stderr.contains("wrongpw"), "{}", outcome.stderr);
    let job = job.env("FORESWAP_REDIS_PASSWORD", "opensesame");
    let outcome = managed(&address).run(&job).succeeded();
    outcome.swapped();
    let told = Job::shell("echo \"[$FORESWAP_REDIS_PASSWORD]\"");
    let told = told.env("FORESWAP_REDIS_PASSWORD", "opensesame");
    assert_eq!(managed(&address).run(&told).succeeded().text(), "[]\n");
    let used = server.ask(&["INFO", "commandstats"]);
    assert!(used.contains("cmdstat_setrange"), "{used}");
    assert_eq!(server.ask(&["-n", "2", "DBSIZE"]), "0");
}

#[test]
fn doctor_tries_a_redis_area() {
    let test = "doctor_tries_a_redis_area";
    let scratch = Scratch::new(test);
    let words = ["--requirepass", "opensesame"];
    let Some(mut server) = Server::start(test, &scratch, &words) else {
        return;
    };
    server.log_in(&["-a", "opensesame"]);
    for (password, expected) in [
        ("opensesame", "ok"),
        ("wrongpw", "the user or the password"),
    ] {
        let address = format!("redis://:{password}@127.0.0.1:{}", server.port);
        let job = Job::new(binary()).args(["doctor", "--swap", &address]);
        let outcome = job.run();
        let text = format!("{}{}", outcome.text(), outcome.stderr);
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("redis://:***@127.0.0.1"), "{text}");
        assert!(!text.contains(password), "{text}");
    }
    assert_eq!(server.keys(), [""; 0]);
}
