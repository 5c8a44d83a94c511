"""Runs one peer engine over given prompts; a script for the peer's own interpreter.

Reads one JSON order on standard input, writes one JSON object of tokens a second on the last line
of standard output. Every engine runs one prompt before it is measured. Imports nothing of
pagetrail: the peer's environment does not have it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def main() -> None:
    order = json.load(sys.stdin)
    run = {
        "transformers": transformers_figures,
        "vllm": vllm_figures,
        "llama.cpp": llamacpp_figures,
    }[order["peer"]]
    print(json.dumps(run(order)))


def transformers_figures(order: dict[str, Any]) -> dict[str, float]:
    """Contiguous cache, SDPA; all prompts of a batch have one length, so nothing is padded."""
    import torch
    import transformers

    torch.set_num_threads(order["threads"])
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[order["dtype"]]
    model = transformers.AutoModelForCausalLM.from_pretrained(order["model"], dtype=dtype)
    model.train(False)
    found = {}
    for batch, prompts in order["batches"].items():
        tokens = torch.tensor(prompts)
        with torch.inference_mode():
            model(tokens[:1], use_cache=True, logits_to_keep=1)  # unmeasured, as for every engine
            start = time.perf_counter()
            out = model(tokens, use_cache=True, logits_to_keep=1)
            found[f"prefill at batch {batch}"] = tokens.numel() / (time.perf_counter() - start)
            start = time.perf_counter()
            for _ in range(order["new"]):
                last = out.logits[:, -1].argmax(-1, keepdim=True)
                out = model(last, past_key_values=out.past_key_values, use_cache=True)
            spent = time.perf_counter() - start
            found[f"decode at batch {batch}"] = len(prompts) * order["new"] / spent
    return found


def vllm_figures(order: dict[str, Any]) -> dict[str, float]:
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
    found = {}
    for batch, prompts in order["batches"].items():
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        warm = SamplingParams(temperature=0, max_tokens=4, min_tokens=4, ignore_eos=True)
        engine.generate(inputs[:1], warm, use_tqdm=False)
        seconds = []
        for new in (1, 1 + order["new"]):
            params = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True)
            start = time.perf_counter()
            engine.generate(inputs, params, use_tqdm=False)
            seconds.append(time.perf_counter() - start)
        tokens = sum(map(len, prompts))
        found[f"prefill at batch {batch}"] = tokens / seconds[0]
        found[f"decode at batch {batch}"] = len(prompts) * order["new"] / (seconds[1] - seconds[0])
    return found


def llamacpp_figures(order: dict[str, Any]) -> dict[str, float]:
    """The same weights, dequantised; a slot a prompt; flash attention off, as it changes tokens."""
    import xllamacpp

    slots = max(len(prompts) for prompts in order["batches"].values())
    longest = max(len(prompt) for prompts in order["batches"].values() for prompt in prompts)
    parameters = xllamacpp.CommonParams()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "model.gguf"
        _dequantised(Path(order["gguf"]), file, order["dtype"])
        parameters.model.path = str(file)
        parameters.n_parallel = slots
        parameters.n_ctx = slots * (longest + order["new"] + 16)
        parameters.n_gpu_layers = 0
        parameters.cache_prompt = False
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.cpuparams.n_threads = order["threads"]
        parameters.cpuparams_batch.n_threads = order["threads"]
        server = xllamacpp.Server(parameters)
        found = {}
        for batch, prompts in order["batches"].items():
            _complete(server, prompts[0], 4)
            seconds = []
            for new in (1, 1 + order["new"]):
                start = time.perf_counter()
                with ThreadPoolExecutor(len(prompts)) as pool:
                    list(pool.map(lambda prompt, new=new: _complete(server, prompt, new), prompts))
                seconds.append(time.perf_counter() - start)
            tokens = sum(map(len, prompts))
            found[f"prefill at batch {batch}"] = tokens / seconds[0]
            made = len(prompts) * order["new"]
            found[f"decode at batch {batch}"] = made / (seconds[1] - seconds[0])
    return found


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
