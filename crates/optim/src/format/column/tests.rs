use super::super::noise::Noise;
use super::super::root::{Root, Width};
use super::*;

/// Without `vectorized`, a loop is compiled for any processor.
#[test]
fn every_instruction_set_writes_and_reads_the_same() {
    let coding = |root, width| Kept::Codes(Coding { root, width });
    for kept in [
        coding(Root::Signed, Width::Eight),
        coding(Root::Positive, Width::Eight),
        coding(Root::Signed, Width::Four),
        coding(Root::Positive, Width::Four),
        Kept::Weights(WeightFormat::Stochastic),
        Kept::Weights(WeightFormat::Split24),
        Kept::Weights(WeightFormat::Split32),
        Kept::Floats(DType::F16),
        Kept::Floats(DType::BF16),
    ] {
        let groups = 40;
        let floats = groups * kept.group()[0];
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
            let mut words = vec![0_u32; kept.words(groups * GROUP)];
            let mut column = Column::new(kept, cast_slice_mut(&mut floats), &mut words);
            write(Write(&mut column, &numbers, dither()));
            (floats, words)
        };
        let (mut floats, mut words) = written(|it| it.call());
        assert_eq!(
            (floats.clone(), words.clone()),
            written(|it| vectorized(it)),
            "{kept:?}"
        );

        let column = Column::new(kept, cast_slice_mut(&mut floats), &mut words);
        let read = |read: fn(Read<'_, '_>)| {
            let mut numbers = vec![0.0_f32; groups * GROUP];
            read(Read(&column, &mut numbers));
            numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(read(|it| it.call()), read(|it| vectorized(it)), "{kept:?}");
    }
}
