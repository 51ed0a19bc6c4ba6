//! Low-bit states are correct on average, for any other values in their group and for any size.

use super::*;

const ELEMENTS: usize = 1 << 18;
/// The sizes of the elements of a group, relative to its largest element.
const PARTS: [f64; 4] = [1.0, 1e-2, 1e-3, 1e-4];
const FEW_BITS: [StateFormat; 2] = [StateFormat::Bits8, StateFormat::Bits4];

/// Returns a number for each element, computed from its relative size in its group.
fn by_part(number: impl Fn(f64) -> f64) -> Tensor<1> {
    let numbers = (0..ELEMENTS).map(|index| number(part(index)) as f32);
    let data = TensorData::new(numbers.collect::<Vec<_>>(), [ELEMENTS]);
    Tensor::from_data(data, &Device::flex())
}

/// One element of a group is the largest.
fn part(index: usize) -> f64 {
    match index % 64 {
        0 => PARTS[0],
        lane => PARTS[1 + lane % 3],
    }
}

/// The means of the elements of each part.
fn means(tensor: Tensor<1>) -> [f64; 4] {
    let (mut sums, mut counts) = ([0.0; 4], [0.0; 4]);
    for (index, number) in tensor.into_data().iter::<f64>().enumerate() {
        let place = PARTS.iter().position(|other| *other == part(index));
        let place = place.unwrap();
        sums[place] += number;
        counts[place] += 1.0;
    }
    std::array::from_fn(|place| sums[place] / counts[place])
}

/// Returns the parameter after these gradients, from zero, and the last state.
fn stepped<O: Optimizer>(optimizer: &O, gradients: &[Tensor<1>]) -> (Tensor<1>, O::State<1>) {
    let mut parameter = Tensor::zeros([ELEMENTS], &Device::flex());
    let mut state = None;
    for gradient in gradients {
        (parameter, state) = optimizer.step(1.0, parameter, gradient.clone(), state);
    }
    (parameter, state.unwrap())
}

fn momentum(states: StateFormat) -> optim::Sgd {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let config = optim::SgdConfig::new().with_momentum(Some(momentum));
    config.with_state_format(states).build()
}

#[test]
fn momentum_moves_small_elements_as_far_as_in_f32_on_average() {
    let gradients = vec![by_part(|part| part); 60];
    let (exact, _) = stepped(&momentum(StateFormat::Full), &gradients);
    let exact = means(exact);
    for states in FEW_BITS {
        let (moved, _) = stepped(&momentum(states), &gradients);
        for ((part, moved), exact) in PARTS.iter().zip(means(moved)).zip(exact) {
            let ratio = moved / exact;
            // The remaining difference is random: most of the smallest elements have the code zero, a few the next
            // code.
            let near = if *part < 1e-3 { 0.05 } else { 0.02 };
            assert!(
                (ratio - 1.0).abs() < near,
                "{states:?}: {ratio} of f32 for elements of {part}"
            );
        }
    }
}

#[test]
fn momentum_decays_as_in_f32_on_average() {
    let mut gradients = vec![by_part(|part| part); 5];
    gradients.extend(vec![
        by_part(|part| if part == 1.0 { 1.0 } else { 0.0 });
        20
    ]);
    let (_, exact) = stepped(&momentum(StateFormat::Full), &gradients);
    let velocity =
        |state: <optim::Sgd as Optimizer>::State<1>| means(state.get("momentum.velocity").unwrap());
    let exact = velocity(exact);
    for states in FEW_BITS {
        let (_, state) = stepped(&momentum(states), &gradients);
        for ((part, found), exact) in PARTS.iter().zip(velocity(state)).zip(exact) {
            let near = if *part < 1e-2 { 0.35 } else { 0.05 };
            assert!(
                (found / exact - 1.0).abs() < near,
                "{states:?}: {found} for {exact}, elements of {part}"
            );
        }
    }
}

fn adam(states: StateFormat, amsgrad: bool) -> optim::Adam {
    let config = optim::AdamConfig::new().with_beta_2(0.9);
    config
        .with_amsgrad(amsgrad)
        .with_state_format(states)
        .build()
}

type Moments = <optim::Adam as Optimizer>::State<1>;

/// Codes a smaller number as the smallest number that has a code.
#[test]
fn second_moments_are_those_of_f32_on_average() {
    let gradients = vec![by_part(|part| part.sqrt().sqrt()); 60];
    let second = |state: Moments| means(state.get("momentum.moment_2").unwrap());
    let exact = second(stepped(&adam(StateFormat::Full, false), &gradients).1);
    for states in FEW_BITS {
        let found = second(stepped(&adam(states, false), &gradients).1);
        for ((part, found), exact) in PARTS.iter().zip(found).zip(exact) {
            assert!(
                (found / exact - 1.0).abs() < 0.02,
                "{states:?}: {found} for {exact}, elements of {part}"
            );
        }
    }
}

/// With random rounding, a maximum would keep each upward rounding.
#[test]
fn amsgrad_maximum_matches_f32() {
    let noise = |seed: usize| {
        let mut state = seed as u32 + 1;
        let numbers = (0..ELEMENTS).map(|index| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (f64::from(state >> 8) / f64::from(1 << 24) - 0.5) * part(index).sqrt()
        });
        let data = TensorData::new(numbers.map(|x| x as f32).collect::<Vec<_>>(), [ELEMENTS]);
        Tensor::<1>::from_data(data, &Device::flex())
    };
    let gradients: Vec<_> = (0..12).map(noise).collect();
    let largest = |state: Moments| {
        let largest = state.get("momentum.max_moment_2").unwrap();
        largest.into_data()
    };
    let exact = largest(stepped(&adam(StateFormat::Full, true), &gradients).1);
    for states in FEW_BITS {
        let found = largest(stepped(&adam(states, true), &gradients).1);
        assert_eq!(found, exact, "{states:?}");
    }
}

/// Down to the smallest f32 numbers, which don't share a group with larger ones.
#[test]
fn second_moments_below_normal_range_are_not_zero() {
    let gradients: Vec<_> = (1..21)
        .map(|step| by_part(|part| 1e-19 * (1.0 + part) * if step % 3 == 0 { -1.0 } else { 1.0 }))
        .collect();
    for epsilon in [0.0, 1e-22] {
        let adam = |states| {
            let config = optim::AdamConfig::new().with_epsilon(epsilon);
            config.with_state_format(states).build()
        };
        let (exact, _) = stepped(&adam(StateFormat::Full), &gradients);
        let exact = means(exact);
        for states in FEW_BITS {
            let (moved, state) = stepped(&adam(states), &gradients);
            let second = state.get("momentum.moment_2").unwrap().into_data();
            assert!(
                second.iter::<f32>().all(|number| number > 0.0),
                "{states:?}"
            );
            for (moved, exact) in means(moved).into_iter().zip(exact) {
                let near = if states == StateFormat::Bits8 {
                    0.02
                } else {
                    0.1
                };
                assert!(
                    (moved / exact - 1.0).abs() < near,
                    "{states:?}, epsilon {epsilon}: {moved} for {exact}"
                );
            }
        }
    }
}
