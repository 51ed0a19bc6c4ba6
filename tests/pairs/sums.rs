//! The sum of the gradients of all ranks, in the documented order.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::model::{Batch, Model};
use crate::options::{Devices, Group, Options};
use crate::policy::is_half;
use crate::rows::{Collected, Gradients, Known, known};

use crate::common::*;

/// The gradients of a micro-batch, a batch a rank, added to the `sum` of those before. With `more` to come they stay as they are
/// added up, else they are in the type of the parameter. Those of the last wait `in_buffer`, too, or do not.
pub fn summed(
    options: &Options,
    devices: Devices,
    model: &Model,
    mut sum: Gradients,
    scale: f64,
    (batches, more, in_buffer): (&[Batch], bool, bool),
) -> Gradients {
    let in_full = options.group == Group::ThreeInFull;
    let parameters = known(model);
    let owners = owners(devices, &parameters);
    let of_ranks = computed(options, model, &parameters, batches, scale);
    for Known { id, dtype, .. } in &parameters {
        let ranks = of_ranks.len();
        let owner = owners.get(id).copied().unwrap_or(0);
        let all = devices.ranks();
        let from_owner = (0..all).map(|next| (owner + next) % all);
        // The first gradient from the owner on, then the others in their order.
        let first = from_owner
            .into_iter()
            .find(|rank| of_ranks.get(*rank).is_some_and(|it| it.contains_key(id)));
        let others = (0..ranks).filter(|rank| Some(*rank) != first);
        for rank in first.into_iter().chain(others) {
            let Some(gradient) = of_ranks[rank].get(id).cloned() else {
                continue;
            };
            let next = match sum.remove(id) {
                Some(sum) => {
                    let dtype = FloatDType::from(sum.dtype());
                    sum.add(gradient.cast(dtype))
                }
                None if in_full && (more || in_buffer) && is_half(gradient.dtype()) => {
                    gradient.cast(FloatDType::F32)
                }
                None => gradient,
            };
            sum.insert(*id, next);
        }
        if !more && let Some(whole) = sum.remove(id) {
            sum.insert(*id, whole.cast(FloatDType::from(*dtype)));
        }
    }
    sum
}

/// The gradients of each rank: in the type of the parameter, or in a wider one if their sum is rounded once. Running statistics
/// become the mean of those of all ranks.
fn computed(
    options: &Options,
    model: &Model,
    parameters: &[Known],
    batches: &[Batch],
    scale: f64,
) -> Vec<Gradients> {
    let before = model.statistics();
    let mut statistics = Vec::<Vec<Tensor<1>>>::new();
    let of_rank = |batch: &Batch| {
        model.set_statistics(&before);
        let computing = match options.compute_dtype() {
            None => model.clone(),
            Some(dtype) => cast(model.clone(), dtype).unwrap(),
        };
        let loss = computing.loss(batch, false).mul_scalar(scale);
        let gradients = GradientsParams::from_grads(loss.backward(), &computing);
        let mut collected = Collected(gradients, HashMap::new());
        computing.visit(&mut collected);
        for Known { id, dtype, .. } in parameters {
            if let Some(gradient) = collected.1.get_mut(id)
                && (options.group != Group::ThreeInFull || gradient.dtype().size() < dtype.size())
            {
                *gradient = gradient.clone().cast(FloatDType::from(*dtype));
            }
        }
        statistics.push(model.statistics());
        collected.1
    };
    let all: Vec<_> = batches.iter().map(of_rank).collect();
    if batches.len() > 1 {
        let added = |sums: Vec<Tensor<1>>, next: Vec<Tensor<1>>| {
            sums.into_iter().zip(next).map(|(a, b)| a.add(b)).collect()
        };
        let sums = statistics.into_iter().reduce(added).unwrap_or_default();
        let means = sums
            .into_iter()
            .map(|sum| sum.div_scalar(batches.len() as f64));
        model.set_statistics(&means.collect::<Vec<_>>());
    }
    all
}

/// Returns the rank that owns a parameter, by the rules of `Ownership`.
fn owners(devices: Devices, parameters: &[Known]) -> HashMap<ParamId, usize> {
    let ranks = devices.ranks();
    let mut trained: Vec<_> = parameters.iter().filter(|known| known.is_trained).collect();
    trained.sort_by_key(|known| (Reverse(known.elements), &known.path));
    let mut owned = vec![0; ranks];
    let owner = |known: &Known| {
        let least = (0..ranks).min_by_key(|rank| owned[*rank]).unwrap();
        owned[least] += known.elements;
        let owner = match devices {
            Devices::One | Devices::TwoOneOwner => 0,
            Devices::Two | Devices::ThreeInFull => (known.id.val() % ranks as u64) as usize,
            Devices::ThreeBySize => least,
        };
        (known.id, owner)
    };
    trained.into_iter().map(owner).collect()
}
