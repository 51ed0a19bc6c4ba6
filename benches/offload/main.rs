//! Cost and savings of offload.
//!
//! ```sh
//! cargo bench --bench offload --features wgpu,fusion
//! cargo bench --bench offload -- time
//! ```
//!
//! The first command prints the memory of a device of wgpu ([`pools`]); with `-- widths` only its second table. The second
//! prints the growth of a step by the bytes that it transfers ([`time`]), and needs only the processor.

#[path = "../network/mod.rs"]
mod network;
#[cfg(feature = "wgpu")]
mod pools;
mod time;
#[path = "../turns/mod.rs"]
mod turns;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["time"] => time::compare(),
        ["time", variant, batch] => time::train(variant, batch.parse().expect("a number")),
        #[cfg(feature = "wgpu")]
        [variant, depth, width] => {
            let [depth, width] = [depth, width].map(|text| text.parse().expect("a number"));
            pools::print_row(variant, depth, width);
        }
        #[cfg(feature = "wgpu")]
        ["widths"] => pools::compare_widths(),
        #[cfg(feature = "wgpu")]
        _ => pools::compare(),
        #[cfg(not(feature = "wgpu"))]
        _ => {
            println!("its memory is that of a device: --features wgpu,fusion; `-- time` needs none")
        }
    }
}
