//! Rotary positions.

use backburn_base::AnyTensor;
use backburn_nn::rotary;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use crate::case::{Case, assert_case, assert_same_places};

/// The layout of the tables.
#[derive(Clone, Copy, Debug)]
enum Tables {
    /// One for all sequences.
    Shared,
    /// One for each sequence.
    Own,
    /// One for all sequences, as a view with the batch size.
    Expanded,
    /// Positions inside of a longer table, backwards.
    Flipped,
    /// In f32, in a model of another type.
    Single,
}

impl Tables {
    fn of(self, [batch, length, half]: [usize; 3], like: &AnyTensor) -> [Tensor<4>; 2] {
        let tables = match self {
            Self::Own => batch,
            _ => 1,
        };
        let all = length + 3;
        let angles: Vec<f32> = (0..tables * all * half)
            .map(|index| index as f32 * 0.37)
            .collect();
        let angles = TensorData::new(angles, [tables, 1, all, half]);
        let angles = Tensor::<4>::from_data(angles, &Device::flex());
        let angles = match length {
            0 => Tensor::zeros([tables, 1, 0, half], &Device::flex()),
            _ => angles.narrow(2, 2, length),
        };
        let dtype = match self {
            Self::Single if like.dtype().size() < 4 => FloatDType::F32,
            _ => FloatDType::from(like.dtype()),
        };
        [angles.clone().cos(), angles.sin()].map(|table| {
            let table = table.cast(dtype);
            match self {
                Self::Expanded => table.expand([batch, 1, length, half]),
                Self::Flipped => table.flip([2]),
                _ => table,
            }
        })
    }
}

fn with_rotary(
    [batch, heads, length, dim]: [usize; 4],
    tables: Tables,
    is_split: bool,
    check: impl Fn(&Case<'_, 4>),
) {
    // Heads as the layers of attention have them: a view.
    let shape = match is_split {
        true => vec![batch, length, heads, dim],
        false => vec![batch, heads, length, dim],
    };
    let x = |inputs: &[AnyTensor]| {
        let x: Tensor<4> = inputs[0].clone().of_rank();
        if is_split { x.swap_dims(1, 2) } else { x }
    };
    let tables_of = |inputs: &[AnyTensor]| tables.of([batch, length, dim / 2], &inputs[0]);
    check(&Case {
        name: &format!("rotary, {tables:?}"),
        inputs: vec![shape],
        operation: &|inputs| {
            let [cos, sin] = tables_of(inputs);
            rotary(x(inputs), cos, sin)
        },
        stock: &|inputs| {
            let x = x(inputs);
            let dtype = FloatDType::from(x.dtype());
            let [cos, sin] = tables_of(inputs).map(|table| table.cast(dtype));
            let (a, b) = (
                x.clone().narrow(3, 0, dim / 2),
                x.narrow(3, dim / 2, dim / 2),
            );
            let turned = a.clone() * cos.clone() - b.clone() * sin.clone();
            Tensor::cat(vec![turned, b * cos + a * sin], 3)
        },
        exact: None,
    });
}

#[test]
fn rotary_equals_composition() {
    for is_split in [false, true] {
        for (shape, tables) in [
            ([1, 2, 3, 4], Tables::Shared),
            ([2, 3, 70, 16], Tables::Shared),
            ([2, 3, 5, 16], Tables::Own),
            ([2, 3, 5, 6], Tables::Expanded),
            ([2, 1, 5, 16], Tables::Flipped),
            ([2, 3, 5, 16], Tables::Single),
            ([1, 1, 1, 2], Tables::Shared),
            ([1, 0, 3, 4], Tables::Shared),
            ([0, 2, 3, 4], Tables::Shared),
            ([1, 2, 0, 4], Tables::Shared),
        ] {
            with_rotary(shape, tables, is_split, assert_case);
        }
    }
}

#[test]
fn rotary_spreads_nan_and_infinity_as_composition() {
    with_rotary([1, 2, 3, 4], Tables::Shared, false, assert_same_places);
}

#[test]
fn rotary_tracked_tables_have_no_gradient() {
    let device = Device::flex().autodiff();
    let [x, table] = [[1, 1, 2, 4], [1, 1, 2, 2]].map(|shape| Tensor::<4>::ones(shape, &device));
    let (x, table) = (x.require_grad(), table.require_grad());
    let gradients = rotary(x.clone(), table.clone(), table.clone())
        .sum()
        .backward();
    assert!(x.grad(&gradients).is_some());
    assert!(table.grad(&gradients).is_none());
}
