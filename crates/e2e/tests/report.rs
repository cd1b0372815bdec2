//! `run --report` and `foreswap report` make a page whose figures are those of the run, and which a browser shows on any
//! screen.

use std::fs;
use std::path::Path;
use std::time::Duration;

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Outcome, Scratch};
use foreswap_e2e::{Job, MIB, Managed, program, requirement};
use rustix::process::{Signal, kill_process};

/// Mebibytes.
const LIMIT: u64 = 64;

fn reported(page: &Path) -> Managed {
    Managed::limit(LIMIT).options(["--report".as_ref(), page.as_os_str()])
}

fn report(words: &[&Path]) -> Outcome {
    Job::new(binary()).arg("report").args(words).run()
}

fn read(page: &Path) -> String {
    fs::read_to_string(page)
        .unwrap_or_else(|error| panic!("no page at {}: {error}", page.display()))
}

/// The figure at the head of a page whose name is `name`.
#[track_caller]
fn figure<'a>(page: &'a str, name: &str) -> &'a str {
    let rest = page.split(&format!("<dt>{name}</dt><dd>")).nth(1);
    let figure = rest.and_then(|rest| rest.split("</dd>").next());
    figure.unwrap_or_else(|| panic!("no figure {name:?} in {page}"))
}

fn count(figure: &str) -> u64 {
    figure.replace(',', "").parse().expect("a number")
}

/// Bytes, as they are written for people.
fn bytes(figure: &str) -> f64 {
    let (number, unit) = figure.split_once(' ').expect("a unit");
    let shift = ["B", "KiB", "MiB", "GiB"]
        .iter()
        .position(|other| *other == unit);
    let shift = 10 * shift.unwrap_or_else(|| panic!("unit {unit}"));
    number.parse::<f64>().expect("a number") * (1_u64 << shift) as f64
}

/// Nothing in a page is from elsewhere, and nothing in it runs.
#[track_caller]
fn is_self_contained(page: &str) {
    assert!(page.len() < 500_000, "{} bytes", page.len());
    for word in ["<script", "<link", "http:", "https:", "@import", "url("] {
        assert!(!page.contains(word), "{word} in {page}");
    }
    let sources = page.matches(" src=\"").count();
    assert!(sources > 0 && sources == page.matches(" src=\"data:image/png;base64,").count());
}

#[test]
fn the_page_has_the_figures_of_the_run() {
    let Some(path) = program::compile("the_page_has_the_figures_of_the_run", "small") else {
        return;
    };
    let scratch = Scratch::new("report");
    let [page, trace, of_trace] =
        ["run.html", "run.trace", "trace.html"].map(|name| scratch.join(name));
    // It fills 160 MiB, and reads them.
    let job = Job::new(path).arg("swaps_once");
    let managed = reported(&page).options(["--trace".as_ref(), trace.as_os_str()]);
    let run = managed.run(&job).succeeded();
    run.equals(&job.run());
    let (text, stats) = (read(&page), run.stats());
    is_self_contained(&text);
    assert_eq!(
        count(figure(&text, "Major faults")),
        stats.count("faults_major")
    );
    let sizes = [
        ("Limit", "memory_limit_bytes"),
        ("Peak", "peak_resident_bytes"),
        ("Went out", "swap_out_bytes"),
        ("Came back", "swap_in_bytes"),
    ];
    for (name, key) in sizes {
        let (told, counted) = (bytes(figure(&text, name)), stats.number(key));
        // As many digits as people read.
        assert!(
            (told - counted).abs() <= counted / 100.0,
            "{name}: {told}, {key}: {counted}"
        );
    }
    // Half of the memory that lacks is of no use to a scan, and all of it is: 160 MiB.
    let limits: Vec<f64> = text
        .split("<th scope=\"row\">")
        .skip(1)
        .filter_map(|row| {
            let size = row.split('<').next()?;
            size.ends_with("iB").then(|| bytes(size))
        })
        .collect();
    let (first, enough) = (limits[0], limits.iter().copied().fold(0.0, f64::max));
    assert_eq!(first, (LIMIT * MIB) as f64, "{limits:?}");
    assert!(
        (140.0..=200.0).contains(&(enough / MIB as f64)),
        "{limits:?}"
    );
    // The program's mapping, in the picture and in the table.
    assert!(
        text.matches("anonymous").count() >= 2 && text.contains(" swaps_once (process "),
        "{text}"
    );
    // The functions that fill and read it, as far as they were seen to wait, with lines of their source.
    let code = text.split("<h2>Which code waited</h2>").nth(1);
    let code = code.and_then(|rest| rest.split("</section>").next());
    let code = code.expect("no section of the code that waited");
    let is_named = [">fill_part<", ">wrong_words<"].map(|name| code.contains(name));
    assert!(
        is_named.contains(&true) && code.contains(">small, check.h:"),
        "{code}"
    );

    let made = report(&[&trace, "--output".as_ref(), &of_trace]).succeeded();
    assert_eq!(made.text().trim(), of_trace.to_str().expect("text"));
    let of_trace = read(&of_trace);
    is_self_contained(&of_trace);
    let back = bytes(figure(&of_trace, "Came back"));
    let swapped_in = stats.number("swap_in_bytes");
    // Pages that were read and not used do not come back.
    assert!(
        back > swapped_in * 0.8 && back <= swapped_in * 1.1,
        "{back} of {swapped_in}"
    );
    assert!(of_trace.contains("A trace has no times of waiting"));

    let refused = report(&[&trace, "--output".as_ref(), &trace]);
    assert!(
        refused.stderr.contains("that is the trace itself"),
        "{}",
        refused.stderr
    );
    report(&[&trace, "--output".as_ref(), &page]).succeeded();
}

/// The page is there however the command ends.
#[test]
fn a_run_that_is_ended_has_a_page() {
    let Some(path) = program::compile("a_run_that_is_ended_has_a_page", "small") else {
        return;
    };
    let scratch = Scratch::new("report-ended");
    let page = scratch.join("run.html");
    let job = Job::new(path).arg("swaps_for_ever").timeout(60);
    let running = reported(&page).start(&job, &scratch.join("stats.json"));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!page.exists());
    kill_process(running.pid(), Signal::TERM).expect("a signal can be sent");
    running.wait();
    let text = read(&page);
    assert!(
        text.contains("ended with status 143, as by signal 15."),
        "{text}"
    );
    assert!(count(figure(&text, "Major faults")) > 0);
    let left = fs::read_dir(scratch.path()).expect("a folder");
    let left: Vec<_> = left
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert!(
        left.iter()
            .all(|name| !name.to_string_lossy().ends_with(".tmp")),
        "{left:?}"
    );
}

#[test]
fn a_run_that_fits_has_a_page_that_says_so() {
    let scratch = Scratch::new("report-fits");
    let page = scratch.join("run.html");
    let evil = "<script>alert(1)</script>";
    let run = reported(&page).run(&Job::new("echo").arg(evil)).succeeded();
    assert_eq!(run.text().trim(), evil);
    let text = read(&page);
    assert!(
        text.contains("Nothing needed managing: the peak stayed below 64 MiB."),
        "{text}"
    );
    assert!(!text.contains("<script") && text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

/// What goes on is not in the page, and the page says so.
#[test]
fn processes_that_go_on_are_named() {
    let scratch = Scratch::new("report-behind");
    let page = scratch.join("run.html");
    let run = reported(&page).run(&Job::shell("sleep 3 & exit 5"));
    assert_eq!(run.code(), 5);
    let text = read(&page);
    for part in [
        "ended with status 5.",
        "1 process goes on in the background",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_named_before_the_command_starts() {
    let scratch = Scratch::new("report-nowhere");
    let witness = scratch.join("witness");
    for page in [
        scratch.join("no/such/folder.html"),
        scratch.path().to_owned(),
        "/dev/null".into(),
    ] {
        let outcome = reported(&page).run(&Job::new("touch").arg(&witness));
        assert_eq!(outcome.code(), 125);
        let expected = format!("cannot write the report to {}: ", page.display());
        assert!(outcome.stderr.contains(&expected), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("name another file"),
            "{}",
            outcome.stderr
        );
        assert!(!witness.exists());
    }
}

#[test]
fn bad_traces_are_named() {
    let scratch = Scratch::new("report-bad");
    let at = |name: &str, bytes: &[u8]| {
        let path = scratch.join(name);
        fs::write(&path, bytes).expect("a file can be written");
        path
    };
    let csv = at("all.csv", b"page\n1\n2\n");
    for (path, expected) in [
        (
            scratch.join("nowhere"),
            "nowhere: cannot be read: No such file",
        ),
        (
            at("text", b"1 2 3"),
            "text: neither its first bytes nor its name tell",
        ),
        (
            at("cut.trace", b"foretrac"),
            "cut.trace: offset 0: the header is cut off",
        ),
        (
            csv,
            "all.csv: a trace of all touches, without a memory limit; expected one by `foreswap run --trace FILE`",
        ),
    ] {
        let outcome = report(&[&path]);
        assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
        let mut page = path.into_os_string();
        page.push(".html");
        assert!(!Path::new(&page).exists());
    }
}

/// Measures the page in a frame of a width: what reaches beyond it, and the least contrast of text with its background.
const MEASURE: &str = r#"<!doctype html><body><iframe src="PAGE" style="border:0;width:WIDTHpx;height:900px"></iframe><pre></pre><script>
const luminance = text => {
  const [r, g, b] = text.match(/[\d.]+/g).map(value => { const v = value / 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b;
};
const background = element => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if (!colour.endsWith(', 0)')) return colour;
  }
};
onload = () => {
  const page = document.querySelector('iframe').contentDocument;
  const beyond = [], width = page.documentElement.clientWidth;
  let contrast = 21, texts = 0, pictures = 0;
  for (const element of page.body.querySelectorAll('*')) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    if (element.tagName == 'LABEL' && Math.abs(box.top - element.previousElementSibling.getBoundingClientRect().top) > 12) beyond.push('apart: ' + element.textContent);
    if (box.left < 0 || box.right > width + .5) beyond.push(element.tagName + '.' + element.className + ' ' + Math.round(box.right));
    if (element.tagName == 'IMG' && element.naturalWidth > 0) pictures++;
    if ([...element.childNodes].some(node => node.nodeType == 3 && node.data.trim())) {
      const [a, b] = [luminance(getComputedStyle(element).color), luminance(background(element))];
      contrast = Math.min(contrast, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
      texts++;
    }
  }
  const light = luminance(background(page.body)) > .5;
  document.querySelector('pre').textContent = JSON.stringify(
    {scroll: page.documentElement.scrollWidth, width, beyond, contrast, texts, pictures, light});
};
</script>"#;

/// What a browser makes of the page at a width, in the light or the dark.
fn measured(
    chromium: &Path,
    scratch: &Scratch,
    page: &str,
    width: u32,
    light: bool,
) -> serde_json::Value {
    let frame = scratch.join("frame.html");
    let text = MEASURE
        .replace("PAGE", page)
        .replace("WIDTH", &width.to_string());
    fs::write(&frame, text).expect("a page can be written");
    let scheme = format!("--blink-settings=preferredColorScheme={}", u32::from(light));
    let job = Job::new(chromium)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args([
            "--hide-scrollbars",
            "--allow-file-access-from-files",
            "--window-size=1400,1000",
        ])
        .arg(scheme)
        .arg(format!(
            "--user-data-dir={}",
            scratch.join("profile").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", frame.display()))
        .env("HOME", scratch.path());
    let outcome = job.run().succeeded();
    let text = outcome.text();
    let json = text
        .split("<pre>")
        .nth(1)
        .and_then(|rest| rest.split("</pre>").next());
    let json = json.unwrap_or_else(|| panic!("nothing was measured: {text}"));
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error} in {json}"))
}

/// Nothing reaches beyond the screen, and all text can be read, on a telephone and on a desk, in the light and in the dark.
#[test]
#[ignore = "make test-full"]
fn a_browser_shows_the_page_on_any_screen() {
    let test = "a_browser_shows_the_page_on_any_screen";
    let Some(chromium) = requirement::command(test, "chromium") else {
        return;
    };
    let Some(program) = program::compile(test, "small") else {
        return;
    };
    let scratch = Scratch::new(test);
    let page = scratch.join("run.html");
    // Long words do not widen the page.
    let job = Job::new(program).arg("swaps_once").arg("w".repeat(300));
    reported(&page).run(&job).succeeded();
    for (width, light) in [(360, true), (360, false), (1200, true), (1200, false)] {
        let found = measured(&chromium, &scratch, "run.html", width, light);
        assert_eq!(found["width"], width, "{found}");
        assert_eq!(found["light"], light, "{found}");
        assert_eq!(found["scroll"], width, "{found}");
        assert_eq!(found["beyond"].as_array().map(Vec::len), Some(0), "{found}");
        assert!(found["contrast"].as_f64() >= Some(4.5), "{found}");
        assert!(found["texts"].as_u64() > Some(80), "{found}");
        // One of three pictures is shown at a time.
        assert_eq!(found["pictures"], 1, "{found}");
    }
}
