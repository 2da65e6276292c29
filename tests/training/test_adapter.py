"""What the card says about loading the adapter is what runs, from the Hub."""

import json
import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from cards.lint import lint_file
from cards.render import write_model_card
from pimono_sdpo.training.models import WEIGHTS
from pimono_sdpo.training.output import save_adapter
from tests.card_data import TOKENIZER, report, run
from tests.loopback_hub.client import run_client
from tests.loopback_hub.server import LoopbackHub

pytestmark = pytest.mark.slow

PUBLISH = """
import json
from pathlib import Path
from pimono_sdpo.push import open_repo
from pimono_sdpo.training.output import publish_adapter
publish_adapter(open_repo("me/adapter", "model", public=False), Path("adapter"))
print(json.dumps(None))
"""
USE = """
import json, re
import torch
from huggingface_hub import hf_hub_download
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

torch.set_num_threads(1)
card = open(hf_hub_download("me/adapter", "README.md")).read()
blocks = re.findall(r"^```python\\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)
names = {}
blocks = [block.replace("max_new_tokens=160", "max_new_tokens=8") for block in blocks]
for block in blocks:
    exec(block, names)

def logits(model):
    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.arange(2, 10)[None]).logits[0, -1].float()

def apart(a, b):
    return (logits(a) - logits(b)).abs().max().item()

plain = AutoModelForCausalLM.from_pretrained("me/base", dtype="bfloat16")
auto = names["AutoPeftModelForCausalLM"].from_pretrained("me/adapter", dtype="bfloat16")
small = names["AutoPeftModelForCausalLM"].from_pretrained(
    "me/adapter", dtype="bfloat16", quantization_config=BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype="bfloat16"))
merged = AutoModelForCausalLM.from_pretrained("merged", dtype="bfloat16")
print()
print(json.dumps({
    "blocks": len(blocks),
    "sampled": names["output"].shape[1] - names["inputs"]["input_ids"].shape[1],
    "four_bit": names["model"].get_base_model().is_loaded_in_4bit,
    "adapter": apart(auto, plain),
    "small": apart(small, names["model"]),
    "merged": apart(merged, auto),
    "merged_has_lora": any("lora" in name for name, _ in merged.named_parameters()),
}))
"""


@pytest.fixture
def published(loopback_hub: LoopbackHub, tiny: Path, tmp_path: Path) -> LoopbackHub:
    """The tiny base and an adapter of it, both on the Hub."""
    files = {path.name: path.read_bytes() for path in tiny.iterdir() if path.is_file()}
    commit = loopback_hub.seed("me/base", "model", files)
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    folder = tmp_path / "adapter"
    sizes = save_adapter(get_peft_model(base, lora), folder, "me/base", commit)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    assert set(sizes) == set(WEIGHTS)
    log = run(base_model="me/base", base_model_revision=commit, hub_model_id="me/adapter")
    (folder / "run.json").write_text(json.dumps(log))
    assert write_model_card(report(), log, folder) == []
    assert lint_file(folder / "README.md") == []
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "teacher").mkdir()
    (folder / "teacher" / WEIGHTS[0]).write_bytes(b"weights")
    run_client(loopback_hub, tmp_path, PUBLISH)
    return loopback_hub


def test_the_snippets_of_the_card_load_and_merge(published: LoopbackHub, tmp_path: Path) -> None:
    files = published.files("me/adapter")
    assert {name for name in files if name != ".gitattributes"} == {
        *WEIGHTS,
        *("README.md", "run.json"),
        *TOKENIZER,
        "training.html",
    }
    assert all(str(tmp_path).encode() not in content for content in files.values())
    shown = re.findall(rb"!\[[^\]]*\]\(([^)]+)\)", files["README.md"])
    assert {name.decode() for name in shown} <= set(files)
    found = run_client(published, tmp_path, USE)
    assert found["blocks"] == 2
    assert 1 <= found["sampled"] <= 8
    assert found["four_bit"] is True
    assert found["adapter"] > 0.05, "the adapter changes the model"
    assert found["small"] == 0.0, "two ways to the same 4-bit model"
    assert found["merged"] < found["adapter"] / 4, "merged, it is still the adapter's model"
    assert found["merged_has_lora"] is False
