//! Muon with formats, and with numbers that are not finite.

use super::*;

/// bf16 weights with all their bits, and a gradient that does not depend on them.
#[test]
fn muon_split24_stays_near_stock_in_f32() {
    const WIDTH: usize = 66;
    let device = Device::flex().autodiff();
    let layer = || LinearConfig::new(WIDTH, 70).with_bias(false).init(&device);
    let initial: Linear = cast(layer(), FloatDType::BF16).unwrap();
    let factor = |_| {
        let normal = Distribution::Normal(0.0, 1.0);
        Tensor::<2>::random([WIDTH, 70], normal, &Device::flex()).cast(FloatDType::BF16)
    };
    let factors: Vec<Tensor<2>> = (0..8).map(factor).collect();
    let loss = |model: &Linear, step: usize| {
        let weight = model.weight.val();
        let factor = factors[step].clone().cast(FloatDType::from(weight.dtype()));
        (weight * Tensor::from_inner(factor)).sum()
    };
    let config = ours::MuonConfig::new().with_weight_format(WeightFormat::Split24);
    let copy = || copy(&initial, || cast(layer(), FloatDType::BF16).unwrap());
    let mut split = FusedOptimizer::new(copy(), config.init()).unwrap();
    let exact = cast(copy(), FloatDType::F32).unwrap();
    let mut exact = FusedOptimizer::new(exact, stock::MuonConfig::new().init()).unwrap();
    train_fused(&mut split, 8, RATE, loss);
    train_fused(&mut exact, 8, RATE, loss);
    let full = split.full_precision_model();
    crate::formats::assert_near(&exact.model(), &full);
}

#[test]
fn muon_momentum_in_8_bits_stays_near_full() {
    let device = Device::flex();
    let shape = [96, 80];
    let start = Tensor::<2>::random(shape, Distribution::Default, &device);
    let normal = Distribution::Normal(0.1, 1.0);
    let gradients = [(); 10].map(|()| Tensor::<2>::random(shape, normal, &device));
    let train = |states| {
        let config = ours::MuonConfig::new().with_state_format(states);
        let after = run(config.build(), start.clone(), &gradients);
        Tensor::<2>::from_data(after.last().unwrap().clone(), &device)
    };
    let full = train(StateFormat::Full);
    let moved = (full.clone() - start.clone()).square().sum().sqrt();
    for (states, most) in [(StateFormat::Bits8, 0.05), (StateFormat::Bits4, 0.5)] {
        let error = (train(states) - full.clone()).square().sum().sqrt();
        let part = (error / moved.clone()).into_scalar::<f32>();
        assert!(part > 0.0 && part < most, "{states:?}: {part}");
    }
}

#[test]
fn muon_gradient_not_finite_spreads_over_matrix() {
    let device = Device::flex();
    let start = Tensor::<2>::ones([64, 72], &device);
    for wrong in [f32::NAN, f32::INFINITY] {
        for states in [StateFormat::Full, StateFormat::Bits8] {
            let config = ours::MuonConfig::new().with_state_format(states);
            let good = Tensor::<2>::ones([64, 72], &device);
            let bad = good.clone().slice_fill([3..4, 5..6], wrong);
            let after = run(config.build(), start.clone(), &[bad, good]);
            let mut numbers = after[1].iter::<f32>();
            assert!(numbers.all(f32::is_nan), "{states:?} {wrong}");
        }
    }
}

/// Matrices of every odd shape.
#[derive(Module, Debug)]
struct Odd {
    matrices: Vec<Param<Tensor<2>>>,
}

#[test]
fn muon_matrices_of_any_shape_train_in_every_format() {
    const SHAPES: [[usize; 2]; 8] = [
        [0, 4],
        [4, 0],
        [0, 0],
        [1, 1],
        [1, 4100],
        [4100, 1],
        [2100, 2],
        [65, 64],
    ];
    let device = Device::flex().autodiff();
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let init = || {
            let matrix = |shape| {
                let uniform = Distribution::Uniform(0.5, 1.0);
                let matrix = Tensor::<2>::random(shape, uniform, &device);
                Param::from_tensor(matrix.cast(dtype))
            };
            Odd {
                matrices: SHAPES.map(matrix).into(),
            }
        };
        let initial = init();
        let loss = |model: &Odd, step: usize| {
            let factor = 0.5 + step as f64;
            let sum = |matrix: &Param<Tensor<2>>| (matrix.val() * factor).powi_scalar(2).sum();
            let sums = model.matrices.iter().map(sum);
            sums.reduce(|a, b| a + b).expect("there are some")
        };
        for states in [StateFormat::Full, StateFormat::Bits8, StateFormat::Bits4] {
            for weights in WEIGHT_FORMATS {
                if dtype == FloatDType::F32 && weights != WeightFormat::Plain {
                    continue;
                }
                let config = ours::MuonConfig::new().with_state_format(states);
                let config = config.with_weight_format(weights);
                let stock = train_stock(copy(&initial, init), &mut config.init(), 3, RATE, loss);
                let mut fused = FusedOptimizer::new(copy(&initial, init), config.init()).unwrap();
                train_fused(&mut fused, 3, RATE, loss);
                assert_equal_weights(&stock, &fused.model());
                // Every step of a vector is about as long as the learning rate, if its type can represent that.
                let can_tell = dtype == FloatDType::F32 || weights == WeightFormat::Stochastic;
                let vectors = [(3, 1.0), (4, 1.0), (5, 4100f64.sqrt())];
                for (index, stretch) in vectors.into_iter().filter(|_| can_tell) {
                    let moved = |model: &Odd| {
                        let value = model.matrices[index].val().inner().cast(FloatDType::F32);
                        value.square().sum().sqrt().into_scalar::<f64>()
                    };
                    let way = (moved(&initial) - moved(&stock)) / (3.0 * RATE * stretch);
                    assert!(
                        (0.4..1.6).contains(&way),
                        "{index}: {way} with {states:?}, {weights:?}"
                    );
                }
                // A run also resumes.
                let mut again =
                    FusedOptimizer::new(copy(&fused.model(), init), config.init()).unwrap();
                again.load_record(fused.to_record()).unwrap();
                train_fused(&mut again, 1, RATE, loss);
                train_fused(&mut fused, 1, RATE, loss);
                assert_equal_weights(&fused.model(), &again.model());
            }
        }
    }
}
