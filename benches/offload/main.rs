//! What offload costs and saves.
//!
//! ```sh
//! cargo bench --bench offload --features wgpu,fusion
//! cargo bench --bench offload -- time
//! ```
//!
//! The first one prints the memory of a device of wgpu ([`pools`]), `-- widths` only its second table; `-- time` prints by how much a
//! step grows with the bytes that it moves ([`time`]), and needs no device but the processor.

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
        ["time", way, batch] => time::train(way, batch.parse().expect("a number")),
        #[cfg(feature = "wgpu")]
        [way, depth, width] => {
            let [depth, width] = [depth, width].map(|text| text.parse().expect("a number"));
            pools::print_row(way, depth, width);
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
