from pimono_sdpo.errors import PimonoError as PimonoError
from pimono_sdpo.stage import Filter as Filter
from pimono_sdpo.stage import FlatMap as FlatMap
from pimono_sdpo.stage import Map as Map
from pimono_sdpo.stage import Stage as Stage
from pimono_sdpo.stage import run_stages as run_stages
from pimono_sdpo.traces.sources import load_sessions as load_sessions
from pimono_sdpo.training import train as train
from pimono_sdpo.version import __version__ as __version__
from processors import pipeline as pipeline
from processors import run_pipeline as run_pipeline

__all__: list[str]
