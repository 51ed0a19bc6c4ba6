//! Attention.

use backburn_base::AnyTensor;
use backburn_nn::{AttentionOptions, attention};
use burn::tensor::module as stock;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, Tensor, TensorData};

use crate::case::{Case, assert_case, assert_same_places};

/// Batch, heads, groups, queries, keys, head and value dimension.
type Sizes = [usize; 7];

/// Returns keys or values with a copy for each head of queries.
fn repeated(few: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, groups, length, dim] = few.dims();
    let many = few.unsqueeze_dim::<5>(2);
    let many = many.expand([batch, groups, heads / groups, length, dim]);
    many.reshape([batch, heads, length, dim])
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    /// About a third of the positions and all of the third query, for all heads.
    Shared,
    /// Positions for each head.
    Own,
    /// Positions in reversed memory order.
    Flipped,
    /// The last keys of each sequence, as of shorter texts: a view.
    Padding,
    /// All positions.
    All,
}

impl Mask {
    fn of(self, [batch, heads, _, queries, keys, ..]: Sizes) -> Option<Tensor<4, Bool>> {
        let shape = match self {
            Self::None => return None,
            Self::Own => [batch, heads, queries, keys],
            Self::Padding => [batch, 1, 1, keys],
            _ => [1, 1, queries, keys],
        };
        let hidden = |index: usize| match self {
            Self::All => true,
            Self::Padding => index % keys + index / keys > keys / 2,
            _ => (index * 7).is_multiple_of(3) || index / keys % queries == 2,
        };
        let hidden: Vec<bool> = (0..shape.iter().product()).map(hidden).collect();
        let data = TensorData::new(hidden, shape);
        let mask = Tensor::<4, Bool>::from_data(data, &Device::flex());
        Some(match self {
            Self::Flipped => mask.flip([2, 3]),
            Self::Padding => mask.expand([batch, 1, queries, keys]),
            _ => mask,
        })
    }
}

fn with_attention(
    sizes: Sizes,
    options: AttentionOptions,
    of_mask: Mask,
    check: impl Fn(&Case<'_, 4>),
) {
    let [batch, heads, groups, queries, keys, head_dim, value_dim] = sizes;
    let mask = of_mask.of(sizes);
    // A view, as the layers of attention have it.
    let split = |input: &AnyTensor| input.clone().of_dims::<4>().swap_dims(1, 2);
    check(&Case {
        name: &format!("attention, {options:?}, mask: {of_mask:?}"),
        inputs: vec![
            vec![batch, queries, heads, head_dim],
            vec![batch, groups, keys, head_dim],
            vec![batch, keys, groups, value_dim],
        ],
        operation: &|inputs| {
            let key = inputs[1].clone().of_dims();
            let (query, value) = (split(&inputs[0]), split(&inputs[2]));
            attention(query, key, value, mask.clone(), options)
        },
        stock: &|inputs| {
            let key = repeated(inputs[1].clone().of_dims(), heads);
            let value = repeated(split(&inputs[2]), heads);
            let shape = [batch, heads, queries, keys];
            let device = Device::flex();
            let mut hidden = mask.clone().map(|mask| mask.expand(shape));
            if let Some(window) = options.window.filter(|window| *window < keys) {
                let window = keys as i64 - queries as i64 - window as i64;
                let before = Tensor::<2, Bool>::tril_mask([queries, keys], window, &device);
                let before = before.bool_not().unsqueeze::<4>().expand(shape);
                hidden = Some(match hidden {
                    Some(hidden) => hidden.bool_or(before),
                    None => before,
                });
            }
            let options = AttentionModuleOptions {
                scale: options.scale,
                is_causal: options.is_causal,
                ..Default::default()
            };
            stock::attention(split(&inputs[0]), key, value, hidden, None, options)
        },
        exact: None,
    });
}

fn options(is_causal: bool, window: Option<usize>, scale: Option<f64>) -> AttentionOptions {
    AttentionOptions {
        is_causal,
        window,
        scale,
    }
}

#[test]
fn attention_equals_burn() {
    for sizes in [
        [1, 2, 2, 5, 5, 8, 8],
        [2, 6, 2, 70, 70, 16, 16],
        [1, 3, 1, 130, 130, 8, 4],
        [2, 2, 1, 3, 9, 4, 8],
        [1, 2, 2, 9, 3, 4, 4],
        [0, 2, 1, 4, 4, 8, 8],
        [1, 2, 1, 4, 0, 8, 8],
        [1, 2, 1, 0, 4, 8, 8],
    ] {
        for (options, mask) in [
            (options(false, None, None), Mask::None),
            (options(true, None, None), Mask::None),
            (options(true, Some(3), Some(0.2)), Mask::None),
            (options(false, Some(2), None), Mask::Shared),
            (options(true, None, None), Mask::Own),
        ] {
            with_attention(sizes, options, mask, assert_case);
        }
    }
}

#[test]
fn attention_odd_shapes_masks_and_windows_equal_burn() {
    for (sizes, options, mask) in [
        // One of each.
        ([1, 1, 1, 1, 1, 1, 1], options(true, None, None), Mask::None),
        ([1, 1, 1, 1, 1, 1, 1], options(false, None, None), Mask::All),
        // A token after others, and whole tiles.
        (
            [3, 4, 4, 1, 65, 3, 5],
            options(true, None, None),
            Mask::None,
        ),
        (
            [3, 4, 2, 1, 65, 3, 5],
            options(true, Some(7), None),
            Mask::Padding,
        ),
        (
            [1, 2, 1, 64, 64, 8, 8],
            options(true, None, None),
            Mask::None,
        ),
        (
            [1, 2, 1, 128, 128, 8, 8],
            options(true, Some(64), None),
            Mask::None,
        ),
        // One dimension, and more keys than queries.
        (
            [1, 8, 2, 65, 200, 1, 2],
            options(false, None, None),
            Mask::Padding,
        ),
        (
            [2, 3, 3, 66, 67, 5, 1],
            options(true, Some(1), None),
            Mask::Own,
        ),
        // Windows that are longer than the sequence.
        (
            [1, 2, 1, 7, 7, 4, 4],
            options(true, Some(7), None),
            Mask::None,
        ),
        (
            [1, 2, 1, 7, 9, 4, 4],
            options(true, Some(1000), None),
            Mask::Shared,
        ),
        (
            [1, 2, 1, 7, 7, 4, 4],
            options(false, Some(usize::MAX), None),
            Mask::None,
        ),
        // Masks.
        (
            [2, 2, 1, 7, 9, 4, 4],
            options(false, None, None),
            Mask::Flipped,
        ),
        (
            [2, 2, 1, 7, 9, 4, 4],
            options(true, Some(2), None),
            Mask::Flipped,
        ),
        ([2, 2, 1, 7, 9, 4, 4], options(true, None, None), Mask::All),
        // Scores that are far apart, equal, or the other way around.
        (
            [1, 2, 1, 7, 7, 4, 4],
            options(true, None, Some(40.0)),
            Mask::None,
        ),
        (
            [1, 2, 1, 7, 7, 4, 4],
            options(true, None, Some(0.0)),
            Mask::None,
        ),
        (
            [1, 2, 1, 7, 7, 4, 4],
            options(false, None, Some(-0.5)),
            Mask::Own,
        ),
    ] {
        with_attention(sizes, options, mask, assert_case);
    }
}

#[test]
fn attention_spreads_nan_and_infinity_as_burn() {
    for (options, mask) in [
        (options(false, None, None), Mask::None),
        (options(true, None, None), Mask::None),
        (options(false, None, None), Mask::Shared),
    ] {
        with_attention([1, 2, 1, 5, 5, 4, 4], options, mask, assert_same_places);
    }
}
