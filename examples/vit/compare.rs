//! Comparison of stock and fused training.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::prelude::*;

use crate::data::Split;
use crate::model::{Vit, VitConfig};
use crate::options::Options;
use crate::training::{Method, Outcome, run};

/// Trains both ways from the weights in the file `initial` and prints a table. Returns the fused model.
pub fn compare(
    options: &Options,
    config: &VitConfig,
    data: &Split,
    initial: &Path,
) -> Result<Outcome> {
    let train = |folder, method| {
        let folder = options.output.join(folder);
        run(options, config, data, initial, &folder, method, None)
    };
    let stock = train("stock", Method::Stock)?;
    let fused = train("fused", Method::Fused)?;

    let bytes = stock.model.num_params() * size_of::<f32>();
    let multiple = |outcome: &Outcome| outcome.peak as f64 / bytes as f64;
    let seconds = |outcome: &Outcome| outcome.time.as_secs_f64();

    println!();
    println!("{:<26}{:>14}{:>14}{:>10}", "", "stock", "fused", "ratio");
    println!(
        "{:<26}{:>14.4}{:>14.4}",
        "validation accuracy", stock.accuracy, fused.accuracy
    );
    println!(
        "{:<26}{:>14}{:>14}{:>10.3}",
        "peak memory (bytes)",
        stock.peak,
        fused.peak,
        fused.peak as f64 / stock.peak as f64
    );
    println!(
        "{:<26}{:>14.2}{:>14.2}",
        "  in parameters (P)",
        multiple(&stock),
        multiple(&fused)
    );
    println!(
        "{:<26}{:>14.1}{:>14.1}{:>10.3}",
        "time (s)",
        seconds(&stock),
        seconds(&fused),
        seconds(&fused) / seconds(&stock)
    );
    let difference = largest_difference(&stock.model, &fused.model);
    println!("largest difference between the weights: {difference:e}");
    Ok(fused)
}

/// Returns the largest absolute difference between two models of the same structure.
fn largest_difference(left: &Vit, right: &Vit) -> f32 {
    #[derive(Default)]
    struct Values(HashMap<ParamId, Vec<f32>>);

    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val().into_data().iter::<f32>().collect();
            self.0.insert(param.id, value);
        }
    }

    let [left, right] = [left, right].map(|model| {
        let mut values = Values::default();
        model.visit(&mut values);
        values.0
    });
    left.iter()
        .flat_map(|(id, value)| value.iter().zip(&right[id]))
        .map(|(left, right)| (left - right).abs())
        // The maximum passes over NaN, which is the largest in the total order.
        .max_by(f32::total_cmp)
        .unwrap_or(0.0)
}
