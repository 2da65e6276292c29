"""Find the YAML of a recipe by path or by name."""

from importlib.resources import files
from pathlib import Path

from pimono_sdpo.errors import TrainingInputError


def find_recipe(name: str, beside: Path) -> Path:
    """Return the file: the path as given, else next to the script, else the packaged one.

    A name may leave out `.yaml`. Raises TrainingInputError with the names there are.
    """
    if Path(name).is_file():
        return Path(name)
    file_name = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    packaged = Path(str(files("pimono_sdpo"))) / "recipes"
    for folder in (beside, packaged):
        if (folder / file_name).is_file():
            return folder / file_name
    known = sorted({path.stem for folder in (beside, packaged) for path in folder.glob("*.yaml")})
    raise TrainingInputError(
        f"There is no recipe `{name}`; give the path of a YAML file or one of {', '.join(known)}."
    )
