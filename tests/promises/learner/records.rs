//! Records load into a learner as into Burn's `Learner`. A record that does not fit is refused by name.

use std::path::PathBuf;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::LionConfig;
use burn::store::ModuleRecord;

use super::*;

fn checkpoint(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("checkpoint/{name}-2.bpk"))
}

/// A folder with the checkpoints of two epochs of stock training.
fn trained(optimizer: ModuleOptimizer) -> TempDir {
    let (run, folder) = (Run::new(2), folder());
    let run = Run { optimizer, ..run };
    run.stock(Regression::init(), folder.path());
    folder
}

#[test]
fn loaded_model_optimizer_and_scheduler_train_as_in_stock() {
    let folder = trained(AdamWConfig::new().init());
    let file = |name| checkpoint(folder.path(), name);
    let model = ModuleRecord::load(file("model")).unwrap();
    let optimizer = || OptimizerRecord::load(file("optim")).unwrap();
    let scheduler = LrSchedulerRecord::load(file("scheduler")).unwrap();
    let (run, initial) = (Run::new(1), Regression::init());

    let (of_run, rates) = (run.optimizer.clone(), run.scheduler.clone());
    let mut learner = Learner::new(copy(&initial, Regression::init), of_run, rates);
    learner.load_model(model.clone());
    learner.load_optim(optimizer());
    learner.load_scheduler(scheduler.clone());
    let stock = run.training(self::folder().path()).launch(learner);

    let mut learner = run.learner(initial);
    learner.load_model(model);
    learner.load_optim(optimizer());
    learner.load_scheduler(scheduler);
    let fused = run.training(self::folder().path()).launch_fused(learner);
    assert_equal_weights(&stock.model, &fused.model);
}

#[test]
fn optimizer_record_of_another_model_is_refused() {
    let folder = trained(AdamWConfig::new().init());
    let record = OptimizerRecord::load(checkpoint(folder.path(), "optim")).unwrap();
    let mut learner = Run::new(1).learner(Regression::init());
    let message = panic_of(|| learner.load_optim(record));
    assert_says(&message, "the model does not have");
}

/// Returns the panic message of a launch with `optimizer` from the checkpoint in `folder`.
#[track_caller]
fn refused(optimizer: ModuleOptimizer, folder: &TempDir) -> String {
    let run = Run {
        optimizer,
        resume: Some(2),
        ..Run::new(3)
    };
    panic_of(|| run.fused(Regression::init(), folder.path()))
}

#[test]
fn checkpoint_of_another_optimizer_is_refused_at_launch() {
    let momentum = || Some(MomentumConfig::new());
    let sgd = || SgdConfig::new().with_momentum(momentum()).init();
    let others = [
        (sgd(), AdamWConfig::new().init()),
        (AdamWConfig::new().init(), LionConfig::new().init()),
        (LionConfig::new().init(), AdamWConfig::new().init()),
    ];
    for (wrote, reads) in others {
        let message = refused(reads, &trained(wrote));
        assert_says(&message, "another optimizer");
        let named = message.contains("put.") || message.contains("norm.");
        assert!(named, "{message}");
    }
}

#[test]
fn checkpoint_with_state_of_another_shape_is_refused_at_launch() {
    let folder = trained(AdamWConfig::new().init());
    let file = checkpoint(folder.path(), "optim");
    let mut contents = Contents::of(OptimizerRecord::load(&file).unwrap());
    for tensor in &mut contents.tensors {
        if tensor.shape.as_slice() == [2, 6] {
            tensor.shape = [6, 2].into();
        }
    }
    contents.into_record().save(&file).unwrap();
    let message = refused(AdamWConfig::new().init(), &folder);
    for words in ["`input.weight`", "[2, 6]", "[6, 2]"] {
        assert_says(&message, words);
    }
}

/// A stateless optimizer, and a parameter that never received a gradient, have no state.
#[test]
fn checkpoint_without_states_resumes() {
    #[derive(Module, Debug)]
    struct WithUnused {
        inner: Regression,
        unused: Param<Tensor<1>>,
    }

    impl WithUnused {
        fn output(&self, batch: Points) -> RegressionOutput {
            self.inner.output(batch)
        }
    }

    impl_train_step!(WithUnused, Points);
    impl_inference_step!(WithUnused, Points);

    let device = &Device::flex().autodiff();
    for optimizer in [SgdConfig::new().init(), AdamWConfig::new().init()] {
        let run = Run {
            optimizer,
            scheduler: ConstantLr::new(1e-2).into(),
            ..Run::new(3)
        };
        let init = || WithUnused {
            inner: Regression::init(),
            unused: Param::from_tensor(Tensor::ones([3], device)),
        };
        let initial = init();
        let whole = run.in_way(true, copy(&initial, init), folder().path());
        // The second launch starts from another model.
        let resumed = run.resumed(|run, folder| {
            let model = match run.resume {
                None => copy(&initial, init),
                Some(_) => init(),
            };
            run.in_way(true, model, folder)
        });
        assert_equal_weights(&whole, &resumed);
    }
}
