//! Each pair of options of a training at least once. Fused training equals a stock loop bit for bit. `PAIRS_CASES=1000`
//! also draws 1000 random trainings, from the seed `PAIRS_SEED`.

mod by_hand;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod event;
mod in_state;
mod mean;
mod model;
mod options;
mod policy;
mod refusals;
mod rows;
mod sums;
mod table;
mod training;
mod trial;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use options::Options;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::common::text_of;

/// Compares the end of a training with that of the loop by hand. Returns the difference as an error.
fn ends_well(drawn: &[usize]) -> Result<trial::Ended, String> {
    let options = Options::of(drawn);
    catch_unwind(AssertUnwindSafe(|| trial::run(&options))).map_err(text_of)
}

/// Returns the plainest training near `drawn` that also fails.
fn least(mut drawn: Vec<usize>) -> (Options, String) {
    loop {
        let wrong = table::plainer(&drawn, |_| true).find(|it| ends_well(it).is_err());
        match wrong {
            Some(plainer) => drawn = plainer,
            None => {
                let what = ends_well(&drawn).expect_err("it goes wrong");
                return (Options::of(&drawn), what);
            }
        }
    }
}

/// Returns the number of reasons for which a training is refused, or has no event.
fn refused(drawn: &[usize]) -> usize {
    let options = Options::of(drawn);
    refusals::refusals(&options).len() + usize::from(!options.event_has_effect())
}

/// The weights and batches of a training come from Burn's generator, which it seeds.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs all trainings. For each failure it prints the plainest training that fails.
fn run(trainings: impl Iterator<Item = Vec<usize>>) {
    let _alone = ALONE.lock();
    let (mut well, mut refused, mut wrong) = (0, 0, Vec::new());
    for (index, drawn) in trainings.enumerate() {
        println!("{index}: {:?}", Options::of(&drawn));
        match ends_well(&drawn) {
            Ok(trial::Ended::Well) => well += 1,
            Ok(trial::Ended::Refused) => refused += 1,
            Err(what) => {
                println!("    wrong: {what}");
                let (least, what) = least(drawn);
                println!("    plainest: {least:?}: {what}");
                wrong.push(format!("{least:?}: {what}"));
            }
        }
    }
    println!("{well} ended as by hand, {refused} were refused as they must");
    let count = wrong.len();
    assert!(count == 0, "{count} went wrong:\n{}", wrong.join("\n\n"));
    assert!(well > 0, "all were refused");
}

#[test]
fn pair_of_options_trains_as_by_hand_or_is_refused() {
    run(table::pairs(Options::KINDS, refused).into_iter());
}

#[test]
fn any_training_is_as_by_hand_or_refused_by_name() {
    let of_env = |name: &str, default| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().unwrap())
    };
    let (cases, seed) = (of_env("PAIRS_CASES", 10), of_env("PAIRS_SEED", 1));
    let mut random = StdRng::seed_from_u64(seed);
    let draw = |_| {
        let kinds = Options::KINDS.iter();
        // A third of the options are the plainest ones.
        let drawn = kinds.map(|options| match random.random_bool(0.33) {
            true => 0,
            false => random.random_range(0..*options),
        });
        let mut drawn = drawn.collect();
        table::made_plainer(&mut drawn, |_| true, refused);
        drawn
    };
    run((0..cases).map(draw));
}
