"""Fine-tuning with transformers and peft, to stand beside the example `finetune` in its benchmark `pytorch`.

    python3 benches/pytorch/finetune.py WAY FOLDER STEPS

The optimizer is AdamW with fused=True, one kernel for many parameters. WAY is `plain`, or some of these words joined by `+`:

    backward    the optimizer step in the backward pass, one AdamW a parameter, as PyTorch's tutorial has it
                (docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html)
    checkpoint  transformers' gradient checkpointing: each layer is computed again in the backward pass
    chunked     the same around the loss of each chunk of tokens
    lora        adapters of rank 8 on all linear layers of the decoder, by peft
    bf16        weights, gradients and states in bf16

FOLDER has the model, as `save_pretrained` writes it, and the `tokens`. Prints one line of JSON: the bytes of the
parameters, the most bytes that tensors had at once in a step, the most bytes of the process in memory, those after the imports, and
seconds and losses of the steps.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

LEARNING_RATE = 1e-4
CHUNK = 256
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def of_process(key):
    """Bytes of the process that are in memory, as Linux has them under `key`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def loss_of(model, way, tokens):
    inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
    if "chunked" not in way:
        logits = model(input_ids=inputs, use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets)
    base = model.get_base_model() if "lora" in way else model

    def losses(hidden, targets):
        return functional.cross_entropy(base.lm_head(hidden).float(), targets, reduction="sum")

    hidden = base.model(input_ids=inputs, use_cache=False).last_hidden_state.flatten(0, 1)
    pieces = zip(hidden.split(CHUNK), targets.split(CHUNK))
    return sum(checkpoint(losses, *piece, use_reentrant=False) for piece in pieces) / len(targets)


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


def main(way, folder, steps):
    way, folder, steps = set(way.split("+")), Path(folder), int(steps)
    if "lora" in way:
        import peft
    imported = of_process("VmRSS")
    torch.manual_seed(1)
    dtype = torch.bfloat16 if "bf16" in way else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
    if "lora" in way:
        config = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=LINEAR, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config)
    if "checkpoint" in way:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if "lora" in way:
            model.enable_input_require_grads()
    tokens = torch.from_file(str(folder / "tokens"), size=(folder / "tokens").stat().st_size // 4, dtype=torch.int32).long()[None]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def adamw(parameters):
        return torch.optim.AdamW(
            parameters, lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True
        )

    def update(optimizer):
        optimizer.step()
        optimizer.zero_grad()

    optimizers = [adamw([p]) for p in trained] if "backward" in way else [adamw(trained)]
    if "backward" in way:
        for parameter, optimizer in zip(trained, optimizers):
            parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: update(optimizer))

    def step():
        loss = loss_of(model, way, tokens)
        loss.backward()
        if "backward" not in way:
            update(optimizers[0])
        return loss.item()

    seconds, losses = [], []
    for _ in range(steps):
        begun = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - begun)
    resident = of_process("VmHWM")
    states = [tensor for o in optimizers for state in o.state.values() for tensor in state.values()]
    kept = {tensor.data_ptr(): tensor.nbytes for tensor in [tokens, *model.parameters(), *model.buffers(), *states]}
    print(json.dumps({
        "parameters": sum(parameter.nbytes for parameter in model.parameters()),
        "allocated": sum(kept.values()) + allocated(step),
        "resident": resident,
        "imports": imported,
        "seconds": seconds,
        "losses": losses,
    }))


if __name__ == "__main__":
    main(*sys.argv[1:])
