"""How to use the adapter elsewhere: the snippets of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evolora.engine.loading import BUNDLED
from evolora.report.run_data import RunData

_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM's --max-lora-rank accepts on every version


def recipes(data: RunData) -> list[tuple[str, str]]:
    """A title and the code for PEFT and for vLLM (not of DoRA); empty before the run has left an adapter."""
    if data.adapter is None and not (data.result or {}).get("adapter"):
        return []
    path = str(data.find("adapter") or data.contents.adapter_path)
    base = str(
        (data.adapter or {}).get("base_model_name_or_path") or data.find("model", "base_name") or "BASE"
    )
    stop, adapter = data.config.get("stop"), data.adapter or {}
    found = [("With transformers and PEFT", _peft(base, path, stop, data.find("model")))]
    if not adapter.get("use_dora"):  # vLLM refuses DoRA
        found.append(("With vLLM", _vllm(base, path, stop, adapter)))
    return found


def _peft(base: str, path: str, stop: str | None, model: Any) -> str:
    if model in BUNDLED:  # the Hub's weights are not to the digit those that the adapter was made on
        load = f"""\
from evolora import load_base
from peft import PeftModel

loaded = load_base({model!r})  # the weights that the adapter was made on
tokenizer, base = loaded.tokenizer, loaded.model"""
    else:
        load = f"""\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

name = {base!r}
tokenizer = AutoTokenizer.from_pretrained(name)
base = AutoModelForCausalLM.from_pretrained(name)"""
    ends = "" if stop is None else f", stop_strings=[{stop!r}], tokenizer=tokenizer"
    return f"""\
{load}
model = PeftModel.from_pretrained(base, {path!r})

inputs = tokenizer("your prompt", return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=32, do_sample=False{ends})
print(tokenizer.decode(output[0], skip_special_tokens=True))"""


def _vllm(base: str, path: str, stop: str | None, adapter: Mapping[str, Any]) -> str:
    pattern = adapter.get("rank_pattern")
    ranks = [adapter.get("r"), *(pattern.values() if isinstance(pattern, Mapping) else ())]
    rank = max((rank for rank in ranks if isinstance(rank, int)), default=_VLLM_RANKS[0])
    ends = "" if stop is None else f", stop=[{stop!r}]"
    allowed = next((size for size in _VLLM_RANKS if size >= rank), rank)
    return f"""\
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

llm = LLM({base!r}, enable_lora=True, max_lora_rank={allowed})
adapter = LoRARequest("adapted", 1, {path!r})
greedy = SamplingParams(temperature=0, max_tokens=32{ends})
print(llm.generate(["your prompt"], greedy, lora_request=adapter)[0].outputs[0].text)"""
