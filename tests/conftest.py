import logging
import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.loopback_hub.fixture", "tests.chat_server.fixture", "tests.browser"]

# A loaded machine is no reason to fail: a test asserts no time.
settings.register_profile("no time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no time")
# Threads of torch that wait for each other on a busy machine cost far more than they save here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# On import it warns that `kernels`, with a faster kernel for some CPUs, is not installed.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
