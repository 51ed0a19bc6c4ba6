//! Ways to train that take turns, step by step, each in a process of its own.
//!
//! The benchmark starts itself once for every way. Such a process trains until it needs a batch, tells
//! what the step before took, and waits for its next turn.

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// An argument of such a process, and of no other.
pub const TURNS: &str = "--turns";
/// What a line with a time begins with; Burn's training prints others.
const MARK: &str = "step took ns: ";

/// The side of the benchmark.
pub struct Way {
    process: Child,
    turns: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Way {
    /// Starts the benchmark again with `arguments`, and with the options that it was started with.
    pub fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg(TURNS)
            .args(std::env::args().skip(1).filter(|a| a.starts_with('-')))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let turns = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut way = Self {
            process,
            turns,
            lines,
        };
        way.wait(); // It is ready for its first step.
        way
    }

    /// Lets it make one step; in seconds.
    pub fn step(&mut self) -> f64 {
        writeln!(self.turns).unwrap();
        self.wait()
    }

    fn wait(&mut self) -> f64 {
        let lines = self.lines.by_ref().map(Result::unwrap);
        let mut times = lines.filter_map(|line| line.strip_prefix(MARK)?.parse().ok());
        let nanoseconds: f64 = times.next().expect("the process goes on");
        nanoseconds / 1e9
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The side of the process that trains.
#[derive(Clone, Copy)]
pub struct Turn {
    since: Instant,
}

impl Turn {
    pub fn new() -> Self {
        Self {
            since: Instant::now(),
        }
    }

    /// Ends a step and waits for the next.
    pub fn wait(&mut self) {
        println!("{MARK}{}", self.since.elapsed().as_nanos());
        stdin().read_line(&mut String::new()).unwrap();
        self.since = Instant::now();
    }
}
