"""Run the command line as `python -m pimono_sdpo`."""

from pimono_sdpo.cli import main

if __name__ == "__main__":
    main()
