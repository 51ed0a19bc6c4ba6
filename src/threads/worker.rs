use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ThreadId};
use std::time::Duration;

use backburn_base::caught::catch;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rayon::ThreadPoolBuilder;

use super::lock;

type Job = Box<dyn FnOnce() + Send>;

/// The time without the end of a job after which a job may need the thread of a pool that waits for it.
const WITHOUT_POOL: Duration = Duration::from_secs(1);

/// A job in the queue of a worker.
struct QueuedJob {
    bytes: usize,
    /// `true` if a thread of a rayon pool submitted the job and may wait for it.
    from_pool: bool,
    job: Job,
}

/// A background thread that runs jobs (transfers, updates, or the part of a rank in a step) one after the other. On CubeCL
/// devices the thread has its own stream.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Sender<QueuedJob>,
    unfinished: Arc<Unfinished>,
    thread: ThreadId,
}

/// Unfinished jobs of a worker, with a condition variable for their completion.
#[derive(Debug, Default)]
struct Unfinished {
    load: Mutex<Load>,
    less: Condvar,
}

#[derive(Debug, Default)]
struct Load {
    jobs: usize,
    bytes: usize,
}

impl Worker {
    pub(crate) fn new(name: &str) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<QueuedJob>();
        let unfinished = Arc::<Unfinished>::default();
        let done = unfinished.clone();
        let handle = thread::Builder::new()
            .name(name.to_string())
            .spawn(move || {
                let next = queue.recv().ok();
                let mut queue = Queue {
                    jobs: queue,
                    next,
                    unfinished: done,
                };
                while let Some(next) = &queue.next {
                    queue = match next.from_pool {
                        true => queue.run_in_own_pool(),
                        false => queue.run(false),
                    };
                }
            })?;
        Ok(Self {
            jobs,
            unfinished,
            thread: handle.thread().id(),
        })
    }

    /// Submits a job that transfers `bytes`. Blocks until at most `limit` bytes are in flight, or no other job is.
    pub(crate) fn submit(&self, bytes: usize, limit: usize, job: impl FnOnce() + Send + 'static) {
        lock::check_none_held("a job is given to a thread");
        let is_full = |load: &Load| load.jobs > 0 && load.bytes + bytes > limit;
        let mut load = self.unfinished.load.lock();
        self.unfinished.wait_while(&mut load, is_full);
        let queued = self.jobs.send(QueuedJob {
            bytes,
            from_pool: rayon::current_thread_index().is_some(),
            job: Box::new(job),
        });
        queued.expect("the worker receives jobs until the sender is dropped");
        // The worker needs the lock to count the job as finished, so the counter can't underflow.
        load.jobs += 1;
        load.bytes += bytes;
    }

    /// Waits until all jobs have finished. Returns immediately if called by a job of this worker.
    pub(crate) fn wait_idle(&self) {
        if thread::current().id() == self.thread {
            return;
        }
        lock::check_none_held("a thread is waited for");
        let mut load = self.unfinished.load.lock();
        self.unfinished.wait_while(&mut load, |load| load.jobs > 0);
    }
}

impl Unfinished {
    /// Waits for the ends of jobs. A thread of a rayon pool runs other jobs of the pool after [`WITHOUT_POOL`], because a job may need
    /// it. Those may be trainings that wait again, so doing it at once would load all trainings of the pool into memory.
    fn wait_while(&self, load: &mut MutexGuard<'_, Load>, is_busy: impl Fn(&Load) -> bool) {
        let mut pause = WITHOUT_POOL;
        while is_busy(load) {
            if !lock::is_in_pool() {
                self.less.wait(load);
            } else if self.less.wait_for(load, pause).timed_out() {
                pause = Duration::from_millis(1);
                MutexGuard::unlocked(load, rayon::yield_now);
            }
        }
    }
}

/// The jobs of a worker, on its thread.
struct Queue {
    jobs: Receiver<QueuedJob>,
    /// The next job; `None` at the end.
    next: Option<QueuedJob>,
    unfinished: Arc<Unfinished>,
}

impl Queue {
    /// Runs the next jobs as long as their `from_pool` has this value.
    fn run(mut self, from_pool: bool) -> Self {
        while let Some(queued) = self.next.take_if(|next| next.from_pool == from_pool) {
            #[cfg(test)]
            crate::threads::schedule::point();
            let finished = Finished {
                unfinished: &self.unfinished,
                bytes: queued.bytes,
            };
            // Jobs report their own panics, and the worker must survive them.
            if catch(queued.job).is_err() {
                log::error!("a job on a background thread of backburn panicked");
            }
            drop(finished);
            self.next = self.jobs.recv().ok();
        }
        self
    }

    /// Runs jobs from pools on this thread as the only thread of a pool. All threads of the submitting pool may wait for these jobs, so
    /// their parallel operations must not need one.
    fn run_in_own_pool(self) -> Self {
        let mut own = None;
        let pool = ThreadPoolBuilder::new()
            .num_threads(1)
            .spawn_handler(|thread| {
                own = Some(thread);
                Ok(())
            })
            .build();
        let pool = match pool {
            Ok(pool) => pool,
            Err(error) => {
                log::warn!("a background thread of backburn uses rayon's global pool: {error}");
                return self.run(true);
            }
        };
        let (sender, receiver) = channel();
        pool.spawn(move || {
            let left = lock::alone(|| self.run(true));
            let _ = sender.send(left);
        });
        // So the pool ends with its job. (Rayon never frees a pool made with `use_current_thread`.)
        drop(pool);
        own.expect("a pool spawns its only thread").run();
        receiver.recv().expect("the jobs have run")
    }
}

/// A guard that counts a job as finished when dropped.
struct Finished<'a> {
    unfinished: &'a Unfinished,
    bytes: usize,
}

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        let mut load = self.unfinished.load.lock();
        load.jobs -= 1;
        load.bytes -= self.bytes;
        self.unfinished.less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn worker_bytes_in_flight_stay_within_limit() {
        let worker = Worker::new("test").unwrap();
        let finished = Arc::new(AtomicUsize::new(0));
        let mut given = 0;
        for bytes in [4, 4, 4, 20, 4, 1] {
            let done = finished.clone();
            worker.submit(bytes, 10, move || {
                thread::sleep(Duration::from_millis(5));
                done.fetch_add(bytes, Ordering::SeqCst);
            });
            given += bytes;
            // A job larger than the limit runs alone.
            let in_flight = given - finished.load(Ordering::SeqCst);
            assert!(in_flight <= bytes.max(10), "{in_flight} of 10");
        }
        worker.wait_idle();
        assert_eq!(finished.load(Ordering::SeqCst), given);
    }

    #[test]
    fn worker_job_from_blocked_pool_runs_on_worker_thread() {
        let worker = Worker::new("test").unwrap();
        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let (sender, receiver) = channel();
        pool.install(|| {
            worker.submit(0, 10, move || {
                let threads = rayon::join(|| thread::current().id(), || thread::current().id());
                let _ = sender.send((threads, rayon::current_num_threads()));
            });
            worker.wait_idle();
        });
        let here = worker.thread;
        assert_eq!(receiver.recv().unwrap(), ((here, here), 1));
    }

    #[test]
    fn worker_leaves_its_pool_for_job_of_another_thread() {
        let worker = Worker::new("test").unwrap();
        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let (sender, receiver) = channel();
        let submit = || {
            let sender = sender.clone();
            worker.submit(0, 10, move || {
                let in_some_pool = rayon::current_thread_index().is_some();
                let _ = sender.send((in_some_pool, lock::is_in_pool()));
            });
        };
        submit();
        pool.install(submit);
        submit();
        worker.wait_idle();
        let found: Vec<_> = receiver.try_iter().collect();
        assert_eq!(found, [(false, false), (true, false), (false, false)]);
    }

    #[test]
    fn worker_job_that_needs_waiting_thread_of_pool_ends() {
        let worker = Worker::new("test").unwrap();
        let pool = Arc::new(ThreadPoolBuilder::new().num_threads(1).build().unwrap());
        let (go, gone) = channel();
        let of_job = pool.clone();
        worker.submit(0, 10, move || {
            gone.recv().unwrap();
            of_job.install(|| ());
        });
        pool.install(|| {
            go.send(()).unwrap();
            worker.wait_idle();
        });
    }

    #[test]
    fn worker_wait_on_pool_runs_no_other_job_of_pool() {
        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let running = AtomicUsize::new(0);
        let train = || {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
            let worker = Worker::new("test").unwrap();
            worker.submit(0, 10, || thread::sleep(Duration::from_millis(20)));
            worker.wait_idle();
            running.fetch_sub(1, Ordering::SeqCst);
        };
        pool.scope(|scope| (0..3).for_each(|_| scope.spawn(|_| train())));
    }

    #[test]
    fn worker_panicking_job_does_not_block_next_job() {
        let worker = Worker::new("test").unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let counted = done.clone();
        worker.submit(0, 10, || {
            thread::sleep(Duration::from_millis(5));
            panic!("in a job");
        });
        worker.submit(0, 10, move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        worker.wait_idle();
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }
}
