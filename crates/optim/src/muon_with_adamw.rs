use burn::config::Config;
use burn::module::ParamGroup;
use burn::optim::{
    AdjustLrFn, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor};

use super::adamw::{AdamW, AdamWConfig};
use super::format::{StateFormat, WeightFormat};
use super::muon::{Muon, MuonConfig, MuonState};
use super::state::ElementWiseState;
use super::with_clipping;

/// Configuration of Muon for a whole model: [`Muon`] for matrices, and [`AdamW`] for all other parameters (vectors,
/// convolutions, stacks of experts), and for embeddings and heads, whose names the config lists.
///
/// With the defaults both use the learning rate of AdamW, as in [Liu et al., 2025](https://arxiv.org/abs/2502.16982). As Burn's, `muon`
/// has no weight decay by default, unlike the paper.
///
/// ```
/// use backburn_optim::{MuonWithAdamWConfig, StateFormat};
///
/// let config = MuonWithAdamWConfig::new(vec!["embedding".into(), "head".into()])
///     .with_state_format(StateFormat::Bits8);
/// let optimizer = config.init();
/// ```
#[derive(Config, Debug)]
pub struct MuonWithAdamWConfig {
    /// Parts of paths. AdamW updates a matrix whose path contains one of them. Include the names of the embeddings and
    /// of the head in the model.
    pub on_adamw: Vec<String>,
    /// Configuration of Muon.
    #[config(default = "MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)")]
    pub muon: MuonConfig,
    /// Configuration of AdamW. Its gradient clipping applies to all parameters.
    #[config(default = "AdamWConfig::new()")]
    pub adamw: AdamWConfig,
    /// Factor of the learning rate for Muon: 1 with [`AdjustLrFn::MatchRmsAdamW`], about 50 with [`AdjustLrFn::Original`],
    /// whose learning rates are near 0.02.
    #[config(default = 1.0)]
    pub muon_rate: f64,
}

impl MuonWithAdamWConfig {
    /// Sets the state format of both optimizers.
    #[must_use]
    pub fn with_state_format(mut self, format: StateFormat) -> Self {
        self.muon = self.muon.with_state_format(format);
        self.adamw = self.adamw.with_state_format(format);
        self
    }

    /// Sets the format of bf16 weights for both optimizers.
    #[must_use]
    pub fn with_weight_format(mut self, format: WeightFormat) -> Self {
        self.muon = self.muon.with_weight_format(format);
        self.adamw = self.adamw.with_weight_format(format);
        self
    }

    /// Returns the optimizer of a whole module.
    pub fn init(&self) -> ModuleOptimizer {
        let clipping = self.adamw.grad_clipping.as_ref();
        let adamw = self.adamw.build();
        let optimizer = MuonWithAdamW {
            muon: self.muon.build(),
            adamw: adamw.clone(),
            muon_rate: self.muon_rate,
        };
        let optimizer = with_clipping(optimizer, clipping);
        if self.on_adamw.is_empty() {
            return optimizer;
        }
        let named = ParamGroup::from_any_predicates(self.on_adamw.clone());
        let clipping = clipping.map(|clipping| clipping.init());
        optimizer.with_group(named, adamw, clipping)
    }
}

/// [`Muon`] for parameters that are matrices, [`AdamW`] for all others.
#[derive(Clone, Debug)]
pub struct MuonWithAdamW {
    muon: Muon,
    adamw: AdamW,
    muon_rate: f64,
}

/// State of [`MuonWithAdamW`]: the state of the optimizer that steps the parameter.
#[derive(Clone, Debug)]
pub enum MuonWithAdamWState<const D: usize> {
    /// State of a matrix.
    Muon(MuonState<D>),
    /// State of any other parameter.
    AdamW(ElementWiseState<AdamWConfig, D>),
}

impl Optimizer for MuonWithAdamW {
    type State<const D: usize> = MuonWithAdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<MuonWithAdamWState<D>>,
    ) -> (Tensor<D>, Option<MuonWithAdamWState<D>>) {
        if D == 2 {
            let state = match state {
                Some(MuonWithAdamWState::Muon(state)) => Some(state),
                _ => None,
            };
            let lr = lr * self.muon_rate;
            let (parameter, state) = self.muon.step(lr, parameter, gradient, state);
            (parameter, state.map(MuonWithAdamWState::Muon))
        } else {
            let state = match state {
                Some(MuonWithAdamWState::AdamW(state)) => Some(state),
                _ => None,
            };
            let (parameter, state) = self.adamw.step(lr, parameter, gradient, state);
            (parameter, state.map(MuonWithAdamWState::AdamW))
        }
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        match state {
            MuonWithAdamWState::Muon(state) => {
                MuonWithAdamWState::Muon(Muon::to_device(state, device))
            }
            MuonWithAdamWState::AdamW(state) => {
                MuonWithAdamWState::AdamW(AdamW::to_device(state, device))
            }
        }
    }
}

/// Records the state under the names of the optimizer that steps the parameter.
impl<const D: usize> RecordState for MuonWithAdamWState<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        match self {
            Self::Muon(state) => state.state_flatten(prefix, sink),
            Self::AdamW(state) => state.state_flatten(prefix, sink),
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        if D == 2 {
            MuonState::state_unflatten(prefix, source, device).map(Self::Muon)
        } else {
            ElementWiseState::state_unflatten(prefix, source, device).map(Self::AdamW)
        }
    }
}
