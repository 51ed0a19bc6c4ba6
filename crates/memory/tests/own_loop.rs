//! A training loop from outside of the crate reports to the recorder by its public items: momentum by hand, with stock Burn.

use backburn_memory::{MemoryRecorder, Phase, RecordingAllocator};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

const WIDTH: usize = 192;
const BYTES: usize = 4 * WIDTH * WIDTH;

/// Descends along the momentum of a single matrix.
struct Descend<'a> {
    gradients: &'a GradientsParams,
    velocity: &'a mut Option<Tensor<2>>,
}

impl ModuleMapper for Descend<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let gradient = self
            .gradients
            .get::<2>(param.id)
            .expect("the matrix is used");
        let velocity = match self.velocity.take() {
            Some(velocity) => velocity * 0.9 + gradient,
            None => gradient * 1.0,
        };
        *self.velocity = Some(velocity.clone());
        param.map(|value| {
            let value = value.inner() - velocity.reshape([WIDTH; D]) * 0.01;
            Tensor::from_inner(value).require_grad()
        })
    }
}

#[test]
fn own_loop_is_recorded_by_phase_and_category() {
    let device = Device::flex().autodiff();
    let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    let mut model: Linear = config.init(&device);
    let mut velocity = None;
    let recorder = MemoryRecorder::start().unwrap();
    recorder.parameters(&model);
    for _ in 0..3 {
        let x = Tensor::<2>::ones([4, WIDTH], &device);
        let loss = recorder.forward(|| model.forward(x).powi_scalar(2).mean());
        let gradients = recorder.backward(|| GradientsParams::from_grads(loss.backward(), &model));
        recorder.gradients(&gradients, &model);
        model = recorder.update(|| {
            model.map(&mut Descend {
                gradients: &gradients,
                velocity: &mut velocity,
            })
        });
        recorder.parameters(&model);
    }
    let timeline = recorder.finish().unwrap();
    assert_eq!(timeline.lost, 0);

    let phases: Vec<&Phase> = timeline.marks.iter().map(|mark| &mark.phase).collect();
    let update = Phase::Update { parameter: None };
    let step = [
        &Phase::Forward,
        &Phase::Other,
        &Phase::Backward,
        &Phase::Other,
        &update,
        &Phase::Other,
    ];
    assert_eq!(phases, [&[&Phase::Other][..], &step, &step, &step].concat());

    // After the backward pass the gradient is complete, and after the update the momentum is there.
    for pair in timeline.samples.windows(2) {
        if pair[0].mark != pair[1].mark && *timeline.phase(&pair[0]) == Phase::Backward {
            assert_eq!(pair[0].bytes.gradients, BYTES);
            assert_eq!(pair[0].bytes.parameters, BYTES);
        }
    }
    let last = timeline.samples.last().expect("a step was recorded").bytes;
    assert_eq!((last.parameters, last.gradients), (BYTES, 0));
    assert!(
        (BYTES..BYTES + BYTES / 10).contains(&last.optimizer_state),
        "{last:?}"
    );
}
