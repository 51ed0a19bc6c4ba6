//! One model whose layers lie on several devices is trained as on one.

use super::*;

/// Layers on two devices in turn, the weight of the first used once more on the other.
#[derive(Module, Debug)]
struct Placed {
    layers: Vec<Linear>,
    norm: BatchNorm,
}

/// The pairs of devices that this build has.
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn pairs() -> Vec<[Device; 2]> {
    let others = [
        Device::ndarray(),
        #[cfg(feature = "wgpu")]
        Device::wgpu(Default::default()),
    ];
    let pairs = others
        .into_iter()
        .flat_map(|other| [[Device::flex(), other.clone()], [other, Device::flex()]]);
    pairs.map(|pair| pair.map(Device::autodiff)).collect()
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

    fn loss(&self, x: Tensor<2>, in_blocks: bool) -> Tensor<1> {
        let x = self
            .layers
            .iter()
            .fold(x, |x, layer| block_if(in_blocks, layer, x, Self::run));
        let x = self
            .norm
            .forward(x.to_device(&self.norm.gamma.val().device()));
        // A weight that is used where it does not lie.
        let device = self.layers[1].weight.val().device();
        let again = x
            .to_device(&device)
            .matmul(self.layers[0].weight.val().to_device(&device));
        again.powi_scalar(2).sum()
    }

    fn devices_of(&self) -> Vec<Device> {
        self.layers
            .iter()
            .map(|layer| layer.weight.val().device())
            .collect()
    }
}

fn x(devices: &[Device; 2]) -> Vec<Tensor<2>> {
    batches(&devices[0], 6)
}

fn copied(initial: &Placed, devices: &[Device; 2]) -> Placed {
    copy(initial, || Placed::init(devices))
}

/// Burn alone, with a factor on the gradients of each step that `choose` makes of all norms so far.
fn stock(
    mut model: Placed,
    mut optimizer: ModuleOptimizer,
    groups: &[&[Tensor<2>]],
    choose: impl Fn(&[f64]) -> f64,
) -> Placed {
    let mut all_norms = Vec::new();
    for group in groups {
        let mut sum = GradientsAccumulator::new();
        for x in *group {
            let gradients = model.loss(x.clone(), false).backward();
            sum.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        let mut gradients = sum.grads();
        all_norms.push(norm(&model, &mut gradients));
        let coefficient = choose(&all_norms);
        if coefficient != 1.0 {
            scale(&model, &mut gradients, coefficient);
        }
        model = optimizer.step(LEARNING_RATE, model, gradients);
    }
    model
}

#[test]
fn layers_on_several_devices_are_trained_as_in_stock() {
    for devices in pairs() {
        let (initial, batches) = (Placed::init(&devices), x(&devices));
        let groups: Vec<_> = batches.chunks(1).collect();
        let ours = || optim::AdamWConfig::new().init();
        let optimizers: [&dyn Fn() -> ModuleOptimizer; 2] = [&|| AdamConfig::new().init(), &ours];
        for optimizer in optimizers {
            let expected = stock(copied(&initial, &devices), optimizer(), &groups, |_| 1.0);
            for in_blocks in [false, true] {
                let mut fused = FusedOptimizer::new_ok(copied(&initial, &devices), optimizer());
                for x in &batches {
                    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone(), in_blocks));
                }
                assert_equal_weights(&expected, &fused.model());
                assert_eq!(fused.model().devices_of(), initial.devices_of());
                assert_eq!(fused.num_retained(), 0);
            }
        }
    }
}

#[test]
fn the_norm_is_that_over_all_devices() {
    for devices in pairs() {
        let (initial, batches) = (Placed::init(&devices), x(&devices));
        let groups: Vec<_> = batches.chunks(1).collect();
        // Clipped gradients are small: with the default, rounding differences between devices decide their updates.
        let adam = || AdamConfig::new().with_epsilon(1e-3).init();
        // All steps are clipped.
        let largest = 0.01;
        let exact = |norms: &[f64]| (largest / norms[norms.len() - 1]).min(1.0);
        let lagged = |norms: &[f64]| match norms {
            [.., before, _] => (largest / before).min(1.0),
            _ => 1.0,
        };
        for in_blocks in [false, true] {
            let train = |clipping| {
                let fused = FusedOptimizer::new_ok(copied(&initial, &devices), adam());
                let mut fused = fused.with_config_ok(FusedConfig::clipping(clipping));
                for x in &batches {
                    fused.step_repeatable_ok(LEARNING_RATE, |model| {
                        model.loss(x.clone(), in_blocks)
                    });
                }
                assert!(
                    fused
                        .last_step()
                        .clipping
                        .is_some_and(|factor| factor < 1.0)
                );
                fused.model()
            };
            let expected = stock(copied(&initial, &devices), adam(), &groups, exact);
            let found = train(GlobalNormClippingConfig::Exact(largest));
            assert_equal_weights(&expected, &found);
            let expected = stock(copied(&initial, &devices), adam(), &groups, lagged);
            let found = train(GlobalNormClippingConfig::Lagged(largest));
            assert_equal_weights(&expected, &found);
        }
    }
}

#[test]
fn accumulation_and_loss_scaling_work_on_several_devices() {
    for devices in pairs() {
        let (initial, batches) = (Placed::init(&devices), x(&devices));
        let groups: Vec<_> = batches.chunks(3).collect();
        let adamw = || AdamWConfig::new().init();
        let expected = stock(copied(&initial, &devices), adamw(), &groups, |_| 1.0);
        let fused = FusedOptimizer::new_ok(copied(&initial, &devices), adamw());
        // A power of two changes no digit.
        let mut fused = fused.with_config_ok(FusedConfig::scaling(
            LossScalingConfig::new().with_initial_scale(1024.0),
        ));
        for group in &groups {
            for x in &group[..2] {
                fused.accumulate_ok(|model| model.loss(x.clone(), true));
            }
            fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(group[2].clone(), false));
        }
        assert_equal_weights(&expected, &fused.model());
        // An overflow on one device skips the step on all.
        let before = weights(&fused.model().layers);
        fused.step_repeatable_ok(LEARNING_RATE, |model| {
            model.loss(infinite(&devices[0]), false)
        });
        assert_eq!(weights(&fused.model().layers), before);
    }
}

#[test]
fn records_of_several_devices_resume_exactly() {
    for devices in pairs() {
        let (initial, batches) = (Placed::init(&devices), x(&devices));
        let new = |model| FusedOptimizer::new_ok(model, AdamConfig::new().init());
        let mut whole = new(copied(&initial, &devices));
        let mut first = new(copied(&initial, &devices));
        for x in &batches {
            whole.step_ok(LEARNING_RATE, |model| model.loss(x.clone(), false));
        }
        for x in &batches[..3] {
            first.step_ok(LEARNING_RATE, |model| model.loss(x.clone(), false));
        }
        let record = first.to_record().into_bytes().unwrap();
        let model = copied(&first.model(), &devices);
        let mut second = new(model);
        second.load_record_ok(OptimizerRecord::from_bytes(record).unwrap());
        for x in &batches[3..] {
            second.step_ok(LEARNING_RATE, |model| model.loss(x.clone(), false));
        }
        // (Burn's records lack the running statistics of the last step.)
        assert_equal_weights(&whole.model().layers, &second.model().layers);
        assert_eq!(second.model().devices_of(), initial.devices_of());
    }
}
