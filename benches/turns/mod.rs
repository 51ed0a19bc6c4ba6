//! Processes that train in turn, step by step.
//!
//! The benchmark starts itself once for every variant. Such a process trains until it needs a batch, reports the time of the
//! previous step, and waits for its next turn.

#![allow(dead_code)] // No benchmark uses all of it.

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// An argument of such a process only.
pub const TURNS: &str = "--turns";
/// Start of a line with a time; Burn's training prints other lines.
const MARK: &str = "step took ns: ";

/// A process that trains, controlled by the benchmark.
pub struct Worker {
    process: Child,
    turns: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts the benchmark again with `arguments`, and with its own options.
    pub fn start(arguments: &[&str]) -> Self {
        let mut this = Command::new(std::env::current_exe().unwrap());
        let options = std::env::args().skip(1).filter(|a| a.starts_with('-'));
        this.arg(TURNS).args(options).args(arguments);
        Self::of(this)
    }

    /// Starts any program that follows the protocol of a [`Turn`].
    pub fn of(mut program: Command) -> Self {
        let mut process = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let turns = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut worker = Self {
            process,
            turns,
            lines,
        };
        worker.wait(); // It is ready for its first step.
        worker
    }

    /// Runs one step of the process. Returns its seconds.
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

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The seconds of every process, by round.
pub struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    /// Runs the processes in turn, in an order that changes from round to round.
    pub fn of(mut workers: Vec<Worker>, rounds: usize) -> Self {
        let count = workers.len();
        let mut round = |first: usize| {
            let mut times = vec![0.0; count];
            for offset in 0..count {
                let worker = (first + offset) % count;
                times[worker] = workers[worker].step();
            }
            times
        };
        round(0); // The first step makes the optimizer's state, and fills the pools.
        Self((0..rounds).map(round).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn median(&self, worker: usize) -> f64 {
        median(self.0.iter().map(|times| times[worker]))
    }

    /// Returns a quantile of the times of process `worker` in multiples of `base`.
    pub fn ratio(&self, worker: usize, base: usize, part: f64) -> f64 {
        quantile(self.0.iter().map(|times| times[worker] / times[base]), part)
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

fn quantile(values: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

/// Returns the command for a program of PyTorch, with a heap that keeps its pages as [`keep_pages`](backburn::memory::keep_pages) does,
/// and threads that do not spin while another process has its turn.
pub fn pytorch(program: &str) -> Command {
    let mut command = Command::new(std::env::var("PYTHON").unwrap_or("python3".to_string()));
    command.arg(program);
    command.env("MALLOC_TRIM_THRESHOLD_", "1000000000000");
    command.env("MALLOC_MMAP_MAX_", "0");
    command.env("MALLOC_ARENA_MAX", "1");
    command.env("OMP_WAIT_POLICY", "PASSIVE");
    command
}

/// Starts the benchmark again with `arguments`. Returns the numbers that it prints.
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
    numbers.try_into().expect("the requested count")
}

/// The turns of a process, on the side of that process.
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

/// Makes a step in each turn of the process.
pub fn train<R>(mut step: impl FnMut() -> R) -> ! {
    let mut turn = Turn::new();
    loop {
        turn.wait();
        step();
    }
}
