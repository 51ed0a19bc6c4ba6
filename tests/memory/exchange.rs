//! The memory that a conversion of a training takes.

use super::*;

/// Few parameters, because each takes some kilobytes in addition to its values.
const DEPTH: usize = 2;
const WIDTH: usize = 256;

type Fused = FusedOptimizer<Mlp>;
type Exchange = fn(Fused) -> Fused;

const EXCHANGES: [(&str, Exchange); 3] = [
    ("into_parts, new", |fused| {
        let (model, optimizer) = fused.into_parts();
        Fused::new(model, optimizer).unwrap()
    }),
    ("with_config", |fused| {
        fused.with_config(FusedConfig::new()).unwrap()
    }),
    ("change_model", |mut fused| {
        fused.change_model(Module::freeze).unwrap();
        fused.change_model(Module::unfreeze).unwrap();
        fused
    }),
];

/// The next step writes in place, because nothing shares the values any more.
#[test]
fn exchange_copies_no_tensors_and_next_step_writes_in_place() {
    alone!();
    let x = x(WIDTH);
    let model = Mlp::init(DEPTH, WIDTH, &device());
    let parameters = 4.0 * model.num_params() as f64;
    let multiple = |bytes: usize| bytes as f64 / parameters;
    let mut fused = Fused::new(model, backburn::optim::AdamWConfig::new().init()).unwrap();
    let step = |fused: &mut Fused| {
        let needed = peak(|| drop(fused.step(1e-3, |model| model.loss(x.clone())).unwrap()));
        assert_eq!(fused.last_step().copied, Some(0));
        multiple(needed)
    };
    step(&mut fused);
    let plain = step(&mut fused);
    for (name, exchange) in EXCHANGES {
        let mut exchanged = None;
        let needed = multiple(peak(|| exchanged = Some(exchange(fused))));
        // A weight is a quarter of P.
        assert!(needed < 0.05, "{name}: {needed} P");
        fused = exchanged.unwrap();
        let after = step(&mut fused);
        assert!(after < plain + 0.02, "{name}: {after} P, {plain} P before");
    }
    // Burn's records hold copies.
    let record = multiple(peak(|| drop(fused.to_record())));
    assert!(record > 1.9, "a record: {record} P");
}
