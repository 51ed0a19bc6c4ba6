//! Formats of weights and optimizer states for the command line.

use backburn::FusedError;
use backburn::optim::{StateFormat, WeightFormat};
use burn::module::Module;
use burn::tensor::FloatDType;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Formats of the model and the optimizer.
#[derive(Args, Serialize, Deserialize, Clone, Copy, Debug)]
pub struct Formats {
    /// Format of the optimizer states.
    #[arg(long, value_enum, default_value_t = States::Full)]
    pub states: States,

    /// Format of the weights.
    #[arg(long, value_enum, default_value_t = Weights::F32)]
    pub weights: Weights,
}

#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    /// In f32.
    Full,
    /// In 8 bits.
    #[value(name = "8")]
    Eight,
    /// In 4 bits.
    #[value(name = "4")]
    Four,
}

#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    F32,
    /// In bf16, with 8 more bits in the optimizer state.
    Split24,
    /// In bf16, rounded at random.
    Stochastic,
    /// In bf16, rounded to the nearest.
    Bf16,
}

impl Default for Formats {
    fn default() -> Self {
        Self {
            states: States::Full,
            weights: Weights::F32,
        }
    }
}

impl Formats {
    /// Returns `true` if everything is in f32.
    pub fn are_full(self) -> bool {
        self.states == States::Full && self.weights == Weights::F32
    }

    pub fn of_states(self) -> StateFormat {
        match self.states {
            States::Full => StateFormat::Full,
            States::Eight => StateFormat::Bits8,
            States::Four => StateFormat::Bits4,
        }
    }

    pub fn of_weights(self) -> WeightFormat {
        match self.weights {
            Weights::F32 | Weights::Bf16 => WeightFormat::Plain,
            Weights::Stochastic => WeightFormat::Stochastic,
            Weights::Split24 => WeightFormat::Split24,
        }
    }

    /// Returns the type of the weights.
    pub fn dtype(self) -> FloatDType {
        match self.weights {
            Weights::F32 => FloatDType::F32,
            _ => FloatDType::BF16,
        }
    }

    /// Casts `model` to the type of its weights.
    pub fn cast<M: Module>(self, model: M) -> Result<M, FusedError> {
        match self.weights {
            Weights::F32 => Ok(model),
            _ => backburn::cast(model, self.dtype()),
        }
    }
}
