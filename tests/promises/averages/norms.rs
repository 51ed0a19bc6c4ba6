//! Averages of running statistics go where their layers go.

use burn::tensor::{Bytes, DType, TensorData};

use super::*;
use crate::contents::Contents;

#[derive(Module, Debug)]
struct Norms {
    norms: Vec<BatchNorm>,
}

impl Norms {
    fn of_widths(widths: &[usize]) -> Self {
        let device = Device::flex().autodiff();
        let norm = |width: &usize| BatchNormConfig::new(*width).init(&device);
        Self {
            norms: widths.iter().map(norm).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let run = |x, norm: &BatchNorm| norm.forward(x).tanh() * 3.0 + 1.0;
        self.norms.iter().fold(x, run).powi_scalar(2).mean()
    }

    fn means(self) -> Vec<TensorData> {
        let norms = self.valid().norms.into_iter();
        norms
            .map(|norm| norm.running_mean.value_sync().into_data())
            .collect()
    }
}

fn fused(model: Norms) -> FusedOptimizer<Norms> {
    let how = averaging(ema(0.5).with_running_statistics(true));
    FusedOptimizer::new(model, SgdConfig::new().init()).with_config(how)
}

#[test]
fn averages_of_running_statistics_go_where_their_layers_go() {
    let xs = batches(6, 8);
    let mut one = fused(Norms::of_widths(&[8; 3]));
    for x in &xs[..3] {
        one.step(RATE, |model| model.loss(x.clone()));
    }
    let before = one.averaged().means();
    one.change_model(|mut model| {
        model.norms.remove(0);
        model
    });
    assert_eq!(one.averaged().means(), before[1..]);

    // A new layer where another was begins anew.
    one.change_model(|mut model| {
        model.norms.extend(Norms::of_widths(&[8]).norms);
        model
    });
    let now = one.averaged().means();
    assert_eq!(now[..2], before[1..]);
    assert_eq!(now[2], one.model().means()[2]);
    for x in &xs[3..] {
        one.step(RATE, |model| model.loss(x.clone()));
    }

    // And its record has each where it is.
    let mut again = fused(copy(&one.model(), || Norms::of_widths(&[8; 3])));
    again.load_record(one.to_record());
    let means = one.averaged().means();
    assert_eq!(again.averaged().means(), means);
    assert!(
        means
            .iter()
            .zip(one.model().means())
            .all(|(mean, now)| *mean != now)
    );
}

#[test]
fn a_layer_of_another_width_begins_anew() {
    let mut one = fused(Norms::of_widths(&[8; 2]));
    one.step(RATE, |model| model.loss(batches(1, 8).remove(0)));
    one.change_model(|_| Norms::of_widths(&[4; 2]));
    assert_eq!(one.averaged().means(), one.model().means());
    for x in batches(2, 4) {
        one.step(RATE, |model| model.loss(x));
    }
    assert_ne!(one.averaged().means(), one.model().means());
}

#[test]
fn statistics_that_are_not_averaged_any_more_begin_anew() {
    let xs = batches(6, 8);
    let mut one = fused(Norms::of_widths(&[8; 2]));
    let with = one.config().clone();
    for x in &xs[..3] {
        one.step(RATE, |model| model.loss(x.clone()));
    }
    one.set_config(averaging(ema(0.5)));
    one.set_config(with);
    assert_eq!(one.averaged().means(), one.model().means());
}

#[test]
fn an_average_of_a_statistic_of_another_size_is_refused_by_name() {
    let x = batches(1, 8).remove(0);
    let mut one = fused(Norms::of_widths(&[8]));
    one.step(RATE, |model| model.loss(x.clone()));
    let contents = Contents::of(one.to_record());
    let tensors = contents.tensors.iter().enumerate();
    let averages = tensors.filter(|(_, tensor)| tensor.name.ends_with(".average"));
    let errors: Vec<String> = averages
        .map(|(index, _)| {
            let short = Bytes::from_bytes_vec(vec![0; 16]);
            let damaged = contents.with_tensor(index, DType::F32, &[4], short);
            let error = one.try_load_record(damaged.into_record());
            error.expect_err("it has four elements").to_string()
        })
        .collect();
    for path in ["gamma", "beta", "running_mean", "running_var"] {
        let path = format!("`norms.0.{path}`");
        assert!(
            errors.iter().any(|it| it.contains(&path)),
            "{path} in {errors:?}"
        );
    }
    one.step(RATE, |model| model.loss(x.clone()));
}
