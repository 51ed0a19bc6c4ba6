//! Rotary position embedding and its scalings for longer contexts.

use std::f64::consts::PI;

use anyhow::{Context, Result, bail, ensure};
use burn::prelude::*;
use burn::tensor::{DType, TensorData};
use serde::Deserialize;
use serde_json::Value as Json;

/// `rope_parameters` of `transformers` 5, `rope_scaling` of version 4.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct WrittenRope {
    pub rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The name of `rope_type` in old files, which may have both.
    #[serde(rename = "type")]
    old_type: Option<String>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    /// A note of some files, which changes nothing.
    finetuned: Option<bool>,
    /// Fields of `longrope`, which is refused by its name.
    short_factor: Option<Json>,
    long_factor: Option<Json>,
    partial_rotary_factor: Option<f64>,
}

/// The angles by which queries and keys are rotated.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians a position, for each pair of elements.
    frequencies: Vec<f32>,
    /// Cosine and sine are multiplied by this.
    scale: f32,
}

impl Rope {
    /// Returns the rotation of heads of `head_dim` elements by `written`.
    pub fn new(
        written: Option<&WrittenRope>,
        theta: f64,
        head_dim: usize,
        max_length: usize,
    ) -> Result<Self> {
        let plain: Vec<f64> = (0..head_dim / 2)
            .map(|pair| theta.powf(-2.0 * pair as f64 / head_dim as f64))
            .collect();
        let default = WrittenRope::default();
        let written = written.unwrap_or(&default);
        let share = written.partial_rotary_factor.unwrap_or(1.0);
        ensure!(
            share == 1.0,
            "`partial_rotary_factor` is {share}: this program rotates whole heads"
        );
        for (name, number) in [
            (
                "original_max_position_embeddings",
                written.original_max_position_embeddings,
            ),
            ("low_freq_factor", written.low_freq_factor),
            ("high_freq_factor", written.high_freq_factor),
            ("attention_factor", written.attention_factor),
            ("beta_fast", written.beta_fast),
            ("beta_slow", written.beta_slow),
        ] {
            let number = number.unwrap_or(1.0);
            ensure!(
                number > 0.0,
                "`{name}` of rope is {number}: it must be a positive number"
            );
        }
        let kind = written.rope_type.as_ref().or(written.old_type.as_ref());
        let (frequencies, scale) = match kind.map_or("default", String::as_str) {
            "default" => (plain, 1.0),
            "linear" => {
                let factor = written.factor()?;
                (plain.into_iter().map(|plain| plain / factor).collect(), 1.0)
            }
            "llama3" => (written.llama3(plain)?, 1.0),
            "yarn" => written.yarn(plain, theta, head_dim, max_length)?,
            other => bail!(
                "`rope_type` is {other}: this program computes default, linear, llama3 and yarn"
            ),
        };
        Ok(Self {
            frequencies: frequencies
                .into_iter()
                .map(|number| number as f32)
                .collect(),
            scale: scale as f32,
        })
    }

    /// Returns cosine and sine of the `positions` in `rows`. Shapes: `[rows, 1, length, head_dim / 2]`.
    pub fn table(&self, positions: &[usize], rows: usize, device: &Device) -> [Tensor<4>; 2] {
        let pairs = self.frequencies.len();
        let shape = [rows, 1, positions.len() / rows, pairs];
        let angles = positions.iter().flat_map(|position| {
            let angle = move |frequency: &f32| *position as f32 * frequency;
            self.frequencies.iter().map(angle)
        });
        let angles: Vec<f32> = angles.collect();
        [f32::cos, f32::sin].map(|function| {
            let numbers: Vec<f32> = angles.iter().map(|it| function(*it) * self.scale).collect();
            Tensor::from_data(TensorData::new(numbers, shape), (device, DType::F32))
        })
    }
}

/// Rotates each head by its position ([Su et al., 2021](https://arxiv.org/abs/2104.09864)), in f32 like the table. Element `i` is paired
/// with element `i + head_dim / 2`; Burn's `RotaryEncoding` pairs neighbours.
///
/// # Shapes
///
/// - heads, output: `[batch, heads, length, head_dim]`
/// - cos, sin: `[1 or batch, 1, length, head_dim / 2]`
pub fn rotate(heads: Tensor<4>, [cos, sin]: [Tensor<4>; 2]) -> Tensor<4> {
    let dtype = heads.dtype();
    let heads = heads.cast(DType::F32);
    let half = heads.dims()[3] / 2;
    let [first, second] = [0, half].map(|start| heads.clone().narrow(3, start, half));
    let halves = vec![
        first.clone() * cos.clone() - second.clone() * sin.clone(),
        second * cos + first * sin,
    ];
    Tensor::cat(halves, 3).cast(dtype)
}

impl WrittenRope {
    fn factor(&self) -> Result<f64> {
        let factor = self
            .factor
            .context("the scaling of rope has no `factor`: add it to config.json")?;
        ensure!(
            factor >= 1.0,
            "`factor` of rope is {factor}: it must be 1 or more"
        );
        Ok(factor)
    }

    /// Slow frequencies are divided by the factor, fast ones left, those between interpolated.
    fn llama3(&self, plain: Vec<f64>) -> Result<Vec<f64>> {
        let factor = self.factor()?;
        let missing = |name| move || format!("rope of type llama3 has no `{name}`");
        let original = self.original_max_position_embeddings;
        let original = original.with_context(missing("original_max_position_embeddings"))?;
        let low = self
            .low_freq_factor
            .with_context(missing("low_freq_factor"))?;
        let high = self
            .high_freq_factor
            .with_context(missing("high_freq_factor"))?;
        ensure!(
            high >= low,
            "`high_freq_factor` of rope is {high}, below `low_freq_factor` ({low}): correct them in config.json"
        );
        let scaled = plain.into_iter().map(|plain| {
            let periods = original * plain / (2.0 * PI);
            let share = ((periods - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - share) * plain / factor + share * plain
        });
        Ok(scaled.collect())
    }

    /// Scales by the number of pairs ([Peng et al., 2023](https://arxiv.org/abs/2309.00071)), and a factor for the table.
    fn yarn(
        &self,
        plain: Vec<f64>,
        theta: f64,
        head_dim: usize,
        max_length: usize,
    ) -> Result<(Vec<f64>, f64)> {
        let factor = self.factor()?;
        let original = self.original_max_position_embeddings;
        let original = original.unwrap_or(max_length as f64);
        let dim = head_dim as f64;
        let pair_of = |turns: f64| dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let mut low = pair_of(self.beta_fast.unwrap_or(32.0));
        let mut high = pair_of(self.beta_slow.unwrap_or(1.0));
        if self.truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        let width = if high == low { 0.001 } else { high - low };
        let scaled = plain.into_iter().enumerate().map(|(pair, plain)| {
            let share = ((pair as f64 - low) / width).clamp(0.0, 1.0);
            share * plain / factor + (1.0 - share) * plain
        });
        let scale = |m: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * m * factor.ln() + 1.0
            }
        };
        let attention = match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(factor), ..) => factor,
            (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => scale(one) / scale(all),
            _ => scale(1.0),
        };
        Ok((scaled.collect(), attention))
    }
}
