//! Every way to train is a row of one table: the storage of its parameters, the compute type, and the number of ranks.
//! For each row the weights equal stock Burn, steps write in place, the bytes are those of the row, and a fault loses
//! no parameter. A new way to train is a new row.
//!
//! These tests count bytes and sum over ranks, so they are in this process, which runs one test at a time.

pub(super) mod faults;
pub(super) mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use faults::{Fault, failing, failing_optimizer};
use table::Row;

/// A training, on one device or on several.
pub trait Training {
    /// Runs one step with a batch for each rank, or returns its error.
    fn step(&mut self, batches: Batches) -> Result<(), String>;

    fn network(&self) -> Network;

    /// Returns the number of parameters that were copied for their update.
    fn copied(&self) -> Option<usize>;
}

impl Training for FusedOptimizer<Network> {
    fn step(&mut self, mut batches: Batches) -> Result<(), String> {
        let batch = batches.remove(0);
        let step = || self.step(RATE, |network| loss(network, batch));
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(ended) => ended.map(drop).map_err(|error| error.to_string()),
            Err(panic) => Err(text_of(panic)),
        }
    }

    fn network(&self) -> Network {
        self.model()
    }

    fn copied(&self) -> Option<usize> {
        self.last_step().copied
    }
}

impl Training for FusedReplicas<Network> {
    fn step(&mut self, batches: Batches) -> Result<(), String> {
        let ended = self.step(RATE, batches, loss);
        ended.map(drop).map_err(|error| error.to_string())
    }

    fn network(&self) -> Network {
        self.model()
    }

    fn copied(&self) -> Option<usize> {
        self.last_step().copied
    }
}

/// Computes [`Network::loss_in_blocks`], with every stage that can fail.
pub fn loss(network: &Network, tokens: Tensor<2, Int>) -> Tensor<1> {
    assert!(!Fault::Closure.strikes(), "in the closure");
    let loss = network.loss_of(tokens, |layer, x| {
        type HasRun = Constant<Arc<AtomicBool>>;
        let run = |layer: &Linear, (x, Constant(has_run)): (Tensor<3>, HasRun)| {
            let again = has_run.swap(true, Ordering::Relaxed);
            assert!(!(again && Fault::SecondRun.strikes()), "in a second run");
            layer.forward(x).tanh()
        };
        gradient_checkpointing(layer, (x, Constant(Arc::default())), run)
    });
    if Fault::Backward.strikes() {
        drop(loss.clone().backward());
    }
    loss
}

/// Batches for the ranks of a row, by step.
fn all_batches(row: &Row, steps: usize) -> Vec<Batches> {
    let batches = |_| tokens(&flex(1)[0], &vec![2; row.ranks]);
    (0..steps).map(batches).collect()
}

/// With fewer than 4,096 elements a matrix has no states in 8 bits.
const WIDTH: usize = 66;

fn copied(row: &Row, initial: &Network) -> Network {
    copy(initial, || row.network(WIDTH))
}

#[test]
fn row_of_table_equals_stock_and_writes_in_place() {
    let _alone = alone();
    for row in table::ROWS {
        println!("{}", row.name);
        let initial = row.network(WIDTH);
        let all_batches = all_batches(row, 4);
        let mut training = row.train(copied(row, &initial));
        for batches in &all_batches {
            training.step(batches.clone()).unwrap();
        }
        let mut optimizer = row.optimizer();
        let (devices, dtype) = (flex(row.ranks), row.compute_dtype());
        let stock = all_batches
            .iter()
            .fold(copied(row, &initial), |network, batches| {
                let batches = batches.clone();
                stock_step(dtype, network, &mut optimizer, &devices, batches, row.stock)
            });
        assert_equal_weights(&stock, &training.network());
        assert_eq!(training.copied(), row.copied);
    }
}

/// Returns the allocated bytes after the threads of a training have released theirs.
pub fn settled() -> usize {
    loop {
        let bytes = BYTES.current_usage();
        std::thread::sleep(std::time::Duration::from_millis(20));
        if BYTES.current_usage() == bytes {
            return bytes;
        }
    }
}

/// Returns the bytes before a training, when the threads of the last one have ended: each has a buffer for matrix products.
pub fn settled_before_training() -> usize {
    let is_ours = |name: &str| name.starts_with("rank ") || name.starts_with("to ");
    // If the system reports its threads.
    let tasks = || std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = || tasks().flatten().filter_map(name);
    let start = std::time::Instant::now();
    while names().any(|name| is_ours(&name)) {
        assert!(start.elapsed().as_secs() < 60, "a thread does not end");
        std::thread::yield_now();
    }
    settled()
}

/// Returns the bytes of the plain network, of a training between steps, and at its peak.
fn held(row: &Row, width: usize) -> [f64; 3] {
    let all_batches = all_batches(row, 3);
    let plain = 4 * Network::of_width(width, &flex(1)[0]).num_params();
    let before = settled_before_training();
    let mut training = row.train(row.network(width));
    let mut held = [0; 2];
    for batches in all_batches {
        BYTES.reset_peak_usage();
        training.step(batches).unwrap();
        held = [settled(), BYTES.peak_usage()];
    }
    let [rest, peak] = held.map(|bytes| bytes as f64 - before as f64);
    [plain as f64, rest, peak]
}

#[test]
fn row_of_table_holds_bytes_that_it_names() {
    let _alone = alone();
    // Every thread of the backend keeps a buffer after its first matrix product.
    rayon::broadcast(|_| {
        let x = Tensor::<2>::ones([64, 64], &Device::flex());
        drop(x.clone().transpose().matmul(x.clone()));
        x.clone().matmul(x.transpose())
    });
    let mut wrong = Vec::new();
    for row in table::ROWS {
        // Threads have their own buffers, for any network. The first training starts the threads that remain.
        let [_, small, large] = [64, 192, 384].map(|width| held(row, width));
        let more = |of: usize| large[of] - small[of];
        let [rest, peak] = [more(1), more(2)].map(|bytes| bytes / more(0));
        println!("{}: {rest:.2} P at rest, {peak:.2} P at the peak", row.name);
        if (rest - row.rest).abs() > 0.05 || peak > row.peak {
            wrong.push(row.name);
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn row_of_table_with_fault_at_any_stage_keeps_parameters() {
    let _alone = alone();
    for row in table::ROWS {
        let initial = row.network(WIDTH);
        let all_batches = all_batches(row, 3);
        // After some faults, each parameter has its value from before or after the step.
        for (fault, leaves_all) in [
            (Fault::Closure, true),
            (Fault::Backward, true),
            (Fault::SecondRun, false),
            (Fault::Hook, false),
            (Fault::Optimizer, false),
        ] {
            println!("{}, {fault:?}", row.name);
            let mut training = row.train(copied(row, &initial));
            training.step(all_batches[0].clone()).unwrap();
            let before = weights(&training.network());
            let after = {
                let mut undisturbed = row.train(copied(row, &initial));
                undisturbed.step(all_batches[0].clone()).unwrap();
                undisturbed.step(all_batches[1].clone()).unwrap();
                weights(&undisturbed.network())
            };

            fault.arm();
            let said = training.step(all_batches[1].clone()).unwrap_err();
            assert!(Fault::none_is_armed(), "the step ended early: {said}");
            assert_says(&said, fault.says());
            let found = weights(&training.network());
            if leaves_all {
                assert_eq!(before, found);
                training.step(all_batches[1].clone()).unwrap();
                assert_eq!(after, weights(&training.network()));
                continue;
            }
            let states = before.iter().zip(&after).zip(&found);
            let kept = states.filter(|((before, after), found)| {
                let path = &found.0;
                assert!(found == before || found == after, "`{path}` is neither");
                found == before && before != after
            });
            assert!(kept.count() > 0, "all parameters were updated");
            training.step(all_batches[2].clone()).unwrap();
            for (path, value) in weights(&training.network()) {
                assert!(value.iter::<f32>().all(f32::is_finite), "`{path}`");
            }
        }
    }
}
