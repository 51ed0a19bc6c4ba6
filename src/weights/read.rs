//! What a read of a parameter gives during a pass.

use std::sync::Arc;

use super::arrival::Arrival;
use super::copy::Keeps;
use super::frozen::refuse_outside_of_a_block;
use super::stage::{Expecting, GradientState};
use super::view::{State, View};
use crate::layout::Holding;
use crate::memory;
use crate::parameters::AnyTensor;
use crate::pass::{Graph, Pass, Place, Readers, Scope, Stage};
use crate::tap::{join, lift};

impl View {
    /// The current value without autodiff, as the model computes with it.
    pub(super) fn plain(&self, keeps: Keeps) -> AnyTensor {
        let has_answered = self.state.lock().has_answered();
        if let (true, Some(placement)) = (has_answered, &self.layout.placement) {
            // What is read does not depend on how far an update is.
            placement.transfers.to_host.wait_idle();
        }
        let mut state = self.state.lock();
        let may_change = || {
            let pass = self.session.pass.lock().clone();
            pass.is_some_and(|pass| pass.plan.goal.steps())
        };
        if state.has_answered() && self.among.is_some() && may_change() {
            panic!(
                "the value of parameter `{}` was read after its gradient had gone to the other ranks, which \
                 may be stepping it now: read it before the backward pass, or after the step",
                self.home.path
            );
        }
        self.here(&mut state, keeps)
    }

    /// The plain value, for code that does not train the parameter. A block that reads it will do so once more in its
    /// second run, and the parameter is not stepped before.
    pub(super) fn read_untrained(&self) -> AnyTensor {
        memory::end_beyond_limit();
        if let Some(base) = &self.waiting_base {
            refuse_outside_of_a_block(base);
        }
        let in_pass = |scope: &Scope| {
            let pass = self.session.pass.lock().clone();
            pass.is_some_and(|pass| Arc::ptr_eq(&pass, &scope.pass))
        };
        let Some(scope) = Scope::current().filter(in_pass) else {
            return self.plain(Keeps::Nothing);
        };
        let mut state = self.state.lock();
        let has_answered = state.has_answered();
        if let Some(reads) = scope.second_reads.as_ref().filter(|_| !has_answered) {
            reads.add(self.home.id, &self.home.path);
        }
        let Place::Unrecorded(readers) = &scope.place else {
            drop(state);
            return self.plain(Keeps::Nothing);
        };
        if !has_answered {
            self.note_reader(&mut state, readers);
        }
        drop(state);
        self.plain(Keeps::ForRun)
    }

    /// The value as the pass under way needs it: with its gradient tapped, or as a constant where operations are not recorded.
    ///
    /// # Panics
    ///
    /// Outside of a pass, in a hook, and after the gradient has arrived.
    pub(crate) fn read(self: &Arc<Self>) -> AnyTensor {
        let pass = self.session.pass.lock().clone().unwrap_or_else(|| {
            panic!(
                "parameter `{}` was read outside of a training step, from a model cloned out of one: \
                 use `FusedOptimizer::model()` or `valid()` instead",
                self.home.path
            )
        });
        if pass.is_recorded {
            memory::end_beyond_limit();
        }
        let place = match Scope::current() {
            Some(scope) if Arc::ptr_eq(&scope.pass, &pass) => {
                if let Some(reads) = &scope.second_reads {
                    reads.add(self.home.id, &self.home.path);
                }
                scope.place
            }
            elsewhere => self.place_elsewhere(&pass, elsewhere),
        };
        match place {
            Place::Recorded(graph) => {
                if let Some(base) = &self.waiting_base {
                    refuse_outside_of_a_block(base);
                }
                if self.waits {
                    self.have_brought(Some(&graph));
                }
                self.tapped(&pass, &graph)
            }
            Place::Unrecorded(readers) => {
                if self.waits {
                    self.have_brought(None);
                }
                self.note_reader(&mut self.state.lock(), &readers);
                let gathered = self.among.as_ref().map(|it| self.count_gathered(it));
                drop(gathered);
                // A recurrent layer reads its parameters in every step of a long run.
                pass.blocks.collect_graph(&self.device);
                self.constant_of(self.plain(Keeps::ForRun))
            }
            Place::Hook(called_for) => panic!(
                "parameter `{}` was read in a hook (called for parameter `{called_for}`), where the \
                 autodiff graph of the model is locked: a hook is given the value of its own \
                 parameter; for others keep `FusedOptimizer::model()` of before the step, or read \
                 `valid()` of the model",
                self.home.path
            ),
        }
    }

    /// The block that reads it owes it a gradient, until its second run.
    fn note_reader(&self, state: &mut State, readers: &Readers) {
        readers.add(self.home.id, &self.home.path, &self.expecting(state).debt);
    }

    /// Returns the place of a read on a thread that has no scope of this pass, maybe one of another pass.
    fn place_elsewhere(&self, pass: &Arc<Pass>, other: Option<Scope>) -> Place {
        if let (Some(scope), Some(member)) = (&other, &self.among)
            && let Some(among) = &scope.pass.among
            && Arc::ptr_eq(&among.group, &member.group)
            && among.rank != member.rank
        {
            panic!(
                "parameter `{}` of rank {} was read on the thread of rank {}: every rank computes with its own model, \
                 and a hook with what it is given",
                self.home.path, member.rank, among.rank
            );
        }
        if pass.is_in_hook() {
            return Place::Hook("another".into());
        }
        if pass.blocks.is_running() {
            panic!(
                "parameter `{}` was read on another thread while a block under gradient \
                 checkpointing runs: enter the block's `StepContext` on that thread",
                self.home.path
            );
        }
        Place::Recorded(pass.graph.clone())
    }

    /// Returns the gradients that are still to come in this pass.
    ///
    /// # Panics
    ///
    /// If the gradient has come already.
    fn expecting<'a>(&self, state: &'a mut State) -> &'a mut Expecting {
        if let GradientState::Idle = state.stage {
            state.stage = GradientState::Accumulating(Box::default());
        }
        match &mut state.stage {
            GradientState::Accumulating(expecting) => expecting,
            _ => panic!(
                "parameter `{}` was read again after its gradient had arrived in this step: combine \
                 the losses and run one backward pass per step. To compute with the model after the \
                 backward pass (an accuracy, the norm of a weight) read `model.valid()`; to look at \
                 a gradient, which is released when it has been used, add a `GradientHook`",
                self.home.path
            ),
        }
    }

    /// Returns the value with its gradient tapped. Every tap hangs on a leaf of its own: a common leaf would join graphs that
    /// must stay apart, since a graph is locked while its backward steps run.
    fn tapped(self: &Arc<Self>, pass: &Arc<Pass>, graph: &Arc<Graph>) -> AnyTensor {
        let mut state = self.state.lock();
        let expecting = self.expecting(&mut state);
        if let Some((read_in, tapped)) = &expecting.tapped
            && Arc::ptr_eq(read_in, graph)
        {
            return tapped.clone();
        }
        if let Stage::Over = *pass.stage.lock() {
            panic!(
                "parameter `{}` was read after the step it belongs to",
                self.home.path
            );
        }
        if self.waits && Arc::ptr_eq(graph, &pass.graph) {
            self.stay();
        }
        let value = match self.given {
            Holding::Shared => self.home.value(),
            _ => self.here(&mut state, Keeps::Nothing),
        };
        let expecting = self.expecting(&mut state);
        let (read, owed) = graph.read(&expecting.debt);
        let (device, strategy) = (value.device(), self.home.strategy);
        let tick = self.session.clocks.lock().of(&device, strategy).tick(read);
        let arrival = Arrival {
            view: self.clone(),
            pass: pass.clone(),
            owed,
            _gathered: self.among.as_ref().and_then(|it| self.count_gathered(it)),
        };
        let leaf = lift(value.untyped(), strategy).require_grad();
        let tapped = AnyTensor::from(join(leaf, tick, Arc::new(arrival)));
        expecting.tapped = Some((graph.clone(), tapped.clone()));
        tapped
    }
}
