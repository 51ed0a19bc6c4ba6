//! Records load into a learner as into Burn's; what does not fit is refused by name.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use backburn::train::{FusedLearner, LaunchFused};
use burn::lr_scheduler::LrSchedulerRecord;
use burn::optim::LionConfig;
use burn::store::ModuleRecord;
use burn::train::Learner;

use super::{Regression, Run, warm_up_then_cosine};
use crate::common::*;

fn checkpoint(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(format!("checkpoint/{name}-2.bpk"))
}

/// Two epochs of stock training, with their checkpoints in `folder`.
fn trained(optimizer: ModuleOptimizer, folder: &Path) -> Regression {
    let run = Run {
        optimizer,
        ..Run::new(2)
    };
    run.stock(Regression::init(), folder).model
}

#[test]
fn load_model_load_optim_and_load_scheduler_are_those_of_burn() {
    let folders = [(); 3].map(|_| tempfile::tempdir().unwrap());
    let [trained_in, stock_in, fused_in] = folders.each_ref().map(|folder| folder.path());
    trained(AdamWConfig::new().init(), trained_in);
    let model = || ModuleRecord::load(checkpoint(trained_in, "model")).unwrap();
    let optim = || OptimizerRecord::load(checkpoint(trained_in, "optim")).unwrap();
    let scheduler = || LrSchedulerRecord::load(checkpoint(trained_in, "scheduler")).unwrap();
    let initial = Regression::init();

    let run = Run::new(1);
    let mut learner = Learner::new(
        copy(&initial, Regression::init),
        AdamWConfig::new().init(),
        warm_up_then_cosine(),
    );
    learner.load_model(model());
    learner.load_optim(optim());
    learner.load_scheduler(scheduler());
    let stock = run.training(stock_in).launch(learner);

    let mut learner = FusedLearner::new(
        copy(&initial, Regression::init),
        AdamWConfig::new().init(),
        warm_up_then_cosine(),
    );
    learner.load_model(model());
    learner.load_optim(optim());
    learner.load_scheduler(scheduler());
    let fused = run.training(fused_in).launch_fused(learner);
    assert_equal_weights(&stock.model, &fused.model);
}

#[test]
fn the_record_of_another_model_or_optimizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    trained(AdamWConfig::new().init(), folder.path());
    let record = || OptimizerRecord::load(checkpoint(folder.path(), "optim")).unwrap();
    let model = || ModuleRecord::load(checkpoint(folder.path(), "model")).unwrap();

    let learner = |optimizer: ModuleOptimizer| {
        FusedLearner::new(Regression::init(), optimizer, warm_up_then_cosine())
    };
    let refusal = |mut learner: FusedLearner<Regression>| {
        let load = || learner.load_optim(record());
        let panic = catch_unwind(AssertUnwindSafe(load)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    let message = refusal(learner(AdamWConfig::new().init()));
    assert_says(&message, "the model does not have");

    let mut lion = learner(LionConfig::new().init());
    lion.load_model(model());
    let message = refusal(lion);
    assert_says(&message, "another optimizer");
}

/// Launches with `optimizer` from the checkpoint in `folder`, and returns the message it panics with.
#[track_caller]
fn refused(optimizer: ModuleOptimizer, folder: &Path) -> String {
    let run = Run {
        optimizer,
        resume: Some(2),
        ..Run::new(3)
    };
    let launch = || run.fused(Regression::init(), folder);
    let panic = catch_unwind(AssertUnwindSafe(launch)).map(|result| result.model);
    let message = panic.unwrap_err();
    message.downcast_ref::<String>().unwrap().clone()
}

#[test]
fn a_checkpoint_of_another_optimizer_is_refused_at_launch() {
    let momentum = || Some(MomentumConfig::new());
    let sgd = || SgdConfig::new().with_momentum(momentum()).init();
    let others = [
        (sgd(), AdamWConfig::new().init()),
        (AdamWConfig::new().init(), LionConfig::new().init()),
        (LionConfig::new().init(), AdamWConfig::new().init()),
    ];
    for (wrote, reads) in others {
        let folder = tempfile::tempdir().unwrap();
        trained(wrote, folder.path());
        let message = refused(reads, folder.path());
        assert_says(&message, "another optimizer");
        assert!(
            message.contains("put.") || message.contains("norm."),
            "{message}"
        );
    }
}

#[test]
fn a_checkpoint_with_a_state_of_another_shape_is_refused_at_launch() {
    let folder = tempfile::tempdir().unwrap();
    trained(AdamWConfig::new().init(), folder.path());
    let file = checkpoint(folder.path(), "optim");
    let reader = burn_pack::Reader::from_bytes(burn::tensor::Bytes::from_bytes_vec(
        std::fs::read(&file).unwrap(),
    ));
    let reader = reader.unwrap();
    let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());
    let mut tensors = reader.into_tensors().unwrap();
    for tensor in &mut tensors {
        if tensor.shape.as_slice() == [2, 6] {
            tensor.shape = [6, 2].into();
        }
    }
    let mut writer = burn_pack::Writer::new(tensors);
    for (name, scalar) in scalars {
        writer = writer.with_scalar(&name, scalar);
    }
    for (id, path) in paths {
        writer = writer.with_metadata(&id, &path);
    }
    writer.write_to_file(&file).unwrap();

    let message = refused(AdamWConfig::new().init(), folder.path());
    for words in ["`input.weight`", "[2, 6]", "[6, 2]"] {
        assert!(message.contains(words), "`{words}` is not in: {message}");
    }
}

/// An optimizer that keeps nothing, and a parameter that never got a gradient, have no state.
#[test]
fn a_checkpoint_without_states_resumes() {
    #[derive(Module, Debug)]
    struct WithUnused {
        inner: Regression,
        unused: Param<Tensor<1>>,
    }

    impl burn::train::TrainStep for WithUnused {
        type Input = super::Points;
        type Output = burn::train::RegressionOutput;

        fn step(&self, batch: super::Points) -> burn::train::TrainOutput<Self::Output> {
            burn::train::TrainStep::step(&self.inner, batch)
        }
    }

    impl burn::train::InferenceStep for WithUnused {
        type Input = super::Points;
        type Output = burn::train::RegressionOutput;

        fn step(&self, batch: super::Points) -> Self::Output {
            burn::train::InferenceStep::step(&self.inner, batch)
        }
    }

    #[derive(Clone)]
    struct Stateless;

    impl burn::optim::Optimizer for Stateless {
        type State<const D: usize> = ();

        fn step<const D: usize>(
            &self,
            learning_rate: f64,
            tensor: Tensor<D>,
            gradient: Tensor<D>,
            _state: Option<()>,
        ) -> (Tensor<D>, Option<()>) {
            (tensor - gradient.mul_scalar(learning_rate), None)
        }

        fn to_device<const D: usize>(_state: (), _device: &Device) {}
    }

    let optimizers: [fn() -> ModuleOptimizer; 3] = [
        || Stateless.into(),
        || SgdConfig::new().init(),
        || AdamWConfig::new().init(),
    ];
    let device = &Device::flex().autodiff();
    let initial = || WithUnused {
        inner: Regression::init(),
        unused: Param::from_tensor(Tensor::ones([3], device)),
    };
    for optimizer in optimizers {
        let folder = tempfile::tempdir().unwrap();
        for (epochs, resume) in [(2, None), (3, Some(2))] {
            let run = Run {
                resume,
                ..Run::new(epochs)
            };
            let learner = FusedLearner::new(initial(), optimizer(), warm_up_then_cosine());
            let result = run.training(folder.path()).launch_fused(learner);
            assert!(result.error.is_none());
        }
    }
}
