//! Reads of a parameter.

use std::sync::Arc;

use backburn_base::{AnyTensor, lift};
use parking_lot::Mutex;

use super::copy::CopyLifetime;
use super::gradient_state::{Expecting, GradientState};
use super::local_param::LocalParam;
use super::tap_sink::TapSink;
use crate::pass::{BlockReads, ClosureKind, Graph, Pass, ReadMode, Scope, Stage, StepEvent};
use crate::tap::tap;

/// Panics if an adapter of the offloaded parameter at `base` is read outside of a block. Burn adds base and adapter,
/// and the base is on the device only inside a block.
pub(super) fn refuse_outside_of_a_block(base: &str) {
    if Scope::current().is_none_or(|scope| scope.block.is_none()) {
        panic!(
            "parameter `{base}` is offloaded and has an adapter, and was read outside of a block under gradient checkpointing, or in \
             a module from `valid()`: read it in a block of the attached model, validate after the step \
             (`FusedOptimizer::valid`), exclude it from the parameter group of the adapter, or raise `OffloadConfig::min_elements` so \
             that it stays on the device"
        );
    }
}

impl LocalParam {
    /// Returns the current value without autodiff, in the compute type.
    pub(super) fn plain(&self, lifetime: CopyLifetime) -> AnyTensor {
        let is_done = self.gradient.lock().is_done();
        if let (true, Some(engine)) = (is_done, &self.context.engine) {
            // The result must not depend on the progress of an update.
            engine.transfers.to_host.wait_idle();
        }
        let gradient = self.gradient.lock();
        let may_change = || {
            let pass = self.session.pass.lock().clone();
            pass.is_some_and(|pass| pass.pipeline.gradient_use.steps())
        };
        if gradient.is_done() && self.membership.is_some() && may_change() {
            panic!(
                "the value of parameter `{}` was read after its gradient was sent to the other ranks, which \
                 may be updating it now: read it before the backward pass, or after the step",
                self.master.path
            );
        }
        self.copy.value(lifetime)
    }

    /// Returns the plain value, for code that does not train the parameter. A block reads the value again in its
    /// recomputation, and the parameter is not updated before that.
    pub(super) fn read_untrained(&self) -> AnyTensor {
        if let Some(base) = &self.offloaded_base {
            refuse_outside_of_a_block(base);
        }
        let Some(scope) = self.session.scope() else {
            return self.plain(CopyLifetime::Graph);
        };
        if let Some(observers) = &scope.pass.observers {
            observers.emit(StepEvent::Read {
                path: &self.master.path,
            });
        }
        let mut gradient = self.gradient.lock();
        let is_done = gradient.is_done();
        if let Some(reads) = scope.recomputed_reads.as_ref().filter(|_| !is_done) {
            reads.add(self.master.id, &self.master.path);
        }
        let ReadMode::Unrecorded(block_reads) = &scope.mode else {
            drop(gradient);
            return self.plain(CopyLifetime::Graph);
        };
        if !is_done {
            self.note_block_read(&mut gradient, block_reads);
        }
        drop(gradient);
        self.plain(CopyLifetime::BlockRun)
    }

    /// Returns the value for the current pass: with its gradient tapped, or as a constant where operations are not
    /// recorded.
    ///
    /// # Panics
    ///
    /// Panics outside of a pass, in a hook, and after the gradient has arrived.
    pub(crate) fn read(self: &Arc<Self>) -> AnyTensor {
        let pass = self.session.pass.lock().clone().unwrap_or_else(|| {
            panic!(
                "parameter `{}` was read outside of a training step, from a model that was cloned inside one: \
                 use `FusedOptimizer::model()` or `valid()` instead",
                self.master.path
            )
        });
        pass.numbers.report_progress();
        if let Some(observers) = &pass.observers {
            observers.emit(StepEvent::Read {
                path: &self.master.path,
            });
        }
        let mode = match Scope::current() {
            Some(scope) if Arc::ptr_eq(&scope.pass, &pass) => {
                if let Some(reads) = &scope.recomputed_reads {
                    reads.add(self.master.id, &self.master.path);
                }
                scope.mode
            }
            elsewhere => self.mode_elsewhere(&pass, elsewhere),
        };
        match mode {
            ReadMode::Recorded(graph) => {
                if let Some(base) = &self.offloaded_base {
                    refuse_outside_of_a_block(base);
                }
                if self.copy.is_offloaded {
                    self.fetch_on_worker(Some(&graph));
                }
                self.tapped(&pass, &graph)
            }
            ReadMode::Unrecorded(block_reads) => self.read_unrecorded(&pass, &block_reads),
            ReadMode::Hook(called_for) => panic!(
                "parameter `{}` was read in a hook{}, where the autodiff graph of the model is locked: a hook receives \
                 the value of its own parameter. For other parameters keep the result of `FusedOptimizer::model()` from before the step, or \
                 read `valid()` of the model",
                self.master.path,
                called_for.map_or(String::new(), |path| format!(" for parameter `{path}`"))
            ),
        }
    }

    /// Fetches an offloaded value on the prefetch thread and waits for it. The copies of blocks thus come from one stream
    /// and its memory.
    fn fetch_on_worker(self: &Arc<Self>, graph: Option<&Arc<Graph>>) {
        if let Some(engine) = &self.context.engine
            && self.copy.is_fetched_from_host()
            && !self.copy.is_current()
            && !graph.is_some_and(|graph| self.gradient.lock().is_tapped_in(graph))
        {
            let local_param = self.clone();
            engine.queue_fetch(move || drop(local_param.copy.fetch()));
            engine.transfers.to_device.wait_idle();
        }
    }

    /// Returns the value as a constant, for a block that runs without recording.
    fn read_unrecorded(self: &Arc<Self>, pass: &Pass, block_reads: &BlockReads) -> AnyTensor {
        if self.copy.is_offloaded {
            self.fetch_on_worker(None);
        }
        self.note_block_read(&mut self.gradient.lock(), block_reads);
        // Counts the gathered value in the peak.
        drop(self.membership.as_ref().map(|it| self.count_gathered(it)));
        // A recurrent layer reads its parameters once per time step.
        pass.blocks.collect_graph(&self.copy.device);
        self.constant_of(self.plain(CopyLifetime::BlockRun))
    }

    /// Counts a pending gradient until the block that reads the parameter is recomputed.
    fn note_block_read(&self, gradient: &mut GradientState, block_reads: &BlockReads) {
        block_reads.add(
            self.master.id,
            &self.master.path,
            &self.expecting(gradient).pending_count,
        );
    }

    /// Returns the read mode on a thread that has no scope of this pass, or one of another pass.
    fn mode_elsewhere(&self, pass: &Arc<Pass>, other: Option<Scope>) -> ReadMode {
        if let (Some(scope), Some(member)) = (&other, &self.membership)
            && let Some(membership) = &scope.pass.membership
            && Arc::ptr_eq(&membership.group, &member.group)
            && membership.rank != member.rank
        {
            panic!(
                "parameter `{}` of rank {} was read on the thread of rank {}: use the model of the rank in a closure, \
                 and the arguments of `call` in a hook",
                self.master.path, member.rank, membership.rank
            );
        }
        if pass.is_in_hook() {
            return ReadMode::Hook(None);
        }
        if pass.blocks.is_running() {
            panic!(
                "parameter `{}` was read on another thread while a block under gradient \
                 checkpointing was running: pass `StepContext::current()` of the code that starts the thread, and \
                 enter it on the thread",
                self.master.path
            );
        }
        ReadMode::Recorded(pass.graph.clone())
    }

    /// Returns the pending gradients of this pass.
    ///
    /// # Panics
    ///
    /// Panics if the gradient has already arrived.
    fn expecting<'a>(&self, gradient: &'a mut GradientState) -> &'a mut Expecting {
        if let GradientState::Idle = gradient {
            *gradient = GradientState::Pending(Box::default());
        }
        match gradient {
            GradientState::Pending(expecting) => expecting,
            _ => panic!(
                "parameter `{}` was read again after its gradient had arrived in this step: combine \
                 the losses and run one backward pass per step. To compute with the model after the \
                 backward pass (an accuracy, the norm of a weight), read `model.valid()`. To read \
                 a gradient before it is released, add a `GradientHook`",
                self.master.path
            ),
        }
    }

    /// Returns the value with its gradient tapped. Every tap has its own leaf: a shared leaf would join graphs that
    /// must stay separate, because a graph is locked while its backward steps run.
    fn tapped(self: &Arc<Self>, pass: &Arc<Pass>, graph: &Arc<Graph>) -> AnyTensor {
        let mut gradient = self.gradient.lock();
        let expecting = self.expecting(&mut gradient);
        if let Some((read_in, tapped)) = &expecting.tapped
            && Arc::ptr_eq(read_in, graph)
        {
            return tapped.clone();
        }
        if let Stage::Over = *pass.stage.lock() {
            panic!(
                "parameter `{}` was read after the end of its step: read it in the closure of the next step, or read \
                 `FusedOptimizer::model()`",
                self.master.path
            );
        }
        if self.copy.is_offloaded && Arc::ptr_eq(graph, &pass.graph) {
            self.copy.pin_for_pass();
        }
        let value = self.copy.value(CopyLifetime::Graph);
        let tick = self.clock.lock().tick(&mut graph.position.lock());
        let runs_backward =
            pass.closure_kind == ClosureKind::Backward && Arc::ptr_eq(graph, &pass.graph);
        let sink = TapSink {
            applied: runs_backward.then(|| self.applied()),
            local_param: self.clone(),
            pass: pass.clone(),
            pending: Mutex::new(Some(expecting.pending_count.clone())),
            _gathered: self
                .membership
                .as_ref()
                .and_then(|it| self.count_gathered(it)),
        };
        let leaf = lift(value.0, self.master.strategy).require_grad();
        let tapped = AnyTensor(tap(leaf, tick, Arc::new(sink)));
        expecting.tapped = Some((graph.clone(), tapped.clone()));
        tapped
    }
}
