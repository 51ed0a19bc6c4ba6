//! The options as configs of Burn and of backburn.

use burn::grad_clipping::GradientClipping;

use crate::options::*;

use crate::common::*;

pub const MAX_NORM: f64 = 0.05;

impl Devices {
    pub fn share(self, config: FusedConfig) -> FusedConfig {
        let (sharding, ownership) = match self {
            Self::One | Self::Two => (Sharding::State, Ownership::ByParamId),
            Self::ThreeInFull => (Sharding::Full, Ownership::ByParamId),
            Self::TwoOneOwner => (Sharding::State, Ownership::MainDevice),
            Self::ThreeBySize => (Sharding::Full, Ownership::BySize),
        };
        config.with_sharding(sharding).with_ownership(ownership)
    }
}

impl Clipping {
    pub fn config(self) -> Option<GlobalNormClippingConfig> {
        match self {
            Self::None => None,
            Self::Exact => Some(GlobalNormClippingConfig::Exact(MAX_NORM)),
            Self::ExactInBuffer => Some(GlobalNormClippingConfig::ExactInBuffer(MAX_NORM)),
            Self::Lagged => Some(GlobalNormClippingConfig::Lagged(MAX_NORM)),
        }
    }
}

impl Options {
    fn state_format(&self) -> StateFormat {
        match self.stepped {
            Stepped::AdamW8 => StateFormat::Bits8,
            Stepped::AdamW4 => StateFormat::Bits4,
            _ => StateFormat::Full,
        }
    }

    /// Only weights in bf16 lack bits.
    fn weight_format(&self) -> WeightFormat {
        match self.low {
            _ if self.dtype() != FloatDType::BF16 => WeightFormat::Plain,
            Low::Plain => WeightFormat::Plain,
            Low::Stochastic => WeightFormat::Stochastic,
            Low::Split24 => WeightFormat::Split24,
        }
    }

    pub fn adamw(&self) -> optim::AdamWConfig {
        optim::AdamWConfig::new()
            .with_epsilon(1e-3)
            .with_state_format(self.state_format())
            .with_weight_format(self.weight_format())
    }

    pub fn sgd(&self) -> optim::SgdConfig {
        let momentum = MomentumConfig::new().with_momentum(0.9);
        optim::SgdConfig::new()
            .with_momentum(Some(momentum))
            .with_weight_format(self.weight_format())
    }

    pub fn optimizer(&self) -> ModuleOptimizer {
        // The same for f16 and f32.
        let (adam, adamw) = (AdamConfig::new(), AdamWConfig::new());
        let (adam, adamw) = (adam.with_epsilon(1e-3), adamw.with_epsilon(1e-3));
        match self.stepped {
            Stepped::Sgd => self.sgd().init(),
            Stepped::AdamW | Stepped::AdamW8 | Stepped::AdamW4 => self.adamw().init(),
            Stepped::BurnAdam => adam.init(),
            Stepped::BurnSgd => SgdConfig::new().init(),
            Stepped::Muon => {
                let muon = optim::MuonWithAdamWConfig::new(vec!["embedding".into()]);
                muon.with_weight_format(self.weight_format()).init()
            }
            Stepped::Groups => {
                let biases = ParamGroup::from_predicate("bias");
                let norm = Some(GradientClipping::Norm(0.01));
                adamw
                    .init()
                    .with_group(biases, SgdConfig::new().build(), norm)
            }
        }
    }

    pub fn scaling(&self) -> Option<LossScalingConfig> {
        let config = LossScalingConfig::new().with_initial_scale(64.0);
        match self.scaling {
            Scaling::None => None,
            Scaling::Static => Some(config.with_growth_interval(None)),
            Scaling::SkipStep => Some(config.with_growth_interval(Some(2))),
            Scaling::SkipParameter => {
                let config = config.with_overflow(Overflow::SkipParameter);
                Some(config.with_growth_interval(Some(2)))
            }
        }
    }

    pub fn averaging(&self) -> Option<WeightAveragingConfig> {
        let config = WeightAveragingConfig::new();
        match self.averages {
            Averages::None => None,
            Averages::Exponential => Some(config.with_decay(Some(0.5)).with_warm_up(true)),
            Averages::Uniform => Some(config.with_every(2)),
        }
    }

    pub fn offload(&self) -> Option<OffloadConfig> {
        let offload = match self.waiting {
            Waiting::None => return None,
            Waiting::States => Offload::States,
            Waiting::Updates => Offload::Updates,
            Waiting::Weights => Offload::Weights(OffloadedBlocks::All),
            Waiting::HalfOfWeights => Offload::Weights(OffloadedBlocks::Fraction(0.5)),
        };
        // Adapters on an offloaded base are read only in blocks, so the embedding stays on the device.
        let min_elements = if self.has_adapters() { 2000 } else { 1 };
        let config = OffloadConfig::new(offload).with_host(OffloadHost::NdArray);
        Some(config.with_min_elements(min_elements))
    }

    pub fn config(&self) -> FusedConfig {
        let blocks = GradientCheckpointingConfig::new();
        let blocks = match self.blocks {
            Blocks::SomeKept => blocks.with_keep_activations(vec![true, false, true]),
            Blocks::InputsOffloaded => blocks.with_offload_inputs(true),
            _ => blocks,
        };
        let config = self.devices.share(FusedConfig::new());
        config
            .with_clipping(self.clipping.config())
            .with_loss_scaling(self.scaling())
            .with_compute_dtype(self.compute_dtype())
            .with_full_precision_accumulation(self.group == Group::ThreeInFull)
            .with_averaging(self.averaging())
            .with_gradient_checkpointing(blocks)
            .with_offload(self.offload())
            .with_max_bytes_in_flight(match self.limit {
                Limit::None => None,
                Limit::Byte => Some(1),
                Limit::Some => Some(20_000),
            })
    }
}
