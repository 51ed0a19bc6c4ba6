//! A model with layers on several devices trains as on one device.

use super::*;

/// Layers alternating between two devices. The weight of the first is also used on the other device.
#[derive(Module, Debug)]
struct Placed {
    layers: Vec<Linear>,
    norm: BatchNorm,
}

/// The pairs of devices that this build has.
fn pairs() -> Vec<[Device; 2]> {
    let [flex, ndarray] = cpus();
    let others = [
        ndarray,
        #[cfg(feature = "wgpu")]
        Device::wgpu(Default::default()).autodiff(),
    ];
    let pairs = |other: Device| [[flex.clone(), other.clone()], [other, flex.clone()]];
    others.into_iter().flat_map(pairs).collect()
}

impl Placed {
    fn init(devices: &[Device; 2]) -> Self {
        let layer = |index: usize| LinearConfig::new(6, 6).init(&devices[index % 2]);
        Self {
            layers: (0..5).map(layer).collect(),
            norm: BatchNormConfig::new(6).init(&devices[0]),
        }
    }

    fn run(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
        let device = layer.weight.val().device();
        layer.forward(x.to_device(&device)).tanh()
    }

    fn loss(&self, x: &Tensor<2>) -> Tensor<1> {
        self.loss_of(x, false)
    }

    fn loss_in_blocks(&self, x: &Tensor<2>) -> Tensor<1> {
        self.loss_of(x, true)
    }

    fn loss_of(&self, x: &Tensor<2>, in_blocks: bool) -> Tensor<1> {
        let layers = self.layers.iter();
        let x = layers.fold(x.clone(), |x, layer| {
            block_if(in_blocks, layer, x, Self::run)
        });
        let x = x.to_device(&self.norm.gamma.val().device());
        let x = self.norm.forward(x);
        // A weight that is used on another device than its own.
        let device = self.layers[1].weight.val().device();
        let weight = self.layers[0].weight.val().to_device(&device);
        x.to_device(&device).matmul(weight).powi_scalar(2).sum()
    }

    fn devices_of(&self) -> Vec<Device> {
        let layers = self.layers.iter();
        layers.map(|layer| layer.weight.val().device()).collect()
    }

    fn copied(&self) -> Self {
        let devices = self.devices_of();
        copy(self, || {
            Self::init(&[devices[0].clone(), devices[1].clone()])
        })
    }
}

/// Trains a stock loop with a factor on the gradients of each step that `choose` returns for all norms so far.
fn stock(
    mut model: Placed,
    mut optimizer: ModuleOptimizer,
    groups: &[&[Tensor<2>]],
    choose: Option<fn(&[f64]) -> f64>,
) -> Placed {
    let mut norms = Vec::new();
    for group in groups {
        let mut gradients = summed(&model, group, Placed::loss);
        if let Some(choose) = choose {
            norms.push(norm(&model, &mut gradients));
            scale(&model, &mut gradients, choose(&norms));
        }
        model = optimizer.step(LEARNING_RATE, model, gradients);
    }
    model
}

/// The maximum norm, to which every step is clipped.
const LARGEST: f64 = 0.01;

#[test]
fn layers_on_several_devices_match_stock() {
    // Clipped gradients are small: with the default, rounding differences between devices decide their updates.
    let clipped = AdamConfig::new().with_epsilon(1e-3).init();
    let exact: fn(&[f64]) -> f64 = |norms| (LARGEST / norms[norms.len() - 1]).min(1.0);
    let lagged: fn(&[f64]) -> f64 = |norms| match norms {
        [.., before, _] => (LARGEST / before).min(1.0),
        _ => 1.0,
    };
    let cases = [
        (AdamConfig::new().init(), FusedConfig::new(), None),
        (optim::AdamWConfig::new().init(), FusedConfig::new(), None),
        (clipped.clone(), FusedConfig::exact(LARGEST), Some(exact)),
        (clipped, FusedConfig::lagged(LARGEST), Some(lagged)),
    ];
    for devices in pairs() {
        let (initial, batches) = (Placed::init(&devices), batches(&devices[0], 6));
        let steps: Vec<_> = batches.chunks(1).collect();
        for (optimizer, config, choose) in &cases {
            let expected = stock(initial.copied(), optimizer.clone(), &steps, *choose);
            for loss in [Placed::loss, Placed::loss_in_blocks] {
                let mut fused = FusedOptimizer::new(initial.copied(), optimizer.clone())
                    .unwrap()
                    .with_config(config.clone())
                    .unwrap();
                for step in &steps {
                    step_group(&mut fused, LEARNING_RATE, step, loss);
                }
                let clipping = fused.last_step().clipping;
                assert_eq!(clipping.is_some_and(|it| it < 1.0), choose.is_some());
                assert_equal_weights(&expected, &fused.model());
                assert_eq!(fused.model().devices_of(), initial.devices_of());
                assert_eq!(fused.num_retained(), 0);
            }
        }
    }
}

#[test]
fn accumulation_and_scaling_on_several_devices_match_stock() {
    for devices in pairs() {
        let (initial, batches) = (Placed::init(&devices), batches(&devices[0], 6));
        let groups: Vec<_> = batches.chunks(3).collect();
        let adamw = AdamWConfig::new().init();
        let expected = stock(initial.copied(), adamw.clone(), &groups, None);
        // A power of two changes no bit of the mantissa.
        let scaling = LossScalingConfig::new().with_initial_scale(1024.0);
        let mut fused = FusedOptimizer::new(initial.copied(), adamw)
            .unwrap()
            .with_config(FusedConfig::scaling(scaling))
            .unwrap();
        for group in &groups {
            for x in &group[..2] {
                fused.accumulate(|model| model.loss_in_blocks(x)).unwrap();
            }
            fused
                .step_repeatable(LEARNING_RATE, |model| model.loss(&group[2]))
                .unwrap();
        }
        assert_equal_weights(&expected, &fused.model());
        // An overflow on one device skips the step on all.
        let before = weights(&fused.model().layers);
        fused
            .step_repeatable(LEARNING_RATE, |model| model.loss(&infinite(&devices[0])))
            .unwrap();
        assert_eq!(weights(&fused.model().layers), before);
    }
}

#[test]
fn record_of_several_devices_resumes_exactly() {
    for devices in pairs() {
        let (initial, batches) = (Placed::init(&devices), batches(&devices[0], 6));
        let adam = AdamConfig::new().init();
        let train = |fused: &mut FusedOptimizer<Placed>, batches: &[Tensor<2>]| {
            for x in batches {
                fused.step(LEARNING_RATE, |model| model.loss(x)).unwrap();
            }
        };
        let [mut whole, mut first] =
            [(); 2].map(|()| FusedOptimizer::new(initial.copied(), adam.clone()).unwrap());
        train(&mut whole, &batches);
        train(&mut first, &batches[..3]);
        let mut second = resumed(&first, adam, || Placed::init(&devices));
        train(&mut second, &batches[3..]);
        // (Burn's records don't contain the running statistics of the last step.)
        assert_equal_weights(&whole.model().layers, &second.model().layers);
        assert_eq!(second.model().devices_of(), initial.devices_of());
    }
}
