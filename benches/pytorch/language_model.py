"""The language model of the example `text` in PyTorch, to stand beside Burn's in the benchmark `language_model`.

    python3 benches/pytorch/language_model.py numbers|turns WAY FOLDER

WAY is `plain`, or some of these words joined by `+`:

    fused       AdamW with fused=True: one kernel for many parameters
    hook        the optimizer step in the backward pass, one AdamW a parameter, as PyTorch's tutorial has it
                (docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html)
    checkpoint  torch.utils.checkpoint around each layer
    chunked     the same around the loss of each chunk of tokens

FOLDER has what the benchmark hands over: `config.json`, the `tokens`, and the `weights` that Burn starts from, in its order.

`numbers` prints the bytes of the parameters, the most bytes that tensors had at once, the most that the process had in memory
beyond what it had before the model, and the losses of the first and the last of some steps. `turns` makes a step for
each line that it reads, and says how long it took.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LEARNING_RATE = 1e-4
STEPS = 3
CHUNK = 256
BALANCE = 0.01


class Attention(nn.Module):
    """Grouped heads with rotary positions."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.key_value_heads = config["heads"], config["key_value_heads"]
        dim = config["dim"]
        few = dim // self.heads * self.key_value_heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, few, bias=False)
        self.value = nn.Linear(dim, few, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def forward(self, x, masked, rotations):
        query = turned(split(self.query(x), self.heads), rotations)
        key = turned(split(self.key(x), self.key_value_heads), rotations)
        value = split(self.value(x), self.key_value_heads)
        group = self.heads // self.key_value_heads
        key, value = (few.repeat_interleave(group, 1) for few in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, ~masked)
        return self.output(mixed.transpose(1, 2).flatten(2))


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def turned(heads, rotations):
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2)


class Expert(nn.Module):
    """SwiGLU."""

    def __init__(self, dim, expert_dim):
        super().__init__()
        self.inner = nn.Linear(dim, expert_dim, bias=False)
        self.outer = nn.Linear(dim, expert_dim, bias=False)
        self.output = nn.Linear(expert_dim, dim, bias=False)

    def forward(self, x):
        return self.output(functional.silu(self.inner(x)) * self.outer(x))


class Experts(nn.Module):
    """A mixture, of which a few work for a token."""

    def __init__(self, config):
        super().__init__()
        self.per_token = config["experts_per_token"]
        self.router = nn.Linear(config["dim"], config["experts"], bias=False)
        self.experts = nn.ModuleList(Expert(config["dim"], config["expert_dim"]) for _ in range(config["experts"]))

    def forward(self, x):
        probabilities = self.router(x).softmax(-1)
        weights, chosen = probabilities.topk(self.per_token)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            tokens, choices = torch.where(chosen == index)
            output = expert(x[tokens]) * weights[tokens, choices, None]
            mixed = mixed.index_add(0, tokens, output)
        shares = torch.bincount(chosen.flatten(), minlength=len(self.experts)) / chosen.numel()
        return mixed, (probabilities.mean(0) * shares).sum() * len(self.experts)


class Layer(nn.Module):
    """Attention, then experts, each behind a norm and beside the residual stream."""

    def __init__(self, config):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config["dim"], eps=1e-5)
        self.attention = Attention(config)
        self.experts_norm = nn.RMSNorm(config["dim"], eps=1e-5)
        self.experts = Experts(config)

    def forward(self, x, masked, rotations):
        x = x + self.attention(self.attention_norm(x), masked, rotations)
        mixed, balance = self.experts(self.experts_norm(x).flatten(0, 1))
        return x + mixed.view_as(x), balance


class LanguageModel(nn.Module):
    """A decoder. Its parameters are in the order of Burn's."""

    def __init__(self, config, way):
        super().__init__()
        self.way = way
        self.embedding = nn.Embedding(config["vocabulary"], config["dim"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["depth"]))
        self.norm = nn.RMSNorm(config["dim"], eps=1e-5)
        self.head = nn.Linear(config["dim"], config["vocabulary"], bias=False)
        of_head = config["dim"] // config["heads"]
        theta = 10000.0 ** -(torch.arange(0, of_head, 2) / of_head)
        angles = torch.outer(torch.arange(config["context"]), theta)
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles))
        back = torch.arange(config["context"])[:, None] - torch.arange(config["context"])
        self.register_buffer("masked", (back < 0) | (back >= config["window"]))

    def forward(self, text):
        """The loss to reduce, and the cross entropy in it."""
        x, balances = self.embedding(text[:, :-1]), []
        for layer in self.layers:
            x, balance = self.run("checkpoint", layer, x, self.masked, self.rotations)
            balances.append(balance)
        hidden, following = self.norm(x).flatten(0, 1), text[:, 1:].flatten()
        size = CHUNK if "chunked" in self.way else len(following)
        pieces = zip(hidden.split(size), following.split(size))
        cross_entropy = sum(self.run("chunked", self.losses, *piece) for piece in pieces) / len(following)
        return cross_entropy + BALANCE * sum(balances) / len(balances), cross_entropy.detach()

    def losses(self, hidden, following):
        return functional.cross_entropy(self.head(hidden), following, reduction="sum")

    def run(self, word, function, *inputs):
        return checkpoint(function, *inputs, use_reentrant=False) if word in self.way else function(*inputs)


def load(model, weights):
    """Takes weights over from Burn, whose linear layers have them transposed."""
    weights = torch.from_file(str(weights), size=sum(p.numel() for p in model.parameters()))
    linear = {m.weight for m in model.modules() if isinstance(m, nn.Linear)}
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights.split([p.numel() for p in model.parameters()])):
            target = parameter.t() if parameter in linear else parameter
            target.copy_(values.view(target.shape))


def training(model, text, way):
    """A step, and the tensors that stay from one to the next."""

    def adamw(parameters):
        hyperparameters = {"betas": (0.9, 0.999), "eps": 1e-5, "weight_decay": 1e-4} # Burn's
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused="fused" in way or None, **hyperparameters)

    parameters = list(model.parameters())
    optimizers = [adamw([p]) for p in parameters] if "hook" in way else [adamw(parameters)]

    def update(optimizer):
        optimizer.step()
        optimizer.zero_grad()

    if "hook" in way:
        for parameter, optimizer in zip(parameters, optimizers):
            parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: update(optimizer))

    def step():
        loss, cross_entropy = model(text)
        loss.backward()
        if "hook" not in way:
            update(optimizers[0])
        return cross_entropy.item()

    def kept():
        states = [tensor for o in optimizers for state in o.state.values() for tensor in state.values()]
        return [text, *parameters, *model.buffers(), *states]

    return step, kept


def allocated(step):
    """The most bytes that tensors took at once in a step, beyond those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def of_process(key):
    """Bytes of the process that are in memory, as Linux has them under `key`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def main(task, way, folder):
    way, folder = set(way.split("+")), Path(folder)
    before = of_process("VmRSS")
    config = json.loads((folder / "config.json").read_text())
    model = LanguageModel(config, way)
    load(model, folder / "weights")
    text = torch.from_file(str(folder / "tokens"), size=config["context"] + 1, dtype=torch.int32).long()[None]
    step, kept = training(model, text, way)
    if task == "turns":
        begun = time.perf_counter_ns()
        while True:
            print("step took ns:", time.perf_counter_ns() - begun, flush=True)
            if not sys.stdin.readline():
                return
            begun = time.perf_counter_ns()
            step()
    losses = [step() for _ in range(STEPS)]
    resident = of_process("VmHWM") - before
    peak = sum(tensor.nbytes for tensor in kept()) + allocated(step)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    print(parameters, peak, resident, losses[0], losses[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
