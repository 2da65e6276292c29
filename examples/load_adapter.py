"""Load a trained adapter with its base model and answer a question.

    python examples/load_adapter.py me/pi-sdpo "The tests fail with ENOENT. What do you do?"

The adapter is a folder or a Hub id. Its base model is found in adapter_config.json; if that is only
a local folder, give it as a third argument. On a GPU the base is loaded in 4 bits, as for training.
"""

import sys
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig


def main(adapter: str, question: str, base: str | None = None) -> None:
    """Print the model's answer."""
    base = base or PeftConfig.from_pretrained(adapter).base_model_name_or_path
    settings: dict[str, Any] = {"dtype": "bfloat16", "device_map": "auto"} if torch.cuda.is_available() else {}
    if settings:
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"
        )
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, **settings), adapter)
    tokenizer = AutoTokenizer.from_pretrained(base)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt.to(model.device), max_new_tokens=64)
    print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) in {3, 4} else sys.exit(__doc__)
