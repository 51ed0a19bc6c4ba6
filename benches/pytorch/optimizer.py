"""Updates of AdamW in PyTorch, to stand beside those of the benchmark `optimizer`.

    python3 benches/pytorch/optimizer.py WAY ELEMENTS THREADS

WAY is `foreach` or `fused`, an option of `torch.optim.AdamW`. Follows the protocol of the benchmark: makes an update of one parameter in
f32 for each line that it reads, and prints the time.
"""

import sys
import time

import torch


def main(way, elements, threads):
    torch.set_num_threads(threads)
    parameter = torch.nn.Parameter(torch.rand(elements))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, **{way: True})

    def step():
        parameter.grad = torch.ones(elements)
        begun = time.perf_counter_ns()
        optimizer.step()
        return time.perf_counter_ns() - begun

    # The first step creates the states.
    took = step()
    while True:
        print("step took ns:", took, flush=True)
        if not sys.stdin.readline():
            return
        took = step()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
