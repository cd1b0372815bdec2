//! Areas on a cluster of six servers: one is killed, and slots move, while a program runs.

use foreswap_e2e::redis::Cluster;

use super::*;

/// A master is killed, and comes back as the replica of the one that took over.
#[test]
fn a_master_that_is_killed_loses_nothing_with_replicas() {
    let test = "a_master_that_is_killed_loses_nothing_with_replicas";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(mut cluster) = Cluster::start(test, &scratch) else {
        return;
    };
    let stop = scratch.join("stop").display().to_string();
    let job = Job::new(program).args(["160", &stop, "forks"]);
    let mut running = managed(&format!("{}?replicas=1", cluster.address()))
        .talkative()
        .start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    cluster.servers[0].kill();
    std::thread::sleep(Duration::from_millis(3000));
    cluster.servers[0].restart();
    std::thread::sleep(Duration::from_millis(2500));
    fs::write(&stop, "").expect("a file");
    let outcome = running.wait().succeeded();
    assert!(
        outcome.text().ends_with("all right\n"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn slots_move_while_a_program_runs() {
    let test = "slots_move_while_a_program_runs";
    let Some(program) = program::compile(test, "verify_loop") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some(cluster) = Cluster::start(test, &scratch) else {
        return;
    };
    let stop = scratch.join("stop").display().to_string();
    let job = Job::new(program).args(["160", &stop, "forks"]);
    let mut running = managed(&cluster.address())
        .talkative()
        .start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    let masters = &cluster.servers[..3];
    let counts = || masters.iter().map(|server| server.keys().len());
    assert!(
        counts().all(|count| count > 10),
        "{:?}",
        counts().collect::<Vec<_>>()
    );
    let [from, to] = [0, 1].map(|which: usize| masters[which].ask(&["CLUSTER", "MYID"]));
    let place = format!("127.0.0.1:{}", masters[0].port);
    let words = [
        "--cluster",
        "reshard",
        &place,
        "--cluster-from",
        &from,
        "--cluster-to",
        &to,
    ];
    let end = ["--cluster-slots", "3000", "--cluster-yes"];
    masters[0].ask(&[&words[..], &end].concat());
    std::thread::sleep(Duration::from_millis(500));
    fs::write(&stop, "").expect("a file");
    let outcome = running.wait().succeeded();
    assert!(
        outcome.text().ends_with("all right\n"),
        "{}",
        outcome.stderr
    );
    assert_eq!(counts().sum::<usize>(), 0);
}
