//! Plans for sixteen kinds of models, compared with their trainings.
//!
//! ```sh
//! cargo bench --bench plan
//! cargo bench --bench plan -- LSTM # models with this in their name
//! ```
//!
//! The budgets of every model range from the peak of stock Burn down to half of the smallest candidate, in equal steps. For
//! each a training is planned, and trained for three steps. `peak` is the peak of the bytes of the process, `of planning` the
//! same during planning; neither may exceed the budget. `time` is that of a step in multiples of a stock step, the shortest of
//! three each. `cheaper` is the peak of the next cheaper candidate when it is trained: one more block that keeps its
//! activations, larger micro-batches, or else more bits. If it is below the budget, the candidate would have fitted. Bytes are
//! in MB, and include those of the benchmark itself.

mod models;

use std::error::Error;
use std::time::Instant;

use backburn::memory::{RecordingAllocator, keep_pages};
use backburn::optim::AdamWConfig;
use backburn::optim::{StateFormat, WeightFormat};
use backburn::{Plan, PlanError, Planner};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType};
use peak_alloc::PeakAlloc;

use models::*;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// More bytes than any of the models needs.
const ENOUGH: usize = 1_000_000_000;
const BUDGETS: usize = 6;

fn main() -> Result<(), Box<dyn Error>> {
    keep_pages();
    // A model that can't compute in bf16 panics when it is tried, and a backtrace would hold tens of MB.
    std::panic::set_hook(Box::new(|_| {}));
    println!(
        "{:<26}{:>9}{:>9}{:>9}{:>13}{:>7}{:>9}  taken",
        "", "budget", "planned", "peak", "of planning", "time", "cheaper"
    );
    let mut sums = Sums::default();
    rows::<Mlp>(&mut sums)?;
    rows::<Plain>(&mut sums)?;
    rows::<Recurrent>(&mut sums)?;
    rows::<Convolutional>(&mut sums)?;
    rows::<UNet>(&mut sums)?;
    rows::<Tied>(&mut sums)?;
    rows::<Variational>(&mut sums)?;
    rows::<Mixture>(&mut sums)?;
    rows::<Bag>(&mut sums)?;
    rows::<Language>(&mut sums)?;
    rows::<Adapted>(&mut sums)?;
    rows::<InCodes>(&mut sums)?;
    rows::<Adversarial>(&mut sums)?;
    rows::<Attentive>(&mut sums)?;
    rows::<Normed>(&mut sums)?;
    rows::<Deep>(&mut sums)?;
    println!("{sums:?}");
    Ok(())
}

#[derive(Debug, Default)]
struct Sums {
    rows: usize,
    planned: usize,
    /// Number of trainings above the budget.
    above: usize,
    /// Number of plannings above the budget, with a plan and without.
    planning_above: [usize; 2],
    /// Number of rows in which a cheaper candidate would have fitted, by more than a fraction of the budget.
    cheaper_fits: usize,
    cheaper_fits_by_5_percent: usize,
}

fn init<K: Kind>() -> K {
    K::init(&Device::flex().autodiff())
}

fn plan<K: Kind>(budget: usize) -> Result<Plan<AdamWConfig>, PlanError> {
    let planner = Planner::new(init::<K>, AdamWConfig::new()).with_batch(K::BATCH);
    planner.plan(K::loss, budget)
}

fn rows<K: Kind>(sums: &mut Sums) -> Result<(), Box<dyn Error>> {
    // Cargo passes flags, too.
    let names: Vec<_> = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with("--"))
        .collect();
    if !names.is_empty() && !names.iter().any(|name| K::NAME.contains(name)) {
        return Ok(());
    }
    let (of_stock, time_of_stock) = stock::<K>();
    let candidates = plan::<K>(ENOUGH)?.candidates;
    let least = candidates.iter().map(|it| it.device_bytes).min();
    let half = least.unwrap_or(of_stock) / 2;
    for part in 0..BUDGETS {
        let budget = of_stock - of_stock.saturating_sub(half) * part / (BUDGETS - 1);
        let (planned, of_planning) = peak(|| plan::<K>(budget));
        sums.rows += 1;
        sums.planning_above[usize::from(planned.is_err())] += usize::from(of_planning > budget);
        print!("{:<26}{:>9.2}", K::NAME, mega(budget));
        match planned {
            Err(PlanError::NothingFits { least, .. }) => {
                println!(
                    "{:>40.2}  nothing: {:.2} needed",
                    mega(of_planning),
                    mega(least)
                );
            }
            Err(error) => return Err(error.into()),
            Ok(plan) => {
                let (time, taken) = peak(|| train::<K>(&plan));
                let variants = cheaper(&plan).into_iter();
                let cheaper = variants.map(|plan| peak(|| train::<K>(&plan)).1).min();
                sums.planned += 1;
                sums.above += usize::from(taken > budget);
                if let Some(bytes) = cheaper {
                    sums.cheaper_fits += usize::from(bytes <= budget);
                    sums.cheaper_fits_by_5_percent += usize::from(bytes * 100 < budget * 95);
                }
                let cheaper = cheaper.map_or(String::new(), |it| format!("{:.2}", mega(it)));
                println!(
                    "{:>9.2}{:>9.2}{:>13.2}{:>7.2}{cheaper:>9}  {}",
                    mega(plan.device_bytes),
                    mega(taken),
                    mega(of_planning),
                    time / time_of_stock,
                    plan.candidates[plan.taken].name
                );
            }
        }
    }
    Ok(())
}

/// Formats in the order in which they are tried.
const FORMATS: [(StateFormat, WeightFormat); 5] = [
    (StateFormat::Full, WeightFormat::Plain),
    (StateFormat::Bits8, WeightFormat::Plain),
    (StateFormat::Bits8, WeightFormat::Split24),
    (StateFormat::Bits4, WeightFormat::Split24),
    (StateFormat::Bits4, WeightFormat::Stochastic),
];

/// Returns the next cheaper trainings, independent of the planner's measurements.
fn cheaper(plan: &Plan<AdamWConfig>) -> Vec<Plan<AdamWConfig>> {
    let batch = plan.batch * plan.accumulation;
    let keep = &plan.config.gradient_checkpointing.keep_activations;
    let with = |items: usize, keep: Vec<bool>| {
        let mut plan = plan.clone();
        (plan.batch, plan.accumulation) = (items, batch / items);
        plan.config.gradient_checkpointing.keep_activations = keep;
        plan
    };
    if let Some(last) = keep.iter().rposition(|keep| !keep) {
        let mut keep = keep.clone();
        keep[last] = true;
        return vec![with(plan.batch, keep)];
    }
    if plan.accumulation > 1 {
        let mut larger = plan.batch + 1..=batch;
        let larger = larger.find(|items| batch.is_multiple_of(*items));
        return vec![with(larger.expect("the batch itself"), Vec::new())];
    }
    let optimizer = plan.optimizer.to_string();
    let formats = FORMATS.iter().rposition(|(states, weights)| {
        optimizer.contains(&format!("{states:?}")) && optimizer.contains(&format!("{weights:?}"))
    });
    let Some(before) = formats.expect("formats of the order").checked_sub(1) else {
        return Vec::new();
    };
    let (states, weights) = FORMATS[before];
    let optimizer = AdamWConfig::new().with_state_format(states);
    let variants = [1, batch].map(|items| Plan {
        optimizer: optimizer.clone().with_weight_format(weights),
        weights: (weights != WeightFormat::Plain).then_some(FloatDType::BF16),
        ..with(items, Vec::new())
    });
    variants.to_vec()
}

/// Returns peak and seconds of stock Burn.
fn stock<K: Kind>() -> (usize, f64) {
    let (seconds, bytes) = peak(|| {
        let mut model = init::<K>();
        let mut optimizer = AdamWConfig::new().init();
        let mut shortest = f64::INFINITY;
        for _ in 0..3 {
            let started = Instant::now();
            let gradients = model.loss(K::BATCH).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            model = optimizer.step(1e-3, model, gradients);
            shortest = shortest.min(started.elapsed().as_secs_f64());
        }
        shortest
    });
    (bytes, seconds)
}

/// Trains by the plan. Returns the seconds of a step.
fn train<K: Kind>(plan: &Plan<AdamWConfig>) -> f64 {
    let mut fused = plan.fuse(init::<K>).unwrap();
    let parts = plan.accumulation as f32;
    let mut shortest = f64::INFINITY;
    for _ in 0..3 {
        let started = Instant::now();
        for _ in 1..plan.accumulation {
            fused
                .accumulate(|model| model.loss(plan.batch) / parts)
                .unwrap();
        }
        fused
            .step(1e-3, |model| model.loss(plan.batch) / parts)
            .unwrap();
        shortest = shortest.min(started.elapsed().as_secs_f64());
    }
    shortest
}

/// Runs `work`. Returns the peak of the process.
fn peak<R>(work: impl FnOnce() -> R) -> (R, usize) {
    BYTES.reset_peak_usage();
    let result = work();
    (result, BYTES.peak_usage())
}

fn mega(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
