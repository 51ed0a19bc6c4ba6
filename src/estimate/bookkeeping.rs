use burn::module::Param;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};

use crate::fused::FusedOptimizer;
use crate::memory;
use crate::weights::Entry;

/// Bytes that the process holds for all parameters in addition to their tensors; 0 where they are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bookkeeping {
    /// Bytes in a stock training.
    pub(super) stock: usize,
    /// Bytes in a fused training.
    pub(super) fused: usize,
    /// Bytes per parameter read in one graph, for the ticks of the clock, which are reused by later passes.
    pub(super) tick: usize,
    /// Difference between a fused and a stock pass when the backward pass begins.
    pub(super) pass: usize,
}

impl Bookkeeping {
    /// Returns the bookkeeping of a model with these parameters, whose states take `states` bytes in addition to their tensors.
    pub(super) fn of(parameters: &[Entry], states: usize) -> Self {
        let trained = parameters.iter().filter(|it| it.is_trained()).count();
        let device = parameters.first().map(|parameter| &parameter.device);
        let one = device.and_then(Self::of_one).unwrap_or_default();
        let stock = parameters.len() * one.stock + states;
        Self {
            stock,
            fused: stock + trained * one.fused,
            tick: one.tick,
            pass: trained * one.pass,
        }
    }

    /// Measures the bookkeeping of one parameter, without a state. `fused` is the difference to `stock`.
    fn of_one(device: &Device) -> Option<Self> {
        const PARAMETERS: usize = 64;
        const SHAPE: [usize; 2] = [8, 8];
        type Model = Vec<Param<Tensor<2>>>;
        let device = device.clone().autodiff();
        let loss = |model: &Model| {
            let sums = model.iter().map(|it| it.val().sum());
            let loss = sums.reduce(|a, b| a + b).expect("there are some");
            // Measured when the backward pass begins.
            (loss, memory::live(&device))
        };
        let zeros = |_| Param::from_tensor(Tensor::zeros(SHAPE, &device));
        let zeros = || (0..PARAMETERS).map(zeros).collect::<Model>();
        let (model, ordinary) = memory::growth_of(&device, zeros);
        let ordinary = ordinary?.left;
        let before = memory::live(&device).ok()?;
        let of_stock = loss(&model).1.ok()?.saturating_sub(before);
        let fuse = || FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
        let (mut form, fused) = memory::growth_of(&device, fuse);
        let (_, ticks) = memory::growth_of(&device, || drop(form.dry_run(loss)));
        let before = memory::live(&device).ok()?;
        let of_fused = form.dry_run(loss).ok()?.1.ok()?.saturating_sub(before);
        let tensor = size_of::<f32>() * SHAPE.iter().product::<usize>();
        Some(Self {
            stock: (ordinary / PARAMETERS).saturating_sub(tensor),
            fused: fused?.left / PARAMETERS,
            tick: ticks?.left / PARAMETERS,
            pass: of_fused.saturating_sub(of_stock) / PARAMETERS,
        })
    }
}
