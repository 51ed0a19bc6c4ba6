use clap::ValueEnum;

use super::LanguageModelConfig;

/// Sizes of language models.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// 1.8 million parameters without the vocabulary; trains in about two minutes on two cores.
    Small,
    /// 24 million parameters without the vocabulary.
    Medium,
    /// 0.86 billion parameters without the vocabulary, 0.96 with that of GPT-2.
    Billion,
}

impl Preset {
    /// Returns the number of pieces of text in a step.
    pub fn batch(self) -> usize {
        match self {
            Self::Small | Self::Medium => 8,
            Self::Billion => 1,
        }
    }

    /// Returns the config of this size, for a `vocabulary`.
    pub fn config(self, vocabulary: usize) -> LanguageModelConfig {
        let small = LanguageModelConfig::new(vocabulary);
        match self {
            Self::Small => small,
            Self::Medium => small
                .with_context(256)
                .with_dim(512)
                .with_depth(6)
                .with_heads(8)
                .with_key_value_heads(4)
                .with_window(128)
                .with_expert_dim(512),
            Self::Billion => small
                .with_context(2048)
                .with_dim(1024)
                .with_depth(16)
                .with_heads(8)
                .with_key_value_heads(4)
                .with_window(1024)
                .with_experts(8)
                .with_experts_per_token(4)
                .with_expert_dim(2048),
        }
    }
}
