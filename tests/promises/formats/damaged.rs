//! A damaged or handmade record is refused by name. Nothing panics, and the state is unchanged.

use std::panic::{AssertUnwindSafe, catch_unwind};

use backburn::optim::InFormat;
use burn_pack::Scalar;

use super::*;
use crate::common::*;

fn trained(optimizer: &ModuleOptimizer, dtype: FloatDType) -> FusedOptimizer<Linear> {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(64, 80).with_bias(false).init(&device);
    let mut fused = FusedOptimizer::new(cast(model, dtype).unwrap(), optimizer.clone()).unwrap();
    step(&mut fused).unwrap();
    fused
}

fn step(fused: &mut FusedOptimizer<Linear>) -> Result<(), FusedError> {
    fused
        .step(RATE, |model| model.weight.val().powi_scalar(2).sum())
        .map(drop)
}

/// Panics if loading this record or the next step panics. Returns the refusal.
fn loaded(
    fused: &mut FusedOptimizer<Linear>,
    damaged: Contents,
    context: &str,
) -> Result<(), FusedError> {
    let before = fused.to_record().into_bytes().unwrap();
    let record = damaged.into_record();
    let result = catch_unwind(AssertUnwindSafe(|| fused.load_record(record)));
    let result = result.unwrap_or_else(|_| panic!("{context}: the record panics"));
    match &result {
        Err(_) => assert_eq!(fused.to_record().into_bytes().unwrap()[..], before[..]),
        Ok(()) => {
            let stepped = catch_unwind(AssertUnwindSafe(|| step(fused)));
            drop(stepped.unwrap_or_else(|_| panic!("{context}: the step panics")));
        }
    }
    result
}

/// Returns all optimizers with the types of the weights that they support.
fn all() -> Vec<(String, FloatDType, ModuleOptimizer)> {
    let mut all = Vec::new();
    for states in [StateFormat::Full, StateFormat::Bits8] {
        for (weights, dtype) in [
            (WeightFormat::Plain, FloatDType::F32),
            (WeightFormat::Split24, FloatDType::BF16),
        ] {
            for (name, optimizer) in optimizers(states, weights) {
                all.push((format!("{name}, {states:?}, {weights:?}"), dtype, optimizer));
            }
        }
    }
    let amsgrad = optim::AdamWConfig::new().with_amsgrad(true);
    let amsgrad = amsgrad.with_state_format(StateFormat::Bits8).build();
    let wrapped = InFormat::new(amsgrad, WeightFormat::Split24);
    all.push(("InFormat".into(), FloatDType::BF16, wrapped.into()));
    all
}

#[test]
fn tensors_of_another_type_or_rank_are_refused() {
    for (name, dtype, optimizer) in all() {
        let mut fused = trained(&optimizer, dtype);
        for record in both_records(&fused) {
            let contents = Contents::of(record);
            for (index, tensor) in contents.tensors.iter().enumerate() {
                let context = format!("{name}, {}", tensor.name);
                let (bytes, shape) = (tensor.to_bytes().unwrap(), tensor.shape.to_vec());
                let other = match tensor.dtype {
                    DType::U32 => DType::F32,
                    _ => DType::I32,
                };
                let floats = contents.with_tensor(index, other, &shape, bytes.clone());
                let refused = loaded(&mut fused, floats, &context);
                assert!(refused.is_err(), "{context} in {other:?} is taken");
                for rank in [1, 2, 3, 4, 9] {
                    let mut other = vec![1; rank];
                    other[0] = tensor.shape.num_elements();
                    let wide = contents.with_tensor(index, tensor.dtype, &other, bytes.clone());
                    let refused = loaded(&mut fused, wide, &context);
                    assert!(
                        refused.is_err() || rank == shape.len() || is_flat(&shape),
                        "{context} as {other:?} is taken"
                    );
                }
            }
        }
    }
}

/// Codes and low bits are stored as a row in any written shape.
fn is_flat(shape: &[usize]) -> bool {
    shape.len() == 3 && shape[1..] == [1, 1]
}

#[test]
fn state_of_one_element_is_refused_for_larger_parameter() {
    let stock = [
        burn::optim::AdamConfig::new().with_amsgrad(true).init(),
        burn::optim::AdamWConfig::new().with_amsgrad(true).init(),
    ];
    let stock = stock.map(|optimizer| ("Burn's".into(), FloatDType::F32, optimizer));
    for (name, dtype, optimizer) in all().into_iter().chain(stock) {
        let mut fused = trained(&optimizer, dtype);
        let contents = Contents::of(fused.to_record());
        for (index, tensor) in contents.tensors.iter().enumerate() {
            let context = format!("{name}, {}", tensor.name);
            if is_flat(&tensor.shape.to_vec()) {
                continue;
            }
            let element = Bytes::from_bytes_vec(tensor.to_bytes().unwrap()[..4].to_vec());
            for shape in [&[1][..], &[1, 1]] {
                let one = contents.with_tensor(index, tensor.dtype, shape, element.clone());
                let refused = loaded(&mut fused, one, &context);
                let is_stock = name == "Burn's" && !tensor.name.contains("max");
                assert!(refused.is_err() || is_stock, "{context} as {shape:?}");
            }
        }
    }
}

#[test]
fn record_with_missing_or_odd_numbers_does_not_panic() {
    let odd = [
        None,
        Some(Scalar::UInt(u64::MAX)),
        Some(Scalar::Int(-1)),
        Some(Scalar::Float(f64::NAN)),
        Some(Scalar::Bool(true)),
        Some(Scalar::UInt(9)),
    ];
    for (name, dtype, optimizer) in all() {
        let mut fused = trained(&optimizer, dtype);
        for record in both_records(&fused) {
            let contents = Contents::of(record);
            for scalar in contents.scalars.keys() {
                for odd in odd {
                    let mut damaged = contents.clone();
                    match odd {
                        None => damaged.scalars.remove(scalar),
                        Some(odd) => damaged.scalars.insert(scalar.clone(), odd),
                    };
                    let context = format!("{name}, {scalar} is {odd:?}");
                    drop(loaded(&mut fused, damaged, &context));
                }
            }
        }
    }
}
