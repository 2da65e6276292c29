pytest_plugins = ["tests.loopback_hub.fixture"]
