//! The smallest number of trainings that contain every pair of options.

use std::collections::HashSet;

/// A pair of options: the kind and the number of each.
type Pair = [(usize, usize); 2];

fn pairs_of(drawn: &[usize]) -> impl Iterator<Item = Pair> + '_ {
    let kinds = 0..drawn.len();
    kinds.flat_map(move |b| (0..b).map(move |a| [(a, drawn[a]), (b, drawn[b])]))
}

/// Returns trainings by the numbers of their options. `kinds` has the number of options of each kind. Each training
/// takes the first missing pair, and then, kind by kind, the option that adds the most pairs. A training that is
/// `refused` is made plainer until it is accepted, or refused only for its first pair.
pub fn pairs(kinds: &[usize], refused: impl Fn(&[usize]) -> usize) -> Vec<Vec<usize>> {
    let mut missing = HashSet::new();
    for (b, of_b) in kinds.iter().enumerate() {
        for (a, of_a) in kinds[..b].iter().enumerate() {
            let of_both = (0..*of_a).flat_map(|i| (0..*of_b).map(move |j| (i, j)));
            missing.extend(of_both.map(|(i, j)| [(a, i), (b, j)]));
        }
    }
    let mut trainings = Vec::new();
    // Most trainings contain the plainest options.
    while let Some(first) = missing.iter().max().copied() {
        let mut drawn = vec![None; kinds.len()];
        for (kind, option) in first {
            drawn[kind] = Some(option);
        }
        for kind in 0..kinds.len() {
            if drawn[kind].is_none() {
                // Alternates between options that add equally many pairs.
                let others =
                    (0..kinds[kind]).map(|option| (option + trainings.len()) % kinds[kind]);
                drawn[kind] = others.max_by_key(|option| gain(&missing, &drawn, (kind, *option)));
            }
        }
        let mut drawn: Vec<usize> = drawn.into_iter().flatten().collect();
        let is_free = |kind: usize| first.iter().all(|(of_pair, _)| *of_pair != kind);
        made_plainer(&mut drawn, is_free, &refused);
        missing.remove(&first);
        // A refused training does not train its other pairs.
        if refused(&drawn) == 0 {
            pairs_of(&drawn).for_each(|pair| _ = missing.remove(&pair));
        }
        trainings.push(drawn);
    }
    trainings
}

/// Returns the number of pairs that this option of a kind adds.
fn gain(missing: &HashSet<Pair>, drawn: &[Option<usize>], (kind, option): (usize, usize)) -> usize {
    let others = drawn.iter().enumerate();
    let others = others.filter_map(|(other, drawn)| Some((other, (*drawn)?)));
    let pair = |other: (usize, usize)| {
        let mut pair = [other, (kind, option)];
        pair.sort_unstable();
        pair
    };
    others
        .filter(|other| missing.contains(&pair(*other)))
        .count()
}

/// Returns these options with the plainest option of one free kind.
pub fn plainer(
    drawn: &[usize],
    is_free: impl Fn(usize) -> bool,
) -> impl Iterator<Item = Vec<usize>> {
    let kinds = (0..drawn.len()).filter(move |kind| is_free(*kind) && drawn[*kind] > 0);
    kinds.map(|kind| {
        let mut plainer = drawn.to_vec();
        plainer[kind] = 0;
        plainer
    })
}

/// Takes the plainest option of free kinds while this reduces the number of reasons to refuse.
pub fn made_plainer(
    drawn: &mut Vec<usize>,
    is_free: impl Fn(usize) -> bool,
    refused: impl Fn(&[usize]) -> usize,
) {
    loop {
        let reasons = refused(drawn);
        let least = plainer(drawn, &is_free).min_by_key(|plainer| refused(plainer));
        match least {
            Some(plainer) if refused(&plainer) < reasons => *drawn = plainer,
            _ => return,
        }
    }
}

#[test]
fn table_has_every_pair() {
    let table = pairs(&[3, 2, 4], |_| 0);
    let found: HashSet<_> = table.iter().flat_map(|drawn| pairs_of(drawn)).collect();
    assert_eq!(found.len(), 3 * 2 + 3 * 4 + 2 * 4);
    assert!(table.len() < 20);
}
