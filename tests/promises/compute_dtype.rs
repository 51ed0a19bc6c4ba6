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

/// The types of storage and computation, and the optimizer.
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

    fn fused(self, initial: &Stack) -> FusedOptimizer<Stack> {
        let config = FusedConfig::new().with_compute_dtype(Some(self.computes));
        let model = copy(initial, || Stack::init(self.rests));
        FusedOptimizer::new_ok(model, (self.optimizer)()).with_config_ok(config)
    }

    /// With a copy to compute with, the gradients cast back.
    fn by_hand(self, initial: &Stack, batches: &[Tensor<2>]) -> Stack {
        let mut model = copy(initial, || Stack::init(self.rests));
        let mut optimizer = (self.optimizer)();
        for x in batches {
            let computed = cast(model.clone(), self.computes).unwrap();
            let gradients = computed.loss(x.clone()).backward();
            let gradients = GradientsParams::from_grads(gradients, &computed);
            let gradients = in_types_of(&model, gradients);
            model = optimizer.step(RATE, model, gradients);
        }
        model
    }
}

#[test]
fn training_equals_mixed_precision_by_hand() {
    for way in WAYS {
        let initial = Stack::init(way.rests);
        let batches = way.batches(5);
        let expected = way.by_hand(&initial, &batches);
        let mut fused = way.fused(&initial);
        for x in &batches {
            fused.step_ok(RATE, |model| {
                let dtype = model.layers[0].weight.val().dtype();
                assert_eq!(dtype, DType::from(way.computes));
                model.loss(x.clone())
            });
            assert_eq!(fused.last_step().copied, Some(0));
        }
        assert_equal_weights(&expected, &fused.model());
        // Gradients of blocks that share a weight are added up as they arrive, those of plain ones by autodiff.
        let mut blocks = way.fused(&initial);
        for x in &batches {
            blocks.step_ok(RATE, |model| model.loss_in_blocks(x.clone()));
        }
        assert_equal_weights(&expected, &blocks.model());
        let of_inference = fused.valid().layers[0].weight.val();
        assert_eq!(of_inference.dtype(), DType::from(way.computes));
        let saved = fused.into_parts().0.layers[0].weight.val();
        assert_eq!(saved.dtype(), DType::from(way.rests));
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
            text.contains(path) && text.contains("compute_dtype") && text.contains("the inputs"),
            "{text}"
        );
    }
}

#[test]
fn valid_computes_as_training_and_is_saved_in_full_precision() {
    let way = WAYS[0];
    let initial = Stack::init(way.rests);
    let xs = way.batches(2);
    let waiting = [
        Offload::States,
        Offload::Updates,
        Offload::Weights(OffloadedBlocks::All),
    ];
    for offload in [None].into_iter().chain(waiting.map(Some)) {
        for in_blocks in [false, true] {
            let host = |offload| {
                OffloadConfig::new(offload)
                    .with_host(OffloadHost::NdArray)
                    .with_min_elements(1)
            };
            let config = FusedConfig::new()
                .with_compute_dtype(Some(way.computes))
                .with_offload(offload.map(host));
            let mut fused = way.fused(&initial).with_config_ok(config);
            for x in &xs {
                fused
                    .step(RATE, |model| match in_blocks {
                        true => model.loss_in_blocks(x.clone()),
                        false => model.loss(x.clone()),
                    })
                    .unwrap();
            }
            let valid = fused.valid();
            assert_eq!(valid.layers[0].weight.val().dtype(), DType::BF16);
            let saved = Stack::init(way.rests).load_record(valid.clone().into_record());
            assert_eq!(saved.layers[0].weight.val().dtype(), DType::F32);
            assert_equal_weights(&fused.model(), &saved);
            // What is made of it is saved as it is.
            let doubled = valid.layers[0].weight.clone().map(|weight| weight * 2.0);
            let mut changed = valid;
            changed.layers[0].weight = doubled;
            let saved_change = Stack::init(way.rests).load_record(changed.into_record());
            let sums = [&saved_change, &saved].map(|model| {
                model.layers[0]
                    .weight
                    .val()
                    .abs()
                    .sum()
                    .into_scalar::<f32>()
            });
            assert!((sums[0] / sums[1] - 2.0).abs() < 0.02, "{sums:?}");
        }
    }
}
