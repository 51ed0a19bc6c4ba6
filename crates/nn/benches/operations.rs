//! Each operation beside Burn's composition, at the sizes of SmolLM-135M (512 tokens) and of ViT-S/16.
//!
//! ```sh
//! cargo bench -p backburn-nn
//! cargo bench -p backburn-nn -- attention   # rows whose name contains this
//! ```
//!
//! Both run in turn. The columns are the median time of a forward and a backward pass of Burn in milliseconds, the median of the ratios of
//! Burn's time to ours, and the bytes that are allocated after the forward pass in MB, with the output.

use std::time::Instant;

use backburn_nn::{
    AttentionOptions, LinearCrossEntropyOptions, attention, embedding, geglu, layer_norm, linear,
    linear_cross_entropy, rms_norm, swiglu,
};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig, RmsNormConfig, SwiGluConfig};
use burn::tensor::activation::gelu_approximate;
use burn::tensor::module as stock;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Distribution, Int, Tensor};
use peak_alloc::PeakAlloc;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const ROUNDS: usize = 11;
const TOKENS: usize = 512;

fn main() {
    let name = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    let table = Table {
        only: name.unwrap_or_default(),
        device: Device::flex().autodiff(),
    };
    println!("{} threads", rayon::current_num_threads());
    println!(
        "{:<32}{:>10}{:>8}{:>10}{:>10}",
        "", "Burn (ms)", "times", "Burn (MB)", "ours (MB)"
    );
    table.norms();
    table.embedding();
    table.linear();
    table.gated();
    table.attention("attention, SmolLM", [1, 9, 3, TOKENS, 64], true);
    table.attention("attention, SmolLM, 2048 tokens", [1, 9, 3, 2048, 64], true);
    table.attention("attention, ViT-S, 8 images", [8, 6, 6, 197, 64], false);
    table.head();
}

struct Table {
    only: String,
    device: Device,
}

impl Table {
    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), &self.device).require_grad()
    }

    /// Prints a row.
    fn row<const D: usize>(
        &self,
        name: &str,
        burn: impl Fn() -> Tensor<D>,
        ours: impl Fn() -> Tensor<D>,
    ) {
        if !name.contains(&self.only) {
            return;
        }
        // The gradient of a bare sum is a view of one number.
        let weights = Tensor::ones(ours().dims(), &self.device) * 0.5;
        let mut ratios = Vec::new();
        let mut times = Vec::new();
        let mut kept = [0.0; 2];
        for _ in 0..ROUNDS {
            let (of_burn, burn_kept) = measured(&burn, &weights);
            let (of_ours, ours_kept) = measured(&ours, &weights);
            kept = [burn_kept, ours_kept];
            times.push(of_burn);
            ratios.push(of_burn / of_ours);
        }
        let [time, ratio] = [times, ratios].map(median);
        let [burn, ours] = kept;
        println!("{name:<32}{time:>10.2}{ratio:>8.2}{burn:>10.1}{ours:>10.1}");
    }

    fn norms(&self) {
        let norm = RmsNormConfig::new(576).init(&self.device);
        let x = self.random([1, TOKENS, 576]);
        let (burn, ours) = (|| norm.forward(x.clone()), || rms_norm(&norm, x.clone()));
        self.row("rms_norm, SmolLM", burn, ours);
        let norm = LayerNormConfig::new(384)
            .with_epsilon(1e-6)
            .init(&self.device);
        let x = self.random([8, 197, 384]);
        self.row(
            "layer_norm, ViT-S, 8 images",
            || norm.forward(x.clone()),
            || layer_norm(&norm, 1e-6, x.clone()),
        );
    }

    fn embedding(&self) {
        let layer = EmbeddingConfig::new(49152, 576).init(&self.device);
        let tokens = Tensor::<1, Int>::arange(0..TOKENS as i64, &self.device).unsqueeze();
        self.row(
            "embedding, SmolLM",
            || layer.forward(tokens.clone()),
            || embedding(&layer, tokens.clone()),
        );
    }

    fn linear(&self) {
        let layer = LinearConfig::new(576, 1536).with_bias(false);
        let layer = layer.init(&self.device);
        let x = self.random([1, TOKENS, 576]);
        let (burn, ours) = (|| layer.forward(x.clone()), || linear(&layer, x.clone()));
        self.row("linear, SmolLM", burn, ours);
        let layer = LinearConfig::new(384, 1536).init(&self.device);
        let x = self.random([8, 197, 384]);
        let (burn, ours) = (|| layer.forward(x.clone()), || linear(&layer, x.clone()));
        self.row("linear, ViT-S, 8 images", burn, ours);
    }

    fn gated(&self) {
        let layers = SwiGluConfig::new(576, 1536).init(&self.device);
        let x = self.random([1, TOKENS, 576]);
        self.row(
            "swiglu with its products, SmolLM",
            || layers.forward(x.clone()),
            || swiglu(&layers, x.clone()),
        );
        let (gate, up) = (
            self.random([1, TOKENS, 1536]),
            self.random([1, TOKENS, 1536]),
        );
        self.row(
            "geglu with tanh, 1536",
            || gelu_approximate(gate.clone()) * up.clone(),
            || geglu(gate.clone(), up.clone(), true),
        );
    }

    fn attention(&self, name: &str, sizes: [usize; 5], is_causal: bool) {
        let [batch, heads, groups, length, dim] = sizes;
        let query = self.random([batch, heads, length, dim]);
        let [key, value] = [(); 2].map(|()| self.random([batch, groups, length, dim]));
        let repeated = |few: &Tensor<4>| {
            let many = few.clone().unsqueeze_dim::<5>(2);
            let many = many.expand([batch, groups, heads / groups, length, dim]);
            many.reshape([batch, heads, length, dim])
        };
        let burn = || {
            let options = AttentionModuleOptions {
                is_causal,
                ..Default::default()
            };
            stock::attention(
                query.clone(),
                repeated(&key),
                repeated(&value),
                None,
                None,
                options,
            )
        };
        let options = AttentionOptions {
            is_causal,
            ..Default::default()
        };
        self.row(name, burn, || {
            attention(query.clone(), key.clone(), value.clone(), None, options)
        });
    }

    fn head(&self) {
        let hidden = self.random([TOKENS, 576]);
        let weight = (self.random([49152, 576]).inner() * 0.02)
            .autodiff()
            .require_grad();
        let targets = Tensor::<1, Int>::arange(0..TOKENS as i64, &self.device);
        let loss = CrossEntropyLossConfig::new().init(&self.device);
        let options = LinearCrossEntropyOptions {
            chunk_size: 128,
            ..Default::default()
        };
        self.row(
            "linear_cross_entropy, SmolLM",
            || {
                let logits = hidden.clone().matmul(weight.clone().transpose());
                loss.forward(logits, targets.clone())
            },
            || {
                let (hidden, weight) = (hidden.clone(), weight.clone());
                linear_cross_entropy(hidden, weight, targets.clone(), None, &options)
                    / TOKENS as f64
            },
        );
    }
}

/// Returns the milliseconds of a forward and a backward pass with a weighted sum, and the megabytes between them.
fn measured<const D: usize>(operation: &impl Fn() -> Tensor<D>, weights: &Tensor<D>) -> (f64, f64) {
    let before = BYTES.current_usage();
    let start = Instant::now();
    let output = operation();
    let kept = BYTES.current_usage().saturating_sub(before) as f64 / 1e6;
    let gradients = (output * weights.clone()).sum().backward();
    let time = start.elapsed().as_secs_f64() * 1e3;
    drop(gradients);
    (time, kept)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
