//! Errors for bad input.

use super::*;

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
    let missing = text::text::read(Path::new("no/such/file.txt"));
    assert_refused(missing, &["no/such/file.txt"]);
}

#[test]
fn checkpoint_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let start =
        |config: &LanguageModelConfig| Technique::Fused.start(config, Place::default()).unwrap();
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
    checkpoint::check(&saved, Some(&saved), 6).unwrap();
    for resumed in [None, Some(folder.path())] {
        let check = checkpoint::check(&saved, resumed, 6);
        assert_refused(check, &["6 steps", "`--save`", "`--resume`"]);
    }
    let check = checkpoint::check(&saved, Some(&saved), 5);
    assert_refused(check, &["6 steps", "`--save`"]);
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
    let trainer = Technique::Fused.start(&config(), Place::default()).unwrap();
    // A stray file does not make a training invalid.
    checkpoint::check(&precious, None, 6).unwrap();
    for _ in 0..2 {
        checkpoint::save(&precious, &trainer, &training(&config()), 3).unwrap();
        assert_eq!(std::fs::read(&thesis).unwrap(), b"years");
    }
    for taken in [&thesis, &thesis.join("x")] {
        assert_refused(
            checkpoint::check(taken, None, 6),
            &["thesis.txt", "`--save`"],
        );
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
