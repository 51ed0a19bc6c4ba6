//! Quantization errors of weights in 4 and 8 bits, for a trained transformer.

use backburn::{BaseFormat, QuantizedLora};
use burn::module::{Lora, ModuleVisitor, Param, Quantizer};
use burn::nn::Linear;
use burn::prelude::*;
use burn::tensor::Distribution;
use burn::tensor::quantization::{Calibration, QuantValue};

use crate::quality::trained;

const GROUP: usize = 64;

/// Prints the errors of its matrices, and of a matrix of normal numbers: their root mean square relative to that of the
/// weights.
pub fn print() {
    let model = trained().valid();
    let normal_numbers = Tensor::<2>::random(
        [256, 256],
        Distribution::Normal(0.0, 1.0),
        &model.devices()[0],
    );
    let normal_layer = Linear {
        weight: Param::from_tensor(normal_numbers),
        bias: None,
    };
    let both = [matrices(&model), matrices(&normal_layer)];
    let even: Vec<f32> = (0..16).map(|level| level as f32 / 7.5 - 1.0).collect();
    let symmetric: Vec<f32> = (-7..8).map(|level| level as f32 / 7.0).collect();
    let normal = [
        -1.0,
        -0.696_192_8,
        -0.525_073_05,
        -0.394_917_5,
        -0.284_441_38,
        -0.184_773_43,
        -0.091_050_036,
        0.0,
        0.079_580_3,
        0.160_930_2,
        0.246_112_3,
        0.337_915_24,
        0.440_709_83,
        0.562_617,
        0.722_956_84,
        1.0,
    ];
    let largest = [1.0];
    let several = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72];
    println!("| groups of {GROUP} | trained | normal numbers |\n|---|---:|---:|");
    let row = |name: &str, coded: [Vec<Vec<f32>>; 2]| {
        let [trained, normal] = [0, 1].map(|which| error(&both[which], &coded[which]));
        println!("| {name} | {trained:.4} | {normal:.4} |");
    };
    for (name, levels, scales) in [
        (
            "16 even levels, to the largest weight",
            &*even,
            &largest[..],
        ),
        ("16 even levels, the best of 8 scales", &even, &several),
        (
            "15 even levels, zero among them, the best of 8 scales",
            &symmetric,
            &several,
        ),
        ("NF4, to the largest weight", &normal, &largest),
        ("NF4, the best of 8 scales", &normal, &several),
    ] {
        let of = |weights: &Vec<f32>| coded(weights, levels, scales);
        row(
            name,
            [0, 1].map(|which| both[which].iter().map(of).collect()),
        );
    }
    for (name, format) in [
        ("`Bits4`", BaseFormat::Bits4),
        ("`Bits8`", BaseFormat::Bits8),
    ] {
        let lora = || QuantizedLora::new(Lora::new(1, 1.0), format);
        let trained = model.clone().apply_reparameterization(lora()).materialize();
        let normal = normal_layer
            .clone()
            .apply_reparameterization(lora())
            .materialize();
        row(name, [matrices(&trained), matrices(&normal)]);
    }
    for value in [QuantValue::Q4S, QuantValue::Q8S] {
        let scheme = model.devices()[0].settings().quantization.scheme;
        let mut quantizer = Quantizer::new(Calibration::MinMax, scheme.with_value(value));
        let trained = model.clone().quantize_weights(&mut quantizer);
        let normal = normal_layer.clone().quantize_weights(&mut quantizer);
        let name = format!("Burn's default for {value:?}");
        row(&name, [matrices(&trained), matrices(&normal)]);
    }
}

/// Returns the weights of all matrices.
fn matrices<M: Module>(model: &M) -> Vec<Vec<f32>> {
    #[derive(Default)]
    struct Matrices(Vec<Vec<f32>>);

    impl ModuleVisitor for Matrices {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if D == 2 {
                let value = param.base().dequantize();
                self.0.push(value.into_data().iter().collect());
            }
        }
    }

    let mut matrices = Matrices::default();
    model.visit(&mut matrices);
    matrices.0
}

/// Rounds `weights` to the nearest `levels`, with the scale for each group that has the smallest error.
fn coded(weights: &[f32], levels: &[f32], scales: &[f32]) -> Vec<f32> {
    let group = |weights: &[f32]| {
        let largest = weights
            .iter()
            .fold(0.0_f32, |largest, weight| largest.max(weight.abs()));
        let coded = scales.iter().map(|scale| {
            let scaled: Vec<f32> = levels.iter().map(|level| level * scale * largest).collect();
            let nearest = |weight: &f32| {
                let distance = |level: &&f32| (*level - weight).abs();
                let by_distance = |a: &&f32, b: &&f32| distance(a).total_cmp(&distance(b));
                *scaled.iter().min_by(by_distance).expect("there are levels")
            };
            weights.iter().map(nearest).collect::<Vec<f32>>()
        });
        let squares = |coded: &Vec<f32>| -> f32 {
            let errors = weights.iter().zip(coded).map(|(a, b)| (a - b).powi(2));
            errors.sum()
        };
        let best = coded.min_by(|a, b| squares(a).total_cmp(&squares(b)));
        best.expect("there are scales")
    };
    weights.chunks(GROUP).flat_map(group).collect()
}

fn error(weights: &[Vec<f32>], coded: &[Vec<f32>]) -> f64 {
    let pairs = || weights.iter().flatten().zip(coded.iter().flatten());
    let errors: f64 = pairs().map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let squares: f64 = pairs().map(|(a, _)| f64::from(*a).powi(2)).sum();
    (errors / squares).sqrt()
}
