//! What the planner takes for sixteen kinds of models, and whether it holds.
//!
//! ```sh
//! cargo bench --bench plan
//! cargo bench --bench plan -- LSTM # models whose name has it
//! ```
//!
//! For every model budgets from the peak of stock Burn down to half of the smallest rung, in equal steps. Each is measured and planned for
//! anew, and trained for three steps as planned. `peak` is the most bytes that the process has allocated meanwhile, `of planning` the same
//! while it was planned; neither may be above the budget. `time` is that of a step in multiples of one of stock Burn, the shortest of three each.
//! `cheaper` is what the next cheaper way has allocated when it was trained nevertheless: if that is below the budget, it would have
//! fitted. Bytes are in MB, and those of the benchmark itself are among them.

mod models;

use std::error::Error;
use std::time::Instant;

use backburn::memory::{RecordingAllocator, keep_pages};
use backburn::optim::AdamWConfig;
use backburn::{Measured, Plan, PlanError, Planner};
use burn::optim::GradientsParams;
use burn::tensor::Device;
use peak_alloc::PeakAlloc;

use models::*;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// More than any of the models takes.
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
    rows::<Mlp>()?;
    rows::<Plain>()?;
    rows::<Recurrent>()?;
    rows::<Convolutional>()?;
    rows::<UNet>()?;
    rows::<Tied>()?;
    rows::<Variational>()?;
    rows::<Mixture>()?;
    rows::<Bag>()?;
    rows::<Language>()?;
    rows::<Adapted>()?;
    rows::<InCodes>()?;
    rows::<Adversarial>()?;
    rows::<Attentive>()?;
    rows::<Normed>()?;
    rows::<Deep>()?;
    Ok(())
}

fn init<K: Kind>() -> K {
    K::init(&Device::flex().autodiff())
}

fn measured<K: Kind>(budget: usize) -> Result<Measured<AdamWConfig>, PlanError> {
    let planner = Planner::new(init::<K>, AdamWConfig::new()).with_batch(K::BATCH);
    planner.measure(K::loss, budget)
}

fn rows<K: Kind>() -> Result<(), Box<dyn Error>> {
    // As cargo calls it, there are flags, too.
    let names: Vec<_> = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with("--"))
        .collect();
    if !names.is_empty() && !names.iter().any(|name| K::NAME.contains(name)) {
        return Ok(());
    }
    let (of_stock, time_of_stock) = stock::<K>();
    let all = measured::<K>(ENOUGH)?;
    let ladder = all.ladder(ENOUGH);
    let least = ladder.rungs.iter().map(|rung| rung.device_bytes).min();
    let half = least.unwrap_or(of_stock) / 2;
    for part in 0..BUDGETS {
        let budget = of_stock - of_stock.saturating_sub(half) * part / (BUDGETS - 1);
        let (measured, of_planning) = peak(|| measured::<K>(budget));
        let measured = measured?;
        print!("{:<26}{:>9.2}", K::NAME, mega(budget));
        match measured.choose(budget) {
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
                let cheaper = match cheaper(&all, &plan) {
                    Some(plan) => format!("{:.2}", mega(peak(|| train::<K>(&plan)).1)),
                    None => String::new(),
                };
                let rung = plan
                    .ladder
                    .taken
                    .map(|taken| &plan.ladder.rungs[taken].name);
                println!(
                    "{:>9.2}{:>9.2}{:>13.2}{:>7.2}{cheaper:>9}  {}",
                    mega(plan.device_bytes),
                    mega(taken),
                    mega(of_planning),
                    time / time_of_stock,
                    rung.map_or("", String::as_str)
                );
            }
        }
    }
    Ok(())
}

/// The next cheaper way, whatever the planner has tried and thinks of it: of those that are chosen with a tenth less up to half as much again,
/// where all passes could be measured.
fn cheaper(all: &Measured<AdamWConfig>, plan: &Plan<AdamWConfig>) -> Option<Plan<AdamWConfig>> {
    let budget = plan.ladder.budget as f64;
    let budgets = (0..=300).map(|step| budget * (0.9 + 0.002 * f64::from(step)));
    let mut plans = budgets.filter_map(|budget| all.choose(budget as usize).ok());
    plans.find(|other| cost(other) < cost(plan))
}

/// What comes first in the order of techniques is less.
fn cost(plan: &Plan<AdamWConfig>) -> (usize, usize, usize) {
    let order = [
        ("Full", "Plain"),
        ("Bits8", "Plain"),
        ("Bits8", "Split24"),
        ("Bits4", "Split24"),
        ("Bits4", "Stochastic"),
    ];
    let optimizer = plan.optimizer.to_string();
    let has =
        |(state, weight): &(&str, &str)| optimizer.contains(state) && optimizer.contains(weight);
    let formats = order.iter().position(has);
    let blocks = &plan.config.gradient_checkpointing.keep_activations;
    let twice = blocks.iter().filter(|keep| !**keep).count();
    (
        formats.expect("a rung of the ladder"),
        plan.accumulation,
        twice,
    )
}

/// Peak and seconds of stock Burn.
fn stock<K: Kind>() -> (usize, f64) {
    let (seconds, bytes) = peak(|| {
        let mut model = init::<K>();
        let mut optimizer = AdamWConfig::new().init();
        let mut shortest = f64::INFINITY;
        for _ in 0..3 {
            let begun = Instant::now();
            let gradients = model.loss(K::BATCH).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            model = optimizer.step(1e-3, model, gradients);
            shortest = shortest.min(begun.elapsed().as_secs_f64());
        }
        shortest
    });
    (bytes, seconds)
}

/// Seconds of a step.
fn train<K: Kind>(plan: &Plan<AdamWConfig>) -> f64 {
    let mut fused = plan.fuse(init::<K>).unwrap();
    let parts = plan.accumulation as f32;
    let mut shortest = f64::INFINITY;
    for _ in 0..3 {
        let begun = Instant::now();
        for _ in 1..plan.accumulation {
            fused
                .accumulate(|model| model.loss(plan.batch) / parts)
                .unwrap();
        }
        fused
            .step(1e-3, |model| model.loss(plan.batch) / parts)
            .unwrap();
        shortest = shortest.min(begun.elapsed().as_secs_f64());
    }
    shortest
}

/// The most bytes allocated during `work`, with all that was before.
fn peak<R>(work: impl FnOnce() -> R) -> (R, usize) {
    BYTES.reset_peak_usage();
    let result = work();
    (result, BYTES.peak_usage())
}

fn mega(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
