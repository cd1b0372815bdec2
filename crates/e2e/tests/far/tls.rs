//! Connections that are encrypted: with the right server alone.

use super::*;

/// The folders of two authorities: the first signs the certificates of a server, `localhost`, and of a client, which are in its
/// folder. `None`: see [`requirement::command`].
pub fn certificates(test: &str, scratch: &Scratch) -> Option<[String; 2]> {
    let openssl = requirement::command(test, "openssl")?;
    let openssl = |words: &str| {
        let output = Command::new(&openssl)
            .args(words.split(' '))
            .current_dir(scratch.path())
            .output()
            .expect("openssl starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {text}");
    };
    // Two authorities; the first signs the server's and the client's certificate.
    for folder in ["right", "wrong"] {
        fs::create_dir(scratch.join(folder)).expect("a folder");
        openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={folder} -keyout {folder}/ca-key.pem -out {folder}/ca-cert.pem"
        ));
    }
    for (name, subject) in [("server", "localhost"), ("client", "client")] {
        let extension = scratch.join("extension");
        fs::write(&extension, format!("subjectAltName=DNS:{subject}")).expect("a file");
        openssl(&format!(
            "req -newkey rsa:2048 -nodes -subj /CN={subject} -keyout right/{name}-key.pem -out request.pem"
        ));
        openssl(&format!(
            "x509 -req -in request.pem -CA right/ca-cert.pem -CAkey right/ca-key.pem -CAcreateserial -days 2 -extfile extension -out right/{name}-cert.pem"
        ));
    }
    Some(["right", "wrong"].map(|name| scratch.join(name).display().to_string()))
}

#[test]
fn tls_is_spoken_with_the_right_server_alone() {
    let test = "tls_is_spoken_with_the_right_server_alone";
    let Some(job) = full_area(test, "fits_both") else {
        return;
    };
    let scratch = Scratch::new(test);
    let Some([right, wrong]) = certificates(test, &scratch) else {
        return;
    };
    let certificates = format!("--tls-certificates={right}");
    let words = [
        "--tls=require",
        "--tls-verify-peer",
        &certificates,
        "memory",
        "256M",
    ];
    let Some(server) = Server::nbdkit(test, &scratch, "s", &words) else {
        return;
    };
    let plain = server.address("");
    let tls = plain.replacen("nbd+", "nbds+", 1);
    let outcome = managed(&format!("{tls}&tls-certificates={right}"))
        .run(&job)
        .succeeded();
    outcome.swapped();
    for (address, words) in [
        (plain, &["TLS", "nbds://"][..]),
        (
            format!("{tls}&tls-certificates={wrong}"),
            &["TLS", "certificate"],
        ),
        (
            format!("{tls}&tls-certificates={right}&tls-hostname=other"),
            &["TLS", "certificate"],
        ),
        (
            format!("{tls}&tls-certificates=/nowhere"),
            &["/nowhere/ca-cert.pem"],
        ),
    ] {
        let outcome = managed(&address).run(&Job::new("/bin/true"));
        assert_eq!(outcome.code(), 125, "{address}");
        says(&outcome, words);
    }
}
