//! A planned training stays within its budget.
//!
//! Each test runs in its own process, because it counts every allocated byte.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../benches/plan/models/mod.rs"]
mod models;

#[cfg(feature = "wgpu")]
mod apart;
mod bad_input;
mod choices;
mod fidelity;
mod peaks;
mod unusual;

use backburn::memory::RecordingAllocator;
use backburn::optim::AdamWConfig;
use peak_alloc::PeakAlloc;

use models::Kind;

use crate::common::*;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// Lets one test run at a time: the bytes of the backend's threads vary.
fn in_one_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    pool.unwrap().install(work)
}

/// More bytes than any of the models takes.
const ENOUGH: usize = 500_000_000;

/// The bytes that no plan can save: earlier allocations, and the planner thread's buffer for matrix products. Each
/// thread keeps a buffer of the size of its L2 cache, so budgets are given in addition to these bytes.
fn fixed() -> usize {
    let multiply = || {
        let x = Tensor::<2>::ones([64, 64], &device().inner());
        std::hint::black_box(x.clone().matmul(x).into_data());
    };
    // From now on all threads of the pool have their buffers.
    rayon::broadcast(|_| multiply());
    let before = BYTES.current_usage();
    std::thread::spawn(move || {
        multiply();
        BYTES.current_usage().max(before)
    })
    .join()
    .unwrap()
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn init<K: Kind>() -> K {
    K::init(&device())
}

fn planner<K: Kind>() -> Planner<fn() -> K, AdamWConfig> {
    Planner::new(init::<K> as fn() -> K, AdamWConfig::new()).with_batch(K::BATCH)
}

fn plan<K: Kind>(budget: usize) -> Result<Plan<AdamWConfig>, PlanError> {
    planner::<K>().plan(K::loss, budget)
}

/// Returns the approximate bytes of each candidate.
fn bytes<O>(plan: &Plan<O>) -> Vec<usize> {
    plan.candidates.iter().map(|it| it.device_bytes).collect()
}

/// Returns the peak of the allocated bytes during `work`, including earlier allocations.
fn peak<R>(work: impl FnOnce() -> R) -> (R, usize) {
    BYTES.reset_peak_usage();
    let result = work();
    (result, BYTES.peak_usage())
}

/// Returns the peak of two steps by `plan`.
fn trained<K: Kind, O: PlannedOptimizer>(plan: &Plan<O>) -> usize {
    let train = || {
        let mut fused = plan.fuse(init::<K>).unwrap();
        let parts = plan.accumulation as f32;
        for _ in 0..2 {
            for _ in 1..plan.accumulation {
                fused
                    .accumulate(|model| model.loss(plan.batch) / parts)
                    .unwrap();
            }
            fused
                .step(1e-3, |model| model.loss(plan.batch) / parts)
                .unwrap();
        }
    };
    peak(train).1
}
