//! Records hold averages, and load with them and without.

use burn::tensor::{Bytes, DType};

use super::*;
use crate::contents::Contents;

#[test]
fn a_run_resumes_with_its_averages_and_loads_without() {
    let initial = Stack::init();
    let xs = batches(6, 8);
    for config in configs() {
        for offload in [None, Some(Offload::States)] {
            let offload = offload.map(|offload| {
                OffloadConfig::new(offload)
                    .with_host(OffloadHost::NdArray)
                    .with_min_elements(1)
            });
            let how = averaging(config.clone()).with_offload(offload);
            let start = |model: &Stack| {
                let model = copy(model, Stack::init);
                FusedOptimizer::new(model, optim::AdamWConfig::new().init())
                    .with_config_on(how.clone(), &Device::flex())
            };
            let mut whole = start(&initial);
            for x in &xs {
                whole.step(RATE, |model| model.loss(x.clone()));
            }
            let mut first = start(&initial);
            for x in &xs[..3] {
                first.step(RATE, |model| model.loss(x.clone()));
            }
            let mut second = start(&first.model());
            second.load_record(first.to_record());
            assert_equal_weights(&first.averaged(), &second.averaged());
            for x in &xs[3..] {
                second.step(RATE, |model| model.loss(x.clone()));
            }
            assert_equal_weights(&whole.averaged(), &second.averaged());
            assert_equal_weights(&whole.model(), &second.model());

            // Without averages, fused and in stock Burn.
            let model = copy(&first.model(), Stack::init);
            let mut without = FusedOptimizer::new(model, optim::AdamWConfig::new().init());
            without.load_record(first.to_record());
            let mut model = copy(&first.model(), Stack::init);
            let mut optimizer = AdamWConfig::new().init().load_record(first.to_record());
            for x in &xs[3..] {
                without.step(RATE, |model| model.loss(x.clone()));
                let gradients = model.loss(x.clone()).backward();
                let gradients = GradientsParams::from_grads(gradients, &model);
                model = optimizer.step(RATE, model, gradients);
            }
            assert_equal_weights(&model, &without.model());
            assert_equal_weights(&whole.model(), &without.model());
            assert_equal_weights(&without.model(), &without.averaged());

            // A record that has none, into a training that has some: they begin anew.
            let mut anew = start(&first.model());
            anew.step(RATE, |model| model.loss(xs[0].clone()));
            anew.load_record(without.to_record());
            assert_equal_weights(&anew.model(), &anew.averaged());
        }
    }
}

#[test]
fn formats_of_averages_resume_to_the_bit() {
    let width = 80;
    let initial = Stack::of_width(width);
    let xs = batches(4, width);
    for format in [WeightFormat::Split24, WeightFormat::Stochastic] {
        let start = |model: &Stack| {
            let model = copy(model, || Stack::of_width(width));
            let optimizer = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
            FusedOptimizer::new(model, optimizer.init())
                .with_config(averaging(ema(0.9).with_format(format)))
        };
        let mut whole = start(&initial);
        for x in &xs {
            whole.step(RATE, |model| model.loss(x.clone()));
        }
        let mut first = start(&initial);
        for x in &xs[..2] {
            first.step(RATE, |model| model.loss(x.clone()));
        }
        let mut second = start(&first.model());
        second.load_record(optim::compact_records(|| first.to_record()));
        for x in &xs[2..] {
            second.step(RATE, |model| model.loss(x.clone()));
        }
        assert_equal_weights(&whole.averaged(), &second.averaged());
    }
}

#[test]
fn an_average_that_does_not_fit_its_parameter_is_refused_by_name() {
    for format in [WeightFormat::Plain, WeightFormat::Split24] {
        let initial = Stack::of_width(80);
        let config = averaging(ema(0.5).with_format(format));
        let mut fused = FusedOptimizer::new(
            copy(&initial, || Stack::of_width(80)),
            SgdConfig::new().init(),
        )
        .with_config(config.clone());
        fused.step(RATE, |model| model.loss(batches(1, 80).remove(0)));
        let contents = Contents::of(fused.to_record());
        let is_average = |tensor: &burn_pack::Tensor| tensor.name.ends_with(".average");
        let place = |rank| {
            let of_rank =
                |tensor: &burn_pack::Tensor| is_average(tensor) && tensor.shape.num_dims() == rank;
            contents
                .tensors
                .iter()
                .position(of_rank)
                .expect("there is one")
        };
        let weight = contents.tensors[place(2)].clone();
        let said = |damaged: Contents| {
            let mut fused = FusedOptimizer::new(
                copy(&initial, || Stack::of_width(80)),
                SgdConfig::new().init(),
            )
            .with_config(config.clone());
            fused.step(RATE, |model| model.loss(batches(1, 80).remove(0)));
            let before = [fused.model(), fused.averaged()];
            let error = fused
                .try_load_record(damaged.into_record())
                .expect_err("it is damaged");
            assert_equal_weights(&before[0], &fused.model());
            assert_equal_weights(&before[1], &fused.averaged());
            fused.step(RATE, |model| model.loss(batches(1, 80).remove(0)));
            error
        };
        let bytes = weight.to_bytes().unwrap();
        let elements = bytes.len() / weight.dtype.size();

        // As many elements in another shape, one row, and one element.
        for shape in [[160, 40], [1, 80], [80, 1], [1, 1]] {
            let part = shape[0] * shape[1] * weight.dtype.size();
            let part = Bytes::from_bytes_vec(bytes[..part].to_vec());
            let error = said(contents.with_tensor(place(2), weight.dtype, &shape, part));
            let FusedError::RecordShape {
                path,
                state,
                expected,
                found,
            } = &error
            else {
                panic!("{error:?}")
            };
            assert!(path.ends_with(".weight") && state == "average", "{error}");
            assert_eq!((&expected[..], &found[..]), (&[80, 80][..], &shape[..]));
        }
        // Of whole numbers, of another rank, and gone.
        let words = Bytes::from_bytes_vec(vec![0; 4 * elements]);
        let error = said(contents.with_tensor(place(2), DType::I32, &[80, 80], words));
        assert!(
            matches!(error, FusedError::UnreadableRecord { .. }),
            "{error:?}"
        );
        let row = Bytes::from_bytes_vec(bytes.to_vec());
        let error = said(contents.with_tensor(place(2), weight.dtype, &[6400], row));
        assert!(error.to_string().contains(".weight"), "{error:?}");
        if format == WeightFormat::Split24 {
            // Low bits of other weights: not as many, or none of bf16.
            let low = |it: &burn_pack::Tensor| it.name.ends_with("low_bits");
            let index = contents
                .tensors
                .iter()
                .position(low)
                .expect("there are some");
            let few = Bytes::from_bytes_vec(vec![0; 4]);
            let error = said(contents.with_tensor(index, DType::U32, &[1, 1, 1], few));
            assert!(
                matches!(error, FusedError::UnreadableRecord { .. }),
                "{error:?}"
            );
            assert!(error.to_string().contains(".weight"), "{error}");
            let full = Bytes::from_bytes_vec(vec![0; 4 * elements]);
            let error = said(contents.with_tensor(place(2), DType::F32, &[80, 80], full));
            assert!(
                matches!(error, FusedError::UnreadableRecord { .. }),
                "{error:?}"
            );
        }
    }
}
