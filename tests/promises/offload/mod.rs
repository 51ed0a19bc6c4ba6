//! Training with offloaded states, updates or weights equals training without offload.

mod blocks;
mod fragile;
mod frozen;
mod misuse;
mod policies;
mod records;
mod states;

use burn::optim::*;

use crate::common::*;

const RATE: f64 = 1e-2;

/// The kinds of offload, with blocks by number and by bytes.
const MODES: [Offload; 5] = [
    Offload::States,
    Offload::Updates,
    Offload::Weights(OffloadedBlocks::All),
    Offload::Weights(OffloadedBlocks::Fraction(0.5)),
    Offload::Weights(OffloadedBlocks::Beyond(1500)),
];

/// A model whose embedding is also the output, outside of all blocks.
#[derive(Module, Debug)]
struct Network {
    embedding: Embedding,
    blocks: Vec<Block>,
}

impl Network {
    fn init(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(10, 6).init(device),
            blocks: (0..4).map(|_| Block::init(device)).collect(),
        }
    }

    fn loss(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        self.logits(tokens).powi_scalar(2).mean()
    }

    fn logits(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let x: Tensor<2> = self.embedding.forward(tokens).flatten(0, 1);
        let forward = |x, block| gradient_checkpointing(block, x, Block::forward);
        let x = self.blocks.iter().fold(x, forward);
        x.matmul(self.embedding.weight.val().transpose())
    }
}

/// The kinds that are tested: fewer on a GPU, where each kernel is compiled at its first use.
fn modes(device: &Device) -> Vec<Offload> {
    match is_exact(device) {
        true => MODES.to_vec(),
        false => vec![MODES[3]],
    }
}

/// Returns a config of `offload` to the other CPU backend.
fn config(device: &Device, offload: Offload) -> OffloadConfig {
    // Some parameters are smaller.
    offload_from(device, offload).with_min_elements(10)
}

type Fused = FusedOptimizer<Network>;

/// Creates a training on `device` with this `offload`, if any.
fn offloaded(
    model: Network,
    optimizer: ModuleOptimizer,
    device: &Device,
    offload: impl Into<Option<Offload>>,
) -> Fused {
    let offload = offload.into().map(|offload| config(device, offload));
    let config = FusedConfig::new().with_offload(offload);
    FusedOptimizer::new(model, optimizer)
        .unwrap()
        .with_config_on(config, device)
        .unwrap()
}

fn adam(model: Network, device: &Device, offload: impl Into<Option<Offload>>) -> Fused {
    offloaded(model, AdamConfig::new().init(), device, offload)
}

/// A copy that shares nothing with `model`.
fn twin(model: &Network) -> Network {
    copy(model, || Network::init(&model.devices()[0]))
}

/// Trains the results of `fuse`, without offload and in each of `modes`. Panics unless the trainings end with equal
/// values.
#[track_caller]
fn assert_offload_changes_nothing(
    device: &Device,
    modes: &[Offload],
    fuse: impl Fn(Option<Offload>) -> Fused,
    train: impl Fn(&mut Fused),
) {
    let tokens = batches(device).remove(0);
    let trained = |mode| {
        let mut fused = fuse(mode);
        train(&mut fused);
        fused
    };
    let logits = |fused: &Fused| {
        let logits = fused.valid().logits(tokens.clone());
        assert_eq!(logits.device(), device.clone().inner());
        // Copied immediately: on wgpu the data would contain later in-place writes.
        logits.into_data().iter::<f64>().collect::<Vec<_>>()
    };
    let plain = trained(None);
    for &mode in modes {
        let fused = trained(Some(mode));
        assert_equal_weights(&plain.model(), &fused.model());
        // The base of adapters is exported in another form.
        let all = weights(&fused.model());
        if all.iter().all(|(path, _)| !path.contains("lora")) {
            assert_equal_weights(&plain.valid(), &fused.valid());
            assert_equal_weights(&plain.valid(), &fused.model().valid());
        }
        let of = |step: &StepReport| (step.updated, step.vetoed, step.overflowed);
        let (expected, found) = (plain.last_step(), fused.last_step());
        assert_eq!(of(expected), of(found), "{mode:?}");
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4;
        let (expected, found) = (logits(&plain), logits(&fused));
        let equal = expected.iter().zip(&found).all(near);
        assert!(equal, "{mode:?}: {expected:?} {found:?}");
    }
}

fn host(device: &Device) -> Device {
    let [flex, ndarray] = cpus();
    if *device == flex { ndarray } else { flex }
}

fn batches(device: &Device) -> Vec<Tensor<2, Int>> {
    let (uniform, device) = (Distribution::Uniform(0.0, 10.0), device.clone().inner());
    (0..6)
        .map(|_| Tensor::random([4, 3], uniform, &device))
        .collect()
}

fn optimizers(device: &Device) -> Vec<ModuleOptimizer> {
    if !is_exact(device) {
        return vec![optim::AdamWConfig::new().init()];
    }
    vec![
        AdamConfig::new().init(),
        AdamWConfig::new().with_amsgrad(true).init(),
        optim::AdamWConfig::new().init(),
        optim::LionConfig::new().init(),
    ]
}

fn offloaded_training_equals_training_without(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    let mut tried = modes(device);
    if !tried.contains(&Offload::States) {
        tried.push(Offload::States);
    }
    for optimizer in optimizers(device) {
        let fuse = |mode| offloaded(twin(&initial), optimizer.clone(), device, mode);
        assert_offload_changes_nothing(device, &tried, fuse, |fused| {
            train_fused(fused, 6, RATE, loss);
            assert_eq!(fused.last_step().copied.unwrap_or(0), 0);
        });
    }
}

fn model_made_on_host_trains_as_one_on_device(device: &Device) {
    let host = host(device);
    let initial = Network::init(&host);
    let batches = batches(device);
    let loss = |model: &Network, step: usize| model.loss(batches[step].clone());
    let there = copy(&initial, || Network::init(device));
    let mut plain = adam(there, device, None);
    train_fused(&mut plain, 4, RATE, loss);
    for mode in modes(device) {
        let here = copy(&initial, || Network::init(&host));
        let mut fused = adam(here, device, mode);
        train_fused(&mut fused, 4, RATE, loss);
        assert_equal_weights(&plain.model(), &fused.model());
        assert_eq!(fused.model().devices(), std::slice::from_ref(&host));
        let (model, _) = fused.into_parts();
        assert_equal_weights(&plain.model(), &model);
    }
}

/// Returns adapters on the weights in blocks.
fn adapters() -> Lora {
    Lora::new(2, 4.0).set_param_group(ParamGroup::from_predicate("blocks"))
}

on_every_backend!(
    offloaded_training_equals_training_without,
    model_made_on_host_trains_as_one_on_device,
);

#[test]
fn offloaded_or_recorded_columns_agree_within_rounding() {
    let device = Device::flex().autodiff();
    let columns = LinearConfig::new(6, 6).with_layout(LinearLayout::Col);
    let init = || [(); 3].map(|()| columns.init(&device));
    let loss = |layers: &[Linear; 3], x| loss_of_layers(layers, false, x);
    let initial = init();
    let fused = || FusedOptimizer::new(copy(&initial, init), SgdConfig::new().init()).unwrap();
    let offload = offload_from_flex(Offload::Updates);
    let mut alone = fused();
    let mut on_host = fused().with_config(FusedConfig::offload(offload)).unwrap();
    for _ in 0..4 {
        let x = Tensor::random([4, 6], Distribution::Default, &device);
        alone.step(0.1, |layers| loss(layers, x.clone())).unwrap();
        on_host.step(0.1, |layers| loss(layers, x)).unwrap();
    }
    let resumed = FusedOptimizer::new(copy(&alone.model(), init), SgdConfig::new().init()).unwrap();
    let x = Tensor::random([4, 6], Distribution::Default, &device);
    let [alone, others @ ..] = [alone, on_host, resumed].map(|mut fused| {
        fused.step(0.1, |layers| loss(layers, x.clone())).unwrap();
        fused.model()
    });
    for other in &others {
        assert_near_weights(&alone, other, 1e-6, 0.0);
    }
}
