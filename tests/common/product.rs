//! Loops over pairs of options.

/// Each of `a` with each of `b`.
pub fn product<A: Clone, B: Clone>(
    a: impl IntoIterator<Item = A>,
    b: impl IntoIterator<Item = B>,
) -> Vec<(A, B)> {
    let b: Vec<_> = b.into_iter().collect();
    let pairs = |a: A| b.iter().map(move |b| (a.clone(), b.clone()));
    a.into_iter().flat_map(pairs).collect()
}
