use backburn::gradient_checkpointing_tiled;
use backburn_nn::{linear, swiglu};
use burn::nn::{Linear, LinearConfig, SwiGlu, SwiGluConfig};
use burn::prelude::*;
use burn::tensor::activation::softmax;
use burn::tensor::{FloatDType, IndexingUpdateOp};

use super::LanguageModelConfig;

/// A mixture of experts, with a few active for each token.
#[derive(Module, Debug)]
pub struct Experts {
    router: Linear,
    experts: Vec<Expert>,
    #[module(skip)]
    per_token: usize,
}

#[derive(Module, Debug)]
struct Expert {
    gate: SwiGlu,
    output: Linear,
}

impl Expert {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        linear(&self.output, swiglu(&self.gate, x))
    }
}

/// Tokens of an expert.
#[derive(Clone, Default)]
struct Route {
    /// Indices of the tokens.
    tokens: Vec<i32>,
    /// Indices of their choices of this expert among the choices of all tokens.
    choices: Vec<i32>,
}

impl Experts {
    pub fn init(config: &LanguageModelConfig, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let expert = |_| Expert {
            gate: SwiGluConfig::new(config.dim, config.expert_dim).init(device),
            output: linear(config.expert_dim, config.dim),
        };
        Self {
            router: linear(config.dim, config.experts),
            experts: (0..config.experts).map(expert).collect(),
            per_token: config.experts_per_token,
        }
    }

    /// Runs the experts on up to `tile` tokens at a time. Returns their output and the load-balancing loss.
    ///
    /// # Shapes
    ///
    /// - x: `[tokens, dim]`
    /// - output: `[tokens, dim]`, `[1]`
    pub fn forward(&self, x: Tensor<2>, tile: Option<usize>) -> (Tensor<2>, Tensor<1>) {
        let mixed = |experts: &Self, x| experts.mixed(x);
        let (mixed, probabilities) = match tile {
            Some(tile) => gradient_checkpointing_tiled(self, x, 0, tile, mixed),
            None => mixed(self, x),
        };
        let balance = balance(&self.routes(self.chosen(&probabilities)), probabilities);
        (mixed, balance)
    }

    /// Runs the experts on the tokens. Returns their output, `[tokens, dim]`, and the router's probabilities, `[tokens,
    /// experts]`.
    fn mixed(&self, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let [tokens, _] = x.dims();
        let device = x.device();
        // In f32, to distinguish close probabilities.
        let probabilities = softmax(linear(&self.router, x.clone()).cast(FloatDType::F32), 1);
        let chosen = self.chosen(&probabilities);
        let weights = probabilities.clone().gather(1, chosen.clone());
        let weights = weights.clone() / weights.sum_dim(1);
        let weights = weights.cast(x.dtype()).reshape([tokens * self.per_token]);
        let routes = self.routes(chosen);
        let mut mixed = x.zeros_like();
        for (expert, route) in self.experts.iter().zip(&routes) {
            if route.tokens.is_empty() {
                continue;
            }
            let of = Tensor::<1, Int>::from_data(route.tokens.as_slice(), &device);
            let choices = Tensor::<1, Int>::from_data(route.choices.as_slice(), &device);
            let weight = weights.clone().select(0, choices).unsqueeze_dim(1);
            let output = expert.forward(x.clone().select(0, of.clone())) * weight;
            mixed = mixed.select_assign(0, of, output, IndexingUpdateOp::Add);
        }
        (mixed, probabilities)
    }

    /// Returns the experts of each token: `[tokens, per_token]`.
    fn chosen(&self, probabilities: &Tensor<2>) -> Tensor<2, Int> {
        let probabilities = probabilities.clone().detach();
        probabilities.topk_with_indices(self.per_token, 1).1
    }

    /// Returns the tokens of each expert, from the choices of the tokens: `[tokens, per_token]`.
    fn routes(&self, chosen: Tensor<2, Int>) -> Vec<Route> {
        let mut routes = vec![Route::default(); self.experts.len()];
        let chosen = chosen.into_data();
        for (choice, expert) in chosen.iter::<i64>().enumerate() {
            let route = &mut routes[expert as usize];
            route.tokens.push((choice / self.per_token) as i32);
            route.choices.push(choice as i32);
        }
        routes
    }
}

/// Returns the load-balancing loss of the [Switch Transformer](https://arxiv.org/abs/2101.03961), equation 4: 1 for a uniform
/// load, and up to the number of experts if one has all. Shape: `[1]`.
fn balance(routes: &[Route], probabilities: Tensor<2>) -> Tensor<1> {
    let choices: usize = routes.iter().map(|route| route.tokens.len()).sum();
    let share = |route: &Route| route.tokens.len() as f32 / choices as f32;
    let shares: Vec<f32> = routes.iter().map(share).collect();
    let shares = Tensor::<1>::from_data(shares.as_slice(), &probabilities.device());
    let mean = probabilities.mean_dim(0).squeeze_dim(0);
    (mean * shares).sum().mul_scalar(routes.len() as f64)
}
