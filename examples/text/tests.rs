//! Tests of the example `text`: saving, resuming, and errors for bad input.

#[path = "../shared/backend.rs"]
mod backend;
mod bigram;
mod checkpoint;
#[path = "../../tests/common/compare.rs"]
#[allow(dead_code)] // A part of other tests.
mod compare;
mod fit;
#[allow(dead_code)] // From here on, parts of an example.
#[path = "../shared/formats.rs"]
mod formats;
#[allow(dead_code)]
mod model;
#[allow(dead_code)]
#[path = "../shared/offload.rs"]
mod offload;
#[allow(dead_code)]
mod optimizer;
#[allow(dead_code)]
mod technique;
#[allow(dead_code)]
mod text;
mod tokens;
#[allow(dead_code)]
mod train;
#[allow(dead_code)]
mod trainer;

use std::path::Path;

use backburn::memory::RecordingAllocator;
use backburn::optim::StateFormat;
use backburn::{
    Budget, Checkpoint, GradientCheckpointingConfig, LoadError, Progress, load_from_store,
};
use burn::module::Module;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Device, FloatDType};
use peak_alloc::PeakAlloc;

use bigram::Bigram;
use checkpoint::Training;
use compare::assert_equal_weights;
use formats::{Formats, States};
use model::{LanguageModelConfig, Preset};
use optimizer::Optimizer;
use technique::{Place, Technique};
use text::{PAGES, Text};
use tokens::Vocabulary;
use train::{HeldOut, Schedule};
use trainer::Trainer;

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
        tokens: pages().len(),
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
    let checkpointing = GradientCheckpointingConfig::new();
    let trainer = Technique::Stock
        .start(&config(), checkpointing, Place::default())
        .unwrap();
    trainer.save(&checkpoint, &Progress::new(0)).unwrap();
    checkpoint
}

/// Starts a trainer from these weights.
fn start(technique: Technique, initial: &Checkpoint) -> Trainer {
    let checkpointing = GradientCheckpointingConfig::new();
    let trainer = technique
        .start(&config(), checkpointing, Place::default())
        .unwrap();
    trainer.resume::<()>(initial).unwrap().0
}

fn run(technique: Technique, trainer: &mut Trainer, text: &mut Text, schedule: Schedule) {
    let device = technique.device(Place::default());
    train::train(trainer, text, schedule, &device, &BYTES).unwrap();
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

        let other = technique.start(
            &config,
            GradientCheckpointingConfig::new(),
            Place::default(),
        );
        let other = other.unwrap();
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
    let new = || {
        technique
            .start(&config(), GradientCheckpointingConfig::new(), place)
            .unwrap()
    };
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
        let found = checkpoint::plan(&saved, budget).unwrap();
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
        checkpoint::plan(&saved, Some(Budget::Bytes(plan.device_bytes - 1))),
        &["saved", "was planned to take", "`--fit`"],
    );
    let unplanned = self::training(&config);
    checkpoint::save(&saved, &first, &unplanned, 3).unwrap();
    assert!(checkpoint::plan(&saved, None).unwrap().is_none());
    let refused = checkpoint::plan(&saved, Some(enough));
    assert_refused(refused, &["without a plan", "without `--fit`"]);
}

#[test]
fn techniques_have_equal_losses() {
    let folder = tempfile::tempdir().unwrap();
    let initial = initial(folder.path());
    let train = |technique| {
        let mut trainer = start(technique, &initial);
        run(technique, &mut trainer, &mut pages(), schedule(0, 3));
        trainer.model()
    };
    let stock = train(Technique::Stock);
    for technique in [
        Technique::Fused,
        Technique::Balanced,
        Technique::Block,
        // All tokens of these batches are one chunk.
        Technique::Chunked,
    ] {
        assert_equal_weights(&stock, &train(technique));
    }
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
fn text_too_short_is_refused() {
    let new = |text: &str| Text::new(text, VOCABULARY, 16, 0);
    assert_refused(new(""), &["the text is empty"]);
    assert_refused(new(" \n "), &["the text is empty"]);
    // A tenth of it is shorter than a piece.
    assert_refused(
        new(&"a".repeat(169)),
        &[
            "169 tokens",
            "170 are needed",
            "a piece of 16 + 1",
            "`--context`",
        ],
    );
    assert!(new(&"a".repeat(170)).is_ok());
    let missing = text::read(Path::new("no/such/file.txt"));
    assert_refused(missing, &["no/such/file.txt"]);
}

#[test]
fn checkpoint_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let start = |config: &LanguageModelConfig| {
        let checkpointing = GradientCheckpointingConfig::new();
        Technique::Fused
            .start(config, checkpointing, Place::default())
            .unwrap()
    };
    let config = config();
    let training = training(&config);
    checkpoint::save(&saved, &start(&config), &training, 3).unwrap();
    let resume = |folder: &Path, training: &Training| {
        checkpoint::resume(folder, start(&training.config), training)
    };
    assert_refused(
        resume(&folder.path().join("other"), &training),
        &["there is no complete checkpoint in", "other"],
    );
    type Change = fn(&mut Training);
    let changes: [(Change, &[&str]); 9] = [
        (
            |t| t.vocabulary = Vocabulary::Gpt2,
            &["Bytes", "Gpt2", "`--vocabulary`"],
        ),
        (|t| t.config.dim = 32, &["dim: 16", "dim: 32", "`--preset`"]),
        (
            |t| t.formats.states = States::Eight,
            &["Full", "Eight", "`--states`"],
        ),
        (|t| t.tokens += 1, &["`--text`"]),
        (|t| t.checksum += 1, &["`--text`", "checksum"]),
        (
            |t| t.learning_rate = 3e-3,
            &["0.01, but 0.003", "`--learning-rate`"],
        ),
        (|t| t.seed = 4, &["3, but 4", "`--seed`"]),
        (|t| t.batch = 4, &["2, but 4", "`--batch-size`"]),
        (|t| t.steps = 8, &["6, but 8", "`--steps`"]),
    ];
    for (change, words) in changes {
        let mut other = training.clone();
        change(&mut other);
        assert_refused(resume(&saved, &other), words);
    }
    checkpoint::save(&saved, &start(&config), &training, 6).unwrap();
    assert_refused(
        resume(&saved, &training),
        &["has completed all of its 6 steps"],
    );
    // The earlier checkpoint is removed: this one and the lock remain.
    assert_eq!(std::fs::read_dir(&saved).unwrap().count(), 2);
    checkpoint::check(&saved, 6).unwrap();
    assert_refused(checkpoint::check(&saved, 5), &["6 steps", "`--save`"]);
    let saved = folder.path().join("again");
    checkpoint::save(&saved, &start(&config), &training, 3).unwrap();
    let step = saved.join("step-3");
    std::fs::write(step.join("model.bpk"), b"nonsense").unwrap();
    assert_refused(resume(&saved, &training), &["model.bpk"]);
    std::fs::write(step.join("training.json"), b"nonsense").unwrap();
    assert_refused(resume(&saved, &training), &["training.json"]);
}

#[test]
fn save_replaces_only_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    std::fs::create_dir(&precious).unwrap();
    let thesis = precious.join("thesis.txt");
    std::fs::write(&thesis, b"years").unwrap();
    let checkpointing = GradientCheckpointingConfig::new();
    let trainer = Technique::Fused
        .start(&config(), checkpointing, Place::default())
        .unwrap();
    // A stray file does not make a training invalid.
    checkpoint::check(&precious, 6).unwrap();
    for _ in 0..2 {
        checkpoint::save(&precious, &trainer, &training(&config()), 3).unwrap();
        assert_eq!(std::fs::read(&thesis).unwrap(), b"years");
    }
    for taken in [&thesis, &thesis.join("x")] {
        assert_refused(checkpoint::check(taken, 6), &["thesis.txt", "`--save`"]);
        let refused = checkpoint::save(taken, &trainer, &training(&config()), 3);
        assert_refused(refused, &["thesis.txt"]);
    }
    assert_eq!(std::fs::read(thesis).unwrap(), b"years");
}

#[test]
fn weights_with_wrong_tensors_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex().autodiff();
    let load = |saved: &LanguageModelConfig, asked: &LanguageModelConfig| {
        let path = folder.path().join("model.safetensors");
        let mut store = SafetensorsStore::from_file(&path).overwrite(true);
        saved.init(&device).save_into(&mut store).unwrap();
        let store = SafetensorsStore::from_file;
        let loaded = load_from_store(asked.init(&device), &path, store, FloatDType::F32);
        loaded.map_err(|error: LoadError| anyhow::anyhow!("{error}"))
    };
    let config = config();
    assert!(load(&config, &config).is_ok());
    // Without a separate head.
    assert_refused(
        load(&config.clone().with_tied(true), &config),
        &["head.weight"],
    );
    assert_refused(
        load(
            &LanguageModelConfig {
                vocabulary: 300,
                ..config.clone()
            },
            &config,
        ),
        &["embedding.weight", "300", "256"],
    );
    let broken = folder.path().join("broken.safetensors");
    std::fs::write(&broken, b"nonsense").unwrap();
    let store = SafetensorsStore::from_file;
    assert!(load_from_store(config.init(&device), &broken, store, FloatDType::F32).is_err());
}

#[test]
fn tokens_decode_to_their_text() {
    for vocabulary in [Vocabulary::Bytes, Vocabulary::Gpt2] {
        let tokens = vocabulary.encode(PAGES);
        assert!(
            tokens
                .iter()
                .all(|token| (*token as usize) < vocabulary.size())
        );
        assert_eq!(vocabulary.decode(&tokens).unwrap(), PAGES);
    }
}

/// The bigram model is a probability distribution: the probabilities of all next tokens sum to 1.
#[test]
fn bigram_probabilities_match_counts() {
    let text = [0, 1, 0, 1, 0, 2, 0, 1];
    let bigram = Bigram::of(&text, 4);
    for first in 0..4 {
        let loss = |second| bigram.loss(&[&[first, second]]);
        let sum: f64 = (0..4).map(|second| (-loss(second)).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    }
    assert!(bigram.loss(&[&[0, 1]]) < bigram.loss(&[&[0, 2]]));
    assert!(bigram.loss(&[&[0, 2]]) < bigram.loss(&[&[0, 3]]));
}

#[test]
fn untrained_model_is_worse_than_bigram() {
    let model = config().init(&Device::flex());
    let device = Device::flex().autodiff();
    let held_out = HeldOut::measure(
        &model,
        &pages(),
        VOCABULARY.size(),
        4,
        HeldOut::PIECES,
        &device,
    );
    assert!(
        (held_out.loss - 256f64.ln()).abs() < 0.3,
        "{}",
        held_out.loss
    );
    assert!(held_out.bigram < held_out.loss - 1.0, "{}", held_out.bigram);
}
