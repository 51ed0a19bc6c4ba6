//! Averages through everything that a training does, one after the other.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What happens to a training.
#[derive(Clone, Copy, Debug)]
enum Event {
    Step,
    /// The gradients of the last layer are vetoed.
    Vetoed,
    /// Two micro-batches and their step.
    Accumulated,
    /// The layer between is frozen.
    Freeze,
    Thaw,
    /// The training goes on as its clone.
    Clone,
    /// As what its parts and its record make.
    Resume,
    /// Without an update.
    DryRun,
}

const EVENTS: [Event; 20] = {
    use Event::*;
    [
        Accumulated,
        Step,
        Vetoed,
        Freeze,
        Step,
        Vetoed,
        Clone,
        Accumulated,
        Thaw,
        Step,
        Resume,
        Vetoed,
        DryRun,
        Freeze,
        Resume,
        Step,
        Clone,
        Thaw,
        Vetoed,
        Accumulated,
    ]
};

/// Vetoes while it is on.
#[derive(Clone, Default)]
struct Switch(Arc<AtomicBool>);

impl GradientHook for Switch {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        match self.0.load(Ordering::Relaxed) {
            true => GradientFlow::Veto,
            false => GradientFlow::Continue(gradient),
        }
    }
}

/// The average of one parameter by hand.
type Mean = Option<Tensor<1>>;

fn values(model: &Stack) -> Vec<Tensor<1>> {
    let mut values = Values(Vec::new());
    let _ = model.clone().map(&mut values);
    values.0.into_iter().map(|(_, value)| value).collect()
}

/// Goes through all events with an optimizer, beside averages by hand.
fn go_through(optimizer: &ModuleOptimizer, how: &FusedConfig, dtype: FloatDType) {
    let switch = Switch::default();
    let start = |model: Stack, optimizer: ModuleOptimizer| {
        FusedOptimizer::new(model, optimizer)
            .with_hook(ParamGroup::from_predicate("layers.2"), switch.clone())
            .with_config_on(how.clone(), &Device::flex())
    };
    let xs = batches(2 * EVENTS.len(), 8);
    let mut xs = xs
        .into_iter()
        .map(|x| Tensor::from_inner(x.inner().cast(dtype)));
    let mut fused = start(cast(Stack::init(), dtype), optimizer.clone());
    let mut means: Vec<Mean> = vec![None; 6];
    let mut frozen = false;
    for (index, event) in EVENTS.into_iter().enumerate() {
        let mut x = || xs.next().expect("there are enough");
        switch
            .0
            .store(matches!(event, Event::Vetoed), Ordering::Relaxed);
        let mut steps = false;
        match event {
            Event::Step | Event::Vetoed => {
                let x = x();
                fused.step(RATE, |model| model.loss(x));
                steps = true;
            }
            Event::Accumulated => {
                for x in [x(), x()] {
                    fused.accumulate(|model| model.loss(x));
                }
                fused.step_accumulated(RATE);
                steps = true;
            }
            Event::DryRun => {
                let x = x();
                fused.dry_run(|model| model.loss(x));
            }
            Event::Freeze => {
                let group = ParamGroup::from_predicate("layers.1");
                fused.change_model(|model| model.freeze_group(group));
                frozen = true;
            }
            Event::Thaw => {
                fused.change_model(Stack::unfreeze);
                frozen = false;
            }
            Event::Clone => fused = fused.clone(),
            Event::Resume => {
                let record = fused.to_record();
                let (model, _) = fused.into_parts();
                fused = start(model, optimizer.clone());
                fused.load_record(record);
            }
        }
        let values = values(&fused.model());
        for (of, (mean, value)) in means.iter_mut().zip(&values).enumerate() {
            let layer = of / 2;
            let vetoed = layer == 2 && matches!(event, Event::Vetoed);
            if steps && !(vetoed || layer == 1 && frozen) {
                let value = value.clone().cast(FloatDType::F32);
                *mean = Some(match mean.take() {
                    None => value,
                    Some(mean) => mean * 0.75 + value * 0.25,
                });
            }
        }
        let found = self::values(&fused.averaged());
        for (of, (mean, (found, value))) in means.iter().zip(found.iter().zip(&values)).enumerate()
        {
            // What is frozen shows its value, and its average again when it is thawed.
            let mean = mean.clone().filter(|_| !(frozen && of / 2 == 1));
            let expected = mean.unwrap_or_else(|| value.clone()).cast(dtype);
            let is_same = found.to_data() == expected.to_data();
            assert!(
                is_same,
                "{index} {event:?}: parameter {of} in {dtype:?} with {how}"
            );
        }
    }
}

#[test]
fn averages_survive_whatever_happens_in_a_training() {
    let host = |offload| {
        let config = OffloadConfig::new(offload);
        config.with_host(OffloadHost::NdArray).with_min_elements(1)
    };
    let offloads = [
        None,
        Some(host(Offload::States)),
        Some(host(Offload::Updates)),
        Some(host(Offload::Weights(WaitingBlocks::All))),
    ];
    let optimizers: [ModuleOptimizer; 3] = [
        AdamWConfig::new().init(),
        optim::AdamWConfig::new().init(),
        optim::MuonWithAdamWConfig::new(Vec::new()).init(),
    ];
    for optimizer in &optimizers {
        for offload in &offloads {
            for clipping in [None, Some(GlobalNormClippingConfig::Lagged(1.0))] {
                let how = averaging(ema(0.75))
                    .with_offload(offload.clone())
                    .with_clipping(clipping);
                go_through(optimizer, &how, FloatDType::F32);
            }
        }
    }
}

#[test]
fn averages_of_half_types_survive_whatever_happens_in_a_training() {
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        // (Burn's own does not resume in half types.)
        go_through(
            &optim::AdamWConfig::new().init(),
            &averaging(ema(0.75)),
            dtype,
        );
    }
}

#[derive(Module, Debug)]
struct Inner {
    average: Linear,
}

/// Its first layer has in its path what averages have in records.
#[derive(Module, Debug)]
struct Named {
    backburn: Inner,
    other: Linear,
}

impl Named {
    fn init(device: &Device) -> Self {
        let layer = || LinearConfig::new(4, 4).init(device);
        Self {
            backburn: Inner { average: layer() },
            other: layer(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.backburn.average.forward(x);
        self.other.forward(x).powi_scalar(2).mean()
    }
}

#[test]
fn a_layer_of_the_name_of_averages_is_trained_as_in_stock() {
    let device = Device::flex().autodiff();
    let model = Named::init(&device);
    let mut stock = copy(&model, || Named::init(&device));
    let config =
        FusedConfig::new().with_averaging(Some(WeightAveragingConfig::new(WeightAverage::Uniform)));
    let optimizer = burn::optim::AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new(model, optimizer.clone()).with_config(config);
    let mut optimizer = optimizer;
    for step in 0..3 {
        let x = Tensor::<2>::full([3, 4], 0.1 + f64::from(step), &device);
        fused.step(1e-2, |model| model.loss(x.clone()));
        let gradients = GradientsParams::from_grads(stock.loss(x).backward(), &stock);
        stock = optimizer.step(1e-2, stock, gradients);
    }
    assert_equal_weights(&stock, &fused.model());
}
