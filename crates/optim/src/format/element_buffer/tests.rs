use super::super::noise::Noise;
use super::super::square_root_code::{SquareRootCode, Width};
use super::*;

/// Without `vectorized`, a loop is compiled for any processor.
#[test]
fn element_buffer_has_same_bits_on_any_instruction_set() {
    let scheme = |root, width| ElementEncoding::Codes(CodeScheme { root, width });
    for encoding in [
        scheme(SquareRootCode::Signed, Width::Eight),
        scheme(SquareRootCode::Positive, Width::Eight),
        scheme(SquareRootCode::Signed, Width::Four),
        scheme(SquareRootCode::Positive, Width::Four),
        ElementEncoding::Weights(WeightFormat::Stochastic),
        ElementEncoding::Weights(WeightFormat::Split24),
        ElementEncoding::Floats(DType::F16),
        ElementEncoding::Floats(DType::BF16),
    ] {
        let groups = 40;
        let floats = groups * encoding.group()[0];
        let mut numbers: Vec<f32> = (0..groups * GROUP)
            .map(|index| (index as f32 * 0.7).sin() * 10_f32.powi(index as i32 % 80 - 42))
            .collect();
        numbers[5 * GROUP] = f32::INFINITY;
        numbers[7 * GROUP..8 * GROUP].fill(0.0);
        let random: Vec<u32> = (0..numbers.len())
            .map(|index| Noise::of_step(3).bits(index as u32, 1.5))
            .collect();
        let dither = || Dither::AtRandom(&random, 1);
        let written = |write: fn(Write<'_, '_>)| {
            let mut floats = vec![0_u32; floats.div_ceil(4)];
            let mut words = vec![0_u32; encoding.words(groups * GROUP)];
            let mut buffer = ElementBuffer::new(encoding, cast_slice_mut(&mut floats), &mut words);
            write(Write(&mut buffer, &numbers, dither()));
            (floats, words)
        };
        let (mut floats, mut words) = written(|it| it.call());
        assert_eq!(
            (floats.clone(), words.clone()),
            written(|it| vectorized(it)),
            "{encoding:?}"
        );

        let buffer = ElementBuffer::new(encoding, cast_slice_mut(&mut floats), &mut words);
        let read = |read: fn(Read<'_, '_>)| {
            let mut numbers = vec![0.0_f32; groups * GROUP];
            read(Read(&buffer, &mut numbers));
            numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(
            read(|it| it.call()),
            read(|it| vectorized(it)),
            "{encoding:?}"
        );
    }
}
