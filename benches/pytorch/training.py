"""Training steps in PyTorch, to stand beside those of the benchmark `gpu`.

    python3 benches/pytorch/training.py MODEL WAY [DEVICE]

MODEL is one of the benchmark's, WAY one of

    adam      torch.optim.Adam as it is
    loop      the same with foreach off: one parameter after the other
    fused     the same with fused=True: one kernel for many parameters
    hook      the optimizer step in the backward pass, one Adam a parameter, as PyTorch's tutorial has it
              (docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html)

All train in f32 without TF32, as the benchmark does. Prints one line: the bytes of the parameters, the most bytes
allocated and reserved, and the median milliseconds of a step.
"""

import statistics
import sys
import time

import torch
from torch import nn

WARM_UP, STEPS = 5, 15
LEARNING_RATE = 1e-4


class Mlp(nn.Module):
    """12 residual blocks of 512 and 2048."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(12)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

    @staticmethod
    def inputs(batch, device):
        return torch.rand(batch, 512, device=device)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim, heads, mlp_dim):
        super().__init__()
        self.norm_1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm_2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x):
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm_2(x))


class Vit(nn.Module):
    """A vision transformer for 224 x 224 images and 1000 classes, in patches of 16 x 16."""

    def __init__(self, dim, depth, heads, mlp_dim):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 16, 16)
        self.class_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 197, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, mlp_dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, 1000)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])

    @staticmethod
    def inputs(batch, device):
        return torch.rand(batch, 3, 224, 224, device=device)


MODELS = {
    "mlp": (Mlp, 16),
    "vit-s-16": (lambda: Vit(384, 12, 6, 1536), 8),
    "vit-l-16": (lambda: Vit(1024, 24, 16, 4096), 1),
}


def in_hooks(model):
    """Steps every parameter when its gradient is there."""
    optimizers = {p: torch.optim.Adam([p], lr=LEARNING_RATE) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return None


WAYS = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=LEARNING_RATE),
    "loop": lambda model: torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, foreach=False),
    "fused": lambda model: torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True),
    "hook": in_hooks,
}


def main(model, way, device="cuda"):
    init, batch = MODELS[model]
    on_gpu = device == "cuda"
    model = init().to(device)
    inputs = type(model).inputs(batch, device)
    optimizer = WAYS[way](model)
    seconds = []
    for step in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        model(inputs).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - begun)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    allocated = torch.cuda.max_memory_allocated() if on_gpu else 0
    reserved = torch.cuda.max_memory_reserved() if on_gpu else 0
    print(parameters, allocated, reserved, 1e3 * statistics.median(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
