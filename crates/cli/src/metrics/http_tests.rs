use super::*;

fn text(format: Format) -> String {
    format!("{format:?}\n")
}

fn answered(request: &str) -> String {
    let bytes = answer(request.as_bytes(), &text).expect("a complete request");
    String::from_utf8(bytes).expect("text")
}

#[test]
fn addresses_are_of_the_loopback_unless_written_out() {
    for text in ["9108", ":9108", "127.0.0.1:9108"] {
        assert_eq!(address(text), Ok(([127, 0, 0, 1], 9108).into()), "{text}");
    }
    assert_eq!(address("0.0.0.0:1"), Ok(([0, 0, 0, 0], 1).into()));
    for text in ["", "localhost", "127.0.0.1", "70000", "1.2.3.4:x"] {
        let error = address(text).expect_err(text);
        assert!(error.contains("expected a port"), "{error}");
    }
}

#[test]
fn requests_are_answered_by_path_method_and_accept() {
    let get = "GET /metrics HTTP/1.1\r\n";
    for (request, status, body) in [
        (format!("{get}\r\n"), "200 OK", "Prometheus\n"),
        (
            format!("{get}accept: text/plain;q=0.3, application/openmetrics-text;q=0.5\r\n\r\n"),
            "200 OK",
            "OpenMetrics\n",
        ),
        (
            "GET /metrics?x=1 HTTP/1.0\r\n\r\n".to_owned(),
            "200 OK",
            "Prometheus\n",
        ),
        (
            "GET / HTTP/1.1\r\n\r\n".to_owned(),
            "404 ",
            "GET /metrics\n",
        ),
        (
            "GET /metricsx HTTP/1.1\r\n\r\n".to_owned(),
            "404 ",
            "GET /metrics\n",
        ),
        (
            "POST /metrics HTTP/1.1\r\n\r\n".to_owned(),
            "405 ",
            "GET /metrics\n",
        ),
        (
            "\x01\x02 nonsense\r\n\r\n".to_owned(),
            "400 ",
            "GET /metrics\n",
        ),
        (
            format!("{get}{}\r\n", "a: b\r\n".repeat(HEADERS + 1)),
            "431 ",
            "GET /metrics\n",
        ),
        (
            format!("{get}a: {}", "x".repeat(REQUEST)),
            "431 ",
            "GET /metrics\n",
        ),
    ] {
        let answer = answered(&request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        let (head, sent) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(sent.ends_with(body), "{answer}");
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", sent.len())),
            "{head}"
        );
    }
    assert_eq!(answer(b"GET /metrics HTTP/1.1\r\nAccept:", &text), None);
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address().expect("an address")).expect("a connection");
    let patience = Some(Duration::from_secs(5));
    stream.set_read_timeout(patience).expect("a timeout");
    stream
}

#[test]
fn silent_clients_hold_nobody_up_and_are_bounded() {
    let mut server = Server::open(address("0").expect("valid")).expect("a free port");
    let mut asking = connect(&server);
    let _silent: Vec<TcpStream> = (0..CLIENTS + 4).map(|_| connect(&server)).collect();
    asking
        .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    let until = Instant::now() + Duration::from_secs(5);
    // The request may arrive after the connection.
    while server.clients.len() < CLIENTS || server.clients.iter().any(|c| !c.inbox.is_empty()) {
        assert!(Instant::now() < until);
        server.serve(text);
    }
    asking.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("\r\n\r\nPrometheus\n"), "{answer}");
    assert_eq!(server.clients.len(), CLIENTS);
    assert_eq!(
        server.watched().count(),
        CLIENTS,
        "no further client is accepted"
    );
    for client in &mut server.clients {
        client.since -= PATIENCE;
    }
    server.serve(text);
    assert!(server.clients.is_empty(), "they had their time");
}

#[test]
fn a_taken_port_is_an_error_that_names_it() {
    let server = Server::open(address("0").expect("valid")).expect("a free port");
    let taken = server.address().expect("an address");
    let error = Server::open(taken).expect_err("taken").to_string();
    assert!(
        error.contains(&taken.to_string()) && error.contains("--metrics"),
        "{error}"
    );
}
