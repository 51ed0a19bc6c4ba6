//! The baseline: a bigram model that counts pairs of tokens.

use std::collections::HashMap;

/// Counts of pairs, smoothed by the counts of single tokens.
pub struct Bigram {
    pairs: HashMap<(u32, u32), f64>,
    /// Number of occurrences of each token as the first of a pair.
    firsts: Vec<f64>,
    singles: Vec<f64>,
    tokens: f64,
}

/// Weight of single tokens relative to a pair, in observations: Dirichlet smoothing ([MacKay and Peto,
/// 1995](https://doi.org/10.1017/S1351324900000218)).
const PRIOR: f64 = 5.0;

impl Bigram {
    /// Counts the pairs of `text`, for a vocabulary of this size.
    pub fn of(text: &[u32], vocabulary: usize) -> Self {
        let mut counts = Self {
            pairs: HashMap::new(),
            firsts: vec![0.0; vocabulary],
            singles: vec![1.0; vocabulary],
            tokens: (vocabulary + text.len()) as f64,
        };
        for token in text {
            counts.singles[*token as usize] += 1.0;
        }
        for pair in text.windows(2) {
            *counts.pairs.entry((pair[0], pair[1])).or_default() += 1.0;
            counts.firsts[pair[0] as usize] += 1.0;
        }
        counts
    }

    /// Returns the mean cross entropy in nats per token of all tokens of `pieces` except their first.
    pub fn loss(&self, pieces: &[&[u32]]) -> f64 {
        let pairs = || pieces.iter().flat_map(|piece| piece.windows(2));
        let logarithms = pairs().map(|pair| -self.probability(pair[0], pair[1]).ln());
        logarithms.sum::<f64>() / pairs().count() as f64
    }

    fn probability(&self, first: u32, second: u32) -> f64 {
        let single = self.singles[second as usize] / self.tokens;
        let pair = self.pairs.get(&(first, second)).copied().unwrap_or(0.0);
        (pair + PRIOR * single) / (self.firsts[first as usize] + PRIOR)
    }
}
