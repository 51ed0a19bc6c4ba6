//! Parameters of every rank, in every kind of module.

use burn::module::Initializer;
use burn::nn::conv::{Conv3d, Conv3dConfig};
use burn::optim::AdafactorConfig;

use super::*;

#[derive(Module, Debug)]
enum Layer {
    Gelu(Gelu),
    Scaled(Param<Tensor<1>>),
    Plain(Linear),
    Absent(Option<Linear>),
}

#[derive(Module, Debug)]
pub struct Zoo {
    rank_1: Param<Tensor<1>>,
    rank_2: Option<Param<Tensor<2>>>,
    rank_3: Param<Tensor<3>>,
    rank_4: Vec<Param<Tensor<4>>>,
    rank_5: Conv3d,
    rank_6: [Param<Tensor<6>>; 2],
    absent: Option<Linear>,
    list: Vec<Linear>,
    tuple: (Linear, LayerNorm),
    layers: Vec<Layer>,
    layer: Option<Layer>,
    positions: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
    constant: Tensor<2>,
    #[module(skip)]
    scale: f32,
}

impl Zoo {
    pub fn init(device: &Device) -> Self {
        let normal = Initializer::Normal {
            mean: 0.0,
            std: 0.5,
        };
        let linear = || LinearConfig::new(3, 3).init(device);
        let mask = Tensor::from_data([[true, false, false]], device);
        Self {
            rank_1: normal.init([2], device),
            rank_2: Some(normal.init([2, 2], device)),
            rank_3: normal.init([2, 2, 2], device),
            rank_4: vec![normal.init([1, 2, 2, 2], device)],
            rank_5: Conv3dConfig::new([1, 1], [1, 1, 1]).init(device),
            rank_6: [[1, 2, 1, 2, 2, 2], [1, 1, 1, 1, 1, 2]]
                .map(|shape| normal.init(shape, device)),
            absent: None,
            list: (0..2).map(|_| linear()).collect(),
            tuple: (linear(), LayerNormConfig::new(3).init(device)),
            layers: vec![
                Layer::Gelu(Gelu::new()),
                Layer::Scaled(Param::from_data([0.5, 1.0, 2.0], device)),
                Layer::Absent(Some(linear())),
                Layer::Absent(None),
            ],
            layer: Some(Layer::Plain(linear())),
            positions: Param::initialized(ParamId::new(), Tensor::from_data([2, 0, 1], device)),
            mask: Param::initialized(ParamId::new(), mask),
            constant: Tensor::ones([1, 3], device) * 0.3,
            scale: 0.5,
        }
    }

    pub fn loss(&self, x: &Tensor<2>) -> Tensor<1> {
        self.loss_of_containers(x.clone()) + self.loss_of_ranks(x.clone())
    }

    fn loss_of_containers(&self, x: Tensor<2>) -> Tensor<1> {
        let x = x.select(1, self.positions.val());
        let x = x.mask_fill(self.mask.val().expand([4, 3]), 0.25) + self.constant.clone();
        let linear = self.list.iter().chain(&self.absent);
        let x = linear.fold(x, |x, linear| linear.forward(x.clone()) + x);
        let x = self.tuple.1.forward(self.tuple.0.forward(x));
        let layers = self.layers.iter().chain(&self.layer);
        let x = layers.fold(x, |x, layer| match layer {
            Layer::Gelu(gelu) => gelu.forward(x),
            Layer::Scaled(scale) => x * scale.val().unsqueeze(),
            Layer::Plain(linear) => linear.forward(x),
            Layer::Absent(linear) => linear.iter().fold(x, |x, linear| linear.forward(x)),
        });
        square_mean(x * self.scale)
    }

    fn loss_of_ranks(&self, x: Tensor<2>) -> Tensor<1> {
        let x = x.narrow(1, 0, 2).reshape([1, 1, 2, 2, 2]);
        let x = self.rank_5.forward(x) * self.rank_4[0].val().unsqueeze();
        let rank_2 = self.rank_2.as_ref().expect("it is there");
        let x = x * self.rank_3.val().unsqueeze() + rank_2.val().unsqueeze();
        let x = (x * self.rank_1.val().unsqueeze()).unsqueeze::<6>();
        square_mean(x * self.rank_6[0].val() + self.rank_6[1].val())
    }
}

fn parameters_of_every_kind_resume_as_in_stock(device: &Device) {
    let optimizers = [
        AdamConfig::new().init(),
        // Without a state.
        SgdConfig::new().init(),
        AdafactorConfig::new().init(),
        AdamWConfig::new().init(),
        optim::AdamWConfig::new().init(),
    ];
    let x: Vec<Tensor<2>> = (0..2 * STEPS).map(|_| random([4, 3], device)).collect();
    let init = || Zoo::init(device);
    let initial = init();
    for optimizer in optimizers {
        let first = |model: &Zoo, step: usize| model.loss(&x[step]);
        let later = |model: &Zoo, step: usize| model.loss(&x[STEPS + step]);
        let mut in_stock = optimizer.clone();
        let half = train_stock(copy(&initial, init), &mut in_stock, STEPS, RATE, first);
        let mut fused = FusedOptimizer::new(copy(&initial, init), optimizer.clone()).unwrap();
        train_fused(&mut fused, STEPS, RATE, first);
        let mut again = resumed(&fused, optimizer.clone(), init);
        let mut again_in_stock = optimizer.load_record(fused.to_record());
        let model = copy(&fused.model(), init);

        let stock = train_stock(half, &mut in_stock, STEPS, RATE, later);
        let model = train_stock(model, &mut again_in_stock, STEPS, RATE, later);
        train_fused(&mut fused, STEPS, RATE, later);
        train_fused(&mut again, STEPS, RATE, later);
        for model in [fused.model(), again.model(), model] {
            assert_equal_weights(&stock, &model);
            let positions = model.positions.val().into_data();
            assert_eq!(positions, initial.positions.val().into_data());
        }
    }
}

on_every_cpu_backend!(parameters_of_every_kind_resume_as_in_stock);
