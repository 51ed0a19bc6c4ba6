//! Search for the longest context that trains within a number of bytes.

use crate::model::Preset;
use crate::variant::BLOCKS;
use crate::{printed, training};

const BUDGET: f64 = 300e6;
/// Step size of the contexts.
const STEP: usize = 256;
/// Tokens of a tile; 0 for all at once.
const TILES: [usize; 2] = [0, 256];

/// Prints the longest context of the preset `small`, with one piece in a step and recomputed layers: whole, and in tiles.
pub fn longest() {
    println!(
        "{:<12}{:>12}{:>10}{:>12}",
        "tile", "context", "MB", "s a step"
    );
    for tile in TILES {
        let measured = |steps: usize| -> [f64; 5] {
            let (context, tile) = ((steps * STEP).to_string(), tile.to_string());
            printed(&["in-context", &context, &tile])
        };
        let fits = |steps: usize| measured(steps)[1] <= BUDGET;
        let mut beyond = 2;
        while fits(beyond) {
            beyond *= 2;
        }
        let mut within = beyond / 2;
        while beyond - within > 1 {
            let between = (within + beyond) / 2;
            match fits(between) {
                true => within = between,
                false => beyond = between,
            }
        }
        let [_, peak, seconds, ..] = measured(within);
        let name = if tile == 0 {
            "whole".into()
        } else {
            tile.to_string()
        };
        println!(
            "{name:<12}{:>12}{:>10.0}{seconds:>12.1}",
            within * STEP,
            peak / 1e6
        );
    }
}

/// Makes two steps, and prints them like a row of the table.
pub fn train(context: usize, tile: usize) {
    let config = Preset::Small.config(256).with_context(context);
    let config = config
        .with_recompute_layers(true)
        .with_loss_chunk(Some(256))
        .with_tile((tile > 0).then_some(tile));
    training::train(&BLOCKS, &config);
}
