//! The user data of a checkpoint is restored or refused.

use super::*;

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
struct UserData {
    rates: Vec<f64>,
    best: Option<f32>,
    batches: HashMap<u64, String>,
    kind: Kind,
    seed: u128,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
enum Kind {
    Unit,
    Tuple(i8, (char, Option<bool>)),
    Struct { folder: PathBuf },
}

#[test]
fn user_data_is_loaded_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let hard = [
        f64::INFINITY,
        -0.0,
        f64::MIN_POSITIVE / 3.0,
        0.1 + 0.2,
        1e308,
    ];
    for kind in [
        Kind::Unit,
        Kind::Tuple(-7, ('\u{e9}', Some(false))),
        Kind::Struct {
            folder: "a/b".into(),
        },
    ] {
        let user_data = UserData {
            rates: hard.to_vec(),
            best: None,
            batches: [(u64::MAX, "last".to_string())].into(),
            kind,
            seed: u128::MAX,
        };
        let scheduler = LrSchedulerRecord::new()
            .with_record(
                "weights",
                LrSchedulerRecord::new().with_scalar("at", 0.1 + 0.2),
            )
            .with_record("biases", LrSchedulerRecord::new().with_scalar("at", 3usize));
        let progress = Progress::new(u64::MAX)
            .with_scheduler(scheduler)
            .with_user_data(user_data.clone());
        checkpoint.save(&small(), &progress).unwrap();
        let told: Progress<UserData> = checkpoint.progress().unwrap();
        let loaded: Progress<UserData> = checkpoint.load(&mut small()).unwrap();
        for progress in [told, loaded] {
            assert_eq!(progress.step, u64::MAX);
            assert_eq!(progress.user_data, user_data);
            let bits = |user_data: &UserData| -> Vec<u64> {
                user_data.rates.iter().map(|rate| rate.to_bits()).collect()
            };
            assert_eq!(bits(&progress.user_data), bits(&user_data));
            let weights = progress.scheduler.record("weights");
            assert_eq!(weights.scalar::<f64>("at"), Some(0.1 + 0.2));
            let biases = progress.scheduler.record("biases");
            assert_eq!(biases.scalar::<usize>("at"), Some(3));
        }
    }
    let nan = Progress::new(1).with_user_data(f64::NAN);
    checkpoint.save(&small(), &nan).unwrap();
    let checkpoint = checkpoint.at_step(1);
    assert!(checkpoint.progress::<f64>().unwrap().user_data.is_nan());
}

#[test]
fn unreadable_user_data_is_an_error_before_save() {
    /// A type whose `Serialize` and `Deserialize` don't match.
    #[derive(Serialize, Deserialize, Clone, Debug)]
    struct Lopsided {
        #[serde(rename(serialize = "before", deserialize = "after"))]
        _name: u8,
    }
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2);
    let before = files(folder.path());
    let checkpoint = Checkpoint::at(folder.path());
    let progress = Progress::new(1).with_user_data(Lopsided { _name: 1 });
    let refused = checkpoint.save(&small(), &progress).unwrap_err();
    assert_says(&refused, "Lopsided");
    assert_says(&refused, "after");
    assert!(before == files(folder.path()));
}
