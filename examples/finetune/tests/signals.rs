//! The program as a process: signals, and an output that is closed.
#![cfg(unix)]

mod command;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command::{reference, text};
use finetune::signals::is_ignored;

/// The longest time to wait for the program.
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts a training that is too long to end.
fn start(data: &Path, out: &Path, more: &[&str]) -> Child {
    let mut command = program(data, out, &[&["--epochs", "100000"], more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn program(data: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_finetune"));
    for (option, path) in [
        ("--model", reference("llama").as_path()),
        ("--data", data),
        ("--output", out),
    ] {
        command.arg(option).arg(path);
    }
    let small = "--length 32 --batch 2 --sample 0 --save-every 1000000";
    command.args(small.split(' ')).args(more);
    command
}

/// Sends signals in one process, so that they arrive together.
fn kill(child: &Child, signals: &[&str]) {
    let id = child.id();
    let commands: Vec<_> = signals
        .iter()
        .map(|signal| format!("kill {signal} {id}"))
        .collect();
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", &commands.join("; ")]).status();
    assert!(status.unwrap().success());
}

/// Waits for the end of the program; returns its exit code.
fn wait(child: &mut Child) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Number of steps in the log.
fn steps(out: &Path) -> usize {
    let log = fs::read_to_string(out.join("log.jsonl"));
    log.map_or(0, |log| log.lines().count())
}

/// Names of the checkpoints.
fn checkpoints(out: &Path) -> Vec<String> {
    let entries = fs::read_dir(out.join("checkpoints")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("step-")).collect()
}

fn wait_for_steps(out: &Path) {
    let begun = Instant::now();
    while steps(out) < 2 {
        assert!(begun.elapsed() < PATIENCE, "no step is trained");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn signal_ends_training_with_checkpoint() {
    let signals = [
        (&["-INT"][..], 130),
        (&["-TERM"], 143),
        (&["-HUP", "-HUP"], 129),
        (&["-TERM", "-HUP"], 129),
    ];
    // A test under `nohup` can't send SIGHUP.
    let is_sent = |(_, code): &(&[&str], i32)| *code != 129 || !is_ignored(1);
    for (signals, code) in signals.into_iter().filter(is_sent) {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let mut child = start(&text(folder.path()), &out, &[]);
        // Read on, so that the program can print.
        let stdout = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || BufReader::new(stdout).lines().count());
        wait_for_steps(&out);
        kill(&child, signals);
        assert_eq!(wait(&mut child), Some(code), "{signals:?}");
        reader.join().unwrap();
        let expected = [format!("step-{}", steps(&out))];
        assert_eq!(checkpoints(&out), expected, "{signals:?}");
    }
}

#[test]
fn closed_output_ends_training_with_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut child = start(&text(folder.path()), &out, &[]);
    wait_for_steps(&out);
    drop(child.stdout.take());
    assert_eq!(wait(&mut child), Some(1));
    let expected = [format!("step-{}", steps(&out))];
    assert_eq!(checkpoints(&out), expected);
}

#[test]
fn signal_before_first_step_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut child = start(&text(folder.path()), &out, &["--fit", "1GB"]);
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = stdout.lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.starts_with("planning for")));
    kill(&child, &["-INT"]);
    assert_eq!(wait(&mut child), Some(130));
    assert_eq!(steps(&out), 0);
    assert!(checkpoints(&out).is_empty());
}

#[test]
fn full_disk_of_output_is_an_error() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path());
    let [new, done] = ["new", "done"].map(|name| folder.path().join(name));
    let mut command = program(&data, &done, &["--steps", "1"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success());
    for (out, trained) in [(&new, 0), (&done, 1)] {
        let full = fs::File::options().write(true).open(full).unwrap();
        let mut command = program(&data, out, &["--steps", "1"]);
        let output = command.stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", out.display());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.contains("the standard output can't be written"),
            "{error}"
        );
        assert_eq!(steps(out), trained);
    }
}
