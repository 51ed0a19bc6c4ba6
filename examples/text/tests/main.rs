//! Tests of the example `text`: saving, resuming, and errors for bad input.

#[path = "../../../tests/common/compare.rs"]
#[allow(dead_code)] // A part of other tests.
mod compare;
mod refused;
mod tokens;

use std::path::Path;

use backburn::memory::RecordingAllocator;
use backburn::optim::StateFormat;
use backburn::{Budget, Checkpoint, LoadError, Progress, load_from_store};
use burn::module::Module;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Device, FloatDType};
use peak_alloc::PeakAlloc;

use text::bigram::Bigram;
use text::checkpoint::{self, Training};
use text::fit;
use text::formats::{Formats, States};
use text::model::{LanguageModelConfig, Preset};
use text::optimizer::Optimizer;
use text::technique::{LOSS_CHUNK, Place, Technique};
use text::text::{PAGES, Text};
use text::tokens::Vocabulary;
use text::train::{self, HeldOut, Schedule};
use text::trainer::Trainer;

use compare::assert_equal_weights;

/// A plan needs the counts of this allocator.
#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

/// Not installed: it counts nothing.
static BYTES: PeakAlloc = PeakAlloc;

const VOCABULARY: Vocabulary = Vocabulary::Bytes;

fn config() -> LanguageModelConfig {
    let small = Preset::Small.config(VOCABULARY.size());
    small
        .with_context(16)
        .with_dim(16)
        .with_depth(2)
        .with_expert_dim(16)
}

fn schedule(done: usize, stop: usize) -> Schedule {
    Schedule {
        done,
        steps: 6,
        stop,
        batch: 2,
        context: config().context,
        learning_rate: 1e-2,
    }
}

fn training(config: &LanguageModelConfig) -> Training {
    Training {
        config: config.clone(),
        vocabulary: VOCABULARY,
        formats: Formats::default(),
        optimizer: Optimizer::default(),
        ema: None,
        tokens: pages().tokens(),
        checksum: pages().checksum(),
        seed: 3,
        batch: 2,
        steps: 6,
        learning_rate: 1e-2,
        plan: None,
    }
}

fn pages() -> Text {
    Text::new(PAGES, VOCABULARY, config().context, 3).unwrap()
}

/// Saves weights that all trainings can start from.
fn initial(folder: &Path) -> Checkpoint {
    let checkpoint = Checkpoint::at(folder.join("initial"));
    let trainer = Technique::Stock.start(&config(), Place::default()).unwrap();
    trainer.save(&checkpoint, &Progress::new(0)).unwrap();
    checkpoint
}

/// Starts a trainer from these weights.
fn start(technique: Technique, initial: &Checkpoint) -> Trainer {
    start_with(&config(), technique, initial)
}

fn start_with(config: &LanguageModelConfig, technique: Technique, initial: &Checkpoint) -> Trainer {
    let trainer = technique.start(config, Place::default()).unwrap();
    trainer.resume::<()>(initial).unwrap().0
}

fn run(technique: Technique, trainer: &mut Trainer, text: &mut Text, schedule: Schedule) {
    let device = technique.device(Place::default());
    train::train(trainer, text, schedule, &device, &BYTES).unwrap();
}

#[track_caller]
fn assert_refused<T>(result: anyhow::Result<T>, words: &[&str]) {
    let Err(error) = result else {
        panic!("it was not refused")
    };
    let message = format!("{error:#}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn resumed_training_equals_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let initial = initial(folder.path());
    for technique in [Technique::Stock, Technique::Fused, Technique::Chunked] {
        let config = technique.applied_to(&config());
        let mut whole = start(technique, &initial);
        run(technique, &mut whole, &mut pages(), schedule(0, 6));

        let mut first = start(technique, &initial);
        run(technique, &mut first, &mut pages(), schedule(0, 3));
        let saved = folder.path().join("saved");
        let training = training(&config);
        // Twice, to replace the first checkpoint.
        for _ in 0..2 {
            checkpoint::save(&saved, &first, &training, 3).unwrap();
        }
        drop(first);

        let other = technique.start(&config, Place::default()).unwrap();
        let (mut second, done) = checkpoint::resume(&saved, other, &training).unwrap();
        assert_eq!(done, 3);
        let mut text = pages();
        text.skip(done, 2);
        run(technique, &mut second, &mut text, schedule(done, 6));
        assert_equal_weights(&whole.model(), &second.model());
    }
}

#[test]
fn muon_with_average_resumes_and_refuses_others() {
    let folder = tempfile::tempdir().unwrap();
    let initial = initial(folder.path());
    let place = Place {
        optimizer: Optimizer::Muon,
        ema: Some(0.9),
        ..Place::default()
    };
    let of_muon = Training {
        optimizer: place.optimizer,
        ema: place.ema,
        ..training(&config())
    };
    let technique = Technique::Fused;
    let new = || technique.start(&config(), place).unwrap();
    let start = || new().resume::<()>(&initial).unwrap().0;
    let mut whole = start();
    run(technique, &mut whole, &mut pages(), schedule(0, 6));
    let mut first = start();
    run(technique, &mut first, &mut pages(), schedule(0, 3));
    let saved = folder.path().join("saved");
    checkpoint::save(&saved, &first, &of_muon, 3).unwrap();
    let (mut second, done) = checkpoint::resume(&saved, new(), &of_muon).unwrap();
    let mut text = pages();
    text.skip(done, 2);
    run(technique, &mut second, &mut text, schedule(done, 6));
    assert_equal_weights(&whole.model(), &second.model());
    let device = Place::default().backend.device().autodiff();
    let [of_whole, of_second] = [&whole, &second].map(|trainer| trainer.valid(&device));
    assert_equal_weights(&of_whole, &of_second);
    compare::assert_changed(&whole.model().valid(), &of_whole, |_| true);
    for (training, option) in [
        (training(&config()), "`--optimizer`"),
        (
            Training {
                ema: None,
                ..of_muon
            },
            "`--ema`",
        ),
    ] {
        assert_refused(checkpoint::resume(&saved, new(), &training), &[option]);
    }
}

#[test]
fn planned_training_resumes_by_its_plan() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let (initial, technique) = (initial(folder.path()), Technique::Chunked);
    let (config, device) = (
        technique.applied_to(&config()),
        technique.device(Place::default()),
    );
    let batch = pages().batch(2, &device);
    let enough = Budget::Bytes(1_000_000_000);
    let mut plan = fit::plan(&config, enough, &batch, &device).unwrap();
    // As in a plan for fewer bytes.
    (plan.batch, plan.accumulation) = (1, 2);
    plan.optimizer = plan.optimizer.with_state_format(StateFormat::Bits8);
    let start = |from: &Checkpoint| {
        let trainer = technique.start_planned(&config, &plan, Place::default());
        trainer.unwrap().resume::<()>(from).unwrap().0
    };
    let mut whole = start(&initial);
    run(technique, &mut whole, &mut pages(), schedule(0, 6));

    let mut first = start(&initial);
    run(technique, &mut first, &mut pages(), schedule(0, 3));
    let training = Training {
        plan: Some(plan.clone()),
        ..training(&config)
    };
    checkpoint::save(&saved, &first, &training, 3).unwrap();
    for budget in [None, Some(enough), Some(Budget::Machine)] {
        let found = checkpoint::plan(&saved, budget, &device).unwrap();
        let found = found.unwrap();
        assert_eq!(found.candidates, plan.candidates);
        let again = technique.start_planned(&config, &found, Place::default());
        let (mut again, done) = checkpoint::resume(&saved, again.unwrap(), &training).unwrap();
        let mut text = pages();
        text.skip(done, 2);
        run(technique, &mut again, &mut text, schedule(done, 6));
        assert_equal_weights(&whole.model(), &again.model());
    }
    assert_refused(
        checkpoint::plan(&saved, Some(Budget::Bytes(plan.device_bytes - 1)), &device),
        &["saved", "was planned to take", "`--fit`"],
    );
    let unplanned = self::training(&config);
    checkpoint::save(&saved, &first, &unplanned, 3).unwrap();
    assert!(checkpoint::plan(&saved, None, &device).unwrap().is_none());
    let refused = checkpoint::plan(&saved, Some(enough), &device);
    assert_refused(refused, &["without a plan", "without `--fit`"]);
}

#[test]
fn techniques_train_as_stock_with_their_loss() {
    let folder = tempfile::tempdir().unwrap();
    let initial = initial(folder.path());
    for (techniques, loss_chunk) in [
        (
            &[Technique::Fused, Technique::Balanced, Technique::Block][..],
            None,
        ),
        (&[Technique::Chunked], Some(LOSS_CHUNK)),
    ] {
        let config = config().with_loss_chunk(loss_chunk);
        let train = |technique: Technique| {
            let mut trainer = start_with(&config, technique, &initial);
            run(technique, &mut trainer, &mut pages(), schedule(0, 3));
            trainer.model()
        };
        let stock = train(Technique::Stock);
        for technique in techniques {
            assert_equal_weights(&stock, &train(*technique));
        }
    }
}
