//! Documents that are held out, to measure the loss on.

use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::StdRng};

use crate::tokens::Encoded;

/// Divides `documents` into those to train on, at least one, and a share that is held out. The seed draws them.
pub fn split(documents: Vec<Encoded>, share: f64, seed: u64) -> (Vec<Encoded>, Vec<Encoded>) {
    let wanted = (documents.len() as f64 * share).ceil() as usize;
    let wanted = wanted.min(documents.len().saturating_sub(1));
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    let mut is_held_out = vec![false; documents.len()];
    for index in &order[..wanted] {
        is_held_out[*index] = true;
    }
    let (mut trained, mut held_out) = (Vec::new(), Vec::new());
    for (document, is_held_out) in documents.into_iter().zip(is_held_out) {
        match is_held_out {
            true => held_out.push(document),
            false => trained.push(document),
        }
    }
    (trained, held_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of documents that are held out of `count`.
    fn held_out(count: u32, share: f64, seed: u64) -> Vec<u32> {
        let document = |number| Encoded {
            tokens: vec![number],
            counted: vec![true],
            crosses: false,
        };
        let (trained, held_out) = split((0..count).map(document).collect(), share, seed);
        let held_out: Vec<u32> = held_out.iter().map(|it| it.tokens[0]).collect();
        let mut all: Vec<u32> = trained.iter().map(|it| it.tokens[0]).collect();
        assert!(all.is_sorted());
        all.extend(&held_out);
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>());
        held_out
    }

    #[test]
    fn held_out_documents_are_drawn_by_seed() {
        for (count, share, wanted) in [(100, 0.05, 5), (10, 0.01, 1), (1, 0.5, 0), (3, 0.0, 0)] {
            assert_eq!(held_out(count, share, 42).len(), wanted);
        }
        let drawn = held_out(100, 0.2, 1);
        assert_eq!(drawn, held_out(100, 0.2, 1));
        assert_ne!(drawn, held_out(100, 0.2, 2));
        // A sorted file: both halves are in it.
        assert!(drawn.iter().any(|it| *it < 50) && drawn.iter().any(|it| *it >= 50));
    }
}
