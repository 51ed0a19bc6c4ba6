//! Peaks that are estimated before the first step, and peaks of the training.
//!
//! ```sh
//! cargo bench --bench estimates
//! cargo bench --bench estimates -- LSTM # models with this in their name
//! ```
//!
//! A dry run of every model is recorded, and the peaks of training are estimated from it for every optimizer. Then the model is
//! trained for two steps: with stock Burn, fused with blocks that keep their activations, and fused with recomputed blocks. For
//! each, the table has the peak of the bytes over those before the model, in MB, and the estimate in multiples of it.

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
    let variants = ["stock", "fused", "blocks"];
    print!("{:<26}{:<16}", "", "");
    variants
        .iter()
        .for_each(|variant| print!("{variant:>9}{:>8}", ""));
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
    // Cargo passes flags, too.
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
