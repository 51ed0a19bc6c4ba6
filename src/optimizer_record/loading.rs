use std::cell::RefCell;

use burn::tensor::Device;

thread_local! {
    static LOAD_ON: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Lets `load` bring the states of this crate's optimizers to `device`. Burn brings states to its default device, and from there to
/// where they are used.
pub(crate) fn load_on<R>(device: &Device, load: impl FnOnce() -> R) -> R {
    struct Before(Option<Device>);
    impl Drop for Before {
        fn drop(&mut self) {
            LOAD_ON.set(self.0.take());
        }
    }
    let _before = Before(LOAD_ON.replace(Some(device.clone())));
    load()
}

/// Where a state is loaded that Burn would bring to `device`.
pub(crate) fn loads_on(device: &Device) -> Device {
    let asked_for = LOAD_ON.with_borrow(Option::clone);
    asked_for.unwrap_or_else(|| device.clone())
}
