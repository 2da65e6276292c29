"""`python -m pimono_sdpo`: the same front door."""

from pimono_sdpo.cli import main

if __name__ == "__main__":
    main()
