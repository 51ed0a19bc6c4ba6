//! The options of a training, one of each kind.

use burn::tensor::FloatDType::{self, BF16, F16, F32, F64};

/// An enum of options, the first of which is the plainest, with all of them in a list.
macro_rules! options {
    ($($kind:ident { $($option:ident),+ $(,)? })+) => {
        $(
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub enum $kind { $($option),+ }

            impl $kind {
                const ALL: &[Self] = &[$(Self::$option),+];
            }
        )+
    };
}

options! {
    Weights { Plain, Adapters, TrainedBase, BaseInBytes, BaseInCodes }
    Statistics { None, Normed }
    Numbers { F32, F32InBf16, F32InF16, Bf16, Bf16InF32, F64, F16, F64InF32 }
    Stepped { Sgd, BurnAdam, AdamW, AdamW8, AdamW4, Muon, Groups, BurnSgd }
    Low { Plain, Stochastic, Split24 }
    Blocks { None, Twice, SomeKept, InputsOffloaded }
    Group { One, Three, ThreeInFull, ThreeInState }
    Clipping { None, Exact, Lagged, ExactInBuffer }
    Scaling { None, Static, SkipStep, SkipParameter }
    Hooks { None, Halving, Veto, Both }
    Waiting { None, States, Updates, Weights, HalfOfWeights }
    Devices { One, Two, ThreeInFull, TwoOneOwner, ThreeBySize }
    Averages { None, Exponential, Uniform }
    Event {
        None, Freeze, Record, Checkpoint, Panic, NotFinite, Keep, DryRun, Parts, Thread, Change, Drop, Idle, Remove,
    }
    Moment { Between, Within }
    Limit { None, Byte, Some }
}

macro_rules! training {
    ($($field:ident: $kind:ident),+) => {
        /// The options of a training, one of each kind.
        #[derive(Clone, Copy, Debug)]
        pub struct Options { $(pub $field: $kind),+ }

        impl Options {
            /// The number of options of each kind.
            pub const KINDS: &[usize] = &[$($kind::ALL.len()),+];

            /// Returns the options with these numbers.
            pub fn of(drawn: &[usize]) -> Self {
                let mut drawn = drawn.iter();
                Self { $($field: $kind::ALL[*drawn.next().unwrap()]),+ }.fitting()
            }
        }
    };
}

training! {
    weights: Weights, statistics: Statistics, numbers: Numbers, stepped: Stepped, low: Low, blocks: Blocks,
    group: Group, clipping: Clipping, scaling: Scaling, hooks: Hooks, waiting: Waiting, devices: Devices,
    averages: Averages, event: Event, moment: Moment, limit: Limit
}

impl Devices {
    pub fn ranks(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two | Self::TwoOneOwner => 2,
            Self::ThreeInFull | Self::ThreeBySize => 3,
        }
    }
}

impl Options {
    /// Returns these options with the options that they require: adapters of an offloaded base need blocks, and low-bit states
    /// need numbers of at most 32 bits.
    fn fitting(mut self) -> Self {
        let weights_wait = matches!(self.waiting, Waiting::Weights | Waiting::HalfOfWeights);
        if weights_wait && self.has_adapters() && self.blocks == Blocks::None {
            self.blocks = Blocks::Twice;
        }
        if self.dtype() == F64 && matches!(self.stepped, Stepped::AdamW8 | Stepped::AdamW4) {
            self.stepped = Stepped::AdamW;
        }
        self
    }

    pub fn in_state(&self) -> bool {
        self.group == Group::ThreeInState
    }

    pub fn micro_batches(&self) -> usize {
        if self.group == Group::One { 1 } else { 3 }
    }

    /// The storage type of the weights.
    pub fn dtype(&self) -> FloatDType {
        match self.numbers {
            Numbers::F32 | Numbers::F32InBf16 | Numbers::F32InF16 => F32,
            Numbers::Bf16 | Numbers::Bf16InF32 => BF16,
            Numbers::F64 | Numbers::F64InF32 => F64,
            Numbers::F16 => F16,
        }
    }

    pub fn compute_dtype(&self) -> Option<FloatDType> {
        match self.numbers {
            Numbers::F32InBf16 => Some(BF16),
            Numbers::F32InF16 => Some(F16),
            Numbers::Bf16InF32 | Numbers::F64InF32 => Some(F32),
            _ => None,
        }
    }

    /// Returns `true` if the base of adapters is frozen, or another tensor is tracked in addition to the taps.
    pub fn has_adapters(&self) -> bool {
        self.weights != Weights::Plain
    }

    /// Returns `true` if the event does something with these options.
    pub fn event_has_effect(&self) -> bool {
        let is_within_group = self.moment == Moment::Within && self.micro_batches() > 1;
        let is_exact = matches!(self.clipping, Clipping::Exact | Clipping::ExactInBuffer);
        let adapts = self.scaling != Scaling::None || self.clipping == Clipping::Lagged;
        let is_on_one = self.devices == Devices::One;
        match self.event {
            Event::None | Event::Panic | Event::Keep | Event::Thread | Event::Drop => true,
            Event::Freeze | Event::Remove | Event::Change => !(is_within_group && self.in_state()),
            Event::Record | Event::Checkpoint => !is_within_group && self.loads(),
            Event::NotFinite => {
                let is_noticed = match self.scaling {
                    Scaling::None => is_exact,
                    _ => !(is_within_group && self.in_state()),
                };
                self.trains_all() && is_noticed
            }
            Event::Parts => {
                let is_recorded = adapts || self.averages != Averages::None || self.in_state();
                !is_within_group && !is_recorded
            }
            Event::DryRun => is_on_one,
            Event::Idle => !is_on_one,
        }
    }

    /// Returns `true` if a hook halves the gradients of a parameter.
    pub fn halves(&self, path: &str) -> bool {
        matches!(self.hooks, Hooks::Halving | Hooks::Both) && path.contains("layers")
    }

    /// Returns `true` if a hook vetoes the updates of a parameter.
    pub fn vetoes(&self, path: &str) -> bool {
        matches!(self.hooks, Hooks::Veto | Hooks::Both) && path.contains("bias")
    }

    /// Returns `true` if `ndarray` can't store the weights.
    pub fn lacks_a_host(&self) -> bool {
        matches!(
            self.numbers,
            Numbers::Bf16 | Numbers::Bf16InF32 | Numbers::F16
        )
    }

    /// Returns `true` if the scale is trained, whose gradient overflows.
    pub fn trains_all(&self) -> bool {
        matches!(self.weights, Weights::Plain | Weights::TrainedBase)
    }

    /// Returns `true` if a record keeps the type of the optimizer states: Burn loads its own in the default type.
    pub fn loads(&self) -> bool {
        let of_burn = matches!(self.stepped, Stepped::BurnAdam | Stepped::Groups);
        !(of_burn && self.dtype() != F32) && self.dtype() != F64
    }
}
