//! Fused training equals stock Burn bit for bit, for every optimizer that steps per parameter.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::*;

use crate::backends::on_every_backend;
use crate::common::*;

#[derive(Module, Debug)]
struct Mlp {
    input: Linear,
    norm: LayerNorm,
    output: Linear,
}

impl Mlp {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(6, 16).init(device),
            norm: LayerNormConfig::new(16).init(device),
            output: LinearConfig::new(16, 3).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = Gelu::new().forward(self.norm.forward(self.input.forward(x)));
        self.output.forward(x)
    }
}

/// Odd, so that steps of one size, such as Lion's, can't take a parameter back to where it was.
const STEPS: usize = 5;

fn assert_fused_equals_stock(device: &Device, optimizer: impl Fn() -> ModuleOptimizer) {
    let initial = Mlp::init(device);
    let batches: Vec<Tensor<2>> = (0..STEPS)
        .map(|_| Tensor::random([8, 6], Distribution::Default, device))
        .collect();
    let loss = |model: &Mlp, step: usize| {
        let output = model.forward(batches[step].clone());
        output.powi_scalar(2).mean()
    };

    let stock = copy(&initial, || Mlp::init(device));
    let stock = train_stock(stock, &mut optimizer(), STEPS, 1e-2, loss);

    let fused = copy(&initial, || Mlp::init(device));
    let mut fused = FusedOptimizer::new_ok(fused, optimizer());
    train_fused(&mut fused, STEPS, 1e-2, loss);

    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);
}

fn sgd(device: &Device) {
    assert_fused_equals_stock(device, || SgdConfig::new().init());
}

fn sgd_with_momentum(device: &Device) {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.1);
    assert_fused_equals_stock(device, || {
        let momentum = momentum.clone().with_nesterov(true);
        SgdConfig::new().with_momentum(Some(momentum)).init()
    });
}

fn sgd_with_weight_decay(device: &Device) {
    assert_fused_equals_stock(device, || {
        let decay = WeightDecayConfig::new(0.1);
        SgdConfig::new().with_weight_decay(Some(decay)).init()
    });
}

fn adam(device: &Device) {
    assert_fused_equals_stock(device, || AdamConfig::new().init());
}

fn amsgrad(device: &Device) {
    assert_fused_equals_stock(device, || AdamConfig::new().with_amsgrad(true).init());
}

fn adamw(device: &Device) {
    assert_fused_equals_stock(device, || AdamWConfig::new().init());
}

fn adagrad(device: &Device) {
    assert_fused_equals_stock(device, || AdaGradConfig::new().init());
}

fn rmsprop(device: &Device) {
    assert_fused_equals_stock(device, || RmsPropConfig::new().with_centered(true).init());
}

fn adafactor(device: &Device) {
    assert_fused_equals_stock(device, || AdafactorConfig::new().init());
}

fn adan(device: &Device) {
    assert_fused_equals_stock(device, || AdanConfig::new().init());
}

fn lamb(device: &Device) {
    assert_fused_equals_stock(device, || LambConfig::new().init());
}

fn lion(device: &Device) {
    assert_fused_equals_stock(device, || LionConfig::new().init());
}

fn muon_on_matrices_and_adamw_elsewhere(device: &Device) {
    assert_fused_equals_stock(device, || {
        let matrices = ParamGroup::from_predicate("put.weight");
        let muon = MuonConfig::new().build();
        AdamWConfig::new().init().with_group(matrices, muon, None)
    });
}

fn clipping_per_parameter(device: &Device) {
    assert_fused_equals_stock(device, || {
        let clipping = GradientClippingConfig::Norm(0.01);
        AdamConfig::new().with_grad_clipping(Some(clipping)).init()
    });
}

on_every_backend!(
    sgd,
    sgd_with_momentum,
    sgd_with_weight_decay,
    adam,
    amsgrad,
    adamw,
    adagrad,
    rmsprop,
    adafactor,
    adan,
    lamb,
    lion,
    muon_on_matrices_and_adamw_elsewhere,
    clipping_per_parameter,
);
