//! Weights that are stored in one float type and computed with in another train as in a stock loop.

use backburn::optim::AdamWConfig;

use crate::common::*;

const RATE: f64 = 0.02;
const WIDTH: usize = 64;

fn init(dtype: FloatDType) -> Stack {
    cast(Stack::init(3, WIDTH, &flex()), dtype).unwrap()
}

/// Uses the first layer twice.
fn loss(model: &Stack, in_blocks: bool, x: &Tensor<2>) -> Tensor<1> {
    let layers = [&model.layers[..], &model.layers[..1]].concat();
    loss_of_layers(&layers, in_blocks, x.clone())
}

/// The types of storage and computation, and the optimizer.
#[derive(Clone, Copy)]
struct Way {
    rests: FloatDType,
    computes: FloatDType,
    optimizer: fn() -> ModuleOptimizer,
}

const fn way(rests: FloatDType, computes: FloatDType, optimizer: fn() -> ModuleOptimizer) -> Way {
    Way {
        rests,
        computes,
        optimizer,
    }
}

fn split_in_8_bits() -> ModuleOptimizer {
    let config = AdamWConfig::new().with_state_format(StateFormat::Bits8);
    config.with_weight_format(WeightFormat::Split24).init()
}

const WAYS: [Way; 4] = [
    way(FloatDType::F32, FloatDType::BF16, || {
        AdamWConfig::new().init()
    }),
    way(FloatDType::F32, FloatDType::F16, || {
        burn::optim::AdamWConfig::new().init()
    }),
    way(FloatDType::BF16, FloatDType::F32, split_in_8_bits),
    way(FloatDType::F64, FloatDType::F32, || {
        AdamWConfig::new().init()
    }),
];

impl Way {
    fn batches(self, count: usize) -> Vec<Tensor<2>> {
        let batches = randoms::<2>(count, [4, WIDTH], &Device::flex()).into_iter();
        let cast = |batch: Tensor<2>| Tensor::from_inner(batch.cast(self.computes));
        batches.map(cast).collect()
    }

    fn fused(self, initial: &Stack) -> FusedOptimizer<Stack> {
        let config = FusedConfig::new().with_compute_dtype(Some(self.computes));
        let model = copy(initial, || init(self.rests));
        FusedOptimizer::new(model, (self.optimizer)())
            .unwrap()
            .with_config(config)
            .unwrap()
    }

    /// Trains by hand: computes with a copy, and casts the gradients back.
    fn by_hand(self, initial: &Stack, batches: &[Tensor<2>]) -> Stack {
        let mut model = copy(initial, || init(self.rests));
        let mut optimizer = (self.optimizer)();
        for x in batches.chunks(1) {
            let computed = cast(model.clone(), self.computes).unwrap();
            let gradients = in_types_of(
                &model,
                summed(&computed, x, |model, x| loss(model, false, x)),
            );
            model = optimizer.step(RATE, model, gradients);
        }
        model
    }
}

#[test]
fn compute_dtype_matches_mixed_precision_by_hand() {
    for way in WAYS {
        let initial = init(way.rests);
        let batches = way.batches(5);
        let expected = way.by_hand(&initial, &batches);
        // Gradients of blocks that share a weight are summed as they arrive; without blocks, autodiff sums them.
        for in_blocks in [false, true] {
            let mut fused = way.fused(&initial);
            for x in &batches {
                fused
                    .step(RATE, |model| {
                        let dtype = model.layers[0].weight.val().dtype();
                        assert_eq!(dtype, DType::from(way.computes));
                        loss(model, in_blocks, x)
                    })
                    .unwrap();
                assert_eq!(fused.last_step().copied, Some(0));
            }
            assert_equal_weights(&expected, &fused.model());
            let of_inference = fused.valid().layers[0].weight.val();
            assert_eq!(of_inference.dtype(), DType::from(way.computes));
            let saved = fused.into_parts().0.layers[0].weight.val();
            assert_eq!(saved.dtype(), DType::from(way.rests));
        }
    }
}

#[test]
fn compute_dtype_frozen_or_running_in_another_type_is_refused() {
    let layer = || -> Linear { LinearConfig::new(4, 4).init(&flex()) };
    let norm: BatchNorm = BatchNormConfig::new(4).init(&flex());
    let config = || FusedConfig::new().with_compute_dtype(Some(FloatDType::BF16));
    let frozen = vec![layer(), layer()].freeze_group(ParamGroup::from_predicate("1."));
    let normed = FusedOptimizer::new((layer(), norm), SgdConfig::new().init()).unwrap();
    let frozen = FusedOptimizer::new(frozen, SgdConfig::new().init()).unwrap();
    for (error, path) in [
        (normed.with_config(config()).map(drop), "1.running"),
        (frozen.with_config(config()).map(drop), "1."),
    ] {
        let error = error.expect_err("it is refused");
        assert_matches!(error, FusedError::ComputeDtype { .. });
        for words in [path, "compute_dtype", "the inputs"] {
            assert_says(&error, words);
        }
    }
}

#[test]
fn valid_in_compute_dtype_is_saved_in_full_precision() {
    let way = WAYS[0];
    let initial = init(way.rests);
    let xs = way.batches(2);
    for offload in [None].into_iter().chain(OFFLOADS.map(Some)) {
        for in_blocks in [false, true] {
            let config = FusedConfig::new()
                .with_compute_dtype(Some(way.computes))
                .with_offload(offload.map(offload_from_flex));
            let mut fused = way.fused(&initial).with_config(config).unwrap();
            for x in &xs {
                fused.step(RATE, |model| loss(model, in_blocks, x)).unwrap();
            }
            let valid = fused.valid();
            assert_eq!(valid.layers[0].weight.val().dtype(), DType::BF16);
            let saved = init(way.rests).load_record(valid.clone().into_record());
            assert_eq!(saved.layers[0].weight.val().dtype(), DType::F32);
            assert_equal_weights(&fused.model(), &saved);
            // A tensor that is computed from it is saved unchanged.
            let mut changed = valid;
            let weight = changed.layers[0].weight.clone();
            changed.layers[0].weight = weight.map(|weight| weight * 2.0);
            let saved_change = init(way.rests).load_record(changed.into_record());
            let [changed, saved] = [saved_change, saved].map(|model| {
                let weight = model.layers[0].weight.val();
                weight.abs().sum().into_scalar::<f32>()
            });
            assert!((changed / saved - 2.0).abs() < 0.02, "{changed}, {saved}");
        }
    }
}

#[test]
fn valid_with_nan_is_saved_in_storage_type() {
    let way = WAYS[0];
    let mut initial = init(way.rests);
    let weight = initial.layers[0].weight.clone();
    initial.layers[0].weight = weight.map(|weight| {
        let first = weight.clone().slice([0..1, 0..1]).inner() * f32::NAN;
        let weight = weight.inner().slice_assign([0..1, 0..1], first);
        Tensor::from_inner(weight).require_grad()
    });
    let config = FusedConfig::new().with_compute_dtype(Some(way.computes));
    let valid = way.fused(&initial).with_config(config).unwrap().valid();
    let saved = init(way.rests).load_record(valid.into_record());
    let [saved, expected] = [saved, initial].map(|model| model.layers[0].weight.val().into_data());
    assert_eq!(saved.dtype(), DType::F32);
    assert!(saved.iter::<f32>().next().is_some_and(f32::is_nan));
    assert_eq!(saved.as_bytes(), expected.as_bytes());
}
