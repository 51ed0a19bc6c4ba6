"""Operations of transformers in PyTorch, to stand beside those of `cargo bench -p backburn-nn`: the same rows, with as many threads.

    python3 benches/pytorch/operations.py THREADS

The columns are the median time of a forward and a backward pass in milliseconds, and the bytes that the forward pass keeps in MB, with
the output.
"""

import sys
import time

import torch
from torch.nn import functional

ROUNDS = 11
TOKENS = 512


def random(*shape):
    return torch.randn(*shape, requires_grad=True)


def kept(operation, inputs):
    """The bytes of the output, and of the saved tensors that are neither inputs nor the output."""
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = operation()
    storage = output.untyped_storage()
    saved[storage.data_ptr()] = storage.nbytes()
    for tensor in inputs:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(saved.values())


def row(name, operation, *inputs):
    bytes_kept = kept(operation, inputs)
    weights = torch.full_like(operation(), 0.5)
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        torch.autograd.grad((operation() * weights).sum(), [it for it in inputs if it.requires_grad])
        times.append(time.perf_counter() - begun)
    print(f"{name:<32}{1e3 * sorted(times)[ROUNDS // 2]:>10.2f}{bytes_kept / 1e6:>10.1f}")


def attention(name, batch, heads, groups, length, causal):
    query, key, value = random(batch, heads, length, 64), random(batch, groups, length, 64), random(batch, groups, length, 64)
    options = {"is_causal": causal, "enable_gqa": groups < heads}
    row(name, lambda: functional.scaled_dot_product_attention(query, key, value, **options), query, key, value)


def main(threads):
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    x, gamma = random(1, TOKENS, 576), random(576)
    row("rms_norm, SmolLM", lambda: functional.rms_norm(x, (576,), gamma, 1e-5), x, gamma)
    images, scale, shift = random(8, 197, 384), random(384), random(384)
    row("layer_norm, ViT-S, 8 images", lambda: functional.layer_norm(images, (384,), scale, shift, 1e-6), images, scale, shift)
    table, tokens = random(49152, 576), torch.arange(TOKENS)[None]
    row("embedding, SmolLM", lambda: functional.embedding(tokens, table), table, tokens)
    weight = random(1536, 576)
    row("linear, SmolLM", lambda: functional.linear(x, weight), x, weight)
    tall, bias = random(1536, 384), random(1536)
    row("linear, ViT-S, 8 images", lambda: functional.linear(images, tall, bias), images, tall, bias)
    inner, outer = random(1536, 576), random(1536, 576)
    gated = lambda: functional.silu(functional.linear(x, inner)) * functional.linear(x, outer)
    row("swiglu with its products, SmolLM", gated, x, inner, outer)
    gate, up = random(1, TOKENS, 1536), random(1, TOKENS, 1536)
    row("geglu with tanh, 1536", lambda: functional.gelu(gate, approximate="tanh") * up, gate, up)
    attention("attention, SmolLM", 1, 9, 3, TOKENS, True)
    attention("attention, SmolLM, 2048 tokens", 1, 9, 3, 2048, True)
    attention("attention, ViT-S, 8 images", 8, 6, 6, 197, False)
    hidden, targets = random(TOKENS, 576), torch.arange(TOKENS)
    head = (torch.randn(49152, 576) * 0.02).requires_grad_()
    loss = lambda: functional.cross_entropy(functional.linear(hidden, head), targets)
    row("linear_cross_entropy, SmolLM", loss, hidden, head, targets)


if __name__ == "__main__":
    main(int(sys.argv[1]))
