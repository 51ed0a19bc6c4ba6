//! Weights that rest in one float type and are computed with in another train as in a loop by hand.

use backburn::optim::AdamWConfig;

use crate::common::*;

const RATE: f64 = 0.02;
const WIDTH: usize = 64;

/// Layers of which the first is used twice.
#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

impl Stack {
    fn init(dtype: FloatDType) -> Self {
        let device = Device::flex().autodiff();
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
        let layers = (0..3).map(layer).collect();
        cast(Self { layers }, dtype).unwrap()
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.loss_of(x, run)
    }

    fn loss_in_blocks(&self, x: Tensor<2>) -> Tensor<1> {
        self.loss_of(x, |layer, x| gradient_checkpointing(layer, x, run))
    }

    fn loss_of(&self, x: Tensor<2>, block: impl Fn(&Linear, Tensor<2>) -> Tensor<2>) -> Tensor<1> {
        let layers = self.layers.iter().chain(&self.layers[..1]);
        let x = layers.fold(x, |x, layer| block(layer, x));
        x.powi_scalar(2).mean()
    }
}

fn run(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    layer.forward(x).tanh()
}

/// How a model rests, and in what it is computed with.
#[derive(Clone, Copy)]
struct Way {
    rests: FloatDType,
    computes: FloatDType,
    optimizer: fn() -> ModuleOptimizer,
}

const WAYS: [Way; 4] = [
    Way {
        rests: FloatDType::F32,
        computes: FloatDType::BF16,
        optimizer: || AdamWConfig::new().init(),
    },
    Way {
        rests: FloatDType::F32,
        computes: FloatDType::F16,
        optimizer: || burn::optim::AdamWConfig::new().init(),
    },
    Way {
        rests: FloatDType::BF16,
        computes: FloatDType::F32,
        optimizer: || {
            AdamWConfig::new()
                .with_state_format(StateFormat::Bits8)
                .with_weight_format(WeightFormat::Split24)
                .init()
        },
    },
    Way {
        rests: FloatDType::F64,
        computes: FloatDType::F32,
        optimizer: || AdamWConfig::new().init(),
    },
];

impl Way {
    fn batches(self, count: usize) -> Vec<Tensor<2>> {
        let device = Device::flex();
        let batch = |_| Tensor::<2>::random([4, WIDTH], Distribution::Default, &device);
        let batches = (0..count).map(batch);
        let cast = |batch: Tensor<2>| Tensor::from_inner(batch.cast(self.computes));
        batches.map(cast).collect()
    }

    fn config(self) -> FusedConfig {
        FusedConfig::new().with_compute_dtype(Some(self.computes))
    }

    fn fused(self, initial: &Stack, config: FusedConfig) -> FusedOptimizer<Stack> {
        let model = copy(initial, || Stack::init(self.rests));
        FusedOptimizer::new_ok(model, (self.optimizer)()).with_config_ok(config)
    }

    /// With a copy to compute with, the gradients cast back.
    fn gradients(self, model: &Stack, x: &Tensor<2>, scale: f64) -> GradientsParams {
        let computed = cast(model.clone(), self.computes).unwrap();
        let gradients = (computed.loss(x.clone()) * scale).backward();
        let gradients = GradientsParams::from_grads(gradients, &computed);
        in_types_of(model, gradients)
    }

    /// Groups of micro-batches; `change` sees the sum of a group.
    fn by_hand(
        self,
        initial: &Stack,
        groups: &[&[Tensor<2>]],
        scale: f64,
        change: impl Fn(&Stack, GradientsParams) -> GradientsParams,
    ) -> Stack {
        let mut model = copy(initial, || Stack::init(self.rests));
        let mut optimizer = (self.optimizer)();
        for group in groups {
            let mut sum = GradientsAccumulator::new();
            for x in *group {
                sum.accumulate(&model, self.gradients(&model, x, scale));
            }
            let gradients = change(&model, sum.grads());
            model = optimizer.step(RATE, model, gradients);
        }
        model
    }
}

/// Multiplies gradients, and adds up their squares.
struct Times<'a>(&'a mut GradientsParams, f64, f64);

impl ModuleVisitor for Times<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.0.remove::<D>(param.id) {
            self.2 += gradient
                .clone()
                .cast(FloatDType::F64)
                .square()
                .sum()
                .into_scalar::<f64>();
            self.0.register(param.id, gradient.mul_scalar(self.1));
        }
    }
}

fn times(model: &Stack, gradients: &mut GradientsParams, factor: f64) -> f64 {
    let mut times = Times(gradients, factor, 0.0);
    model.visit(&mut times);
    times.2.sqrt()
}

#[test]
fn training_equals_mixed_precision_by_hand() {
    for way in WAYS {
        let initial = Stack::init(way.rests);
        let batches = way.batches(5);
        let groups: Vec<_> = batches.chunks(1).collect();
        let expected = way.by_hand(&initial, &groups, 1.0, |_, gradients| gradients);
        let mut fused = way.fused(&initial, way.config());
        for x in &batches {
            fused.step_ok(RATE, |model| {
                let dtype = model.layers[0].weight.val().dtype();
                assert_eq!(dtype, DType::from(way.computes));
                model.loss(x.clone())
            });
            assert_eq!(fused.last_step().copied, Some(0));
        }
        assert_equal_weights(&expected, &fused.model());
        let of_inference = fused.valid().layers[0].weight.val();
        assert_eq!(of_inference.dtype(), DType::from(way.computes));
        let saved = fused.into_parts().0.layers[0].weight.val();
        assert_eq!(saved.dtype(), DType::from(way.rests));
    }
}

#[test]
fn blocks_train_as_plain_ones() {
    for way in WAYS {
        let initial = Stack::init(way.rests);
        // Gradients of blocks that share a weight are added up as they come, those of plain ones by autodiff.
        let config = way.config();
        let (mut plain, mut blocks) = (
            way.fused(&initial, config.clone()),
            way.fused(&initial, config),
        );
        for x in way.batches(4) {
            plain.step_ok(RATE, |model| model.loss(x.clone()));
            blocks.step_ok(RATE, |model| model.loss_in_blocks(x.clone()));
        }
        assert_equal_weights(&plain.model(), &blocks.model());
    }
}

#[test]
fn policies_are_those_of_a_loop_by_hand() {
    for way in WAYS {
        let initial = Stack::init(way.rests);
        let batches = way.batches(6);
        let groups: Vec<_> = batches.chunks(2).collect();

        let expected = way.by_hand(&initial, &groups, 1.0, |_, gradients| gradients);
        let mut fused = way.fused(&initial, way.config());
        for group in &groups {
            fused.accumulate_ok(|model| model.loss(group[0].clone()));
            fused.step_ok(RATE, |model| model.loss(group[1].clone()));
        }
        assert_equal_weights(&expected, &fused.model());

        let expected = way.by_hand(&initial, &groups, 1.0, |model, mut gradients| {
            let norm = times(model, &mut gradients, 1.0);
            times(model, &mut gradients, 1e-3 / norm);
            gradients
        });
        let clipping = Some(GlobalNormClippingConfig::Exact(1e-3));
        let mut fused = way.fused(&initial, way.config().with_clipping(clipping));
        for group in &groups {
            fused.accumulate_ok(|model| model.loss(group[0].clone()));
            fused.step_repeatable_ok(RATE, |model| model.loss(group[1].clone()));
            assert!(fused.last_step().clipping < Some(1.0));
        }
        let (expected, found) = (weights(&expected), weights(&fused.model()));
        for ((path, expected), (_, found)) in expected.iter().zip(&found) {
            let mut pairs = expected.iter::<f64>().zip(found.iter::<f64>());
            // The norm is added up by parameter.
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-2), "`{path}`");
        }

        let groups: Vec<_> = batches.chunks(1).collect();
        let expected = way.by_hand(&initial, &groups, 64.0, |model, mut gradients| {
            times(model, &mut gradients, 1.0 / 64.0);
            gradients
        });
        let scaling = Some(LossScalingConfig::new().with_initial_scale(64.0));
        let mut fused = way.fused(&initial, way.config().with_loss_scaling(scaling));
        for x in &batches {
            fused.step_repeatable_ok(RATE, |model| model.loss(x.clone()));
        }
        assert_equal_weights(&expected, &fused.model());
    }
}

#[derive(Module, Debug)]
struct Normed {
    layer: Linear,
    norm: BatchNorm,
}

#[test]
fn what_stays_as_it_is_must_have_the_type() {
    let device = Device::flex().autodiff();
    let layer = || LinearConfig::new(4, 4).init(&device);
    let normed = || Normed {
        layer: layer(),
        norm: BatchNormConfig::new(4).init(&device),
    };
    let frozen = || vec![layer(), layer()].freeze_group(ParamGroup::from_predicate("1."));
    let config = FusedConfig::new().with_compute_dtype(Some(FloatDType::BF16));
    let with_statistics = FusedOptimizer::new_ok(normed(), SgdConfig::new().init());
    let with_frozen = FusedOptimizer::new_ok(frozen(), SgdConfig::new().init());
    let errors = [
        (
            with_statistics.with_config(config.clone()).map(drop),
            "norm.running",
        ),
        (with_frozen.with_config(config).map(drop), "1."),
    ];
    for (error, path) in errors {
        let error = error.expect_err("it is refused");
        assert_matches!(error, FusedError::ComputeDtype { .. });
        let text = error.to_string();
        assert!(
            text.contains(path) && text.contains("compute_dtype") && text.contains("its inputs"),
            "{text}"
        );
    }
}
