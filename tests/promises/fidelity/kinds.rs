//! Parameters of every rank, in every kind of module.

use burn::module::Initializer;
use burn::nn::conv::{ConvTranspose1d, ConvTranspose1dConfig};
use burn::optim::AdafactorConfig;

use super::*;
use crate::backends::on_every_cpu_backend;

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // There are four of them.
enum Layer {
    Plain(Linear),
    Normed(Normed),
    Absent(Option<Linear>),
}

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

#[derive(Module, Debug)]
struct Zoo {
    rank_1: Param<Tensor<1>>,
    rank_2: Option<Param<Tensor<2>>>,
    absent: Option<Param<Tensor<2>>>,
    rank_3: Param<Tensor<3>>,
    rank_4: Vec<Param<Tensor<4>>>,
    rank_5: (Param<Tensor<5>>, Linear),
    rank_6: [Param<Tensor<6>>; 2],
    integers: Param<Tensor<1, Int>>,
    booleans: Param<Tensor<1, Bool>>,
    constant: Tensor<2>,
    layers: Vec<Layer>,
    layer: Option<Layer>,
    transposed: ConvTranspose1d,
}

impl Zoo {
    fn init(device: &Device) -> Self {
        let normal = Initializer::Normal {
            mean: 0.0,
            std: 0.5,
        };
        let linear = || LinearConfig::new(3, 3).init(device);
        let ones = Tensor::<1>::ones([3], device);
        Self {
            rank_1: normal.init([3], device),
            rank_2: Some(normal.init([3, 3], device)),
            absent: None,
            rank_3: normal.init([1, 3, 3], device),
            rank_4: vec![
                normal.init([1, 1, 3, 3], device),
                normal.init([1, 1, 1, 3], device),
            ],
            rank_5: (normal.init([1, 1, 1, 3, 3], device), linear()),
            rank_6: [[1, 1, 1, 1, 3, 3], [1, 1, 1, 1, 1, 3]]
                .map(|shape| normal.init(shape, device)),
            integers: Param::initialized(Default::default(), ones.clone().int()),
            booleans: Param::initialized(Default::default(), ones.greater_elem(0.0)),
            constant: Tensor::ones([1, 3], device),
            layers: vec![
                Layer::Plain(linear()),
                Layer::Normed(Normed {
                    linear: linear(),
                    norm: BatchNormConfig::new(3).init(device),
                }),
                Layer::Absent(Some(linear())),
                Layer::Absent(None),
            ],
            layer: Some(Layer::Plain(linear())),
            transposed: ConvTranspose1dConfig::new([1, 2], 3).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let rank_2 = self.rank_2.as_ref().expect("it is there");
        let x = (x * self.rank_1.val().unsqueeze()).matmul(rank_2.val());
        let x = x.matmul(self.rank_3.val().reshape([3, 3]));
        let [weight, bias] = [&self.rank_4[0], &self.rank_4[1]].map(Param::val);
        let x = x.matmul(weight.reshape([3, 3])) + bias.reshape([1, 3]);
        let (rank_5, linear) = &self.rank_5;
        let x = linear.forward(x.matmul(rank_5.val().reshape([3, 3])));
        let [weight, bias] = self.rank_6.each_ref().map(Param::val);
        let x = x.matmul(weight.reshape([3, 3])) + bias.reshape([1, 3]);
        let x = x.tanh() + self.constant.clone();
        let layers = self.layers.iter().chain(&self.layer);
        let x = layers.fold(x, |x, layer| match layer {
            Layer::Plain(linear) => linear.forward(x),
            Layer::Normed(layer) => layer.norm.forward(layer.linear.forward(x).tanh()),
            Layer::Absent(linear) => linear.iter().fold(x, |x, linear| linear.forward(x)),
        });
        square_mean(self.transposed.forward(x.unsqueeze_dim::<3>(1)))
    }
}

fn parameters_of_every_rank_and_kind_train_and_resume_as_in_stock(device: &Device) {
    let optimizers: [fn() -> ModuleOptimizer; 5] = [
        || AdamConfig::new().init(),
        // Without a state.
        || SgdConfig::new().init(),
        || AdafactorConfig::new().init(),
        || AdamWConfig::new().init(),
        || backburn::optim::AdamWConfig::new().init(),
    ];
    let x: Vec<Tensor<2>> = (0..2 * STEPS).map(|_| random([4, 3], device)).collect();
    let init = || Zoo::init(device);
    let initial = init();
    for optimizer in optimizers {
        let all = |model: &Zoo, step: usize| model.loss(x[step].clone());
        let later = |model: &Zoo, step: usize| model.loss(x[STEPS + step].clone());
        let mut in_stock = optimizer();
        let model = copy(&initial, init);
        let half = train_stock(model, &mut in_stock, STEPS, RATE, all);
        let mut fused = FusedOptimizer::new_ok(copy(&initial, init), optimizer());
        train_fused(&mut fused, STEPS, RATE, all);
        drop(half.valid()); // It merges pending updates, which Burn does not record.
        assert_equal_weights(&copy(&half, init), &copy(&fused.model(), init));
        let again = copy(&fused.model(), init);
        let mut resumed = FusedOptimizer::new_ok(copy(&again, init), optimizer());
        resumed.load_record_ok(fused.to_record());
        let mut resumed_in_stock = optimizer().load_record(fused.to_record());

        let stock = train_stock(half, &mut in_stock, STEPS, RATE, later);
        let again = train_stock(again, &mut resumed_in_stock, STEPS, RATE, later);
        train_fused(&mut fused, STEPS, RATE, later);
        train_fused(&mut resumed, STEPS, RATE, later);
        for model in [fused.model(), resumed.model(), again] {
            assert_equal_weights(&stock.valid(), &model.valid());
        }
        let integers = fused.model().integers.val().into_data();
        assert_eq!(integers, initial.integers.val().into_data());
    }
}

on_every_cpu_backend!(parameters_of_every_rank_and_kind_train_and_resume_as_in_stock);
