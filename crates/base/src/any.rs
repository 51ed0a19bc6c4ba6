use std::ops::Deref;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Tensor};

use crate::{in_type, lift, moved, sent};

/// A float tensor of any rank. It shows itself as one of rank one: Burn keeps the rank in the type alone, where neither
/// what a tensor tells of itself nor an operation on single elements looks at it. A function that does takes it
/// [`of_rank`](Self::of_rank), [`with_rank`](crate::with_rank) if that has to be found out.
#[derive(Clone, Debug)]
pub struct AnyTensor(Tensor<1>);

impl AnyTensor {
    /// # Panics
    ///
    /// If it is of another rank.
    pub fn of_rank<const D: usize>(self) -> Tensor<D> {
        let rank = self.shape().num_dims();
        assert!(
            rank == D,
            "a tensor of rank {rank} was taken for one of {D}"
        );
        Tensor::from_dispatch(self.0.into_dispatch())
    }

    /// `value`, which has no autodiff, in the place of this one: on its device, and a constant if this one is under autodiff.
    pub fn replaced_by(&self, value: Tensor<1>) -> Self {
        let value = moved(value, &self.device().inner());
        match self.gradient_checkpointing_strategy() {
            Some(strategy) => lift(value, strategy).into(),
            None => value.into(),
        }
    }

    /// As if it were of rank one.
    pub fn untyped(self) -> Tensor<1> {
        self.0
    }

    /// The same in this float type.
    pub fn in_type(self, dtype: DType) -> Self {
        Self(in_type(self.0, dtype))
    }

    /// The same, which has no autodiff, on `device`: what it holds now.
    pub fn moved(self, device: &Device) -> Self {
        Self(moved(self.0, device))
    }

    /// The same on `device`, when its time comes.
    pub fn sent(self, device: &Device) -> Self {
        Self(sent(self.0, device))
    }

    /// With another one added, in the type and the buffer of this one.
    pub fn added(self, other: Self) -> Self {
        let other = in_type(other.0, self.0.dtype());
        Self(self.0.add(other))
    }

    /// As a constant under autodiff.
    pub fn lifted(self, strategy: GradientCheckpointingStrategy) -> Self {
        Self(lift(self.0, strategy))
    }
}

/// The most dimensions that Burn's optimizers know.
pub const MAX_RANK: usize = 8;

/// What `$do` gives, in which `$D` is this rank as a constant: one of those that Burn's optimizers know.
#[macro_export]
macro_rules! with_rank {
    ($rank:expr, $D:ident => $do:expr) => {
        $crate::with_rank!(1 2 3 4 5 6 7 8: $rank, $D => $do)
    };
    ($($known:literal)*: $rank:expr, $D:ident => $do:expr) => {
        match $rank {
            $($known => {
                const $D: usize = $known;
                $do
            })*
            rank => unreachable!("Burn has no optimizer for a tensor of rank {rank}"),
        }
    };
}

impl<const D: usize> From<Tensor<D>> for AnyTensor {
    fn from(tensor: Tensor<D>) -> Self {
        Self(Tensor::from_dispatch(tensor.into_dispatch()))
    }
}

impl Deref for AnyTensor {
    type Target = Tensor<1>;

    fn deref(&self) -> &Tensor<1> {
        &self.0
    }
}

/// A float parameter of any rank.
pub trait AnyParam {
    fn id(&self) -> ParamId;

    /// Its shape. A lazy one stays lazy.
    fn shape(&self) -> Shape;

    fn is_initialized(&self) -> bool;

    /// Its value without what it carries. A lazy one is initialized.
    fn value(&self) -> AnyTensor;

    /// Whether it is to be trained, which a quantized value does not tell.
    fn is_active(&self) -> bool;

    /// Where its value is kept, which clones of it share.
    fn place(&self) -> *const ();
}

impl<const D: usize> AnyParam for Param<Tensor<D>> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn shape(&self) -> Shape {
        self.lazy_shape()
    }

    fn is_initialized(&self) -> bool {
        self.is_initialized()
    }

    fn value(&self) -> AnyTensor {
        self.base().into()
    }

    fn is_active(&self) -> bool {
        // Burn shows what is configured when it makes a value for training.
        let asked = self.clone().map(|value| {
            let device = value.device().inner();
            Tensor::zeros([1; D], (&device, DType::F32))
        });
        asked.train().is_require_grad()
    }

    fn place(&self) -> *const () {
        std::ptr::from_ref::<Tensor<D>>(self).cast()
    }
}
