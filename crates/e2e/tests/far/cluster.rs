//! Areas on a cluster of six servers: one is killed, and slots move, while a program runs.

use foreswap_e2e::redis::Cluster;

use super::*;

/// A master is killed, and comes back as the replica of the one that took over.
#[test]
fn a_master_that_is_killed_loses_nothing_with_replicas() {
    let test = "a_master_that_is_killed_loses_nothing_with_replicas";
    let scratch = Scratch::new(test);
    let Some(mut cluster) = Cluster::start(test, &scratch) else {
        return;
    };
    // Each master has one replica.
    let refused = managed(&format!("{}?replicas=2", cluster.address())).run(&Job::new("/bin/true"));
    assert_eq!(refused.code(), 125);
    says(
        &refused,
        &["127.0.0.1:", "replicas=2", "the 1 that follow", "add-node"],
    );
    let Some(running) =
        Restless::start(test, &scratch, &format!("{}?replicas=1", cluster.address()))
    else {
        return;
    };
    cluster.servers[0].kill();
    std::thread::sleep(Duration::from_millis(3000));
    cluster.servers[0].restart();
    std::thread::sleep(Duration::from_millis(2500));
    // Its replica took over.
    let role = cluster.servers[0].ask(&["INFO", "replication"]);
    assert!(role.contains("role:slave"), "{role}");
    running.end();
}

#[test]
fn slots_move_while_a_program_runs() {
    let test = "slots_move_while_a_program_runs";
    let scratch = Scratch::new(test);
    let Some(cluster) = Cluster::start(test, &scratch) else {
        return;
    };
    let Some(running) = Restless::start(test, &scratch, &cluster.address()) else {
        return;
    };
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
    let said = masters[0].ask(&[&words[..], &end].concat());
    assert!(said.contains("Moving slot"), "{said}");
    std::thread::sleep(Duration::from_millis(500));
    running.end();
    assert_eq!(counts().sum::<usize>(), 0);
}
