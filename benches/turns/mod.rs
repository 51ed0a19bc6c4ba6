//! Ways to train that take turns, step by step, each in a process of its own.
//!
//! The benchmark starts itself once for every way. Such a process trains until it needs a batch, tells
//! what the step before took, and waits for its next turn.

#![allow(dead_code)] // No benchmark uses all of it.

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
        let mut this = Command::new(std::env::current_exe().unwrap());
        let options = std::env::args().skip(1).filter(|a| a.starts_with('-'));
        this.arg(TURNS).args(options).args(arguments);
        Self::of(this)
    }

    /// Starts any program that does what a [`Turn`] does.
    pub fn of(mut program: Command) -> Self {
        let mut process = program
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

/// The seconds that every way took, by round.
pub struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    /// They take turns, in an order that changes from round to round.
    pub fn of(mut ways: Vec<Way>, rounds: usize) -> Self {
        let count = ways.len();
        let mut round = |first: usize| {
            let mut times = vec![0.0; count];
            for offset in 0..count {
                let way = (first + offset) % count;
                times[way] = ways[way].step();
            }
            times
        };
        round(0); // The first step makes the optimizer's state, and fills the pools.
        Self((0..rounds).map(round).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn median(&self, way: usize) -> f64 {
        quantile(self.0.iter().map(|times| times[way]), 0.5)
    }

    /// A quantile of what `way` took in multiples of `base`.
    pub fn ratio(&self, way: usize, base: usize, part: f64) -> f64 {
        quantile(self.0.iter().map(|times| times[way] / times[base]), part)
    }
}

fn quantile(values: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

/// What the benchmark prints when it is started again with `arguments`.
pub fn numbers<const N: usize>(arguments: &[&str]) -> [f64; N] {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let numbers = output.split_whitespace().map(|number| number.parse());
    let numbers: Result<Vec<f64>, _> = numbers.collect();
    let numbers = numbers.unwrap_or_else(|error| panic!("{error} in {output}"));
    numbers.try_into().expect("as many as are asked for")
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

/// The side of a process that makes a step at each of its turns.
pub fn train<R>(mut step: impl FnMut() -> R) -> ! {
    let mut turn = Turn::new();
    loop {
        turn.wait();
        step();
    }
}
