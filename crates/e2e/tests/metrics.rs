//! `--metrics` and `--metrics-file` on a program that pages, read by a strict check of the text format and by Prometheus.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Running, Scratch};
use foreswap_e2e::{Job, MIB, Managed, program, requirement};
use serde_json::Value;

/// The samples of a text, by name and labels. Fails at the first line that breaks the format.
#[track_caller]
fn samples(text: &str) -> HashMap<String, f64> {
    assert!(text.ends_with('\n'));
    let mut families: HashMap<&str, &str> = HashMap::new();
    let mut family = "";
    let mut samples = HashMap::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            match words[..] {
                ["EOF"] => assert!(text.ends_with("# EOF\n"), "EOF is the last line"),
                ["HELP", name, _] => {
                    assert!(!families.contains_key(name), "{name} comes twice");
                    family = name;
                }
                ["TYPE", name, kind] => {
                    assert_eq!(name, family);
                    assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
                    families.insert(name, kind);
                }
                ["UNIT", name, unit] => assert!(name == family && name.ends_with(unit), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, rest) = line.split_once('{').expect(line);
        let (labels, value) = rest.rsplit_once("} ").expect(line);
        assert!(
            labels.starts_with("run=\"") && labels.ends_with('"'),
            "{line}"
        );
        let ending = name.strip_prefix(family).expect(line);
        let endings: &[&str] = match families[family] {
            "counter" => &["", "_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(endings.contains(&ending), "{line}");
        let is_total = name.ends_with("_total");
        assert_eq!(families[family] == "counter", is_total, "{line}");
        let key = format!(
            "{name}{{{}",
            labels.split_once(',').map_or("", |(_, more)| more)
        );
        let value = value.parse().expect(line);
        assert!(samples.insert(key, value).is_none(), "{line} comes twice");
    }
    samples
}

/// A program of 96 MiB in 32 MiB, with options of `run`; ready when it has written its memory.
fn paging(test: &str, options: &[&str], scratch: &Scratch) -> Option<Running> {
    let program = program::compile(test, "verify_loop")?;
    let job = Job::new(program)
        .arg("96")
        .arg(scratch.join("stop"))
        .arg("alone");
    let mut running = Managed::limit(32)
        .options(options)
        .talkative()
        .start(&job, &scratch.join("stats.json"));
    running.wait_for_output("ready");
    Some(running)
}

fn get(address: SocketAddr, path: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let patience = Some(Duration::from_secs(10));
    stream.set_read_timeout(patience).expect("a timeout");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// A Prometheus that asks one run; killed on drop.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// `None`: see [`requirement::command`].
    fn start(test: &str, scratch: &Scratch, of: SocketAddr) -> Option<Self> {
        let program = requirement::command(test, "prometheus")?;
        let config = scratch.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\n\
             scrape_configs: [{{job_name: foreswap, static_configs: [{{targets: ['{of}']}}]}}]\n"
        );
        fs::write(&config, text).expect("the file");
        let address = free_port();
        let log = fs::File::create(scratch.join("prometheus.log")).expect("the log");
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                scratch.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log)
            .spawn()
            .expect("prometheus starts");
        Some(Self { child, address })
    }

    /// The values of a query now; none before the server is ready.
    fn values(&self, query: &str) -> Vec<f64> {
        let Ok(mut stream) = TcpStream::connect(self.address) else {
            return Vec::new();
        };
        let coded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut answer = String::new();
        write!(stream, "GET /api/v1/query?query={coded} HTTP/1.0\r\n\r\n").expect("sent");
        stream.read_to_string(&mut answer).expect("an answer");
        let body = answer.split_once("\r\n\r\n").expect("a head").1;
        let Ok(reply) = serde_json::from_str::<Value>(body) else {
            return Vec::new();
        };
        assert_eq!(reply["status"], "success", "{query}: {body}");
        let results = reply["data"]["result"].as_array().expect("results");
        let values = results.iter().map(|one| &one["value"][1]);
        let values = values.map(|value| value.as_str().expect("text").parse().expect("a number"));
        values.collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The queries of the dashboard's panels, as Grafana sends them for all runs.
fn panels() -> Vec<(String, String)> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../contrib/grafana-dashboard.json"
    );
    let text = fs::read_to_string(path).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("a query");
            let query = query
                .replace("$run", ".+")
                .replace("$__rate_interval", "2s");
            assert!(!query.contains('$'), "{query}");
            queries.push((panel["title"].as_str().expect("a title").to_owned(), query));
        }
    }
    queries
}

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address")
}

#[test]
fn prometheus_gets_the_figures_while_other_clients_are_silent() {
    let scratch = Scratch::new("metrics");
    let address = free_port();
    let text = address.to_string();
    let Some(running) = paging("metrics", &["--metrics", &text], &scratch) else {
        return;
    };
    let _silent: Vec<TcpStream> = (0..5)
        .map(|_| TcpStream::connect(address).expect("a connection"))
        .collect();
    let (head, body) = get(address, "/metrics", "*/*");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let first = samples(&body);
    assert_eq!(first["foreswap_memory_limit_bytes{"], 32.0 * MIB as f64);
    assert!(
        first["foreswap_swap_out_bytes_total{"] >= 32.0 * MIB as f64,
        "{body}"
    );
    assert!(first["foreswap_faults_total{kind=\"zero\""] > 0.0, "{body}");
    let (head, body) = get(address, "/metrics", "application/openmetrics-text");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(body.ends_with("# EOF\n"), "{body}");
    let second = samples(&body);
    for (name, value) in first.iter().filter(|(name, _)| name.contains("_total{")) {
        assert!(
            second[name] >= *value,
            "{name} fell from {value} to {}",
            second[name]
        );
    }
    assert!(get(address, "/", "*/*").0.starts_with("HTTP/1.1 404 "));
    fs::write(scratch.join("stop"), "").expect("the file");
    running.wait().succeeded();
    assert!(TcpStream::connect(address).is_err(), "the run is over");
}

#[test]
fn a_prometheus_stores_them_and_each_panel_of_the_dashboard_shows_some() {
    let scratch = Scratch::new("metrics");
    let test = "metrics_prometheus";
    let address = free_port();
    let text = address.to_string();
    let Some(prometheus) = Prometheus::start(test, &scratch, address) else {
        return;
    };
    let Some(running) = paging(test, &["--metrics", &text], &scratch) else {
        return;
    };
    let panels = panels();
    assert!(panels.len() > 10, "{panels:?}");
    let until = Instant::now() + Duration::from_secs(30);
    for (title, query) in &panels {
        loop {
            let values = prometheus.values(query);
            if values.iter().any(|value| value.is_finite()) {
                break;
            }
            let log = || fs::read_to_string(scratch.join("prometheus.log")).unwrap_or_default();
            assert!(
                Instant::now() < until,
                "{title}: {query} gives {values:?}\n{}",
                log()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let limit = prometheus.values("foreswap_memory_limit_bytes");
    assert_eq!(limit, [32.0 * MIB as f64]);

    // The tool that says what Prometheus' authors would say about names, types and units.
    let promtool = requirement::command(test, "promtool").expect("a part of prometheus");
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    let (_, body) = get(address, "/metrics", "*/*");
    let mut input = check.stdin.take().expect("a pipe");
    input.write_all(body.as_bytes()).expect("the metrics");
    drop(input);
    let output = check.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");

    fs::write(scratch.join("stop"), "").expect("the file");
    running.wait().succeeded();
}

#[test]
fn the_file_ends_with_the_figures_of_the_statistics() {
    let scratch = Scratch::new("metrics");
    let path = scratch.join("run.prom");
    let options = ["--metrics-file", path.to_str().expect("text")];
    let Some(running) = paging("metrics_file", &options, &scratch) else {
        return;
    };
    let early = fs::read_to_string(&path).expect("it is written from the start");
    samples(&early);
    fs::write(scratch.join("stop"), "").expect("the file");
    running.wait().succeeded();
    let last = samples(&fs::read_to_string(&path).expect("it stays"));
    let stats = foreswap_e2e::Stats::read(&scratch.join("stats.json"));
    for (name, key) in [
        ("foreswap_faults_total{kind=\"major\"", "faults_major"),
        ("foreswap_swap_in_bytes_total{", "swap_in_bytes"),
        ("foreswap_swap_out_bytes_total{", "swap_out_bytes"),
    ] {
        assert_eq!(last[name], stats.number(key), "{name}");
    }
    let files = fs::read_dir(scratch.path()).expect("a folder");
    let left: Vec<_> = files
        .map(|file| file.expect("a file").file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains(".tmp")),
        "{left:?}"
    );
}

#[test]
fn what_cannot_be_served_is_refused_before_the_program_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken_address(&taken);
    for (options, parts) in [
        (["--metrics", &taken], [taken.as_str(), "--metrics"]),
        (["--metrics", "localhost"], ["localhost", "expected a port"]),
        (
            ["--metrics-file", "/nowhere/x.prom"],
            ["/nowhere/x.prom", "--metrics-file"],
        ),
        (
            ["--metrics-file", "/dev/null"],
            ["/dev/null", "an ordinary file"],
        ),
    ] {
        let output = Command::new(binary())
            .args(["run", "--memory", "32M"])
            .args(options)
            .args(["--", "echo", "started"])
            .output()
            .expect("foreswap starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{options:?}: {text}"
        );
        for part in parts {
            assert!(text.contains(part), "{options:?}: no {part:?} in {text}");
        }
    }
}

fn taken_address(listener: &TcpListener) -> String {
    listener.local_addr().expect("an address").to_string()
}
