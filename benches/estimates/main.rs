//! Peaks that are estimated before the first step, beside those that training then has.
//!
//! ```sh
//! cargo bench --bench estimates
//! cargo bench --bench estimates -- LSTM # models whose name has it
//! ```
//!
//! A dry run of every model is recorded, and the peaks of training are estimated from it for every optimizer. Then it is trained for two
//! steps: with stock Burn, fused with blocks that keep their activations, and fused with blocks that run twice. For each the most bytes that
//! were allocated over those before the model, in MB, and the estimate in multiples of it.

#[path = "../plan/models.rs"]
mod models;
mod peaks;

use backburn::memory::{RecordingAllocator, keep_pages};
use peak_alloc::PeakAlloc;

use models::*;
use peaks::{OPTIMIZERS, Peaks};

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

fn main() {
    keep_pages();
    let ways = ["stock", "fused", "blocks"];
    print!("{:<26}{:<16}", "", "");
    ways.iter().for_each(|way| print!("{way:>9}{:>8}", ""));
    println!();
    rows::<Mlp>();
    rows::<Plain>();
    rows::<Recurrent>();
    rows::<Convolutional>();
    rows::<UNet>();
    rows::<Tied>();
    rows::<Variational>();
    rows::<Mixture>();
    rows::<Bag>();
    rows::<Language>();
    rows::<Adapted>();
    rows::<InCodes>();
    rows::<Adversarial>();
    rows::<Attentive>();
    rows::<Normed>();
    rows::<Deep>();
}

fn rows<K: Kind>() {
    // As cargo calls it, there are flags, too.
    let names: Vec<_> = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with("--"))
        .collect();
    if !names.is_empty() && !names.iter().any(|name| K::NAME.contains(name)) {
        return;
    }
    let timeline = peaks::dry_run::<K>();
    for (name, optimizer) in OPTIMIZERS {
        let Peaks {
            estimated,
            measured,
        } = peaks::of::<K>(&timeline, optimizer);
        print!("{:<26}{name:<16}", K::NAME);
        for (estimated, measured) in estimated.into_iter().zip(measured) {
            let ratio = estimated as f64 / measured as f64;
            print!("{:>9.3}{ratio:>8.3}", measured as f64 / 1e6);
        }
        println!();
    }
}
