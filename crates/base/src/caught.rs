//! Panics that are caught.

use std::any::Any;
use std::fmt::{Debug, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What a panic carries. It may panic in its turn when it is dropped, as anything that a user's code has thrown: here
/// that ends nothing.
pub struct Caught(Box<dyn Any + Send>);

/// What `work` returns, or its panic.
pub fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Caught> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Caught)
}

/// What `work` returns, or what it says in its panic.
pub fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch(work).map_err(|panic| panic.message().to_string())
}

impl Caught {
    /// The panic that says so.
    pub fn saying(text: String) -> Self {
        Self(Box::new(text))
    }

    /// What the panic says, if anything.
    pub fn text(&self) -> Option<&str> {
        let text = self.0.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| self.0.downcast_ref::<&str>().copied())
    }

    /// The same in any case.
    pub fn message(&self) -> &str {
        self.text().unwrap_or("it panicked without a message")
    }

    /// Goes on with it.
    pub fn resume(mut self) -> ! {
        resume_unwind(self.take())
    }

    fn take(&mut self) -> Box<dyn Any + Send> {
        std::mem::replace(&mut self.0, Box::new(()))
    }
}

impl Debug for Caught {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Caught").field(&self.text()).finish()
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        let carried = self.take();
        if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(carried))) {
            // The next one could go on so for ever.
            std::mem::forget(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic_any(Bomb);
        }
    }

    #[test]
    fn what_panics_when_dropped_ends_nothing() {
        let caught = catch(|| panic_any(Bomb)).unwrap_err();
        assert_eq!(caught.text(), None);
        drop(caught);
        // In the middle of another panic, too.
        let caught = catch(|| {
            let _dropped = catch(|| panic_any(Bomb));
            panic!("goes on")
        });
        assert_eq!(caught.unwrap_err().text(), Some("goes on"));
        let caught = catch(|| panic_any(Bomb)).unwrap_err();
        let again = catch(|| caught.resume()).unwrap_err();
        assert!(again.0.is::<Bomb>());
    }
}
