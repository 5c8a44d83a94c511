"""Runs one peer engine over given prompts; a script for the peer's own interpreter.

Reads one JSON order on standard input, loads the model, runs one prompt that is not measured, and
says so. Then for every batch size that it reads it runs one round and writes its tokens a second.
An answer is a line of standard output that begins with "figures". Imports nothing of pagetrail: the
peer's environment does not have it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# (batch size) -> tokens a second by case.
Round = Callable[[str], dict[str, float]]


def main() -> None:
    order = json.loads(sys.stdin.readline())
    ready = {
        "transformers": transformers_ready,
        "vllm": vllm_ready,
        "llama.cpp": llamacpp_ready,
    }[order["peer"]]
    one_round = ready(order)
    _answer({})
    for batch in sys.stdin:
        _answer(one_round(batch.strip()))


def _answer(figures: dict[str, float]) -> None:
    print("figures", json.dumps(figures), flush=True)


def transformers_ready(order: dict[str, Any]) -> Round:
    """Contiguous cache, SDPA; all prompts of a batch have one length, so nothing is padded."""
    import torch
    import transformers

    torch.set_num_threads(order["threads"])
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[order["dtype"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(order["model"], dtype=dtype)
    model.train(False)

    @torch.inference_mode()
    def one_round(batch: str) -> dict[str, float]:
        tokens = torch.tensor(order["batches"][batch])
        start = time.perf_counter()
        out = model(tokens, use_cache=True, logits_to_keep=1)
        prefilled = time.perf_counter()
        for _ in range(order["new"]):
            last = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(last, past_key_values=out.past_key_values, use_cache=True)
        end = time.perf_counter()
        return {
            f"prefill at batch {batch}": tokens.numel() / (prefilled - start),
            f"decode at batch {batch}": len(tokens) * order["new"] / (end - prefilled),
        }

    with torch.inference_mode():
        model(torch.tensor(order["batches"]["1"]), use_cache=True, logits_to_keep=1)
    return one_round


def vllm_ready(order: dict[str, Any]) -> Round:
    """Decode is the time beyond that of the same prompts with one new token."""
    from vllm import LLM, SamplingParams

    dtype = {"fp32": "float32", "bf16": "bfloat16"}[order["dtype"]]
    longest = max(len(prompt) for prompts in order["batches"].values() for prompt in prompts)
    engine = LLM(
        model=order["model"],
        dtype=dtype,
        enable_prefix_caching=False,
        max_model_len=longest + order["new"] + 16,
        gpu_memory_utilization=0.3,  # on a CPU: of the machine's memory
        enforce_eager=order["new"] < 64,  # compiling takes longer than a short run
    )

    def generate(batch: str, new: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in order["batches"][batch]]
        engine.generate(inputs, params, use_tqdm=False)

    generate("1", 4)
    return lambda batch: _with_and_without_decode(order, batch, generate)


def llamacpp_ready(order: dict[str, Any]) -> Round:
    """The same weights, dequantised; a slot a prompt; flash attention off, as it changes tokens."""
    import xllamacpp

    slots = max(len(prompts) for prompts in order["batches"].values())
    longest = max(len(prompt) for prompts in order["batches"].values() for prompt in prompts)
    parameters = xllamacpp.CommonParams()
    parameters.n_parallel = slots
    parameters.n_ctx = slots * (longest + order["new"] + 16)
    parameters.n_gpu_layers = 0
    parameters.cache_prompt = False
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.cpuparams.n_threads = order["threads"]
    parameters.cpuparams_batch.n_threads = order["threads"]

    def generate(batch: str, new: int) -> None:
        prompts = order["batches"][batch]
        with ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(lambda prompt: _complete(server, prompt, new), prompts))

    with tempfile.TemporaryDirectory() as scratch:  # mapped: it need not outlive the loading
        file = Path(scratch) / "model.gguf"
        _dequantised(Path(order["gguf"]), file, order["dtype"])
        parameters.model.path = str(file)
        server = xllamacpp.Server(parameters)
        generate("1", 4)
    return lambda batch: _with_and_without_decode(order, batch, generate)


def _with_and_without_decode(
    order: dict[str, Any], batch: str, generate: Callable[[str, int], None]
) -> dict[str, float]:
    """One round of an engine that cannot be stopped between its first token and the others."""
    prompts, new = order["batches"][batch], order["new"]
    seconds = []
    for tokens in (1, 1 + new):
        start = time.perf_counter()
        generate(batch, tokens)
        seconds.append(time.perf_counter() - start)
    return {
        f"prefill at batch {batch}": sum(map(len, prompts)) / seconds[0],
        f"decode at batch {batch}": len(prompts) * new / (seconds[1] - seconds[0]),
    }


def _complete(server: Any, prompt: list[int], new: int) -> None:
    answer = server.handle_completions(
        {
            "prompt": prompt,
            "n_predict": new,
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
    )
    if "error" in answer:
        raise RuntimeError(answer["error"])


def _dequantised(source: Path, target: Path, dtype: str) -> None:
    """A GGUF with the same fields whose matrices are of one plain type."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(
            name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None
        )
    half = {"fp32": None, "bf16": gguf.GGMLQuantizationType.BF16}[dtype]
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type)
        if half is None or data.ndim < 2:
            writer.add_tensor(tensor.name, data.astype("float32"))
        else:
            writer.add_tensor(tensor.name, gguf.quantize(data, half), raw_dtype=half)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
