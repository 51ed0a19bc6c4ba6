//! Tokens, and the baseline of their pairs.

use super::*;

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
