//! Operations in a graph of Burn's autodiff.

use backburn_base::caught::catch_message;
use backburn_nn::{LinearCrossEntropyOptions, geglu, linear, linear_cross_entropy, rms_norm};
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Int, Tensor};

fn leaf<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, &Device::flex().autodiff()).require_grad()
}

#[test]
fn output_not_used_adds_no_gradient() {
    let [gate, up] = [[2, 3]; 2].map(leaf);
    let unused = geglu(gate.clone(), up.clone(), true);
    let gradients = (up.clone() * 2).sum().backward();
    assert!(gate.grad(&gradients).is_none());
    assert_eq!(
        up.grad(&gradients)
            .unwrap()
            .into_data()
            .iter::<f32>()
            .sum::<f32>(),
        12.0
    );
    assert_eq!(unused.dims(), [2, 3]);
    // A constant output of tracked inputs is one.
    let constant = geglu(gate.clone(), up.clone(), true).detach();
    assert!(!constant.is_tracked());
}

/// Burn removes the steps of a graph as they run.
#[test]
fn second_backward_pass_is_as_in_burn() {
    let second = |operation: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let x = leaf([2, 3]);
        let output = operation(x.clone());
        let (first, second) = (output.clone().sum(), output.sum());
        assert!(x.grad(&first.backward()).is_some());
        catch_message(|| second.backward()).is_err()
    };
    let burns = second(&|x| x.exp());
    assert_eq!(second(&|x| geglu(x.clone(), x, true)), burns);
}

#[test]
fn input_in_several_places_sums_its_gradients() {
    let x = leaf([3, 3]);
    let targets = Tensor::<1, Int>::arange(0..3, &Device::flex().autodiff());
    let options = LinearCrossEntropyOptions::default();
    let losses = linear_cross_entropy(x.clone(), x.clone(), targets.clone(), None, &options);
    let found = x.grad(&losses.backward()).unwrap();
    let apart = [(); 2].map(|()| leaf([3, 3]));
    let [hidden, weight] = apart.clone();
    let gradients = linear_cross_entropy(hidden, weight, targets, None, &options).backward();
    let [hidden, weight] = apart.map(|it| it.grad(&gradients).unwrap());
    assert_eq!(found.into_data(), (hidden + weight).into_data());
}

/// A frozen norm may be without autodiff: Burn takes such tensors for constants.
#[test]
fn input_without_autodiff_is_constant() {
    let x = leaf([2, 4]);
    let norm: RmsNorm = RmsNormConfig::new(4).init(&Device::flex());
    let gradients = rms_norm(&norm, x.clone()).sum().backward();
    assert!(x.grad(&gradients).is_some());
    let norm: RmsNorm = RmsNormConfig::new(4).init(&Device::flex().autodiff());
    let gradients = rms_norm(&norm, x.clone().inner()).sum().backward();
    assert!(norm.gamma.val().grad(&gradients).is_some());
    let layer: Linear = LinearConfig::new(4, 3).init(&Device::flex());
    let gradients = linear(&layer, x.clone()).sum().backward();
    assert!(x.grad(&gradients).is_some());
    let layer: Linear = LinearConfig::new(4, 3).init(&Device::flex().autodiff());
    let gradients = linear(&layer, x.inner()).sum().backward();
    assert!(layer.weight.val().grad(&gradients).is_some());
}
